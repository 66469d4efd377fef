"""What a policy would have done: in the order of time, with nodes that come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.commands import quarantine_simulate
from gpufleet.quarantine.policy import Policy
from gpufleet.quarantine.replay import Past, replay
from tests.support.quarantined import NOW, incident, payload, view


def told(*past: Past, size: int = 40) -> list[tuple[float, str, str, int]]:
    """Events: seconds after NOW, node, reason (breaker where it opens) and nodes out."""
    events = replay(past, view(size).nodes.values(), Policy())
    return [
        (
            event.at - NOW,
            event.key.node if event.key else "",
            event.decision.reason if event.decision else "breaker",
            event.out,
        )
        for event in events
    ]


def at(seconds: float, number: int, end: float | None = None, fault: str | None = None) -> Past:
    """An incident of a node of its own."""
    return Past(
        incident(number, f"n{number}", since=NOW + seconds, fault=fault or str(number)),
        None if end is None else NOW + end,
    )


def test_incidents_are_judged_in_the_order_of_time() -> None:
    """A policy of a dry run is replayed as one that acts: that is what one wants to know."""
    assert told(at(700, 2), at(0, 1)) == [(0, "n1", "isolate", 1), (700, "n2", "isolate", 2)]


def test_what_waits_goes_out_when_there_is_room() -> None:
    """Two within ten minutes are the most; the third follows when their window is over."""
    found = told(at(0, 1), at(1, 2), at(2, 3), at(5000, 4))

    assert found[:3] == [(0, "n1", "isolate", 1), (1, "n2", "isolate", 2), (2, "n3", "rate", 2)]
    assert found[3][1:] == ("n3", "isolate", 3)
    assert 600 <= found[3][0] <= 720
    assert found[4] == (5000, "n4", "budget", 3)


def test_a_node_returns_when_its_alert_has_ended() -> None:
    """It makes room."""
    past = [at(1000 * number, number, end=1000 * number + 500) for number in range(1, 8)]

    assert [reason for _, _, reason, _ in told(*past, size=10)] == ["isolate"] * 7


def test_the_breaker_is_told_of() -> None:
    """With the incident that opened it."""
    assert [reason for _, _, reason, _ in told(*(at(number, number, fault="79") for number in range(1, 5)))] == [
        "isolate",
        "isolate",
        "breaker",
        "breaker",
        "breaker",
    ]


def test_a_saved_payload_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line, and what cannot be read is named."""
    file = tmp_path / "payload.json"
    file.write_bytes(payload([incident(1), incident(2, "n2")]))

    assert quarantine_simulate.main([str(file), "--nodes=40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TIME", "INCIDENT", "DECISION", "WHY", "OUT"]
    assert "quarantine (isolate)" in lines[1]
    assert "place 2 of 3 in pool ''" in lines[2]

    file.write_text(json.dumps({"version": "4", "alerts": []}))
    assert quarantine_simulate.main([str(file)]) == 1
    file.write_text("[]")
    assert quarantine_simulate.main([str(file)]) == 2
    assert f"{file}: this is no payload" in capsys.readouterr().err
    assert quarantine_simulate.main([str(tmp_path / "none")]) == 2
