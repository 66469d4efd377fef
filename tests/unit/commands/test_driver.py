"""The library as the process loads it: searched for, loaded once, compared with what is installed."""

from __future__ import annotations

import ctypes.util
import threading
from pathlib import Path

import pytest

from gpufleet.commands.driver import DriverLibrary, can_open_control_device
from gpufleet.commands.reexec import Installed
from gpufleet.model.state import NvmlState
from gpufleet.sources.nvml.session import SessionError


def test_a_library_that_is_nowhere_is_refused_with_the_name_that_was_asked_for(tmp_path: Path) -> None:
    """The places that were guessed would only confuse."""
    library = DriverLibrary("libnothing-of-the-kind.so.1", tmp_path, tmp_path)
    with pytest.raises(SessionError, match=r"^libnothing-of-the-kind\.so\.1 can't be loaded") as caught:
        library.open()
    assert caught.value.state is NvmlState.NO_LIBRARY
    assert library.path is None


def test_a_library_that_comes_later_is_found_where_the_driver_container_puts_it(tmp_path: Path) -> None:
    """The GPU operator installs the driver after the exporter was started; any library stands for it here."""
    libm = Path(ctypes.util.find_library("m") or "libm.so.6")
    with Path("/proc/self/maps").open() as maps:
        ctypes.CDLL(str(libm))
        real = next(Path(line.split()[-1]) for line in maps if "/libm.so" in line or "/libm-" in line)
    library = DriverLibrary("libgpufleet-test.so.1", tmp_path / "proc", tmp_path)
    with pytest.raises(SessionError):
        library.open()
    place = tmp_path / "run/nvidia/driver/usr/lib64"
    place.mkdir(parents=True)
    copy = place / "libgpufleet-test.so.1"
    copy.write_bytes(real.read_bytes())
    driver = library.open()
    assert library.path == str(copy)
    assert library.loaded.library is not None
    assert library.loaded.library.startswith(f"{copy}:")
    assert library.open() is driver


def test_what_was_loaded_is_remembered_and_what_is_installed_is_looked_up(tmp_path: Path) -> None:
    """The difference is what starting anew is decided on."""
    version = tmp_path / "driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    libm = ctypes.util.find_library("m") or "libm.so.6"
    library = DriverLibrary(libm, tmp_path)
    assert library.loaded == Installed(None, None)
    library.open()
    assert library.loaded == library.installed()
    assert library.loaded.kernel == "535.183.01"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n")
    assert library.installed() == Installed(library.loaded.library, "550.54.15")
    version.unlink()
    assert library.installed().kernel is None


def test_a_device_that_is_not_there_is_not_one_that_may_not_be_opened(tmp_path: Path) -> None:
    """No driver and no permission are different states."""
    assert can_open_control_device(tmp_path / "nvidiactl")
    assert can_open_control_device(Path("/dev/null"))


def test_a_device_that_is_refused_is_told_from_others(tmp_path: Path) -> None:
    """As a container sees it after its devices were taken away; root's own rights are put off for the test's thread."""
    device = tmp_path / "nvidiactl"
    device.write_text("")
    device.chmod(0)
    answers = []

    def ask() -> None:
        ctypes.CDLL(None).setfsuid(65_534)  # of this thread alone
        answers.append(can_open_control_device(device))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]
