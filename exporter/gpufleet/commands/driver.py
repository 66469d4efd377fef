"""The driver's library as this process loads it: searched for, loaded once, and compared with what is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.commands.reexec import Installed
from gpufleet.sources import node
from gpufleet.sources.nvml.session import SessionError, open_library

if TYPE_CHECKING:
    from gpufleet.sources.nvml.calls import Driver

_OWN_PROCFS = Path("/proc")
_CONTROL_DEVICE = Path("/dev/nvidiactl")


class DriverLibrary:
    """Loads NVML when it is first there, and tells when its file or the kernel module is another one."""

    def __init__(self, name: str, procfs: Path, root: Path = Path("/")) -> None:
        """``name`` as for dlopen; ``procfs`` is the host's."""
        self._name = name
        self._procfs = procfs
        self._candidates = node.library_candidates(name, root)
        self._driver: Driver | None = None
        self._opened = name
        self.path: str | None = None
        """The file that is mapped; None before it is loaded."""
        self.loaded = Installed(None, None)
        """What was on the machine when it was loaded."""

    def open(self) -> Driver:
        """The library, loaded at the first call that finds it. Raises SessionError."""
        if self._driver is None:
            self._driver = self._load()
            self.path = node.read_mapped_library(_OWN_PROCFS, self._opened)
            self.loaded = self.installed()
        return self._driver

    def _load(self) -> Driver:
        refusal: SessionError | None = None
        for candidate in self._candidates:
            try:
                driver = open_library(candidate)
            except SessionError as error:
                # The first one's words: it is what was asked for, the others are guesses.
                refusal = refusal or error
            else:
                self._opened = candidate
                return driver
        raise refusal or AssertionError("a name has at least one candidate")

    def installed(self) -> Installed:
        """What is on the machine now."""
        kernel = node.read_kernel_driver(self._procfs)
        return Installed(
            node.read_library_fingerprint(self._opened, self.path), None if kernel is None else kernel.version
        )


def can_open_control_device(path: Path = _CONTROL_DEVICE) -> bool:
    """Whether this process may open the driver's control device; true where there is none.

    access(2) does not tell: a container's device cgroup refuses in open(2) only.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        return True
    return True
