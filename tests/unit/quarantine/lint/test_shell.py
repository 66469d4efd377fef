"""Which exit status a script ends with: the launcher's, another one, or one that nobody can see."""

from __future__ import annotations

import pytest

from gpufleet.quarantine.lint.launcher import Start, command
from gpufleet.quarantine.lint.shell import Status, launcher_status, logical_lines

SCRIPTS = [
    ("srun gpufleet run -- python train.py", Status.PASSED),
    ("exec srun gpufleet run -- python train.py", Status.PASSED),
    ("module load cuda\nsrun \\\n  gpufleet run -- \\\n  python train.py\n# the end", Status.PASSED),
    ("set -e\nsrun gpufleet run -- python train.py\ncp -r out /data", Status.PASSED),
    ("set -euo pipefail\ngpufleet run -- python train.py | tee log\necho done", Status.PASSED),
    ("set -o errexit\ngpufleet run -- a\necho done", Status.PASSED),
    ("gpufleet run -- a\nexit $?", Status.PASSED),
    ("gpufleet run -- a\nstatus=$?\ncp log /data\nexit $status", Status.PASSED),
    ('gpufleet run -- a\nrc=$?\necho "$rc"\nexit "${rc}"', Status.PASSED),
    ("/opt/bin/gpufleet run -- a", Status.PASSED),
    ("cat <<EOF\ngpufleet run -- b\nEOF\ngpufleet run -- a", Status.PASSED),
    ("echo 'a text\nover lines; # no comment'\ngpufleet run -- a", Status.PASSED),
    ("gpufleet run -- a\necho done", Status.SWALLOWED),
    ("gpufleet run -- a || true", Status.SWALLOWED),
    ("set -e\ngpufleet run -- a || true", Status.SWALLOWED),
    ("gpufleet run -- a; echo done", Status.SWALLOWED),
    ("gpufleet run -- a | tee log", Status.SWALLOWED),
    ("gpufleet run -- a &\nwait", Status.SWALLOWED),
    ("if gpufleet run -- a; then echo well; fi", Status.SWALLOWED),
    ("! gpufleet run -- a", Status.SWALLOWED),
    ("for seed in 1 2; do\n  gpufleet run -- a\ndone", Status.UNSEEN),
    ("for seed in 1 2; do gpufleet run -- a; done", Status.UNSEEN),
    ("set -e\nfor seed in 1 2; do\n  gpufleet run -- a\ndone", Status.PASSED),
    ("gpufleet run -- a\nrc=$?\nclean_up $rc", Status.UNSEEN),
    ("python train.py", Status.ABSENT),
    ("# gpufleet run -- a\npython train.py", Status.ABSENT),
    ("echo 'use gpufleet run -- a'\npython train.py", Status.ABSENT),
    ("gpufleet runs", Status.ABSENT),
    ("", Status.ABSENT),
]


@pytest.mark.parametrize(("script", "expected"), SCRIPTS, ids=[script for script, _ in SCRIPTS])
def test_what_becomes_of_the_status(script: str, expected: Status) -> None:
    """Each way that scripts are written; what is not understood is never called passed."""
    assert launcher_status(script) is expected


def test_an_interpreter_that_ends_at_errors() -> None:
    """``sh -e`` is as good as ``set -e``."""
    assert launcher_status("gpufleet run -- a\necho done", exits_on_error=True) is Status.PASSED


def test_an_open_quotation_ends_with_the_script() -> None:
    """What a shell would refuse hangs nothing."""
    assert list(logical_lines('echo "open\ngpufleet run -- a')) == ['echo "open\ngpufleet run -- a']
    assert list(logical_lines("a \\")) == ["a"]


COMMANDS = [
    (["gpufleet", "run", "--", "python"], Start.LAUNCHED, 250),
    (["/usr/bin/gpufleet", "run", "--exit-code=137", "--", "python"], Start.LAUNCHED, 137),
    (["gpufleet", "run", "--exit-code", "42", "--", "python"], Start.LAUNCHED, 42),
    (["gpufleet", "run", "--", "python", "--exit-code=1"], Start.LAUNCHED, 250),
    (["python3", "-m", "gpufleet", "run", "--", "python"], Start.LAUNCHED, 250),
    (["tini", "--", "gpufleet", "run", "--", "python"], Start.LAUNCHED, 250),
    (["env", "A=1", "gpufleet", "run", "--", "python"], Start.LAUNCHED, 250),
    (["sh", "-c", "exec gpufleet run --exit-code=137 -- python"], Start.LAUNCHED, 137),
    (["bash", "-ec", "gpufleet run -- python; echo done"], Start.LAUNCHED, 250),
    (["bash", "-c", "gpufleet run -- python; echo done"], Start.SWALLOWED, 250),
    (["torchrun", "gpufleet", "run", "--", "python"], Start.BARE, 250),
    (["python", "train.py"], Start.BARE, 250),
    (["sh", "-c", "python train.py"], Start.BARE, 250),
    (["sh", "-c", "./start.sh --seed 1"], Start.UNSEEN, 250),
    (["bash", "/app/start"], Start.UNSEEN, 250),
    (["/app/start.sh"], Start.UNSEEN, 250),
    ([], Start.UNSEEN, 250),
]


@pytest.mark.parametrize(("words", "start", "code"), COMMANDS)
def test_how_a_command_starts_its_program(words: list[str], start: Start, code: int) -> None:
    """And with which code the launcher tells of a fault."""
    found = command(words)

    assert (found.start, found.code) == (start, code)


def test_arguments_of_an_unknown_entry_point() -> None:
    """What the image does with them is not to be seen."""
    assert command(["python", "train.py"], whole=False).start is Start.UNSEEN
    assert command(["gpufleet", "run", "--", "a"], whole=False).start is Start.LAUNCHED
