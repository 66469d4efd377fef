"""A post as Alertmanager's API takes it."""

from __future__ import annotations

import json

from gpufleet.notify.alert import hardware_incident
from gpufleet.notify.body import encode
from gpufleet.notify.decide import Post
from tests.support.incidents import HOSTILE, INCIDENT, OPENED_AT

ALERT = hardware_incident(INCIDENT)


def test_a_firing_alert_says_how_long_it_is_good_for() -> None:
    """Four minutes from now by the receiver's clock: resolve_timeout has no say."""
    (alert,) = json.loads(encode(Post(firing=(ALERT,)), OPENED_AT + 10))

    assert alert == {
        "labels": dict(ALERT.labels),
        "annotations": dict(ALERT.annotations),
        "startsAt": "2026-07-25T17:20:00.250Z",
        "endsAt": "2026-07-25T17:24:10.250Z",
    }


def test_a_resolved_alert_ends_now() -> None:
    """Alertmanager takes an alert whose end has come for resolved."""
    (alert,) = json.loads(encode(Post(resolved=(ALERT,)), OPENED_AT + 10))

    assert (alert["startsAt"], alert["endsAt"]) == ("2026-07-25T17:20:00.250Z", "2026-07-25T17:20:10.250Z")


def test_an_alert_does_not_begin_after_its_end() -> None:
    """A node whose clock is ahead would have its alerts refused as invalid."""
    (alert,) = json.loads(encode(Post(resolved=(ALERT,)), OPENED_AT - 3600))

    assert alert["startsAt"] == alert["endsAt"] == "2026-07-25T16:20:00.250Z"


def test_nothing_to_tell_is_an_empty_list() -> None:
    """It goes through credentials, TLS and path as an alert would."""
    assert encode(Post(), OPENED_AT) == b"[]"


def test_any_name_is_valid_json_text() -> None:
    """What a tenant put into a name comes out as it went in, in plain ASCII."""
    body = encode(Post(firing=(hardware_incident(HOSTILE),)), OPENED_AT)

    assert body.isascii()
    assert json.loads(body)[0]["labels"]["project"] == 'a"b\\c{{ .Labels }}'
