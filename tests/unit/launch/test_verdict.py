"""What a failed program exits with."""

from __future__ import annotations

import json

import pytest

from gpufleet.launch.verdict import FAULT_CODE, Answer, AnswerError, Fault, culprit, exit_code, parse_answer

FAULT = Fault("00000000000000a1", "79", 3.0, refund=True)


@pytest.mark.parametrize(
    ("own", "fault", "code"),
    [
        (0, None, 0),
        (1, None, 1),
        (137, None, 137),
        (1, FAULT, FAULT_CODE),
        (FAULT_CODE, FAULT, FAULT_CODE),
        (FAULT_CODE, None, 1),  # a program must not be able to say it by itself
    ],
)
def test_the_code(own: int, fault: Fault | None, code: int) -> None:
    """Exact, but for the framework's word."""
    assert exit_code(own, fault, FAULT_CODE) == code


@pytest.mark.parametrize(
    ("fault", "age", "found"),
    [
        (FAULT, 3600.0, True),
        (FAULT, 3.0, True),
        (FAULT, 2.9, False),  # it was there before the program
        (Fault("a", "13", 3.0, refund=False), 3600.0, False),
    ],
)
def test_only_a_hardware_fault_since_the_start_counts(fault: Fault, age: float, found: bool) -> None:
    """Or a program that fails by itself on such a node would be started again for ever."""
    assert (culprit(Answer((fault,), settling=False), age) is not None) is found


def test_an_answer_is_read() -> None:
    """Unknown names in it are left to newer versions."""
    told = {"incident": "a", "fault": "79", "age_seconds": 2, "refund": True, "isolate": True}
    answer = parse_answer(json.dumps({"version": 1, "settling": False, "incidents": [told], "more": 1}).encode())

    assert answer == Answer((Fault("a", "79", 2.0, refund=True),), settling=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 2, "settling": false, "incidents": []}',
        b'{"version": 1, "settling": false, "incidents": [{}]}',
        b'{"version": 1, "settling": false, "incidents": 3}',
        b"[" * 100_000,
        b"<html>",
    ],
)
def test_what_is_no_answer_gives_no_verdict(body: bytes) -> None:
    """A proxy's page, another version, half a line."""
    with pytest.raises(AnswerError):
        parse_answer(body)
