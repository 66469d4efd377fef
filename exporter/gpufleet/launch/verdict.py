"""What a failed program exits with. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

FAULT_CODE = 250
"""At least 128, because PyTorchJob's restartPolicy ExitCode retries only such; no signal's (128 + 1 … 64), no shell's
(126, 127), and not 255, which ssh and Go's runtime use for anything."""
_VERSION = 1
_LONGEST_REASON = 200


class AnswerError(Exception):
    """What was answered is no answer; says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An incident of our own GPUs or of a peer's."""

    incident: str
    fault: str
    age: float
    """Seconds before the answer, by the clock of who answered."""
    refund: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of faults."""

    faults: tuple[Fault, ...]
    settling: bool
    """Something was seen whose meaning is not certain yet: ask again."""
    unknown: str = ""
    """Why who answers cannot see all that there may be; empty: it can."""
    project: str = ""
    run: str = ""
    """What the run that holds our GPUs is called, as the exporter and the quarantine know it; empty: not known."""


def parse_answer(body: bytes) -> Answer:
    """Read an answer of ``/v1/faults`` or ``/v1/verdict``. Raises AnswerError."""
    try:
        found: Any = json.loads(body)
        if found["version"] != _VERSION:
            raise AnswerError(f"it has version {found['version']!r}, and only {_VERSION} is known here")
        faults = tuple(
            Fault(str(each["incident"]), str(each["fault"]), float(each["age_seconds"]), each["refund"] is True)
            for each in found["incidents"]
        )
        unknown = str(found.get("reason") or "no reason is given")[:_LONGEST_REASON] if found.get("unknown") else ""
        project, run = (str(found.get(name) or "") for name in ("project", "run"))
        return Answer(faults, found["settling"] is True, " ".join(unknown.split()), project, run)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AnswerError(f"it cannot be read: {error!r}") from error


def culprit(answer: Answer, age: float) -> Fault | None:
    """The hardware fault since the program was started, ``age`` seconds before the answer.

    One from before it is not what ended it: without this a program that fails by itself on a node with a fault would
    be started again for ever, because nothing bounds how often its framework ignores the code.
    """
    return next((each for each in answer.faults if each.refund and each.age <= age), None)


def exit_code(own: int, fault: Fault | None, fault_code: int) -> int:
    """The code to exit with: the framework's word for a hardware fault, or the program's own.

    A program's own use of that word becomes 1: it must not be able to say it.
    """
    if fault is not None:
        return fault_code
    return 1 if own == fault_code else own
