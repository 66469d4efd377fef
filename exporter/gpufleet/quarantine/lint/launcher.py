"""Whether a command starts the launcher, `gpufleet run -- COMMAND`, and how to make it do so. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpufleet.launch.verdict import FAULT_CODE
from gpufleet.quarantine.lint.shell import Status, launcher_status

ENTRY_POINT = "<entry point of the image>"
"""Stands for what no manifest shows."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_BEFORE = frozenset({"env", "tini", "dumb-init", "nice", "exec", "catatonit", "numactl", "setpriv", "stdbuf", "ionice"})
"""Programs that become the one after them, or pass its exit status on."""
_CODE = "--exit-code"


class Start(StrEnum):
    """How a command starts its program."""

    LAUNCHED = "launched"
    """By the launcher, whose exit status is the command's."""
    BARE = "bare"
    SWALLOWED = "swallowed"
    """By the launcher, in a shell that ends with another status."""
    UNSEEN = "unseen"
    """By something that the file does not show: an image's entry point, a script in it."""


@dataclass(frozen=True, slots=True)
class Command:
    """How a program is started, and the code that tells of a fault."""

    start: Start
    code: int = FAULT_CODE


def command(argv: Sequence[str], *, whole: bool = True) -> Command:
    """What the words start; with ``whole`` false they are arguments of an entry point that is not known."""
    at = _launcher(argv)
    if at is not None:
        return Command(Start.LAUNCHED, _code(list(argv[at + 2 :])))
    if not argv or not whole:
        return Command(Start.UNSEEN)
    first = _name(argv[0])
    if first in _SHELLS:
        return _in_shell(argv)
    return Command(Start.UNSEEN if first.endswith(".sh") else Start.BARE)


def code_of_script(script: str) -> int:
    """The code that a shell script tells its launcher to exit with."""
    return _code(script.partition("gpufleet")[2].split())


def launched(argv: Sequence[str], code: int = FAULT_CODE) -> list[str]:
    """The words with the launcher before them."""
    flags = [] if code == FAULT_CODE else [f"{_CODE}={code}"]
    return ["gpufleet", "run", *flags, "--", *argv]


def _in_shell(argv: Sequence[str]) -> Command:
    options = [word for word in argv[1:] if word.startswith("-") and not word.startswith("--")]
    reads = next((number for number, word in enumerate(argv) if number and re.match(r"-\w*c\w*\Z", word)), None)
    if reads is None or reads + 1 >= len(argv):
        # A script of the image: what it starts is not here.
        return Command(Start.UNSEEN)
    script = argv[reads + 1]
    status = launcher_status(script, exits_on_error=any("e" in word for word in options))
    code = code_of_script(script)
    match status:
        case Status.PASSED:
            return Command(Start.LAUNCHED, code)
        case Status.SWALLOWED:
            return Command(Start.SWALLOWED, code)
        case Status.UNSEEN:
            return Command(Start.UNSEEN, code)
        case Status.ABSENT:
            hidden = re.search(r"(?:^|[\s;&|])(?:\.|source|bash|sh)\s+\S|\.sh\b", script)
            return Command(Start.UNSEEN if hidden else Start.BARE)


def _launcher(argv: Sequence[str]) -> int | None:
    """Where ``gpufleet run`` begins, if everything before it passes its status on."""
    for number, word in enumerate(argv[:-1]):
        if _name(word) == "gpufleet" and argv[number + 1] == "run":
            before = argv[:number]
            module = len(before) >= 2 and before[-1] == "-m" and _name(before[-2]).startswith("python")
            before = before[:-2] if module else before
            return number if not before or _name(before[0]) in _BEFORE else None
    return None


def _code(words: Sequence[str]) -> int:
    for number, word in enumerate(words):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name == _CODE:
            text = value if equals else next(iter(words[number + 1 : number + 2]), "")
            return int(text) if text.isdigit() else FAULT_CODE
    return FAULT_CODE


def _name(word: str) -> str:
    return word.rpartition("/")[2]
