"""Slurm's commands: an argument list each, no shell, and a time limit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 10.0
_MOST_TOLD = 300


class CommandError(Exception):
    """A command could not be run, or did not end in time: whether it did something is not known."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Its complaint, on one line."""
        return " ".join((self.err or self.out).split())[:_MOST_TOLD]


class Run(Protocol):
    """Runs a command to its end."""

    def __call__(self, *arguments: str) -> Output:
        """Raises CommandError."""
        ...


def run(*arguments: str) -> Output:
    """As Run, on this machine."""
    # Times without a zone are the reader's; messages in another language would not be understood.
    environ = {**os.environ, "TZ": "UTC", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(  # noqa: S603 - an argument list, and no shell
            list(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env=environ,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{_told(arguments)} did not end within {_SECONDS:g} s") from error
    except OSError as error:
        raise CommandError(
            f"{arguments[0]} can't be run: {error.strerror}; is Slurm's client installed here?"
        ) from error
    return Output(done.returncode, done.stdout, done.stderr)


def _told(arguments: Sequence[str]) -> str:
    return " ".join(arguments)[:_MOST_TOLD]
