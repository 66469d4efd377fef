"""What a shell script makes of the launcher's exit status: passed on, swallowed, or not to be seen. Pure.

Not a shell: lines, comments, continuations, here-documents, and the words that decide which status a script ends with.
What is not understood is said to be unseen, never guessed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from enum import StrEnum

LAUNCHER = re.compile(r"(?:^|[\s;&|(])(?:\S*/)?gpufleet\s+run(?:\s|$)")
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_SETS_E = re.compile(r"(?:^|[;&]\s*)set\s+(?:-\w*e\w*\b|.*-o\s+errexit\b)")
_PIPEFAIL = re.compile(r"(?:^|[;&]\s*)set\s.*\bpipefail\b")
_KEEPS = re.compile(r"(\w+)=\$\?\s*\Z")
_OPENS = frozenset({"if", "for", "while", "until", "case", "select", "{", "("})
_CLOSES = frozenset({"fi", "done", "esac", "}", ")"})


class Status(StrEnum):
    """What becomes of the launcher's exit status."""

    ABSENT = "absent"
    """The script starts no launcher that it shows."""
    PASSED = "passed"
    """The script ends with it."""
    SWALLOWED = "swallowed"
    """The script ends with another one."""
    UNSEEN = "unseen"


def launcher_status(script: str, *, exits_on_error: bool = False) -> Status:
    """What the script makes of it; ``exits_on_error``: its interpreter was given -e."""
    lines = list(logical_lines(script))
    at = [number for number, line in enumerate(lines) if LAUNCHER.search(_unquoted(line))]
    if not at:
        return Status.ABSENT
    return max((_of(lines, number, exits_on_error) for number in at), key=list(Status).index)


def logical_lines(script: str) -> Iterator[str]:
    """Lines with something to run: continued ones joined, comments, blank lines and here-documents left out."""
    waiting = ""
    end: str | None = None
    for raw in script.splitlines():
        if end is not None:
            end = None if raw.strip() == end else end
            continue
        line = waiting + raw
        if line.endswith("\\"):
            waiting = line[:-1] + " "
            continue
        waiting = ""
        if not _is_closed(line):
            # A quoted text goes on in the next line.
            waiting = line + "\n"
            continue
        line = _uncommented(line).strip()
        if here := _HERE.search(line):
            end = here[2]
        if line:
            yield line
    if waiting.strip():
        yield waiting.strip()


def _of(lines: list[str], number: int, exits_on_error: bool) -> Status:  # noqa: FBT001 - as the caller's
    line, after = lines[number], lines[number + 1 :]
    words = _unquoted(line)
    before = lines[:number]
    strict = exits_on_error or any(_SETS_E.search(each) for each in before) or bool(_SETS_E.search(words))
    piped = re.search(r"(?<!\|)\|(?!\|)", words[_position(words) :])
    if piped and not any(_PIPEFAIL.search(each) for each in (*before, words)):
        return Status.SWALLOWED
    if re.match(r"(?:if|while|until|!)\s", words) or re.search(r"gpufleet\s+run\b.*(?:\|\||(?<!&)&\s*\Z)", words):
        return Status.SWALLOWED
    if re.match(r"exec\s", words):
        return Status.PASSED
    rest = words[_position(words) :]
    inside = _depth([*before, words[: _start(words)]]) > 0
    if strict and not re.search(r"&&", rest):
        return Status.PASSED
    if inside:
        return Status.UNSEEN
    following = [part for part in re.split(r";|&&", rest)[1:] if part.strip()]
    return _kept([*map(str.strip, following), *after])


def _kept(after: list[str]) -> Status:
    """What the lines after the launcher's make of ``$?``."""
    if not after or re.match(r"exit\s+(?:\$\?|\"\$\?\")\s*\Z", after[0]):
        return Status.PASSED
    if kept := _KEEPS.match(after[0]):
        name = kept[1]
        ends = re.compile(rf'exit\s+"?\$(?:{name}|\{{{name}\}})"?\s*\Z')
        return Status.PASSED if ends.match(after[-1]) else Status.UNSEEN
    return Status.SWALLOWED


def _position(words: str) -> int:
    found = LAUNCHER.search(words)
    return found.end() if found else 0


def _start(words: str) -> int:
    found = LAUNCHER.search(words)
    return found.start() if found else 0


def _depth(lines: list[str]) -> int:
    depth = 0
    for line in lines:
        for word in re.split(r"[\s;]+", _unquoted(line)):
            depth += (word in _OPENS) - (word in _CLOSES)
    return depth


def _unquoted(line: str) -> str:
    """The line with what stands in quotes left out: it is data."""
    return re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", '""', line)


def _uncommented(line: str) -> str:
    bare = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", lambda quoted: "x" * len(quoted[0]), line)
    found = re.search(r"(?:^|\s)#", bare)
    return line if found is None else line[: found.start()]


def _is_closed(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError as error:
        return "closing quotation" not in str(error)
    return True
