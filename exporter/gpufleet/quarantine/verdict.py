"""``/v1/verdict``: whether a peer of a run was hit, for a launcher on a node where nothing is wrong.

When one GPU of a run breaks, its other processes fail of it, too, on nodes whose exporters know nothing. Whoever asks
learns of one run no more than an incident's number and age.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from gpufleet.quarantine.record import Stage, Verdict
from gpufleet.web.message import Response, plain_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.record import Record
    from gpufleet.web.message import Request

PATH = "/v1/verdict"
_VERSION = 1
_MOST_SECONDS = 30 * 86_400.0
_LONGEST_NAME = 253
_MOST_TOLD = 16
_TAKEN = frozenset({Verdict.QUARANTINE, Verdict.JOIN})
_BACK = frozenset({Stage.RELEASING, Stage.RELEASED})
_NO_STORE = (("Cache-Control", "no-store"),)


class Verdicts:
    """Answers launchers from the ledger's book; None while it has not been read."""

    def __init__(self, book: Callable[[], Book | None], *, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock

    def answer(self, request: Request) -> Response:
        """``GET /v1/verdict?run=…&project=…&age=SECONDS``."""
        asked = parse_qs(request.query)
        run, project = asked.get("run", [""])[0], asked.get("project", [""])[0]
        try:
            age = float(asked.get("age", [""])[0])
        except ValueError:
            age = -1.0
        if not run or len(run) > _LONGEST_NAME or len(project) > _LONGEST_NAME or not 0 <= age <= _MOST_SECONDS:
            return plain_response(400, f"ask {PATH}?run=NAME&age=SECONDS, and &project=NAME where it has one")
        book = self._book()
        if book is None:
            return plain_response(503, "the ledger has not been read yet")
        return Response(200, told(book, project, run, age, self._clock()), "application/json", _NO_STORE)


def told(book: Book, project: str, run: str, age: float, now: float) -> bytes:
    """Incidents that a run was hit by, ``age`` seconds back from the Unix time ``now``. Pure.

    Only those whose node is out, or goes out: a framework ignores the launcher's code without a limit, so the next
    attempt must not meet the same GPU.
    """
    since = now - age
    found = [each for each in book.records.values() if _hit(each, project, run) and each.incident.since >= since]
    found.sort(key=lambda each: each.incident.since, reverse=True)
    return json.dumps(
        {
            "version": _VERSION,
            "settling": False,
            "incidents": [
                {
                    "incident": each.key.incident,
                    "fault": each.incident.fault,
                    "refund": True,
                    "age_seconds": round(max(0.0, now - each.incident.since), 3),
                }
                for each in found[:_MOST_TOLD]
            ],
        }
    ).encode()


def _hit(record: Record, project: str, run: str) -> bool:
    return (
        record.incident.refund
        and record.incident.isolate
        and record.decision.verdict in _TAKEN
        and record.stage not in _BACK
        and any(holder.run == run and project in {"", holder.project} for holder in record.incident.holders)
    )
