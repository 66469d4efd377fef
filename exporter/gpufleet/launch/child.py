"""One program: started with everything that we were started with, and waited for.

While it lives this process sleeps. A signal that somebody sends to us goes on to it; one that the terminal sends
reaches the whole foreground group by itself. As PID 1 of a container we also take in what its orphans leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""As shells have it."""
# The kernel itself is the sender: the terminal's Ctrl-C, its hang-up or its new size (asm-generic/siginfo.h).
_FROM_KERNEL = 0x80
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# Stopping and going on are the shell's with the whole group; the rest cannot be caught or means a flaw of our own.
_OURS = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGCONT,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGPIPE,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)


class StartError(Exception):
    """The program cannot be started; ``status`` is what a shell would exit with."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended."""

    status: int
    """What waitpid said."""
    was_told_to: bool
    """Somebody had sent us a signal that asks a program to end: nobody waits for a verdict then."""

    @property
    def signal(self) -> int | None:
        """The signal that killed it."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def code(self) -> int:
        """Its exit status, or 128 and the signal's number."""
        return 128 + os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)

    @property
    def failed(self) -> bool:
        """Whether it ended with anything but 0."""
        return self.code != 0


def forwarded() -> frozenset[signal.Signals]:
    """The signals that go on to the program."""
    return frozenset(signal.valid_signals()) - _OURS - {signal.SIGCHLD}


def run(arguments: Sequence[str]) -> Ended:
    """Run a program to its end.

    Raises:
        StartError: it cannot be started.
    """
    ignored = {
        each for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_IGN
    }
    # Whoever started us may have ignored it: then the kernel would neither tell us of the end nor keep the status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wanted = forwarded()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted | {signal.SIGCHLD})
    try:
        # Python ignores SIGPIPE and SIGXFSZ for itself; a program expects the default. What whoever started us had
        # ignored (nohup) stays so.
        given_back = {signal.SIGPIPE, signal.SIGXFSZ} - ignored
        pid = os.posix_spawnp(arguments[0], list(arguments), os.environ, setsigmask=before, setsigdef=given_back)
    except OSError as error:
        status = NOT_FOUND if isinstance(error, FileNotFoundError | NotADirectoryError) else NOT_EXECUTABLE
        raise StartError(f"{arguments[0]}: {error.strerror}", status) from error
    return _waited(pid, wanted, _ENDING - ignored)


def _waited(pid: int, wanted: frozenset[signal.Signals], ending: frozenset[signal.Signals]) -> Ended:
    told = False
    while True:
        received = signal.sigwaitinfo(wanted | {signal.SIGCHLD})
        if received.si_signo == signal.SIGCHLD:
            status = _reaped(pid)
            if status is not None:
                return Ended(status, told)
            continue
        told = told or received.si_signo in ending
        if received.si_code != _FROM_KERNEL:
            with contextlib.suppress(PermissionError):  # it has become another user, as sudo does
                os.kill(pid, received.si_signo)


def _reaped(pid: int) -> int | None:
    """Take in all that have ended, orphans of a container too; the status of ours if it is among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = status


def say(text: str) -> None:
    """One line on standard error; one that nobody can read changes nothing."""
    line = "gpufleet run: " + "".join(each if each.isprintable() else "?" for each in text) + "\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode(errors="replace"))


def told_to_end(seconds: float) -> bool:
    """Wait so long, or until somebody asks us to end; whether somebody has."""
    return signal.sigtimedwait(_ENDING, seconds) is not None


def leave(ended: Ended, code: int) -> NoReturn:
    """End as the program did: by the same signal, or with ``code``."""
    number = ended.signal
    if number is not None and code == ended.code and os.getpid() != 1:
        import resource

        # The program's core is the one that somebody wants.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):  # SIGKILL, and the two that the C library keeps for itself
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    # PID 1 of a container is not killed by its own signals.
    os._exit(code)
