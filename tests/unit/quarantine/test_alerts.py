"""Payloads of Alertmanager: what is taken, what is left out, and what is no payload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.quarantine.alerts import PayloadError, parse_delivery
from gpufleet.quarantine.incident import Holder, Key
from gpufleet.quarantine.matchers import parse_matcher
from gpufleet.quarantine.policy import AlertRules
from tests.support.quarantined import NOW, incident, payload

RECORDED = Path(__file__).parents[2] / "fixtures" / "quarantine" / "alertmanager.jsonl"
ANY = AlertRules(matchers=(parse_matcher('alertname=~".+"'),))


def test_an_incident_is_read_from_the_labels_of_the_contract() -> None:
    """Everything that a decision needs, and who held the GPU."""
    told = incident()

    (found,) = parse_delivery(payload([told]), AlertRules(), NOW).firing

    assert found.key == Key("c", "n1", "0000000000000001")
    assert (found.fault, found.blame, found.action, found.uuid) == ("79", "hardware", "reboot_node", "GPU-n1-0")
    assert found.isolate
    assert found.refund
    assert found.since == NOW - 5
    assert found.holders == (Holder("team-a", "run-1", "task", "ns", "pod-n1", "main"),)


def test_each_alert_counts_by_its_own_status() -> None:
    """A group is firing as long as one of its members is: a resolved one is listed beside it."""
    delivery = parse_delivery(payload([incident(1)], [incident(2, "n2")]), AlertRules(), NOW)

    assert [told.key.node for told in delivery.firing] == ["n1"]
    assert [(told.key.node, told.at) for told in delivery.resolved] == [("n2", NOW + 55)]


def test_unknown_fields_are_ignored_and_missing_ones_not_asked_for() -> None:
    """Newer versions add some (notification_reason, routeLabels), and old ones lack some."""
    body = json.loads(payload([incident()]))
    slim = {"version": "4", "alerts": body["alerts"], "notification_reason": "first", "routeLabels": {"a": ["b"]}}
    del slim["alerts"][0]["annotations"]

    assert len(parse_delivery(json.dumps(slim).encode(), AlertRules(), NOW).firing) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[]", "no payload"),
        (b"{}", "version"),
        (b'{"version": 4, "alerts": []}', "version"),
        (b'{"version": "3", "alerts": []}', "version '3'"),
        (b'{"version": "4", "alerts": {}}', "alerts"),
        (b'{"version": "4"}', "alerts"),
        (b'{"x": ' + b"[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_payload_is_refused_whole(body: bytes, says: str) -> None:
    """With a sentence that says what is wrong with it."""
    with pytest.raises(PayloadError, match=says):
        parse_delivery(body, AlertRules(), NOW)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": None}, "malformed"),
        ({"labels": {"alertname": 3}}, "malformed"),
        ({"status": "odd"}, "malformed"),
        ({"startsAt": "yesterday"}, "malformed"),
        ({"labels": {"incident": ""}}, "no_incident"),
        ({"labels": {"node": ""}}, "no_node"),
        ({"labels": {"isolate": "yes"}}, "bad_label"),
        ({"labels": {"run": "x" * 2000}}, "too_long"),
    ],
)
def test_one_bad_alert_costs_itself(change: dict[str, object], reason: str) -> None:
    """The good ones beside it are processed."""
    body = json.loads(payload([incident(1), incident(2, "n2")]))
    bad = body["alerts"][0]
    labels = change.get("labels")
    bad.update(change)
    if isinstance(labels, dict):
        bad["labels"] = {**json.loads(payload([incident(1)]))["alerts"][0]["labels"], **labels}

    delivery = parse_delivery(json.dumps(body).encode(), AlertRules(), NOW)

    assert [told.key.node for told in delivery.firing] == ["n2"]
    assert [unusable.reason for unusable in delivery.unusable] == [reason]


def test_alerts_of_no_concern_are_counted_and_left_alone() -> None:
    """By the policy's matchers, and by its cluster."""
    body = json.loads(payload([incident(1), incident(2, "n2")]))
    body["alerts"][0]["labels"]["alertname"] = "GpuLost"

    assert parse_delivery(json.dumps(body).encode(), AlertRules(), NOW).foreign == 1
    assert parse_delivery(json.dumps(body).encode(), AlertRules(cluster="other"), NOW).foreign == 2


def test_times_have_up_to_nine_digits_and_go_s_zero_is_none() -> None:
    """As Go's encoding/json writes them."""
    body = json.loads(payload([incident()]))
    for text, since in [
        ("2026-11-30T19:33:54.884529601Z", 1796067234.884529),
        ("2026-11-30T20:33:54+01:00", 1796067234.0),
        ("0001-01-01T00:00:00Z", None),
    ]:
        body["alerts"][0]["startsAt"] = text
        delivery = parse_delivery(json.dumps(body).encode(), AlertRules(), NOW)
        if since is None:
            assert delivery.unusable[0].reason == "malformed"
        else:
            assert delivery.firing[0].since == pytest.approx(since, abs=1e-5)


def test_what_alertmanager_really_sends_is_understood() -> None:
    """Bodies that Alertmanager 0.25 posted: single, repeated, resolved, groups, truncated ones, and duplicates."""
    counts = []
    for line in RECORDED.read_text().splitlines():
        recorded = json.loads(line)
        delivery = parse_delivery(json.dumps(recorded["body"]).encode(), ANY, NOW)
        usable = len(delivery.firing) + len(delivery.resolved)
        counts.append((recorded["name"], len(delivery.unusable), usable, delivery.truncated))

    # Its labels are not gpufleet's: they have no incident, so that nothing may be done by them.
    assert all(unusable > 0 and usable == 0 for _, unusable, usable, _ in counts)
    assert {name: truncated for name, _, _, truncated in counts if truncated} == {"07_truncated_max_alerts_2_of_5": 3}
