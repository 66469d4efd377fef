"""Starting anew after the driver was replaced: decided purely, done with exec."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpufleet.commands.reexec import FAILED, GUARD, Installed, should_start_anew, start_anew

OLD = Installed("/lib/libnvidia-ml.so.535:1:1", "535.183.01")
NEW = Installed("/lib/libnvidia-ml.so.550:2:2", "550.54.15")
NEW_LIBRARY = Installed(NEW.library, OLD.kernel)
NEW_KERNEL = Installed(OLD.library, NEW.kernel)


@pytest.mark.parametrize("now", [NEW, NEW_LIBRARY, NEW_KERNEL])
def test_either_half_that_changed_is_a_reason(now: Installed) -> None:
    """The module may be reloaded before or after the package is replaced."""
    assert should_start_anew(OLD, now, now, None)


def test_what_was_loaded_and_never_fitted_is_no_reason() -> None:
    """A wrong pair at start waits for somebody to mend it; starting again would find the same."""
    assert not should_start_anew(OLD, OLD, OLD, None)


@pytest.mark.parametrize("now", [Installed(None, NEW.kernel), Installed(NEW.library, None), Installed(None, None)])
def test_half_a_driver_is_waited_for(now: Installed) -> None:
    """Between unload and load, and between removal and installation, there is nothing to start with."""
    assert not should_start_anew(OLD, now, now, None)


def test_a_driver_that_is_still_changing_is_waited_for() -> None:
    """A package replaces its files one after the other."""
    assert not should_start_anew(OLD, OLD, NEW, None)
    assert should_start_anew(OLD, NEW, NEW, None)


def test_a_process_that_was_started_for_it_does_not_start_again() -> None:
    """Whatever made the first attempt useless, a second would be a loop."""
    assert not should_start_anew(Installed(None, NEW.kernel), NEW, NEW, str(NEW))
    assert should_start_anew(NEW, OLD, OLD, str(NEW))


SCRIPT = f"""
import os, signal, sys
from gpufleet.commands.reexec import Installed, start_anew
if os.environ.get({GUARD!r}):
    print(os.getpid(), os.environ[{GUARD!r}], sys.argv[1:], sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    sys.exit(7)
print(os.getpid(), flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
start_anew(Installed("library", "550"), sys.orig_argv[1:], os.environ)
"""


def test_the_new_image_has_the_same_pid_and_arguments_and_can_be_stopped() -> None:
    """A supervisor sees one process throughout; the signal mask of the old image would be inherited."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, "a b"], capture_output=True, text=True, check=False)
    pid, said = done.stdout.splitlines()
    assert done.returncode == 7
    assert said == f"{pid} library 550 ['a b'] []"


def test_a_process_that_cannot_be_replaced_ends_with_70(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is gone (an upgrade of Python itself): a supervisor has to start another process."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert start_anew(NEW, ["-c", "pass"], {}) == FAILED == 70
