"""Starting anew in place, after the driver was replaced under a running process.

A process that has loaded NVML keeps that library for its life (nothing may unload it: a thread could be inside). When
the kernel module is of another version, nvmlInit fails for ever, and only a new program image can load the new library.
The process replaces itself, so that it needs no supervisor, keeps its pid, and is away for less than a second.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

GUARD = "GPUFLEET_STARTED_ANEW_FOR"
"""Environment variable that tells the new image what it was started for."""
FAILED = 70
"""Exit status (EX_SOFTWARE of sysexits.h) when the process could not be replaced; a supervisor may start another."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The two halves of the driver as they are on the machine."""

    library: str | None
    """Fingerprint of the library's file."""
    kernel: str | None
    """Version of the loaded kernel module."""

    def __str__(self) -> str:
        return f"{self.library} {self.kernel}"


def should_start_anew(loaded: Installed, before: Installed, now: Installed, started_for: str | None) -> bool:
    """Decide it, in a process whose library and kernel module don't fit together.

    ``loaded`` is what was there when this image loaded the library, ``before`` what a second ago and ``now`` what is
    there now; ``started_for`` is the value of GUARD.
    """
    if now == loaded or now.library is None or now.kernel is None:
        return False
    # A package that is being installed changes several files one after the other.
    if now != before:
        return False
    # This image was started for exactly this and still doesn't fit: another start would not either.
    return str(now) != started_for


def start_anew(installed: Installed, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Replace this process by a new image of the same command line; returns only if that failed.

    Every descriptor of the process is closed by the kernel (close-on-exec). The caller has stopped serving.
    """
    log.warning(
        "the driver was replaced: starting anew", extra={"library": installed.library, "driver": installed.kernel}
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        # The mask would be inherited, and nobody could stop the new image until it has set its own.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        os.execve(  # noqa: S606 - the same program with the same arguments
            sys.executable, [sys.executable, *argv], {**environ, GUARD: str(installed)}
        )
    except OSError as error:
        log.error(  # noqa: TRY400 - the reason is the system's, a traceback adds nothing
            "can't start anew: ending, so that a supervisor does it", extra={"err": str(error)}
        )
    return FAILED
