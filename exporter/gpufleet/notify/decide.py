"""What to post to one Alertmanager now, and what its answer changes. Pure: the clock and chance are arguments.

Alertmanager keeps alerts in memory only and lets each one expire, so an open alert is posted again and again, and all
of them at once after an Alertmanager was away. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpufleet.notify.alert import Alert, Pairs

REFRESH_SECONDS = 60.0
"""As often as Prometheus sends an alert that goes on firing (``--rules.alert.resend-delay``)."""
VALID_SECONDS = 4 * REFRESH_SECONDS
"""So long an alert stays without being refreshed. Said with each alert: Alertmanager's own ``resolve_timeout``, which
holds for alerts that say nothing, may be set to seconds. Four times, as Prometheus: three posts may be lost."""
IDLE_SECONDS = 300.0
"""With nothing to tell an empty post still shows, before the first fault, whether one would arrive."""
MOST_IN_A_POST = 64
"""An alert has one to four KiB; proxies commonly refuse bodies above 1 MiB."""

_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 30.0
"""Well below VALID_SECONDS: an Alertmanager that is back hears of an alert before an old one expires."""
_FIRST_REFUSAL_SECONDS = 60.0
_LONGEST_REFUSAL_SECONDS = 900.0
_MOST_REFUSALS = 6
"""After so many an alert's content is not offered to this Alertmanager any more."""
_CLOCK_SECONDS = 5.0
_NEWS_SECONDS = 1.0
"""News is not kept back while an Alertmanager fails; but a burst of it does not become a burst of tries."""


class Verdict(Enum):
    """What became of a post."""

    ACCEPTED = auto()
    CONTENT_REFUSED = auto()
    """It doesn't like one of the alerts; Alertmanager has taken the others of the post."""
    REFUSED = auto()
    """It doesn't like us: credentials, path, a redirect. No haste will change that."""
    FAILED = auto()
    """No answer, or one that blames the server; it may have taken the alerts all the same."""
    UNREACHED = auto()
    """Nothing was sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an Alertmanager said to a post."""

    verdict: Verdict
    detail: str = ""
    """Why it was not accepted: for a person, the same text as long as the reason is the same, without credentials."""
    server_time: float | None = None
    """Unix time by its clock, in whole seconds."""


@dataclass(frozen=True, slots=True)
class Post:
    """One request: alerts that fire, and alerts that are over."""

    firing: tuple[Alert, ...] = ()
    resolved: tuple[Alert, ...] = ()

    def __len__(self) -> int:
        return len(self.firing) + len(self.resolved)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until then, unless the alerts change."""

    until: float


@dataclass(frozen=True, slots=True)
class Standing:
    """How one alert stands with one Alertmanager, which was told of it at least once, or tried to be told."""

    alert: Alert
    accepted_at: float | None = None
    held_until: float | None = None
    """It may show the alert as firing until then; None: it can't have it."""
    refusals: int = 0
    """How often in a row it refused this alert's content."""
    not_before: float = -math.inf


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of one Alertmanager."""

    standings: Mapping[Pairs, Standing]
    failures: int = 0
    """In a row."""
    refusals: int = 0
    """In a row."""
    not_before: float = -math.inf
    """Between failures: the next try."""
    tried_at: float = -math.inf
    singly: bool = False
    """It refused some content once: each alert goes by itself, so that none suffers for another."""


def forget(alerts: Iterable[Alert], target: Target, now: float) -> Target:
    """``target`` without what is over and nothing that Alertmanager would still show."""
    firing = {alert.labels for alert in alerts}
    kept = {
        labels: standing
        for labels, standing in target.standings.items()
        if labels in firing or (standing.held_until is not None and standing.held_until > now)
    }
    return target if len(kept) == len(target.standings) else replace(target, standings=kept)


def next_step(alerts: Sequence[Alert], target: Target, now: float) -> Post | Wait:
    """What to post to ``target`` now, given the open ``alerts``, or until when to wait."""
    ready = target.not_before <= now
    news = [alert for alert in alerts if alert.labels not in target.standings]
    told = news if ready or _news_at(target) <= now else []
    due = [alert for alert in alerts if ready and _due_at(alert, target) <= now]
    over = _over(alerts, target, now)
    if told or due or (ready and over):
        if ready and not target.singly:
            # What would be due soon comes along: one request, not one for each alert.
            due = [alert for alert in alerts if _due_at(alert, target) <= now + REFRESH_SECONDS / 2]
        return _post([*told, *due], over if ready else (), target)
    if ready and _idle_at(target) <= now:
        return Post()
    awaited = min([_due_at(alert, target) for alert in alerts] + [_idle_at(target)])
    if over:
        awaited = target.not_before
    awaited = max(target.not_before, awaited)
    return Wait(min(target.not_before, _news_at(target)) if news else awaited)


def _news_at(target: Target) -> float:
    return target.tried_at + _NEWS_SECONDS if target.failures or target.refusals else -math.inf


def _idle_at(target: Target) -> float:
    return target.not_before if target.failures or target.refusals else target.tried_at + IDLE_SECONDS


def _due_at(alert: Alert, target: Target) -> float:
    standing = target.standings.get(alert.labels)
    if standing is None:
        return math.inf  # news has a way of its own
    refresh_at = -math.inf if standing.accepted_at is None else standing.accepted_at + REFRESH_SECONDS
    return max(refresh_at, standing.not_before)


def _over(alerts: Iterable[Alert], target: Target, now: float) -> list[Alert]:
    """Alerts that Alertmanager may still show as firing, and that don't."""
    firing = {alert.labels for alert in alerts}
    return [
        standing.alert
        for labels, standing in target.standings.items()
        if labels not in firing and standing.held_until is not None and standing.held_until > now
    ]


def _post(firing: Sequence[Alert], resolved: Sequence[Alert], target: Target) -> Post:
    """As much as one request takes."""
    most = 1 if target.singly else MOST_IN_A_POST
    return Post(tuple(firing[:most]), tuple(resolved[: max(most - len(firing), 0)]))


def learned(target: Target, post: Post, verdict: Verdict, now: float, chance: float) -> Target:
    """``target`` after its answer to ``post`` at ``now``; ``chance`` (0 to 1) spreads the tries of a whole fleet."""
    if verdict is Verdict.ACCEPTED:
        return _accepted(target, post, now)
    if verdict is Verdict.CONTENT_REFUSED and len(post) > 0:
        return _content_refused(target, post, now, chance)
    standings = dict(target.standings)
    for alert in post.firing:
        old = standings.get(alert.labels, Standing(alert))
        held_until = now + VALID_SECONDS if verdict is Verdict.FAILED else old.held_until
        standings[alert.labels] = replace(old, alert=alert, held_until=held_until)
    if verdict in {Verdict.FAILED, Verdict.UNREACHED}:
        failures = target.failures + 1
        wait = _spread(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS, failures, chance)
        return replace(target, standings=standings, failures=failures, refusals=0, not_before=now + wait, tried_at=now)
    refusals = target.refusals + 1
    wait = _spread(_FIRST_REFUSAL_SECONDS, _LONGEST_REFUSAL_SECONDS, refusals, chance)
    return replace(target, standings=standings, failures=0, refusals=refusals, not_before=now + wait, tried_at=now)


def _all_again(target: Target) -> Target:
    """``target`` with every alert due: what it was told may be lost."""
    standings = {labels: replace(standing, accepted_at=None) for labels, standing in target.standings.items()}
    return replace(target, standings=standings)


def told_by_a_wrong_clock(target: Target, now: float) -> Target:
    """``target`` after its clock was found to be far from ours: all that it holds may have ended for it already."""
    # A moment later: one whose clock jumps about must not make us post without a pause.
    return replace(_all_again(target), not_before=now + _CLOCK_SECONDS)


def _answering(target: Target, now: float) -> Target:
    """After an answer. One that was away may have been started anew and know nothing."""
    before = _all_again(target) if target.failures or target.refusals else target
    return replace(before, failures=0, refusals=0, not_before=-math.inf, tried_at=now)


def _accepted(target: Target, post: Post, now: float) -> Target:
    target = _answering(target, now)
    standings = dict(target.standings)
    for alert in post.firing:
        standings[alert.labels] = Standing(alert, accepted_at=now, held_until=now + VALID_SECONDS)
    for alert in post.resolved:
        standings.pop(alert.labels, None)
    return replace(target, standings=standings)


def _content_refused(target: Target, post: Post, now: float, chance: float) -> Target:
    target = _answering(target, now)
    standings = dict(target.standings)
    if len(post) > 1:
        for alert in post.firing:
            standings[alert.labels] = Standing(alert, held_until=now + VALID_SECONDS)
        return replace(target, standings=standings, singly=True)
    for alert in post.firing:
        old = standings.get(alert.labels, Standing(alert))
        refusals = old.refusals + 1
        wait = _spread(_FIRST_REFUSAL_SECONDS, _LONGEST_REFUSAL_SECONDS, refusals, chance)
        standings[alert.labels] = replace(
            old,
            alert=alert,
            accepted_at=None,
            refusals=refusals,
            not_before=now + wait if refusals < _MOST_REFUSALS else math.inf,
        )
    for alert in post.resolved:  # it expires by itself
        standings.pop(alert.labels, None)
    return replace(target, standings=standings)


def _spread(first: float, longest: float, times: int, chance: float) -> float:
    """Seconds that double each time, less up to half of them."""
    return min(longest, first * (1 << min(times - 1, 16))) * (1 - chance / 2)
