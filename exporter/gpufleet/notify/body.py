"""A post as Alertmanager's API takes it (v2, POST /api/v2/alerts). Pure."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from gpufleet.notify.decide import VALID_SECONDS

if TYPE_CHECKING:
    from gpufleet.notify.alert import Alert
    from gpufleet.notify.decide import Post


def encode(post: Post, now: float) -> bytes:
    """The request's body; ``now`` is Unix time by the receiver's clock.

    It is Alertmanager that compares ``endsAt`` with the time: by a node's clock that is minutes behind, a new alert
    would have ended before it began.
    """
    alerts = [_alert(alert, now, now + VALID_SECONDS) for alert in post.firing]
    alerts += [_alert(alert, now, now) for alert in post.resolved]
    return json.dumps(alerts, separators=(",", ":")).encode()


def _alert(alert: Alert, now: float, ends_at: float) -> dict[str, object]:
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": _timestamp(min(alert.starts_at, now)),
        "endsAt": _timestamp(ends_at),
    }


def _timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
