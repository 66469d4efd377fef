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
_SETS_E = re.compile(r"set\s+(?:-\w*e\w*\b|.*-o\s+errexit\b)")
_UNSETS_E = re.compile(r"set\s+(?:\+\w*e|.*\+o\s+errexit\b)")
_PIPEFAIL = re.compile(r"set\s.*\bpipefail\b")
_KEEPS = re.compile(r"(\w+)=\$\?\Z")
_REDIRECTION = re.compile(r"\d*(?:>>?|<)&?\s*[^\s;&|]+|&>>?\s*[^\s;&|]+")
_OPENS = frozenset({"if", "for", "while", "until", "case", "select", "{", "("})
_CLOSES = frozenset({"fi", "done", "esac", "}", ")"})
_ASKS = frozenset({"if", "elif", "while", "until", "!"})
"""Words that ask for a status, and so let a script go on whatever it is."""
_INNER = frozenset({"then", "do", "else"})


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
    plain = [_REDIRECTION.sub(" ", _unquoted(line)) for line in lines]
    found = LAUNCHER.search(plain[number])
    if found is None or any(re.search(r"\btrap\b", each) for each in plain):
        return Status.UNSEEN
    before, rest, after = plain[number][: found.start()], plain[number][found.end() :], lines[number + 1 :]
    settings = [*_outermost(plain[:number]), *_parts(before)]
    strict = _is_strict(settings, exits_on_error)
    words = _parts(before + " ")[-1].split()
    if _ASKS.intersection(words) or "||" in rest or re.search(r"(?<!&)&(?!&)", rest):
        return Status.SWALLOWED
    if re.search(r"[(){}`$]", before) or re.search(r"[(){}`]", rest):
        return Status.UNSEEN
    if "|" in rest and not any(_PIPEFAIL.match(each) for each in settings):
        return Status.SWALLOWED
    if _depth([*plain[:number], before]) > 0 or _INNER.intersection(words):
        return Status.PASSED if strict and _is_plain_loop(plain, number) and "&&" not in rest else Status.UNSEEN
    following = [part for part in re.split(r";|&&", rest)[1:] if part.strip()]
    if "exec" in words[:1] or (strict and "&&" not in rest):
        return Status.PASSED
    return _kept([*map(str.strip, following), *after])


def _kept(after: list[str]) -> Status:
    """What the lines after the launcher's make of ``$?``."""
    if not after or re.match(r"exit\s+(?:\$\?|\"\$\?\")\Z", after[0]):
        return Status.PASSED
    if kept := _KEEPS.match(after[0]):
        name = kept[1]
        ends = re.compile(rf'exit\s+"?\$(?:{name}|\{{{name}\}})"?\Z')
        between = any(re.search(rf"\bexit\b|\b{name}=|\bexec\b|\breturn\b", each) for each in after[1:-1])
        sure = ends.match(after[-1]) and not between and _depth(after[1:-1]) == 0
        return Status.PASSED if sure else Status.UNSEEN
    return Status.SWALLOWED


def _is_strict(settings: list[str], strict: bool) -> bool:  # noqa: FBT001 - what it was before
    """Whether the shell ends at errors after these commands."""
    for each in settings:
        if _UNSETS_E.match(each):
            strict = False
        elif _SETS_E.match(each):
            strict = True
    return strict


def _is_plain_loop(plain: list[str], number: int) -> bool:
    """Whether what is open around the line are loops and branches alone, whose own status nobody asks for."""
    around = [word for line in plain[:number] for word in re.split(r"[\s;]+", line)]
    if any(word in {"{", "(", "case"} or word.endswith(("()", "(")) for word in (*around, *plain[number].split())):
        return False
    return not any(re.match(r"(?:fi|done|esac)\b.*[|&]", line) for line in plain[number + 1 :])


def _outermost(plain: list[str]) -> list[str]:
    """Commands that stand in no loop, branch, function or subshell."""
    return [part for at, line in enumerate(plain) if _depth(plain[:at]) == 0 for part in _parts(line)]


def _parts(line: str) -> list[str]:
    """The commands of a line; what follows && or || is not sure to be run, and stays with what it follows."""
    return [part.strip() for part in line.split(";")]


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
