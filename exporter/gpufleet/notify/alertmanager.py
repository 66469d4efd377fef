"""The poster: keeps every configured Alertmanager told of the alerts that are open, one thread for each.

An HA pair is two Alertmanagers that gossip about what they sent, not about what they were told, so each is told. One
that hangs holds up its own thread and nothing else.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpufleet.logs import OnChange
from gpufleet.notify.body import encode
from gpufleet.notify.decide import (
    Answer,
    Post,
    Target,
    Verdict,
    Wait,
    forget,
    learned,
    next_step,
    told_by_a_wrong_clock,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gpufleet.notify.alert import Alert

log = logging.getLogger(__name__)

MOST_ALERTS = 256
"""A node has a dozen GPUs and switches with a few incidents each; whatever made more is not passed on."""
_OUTCOMES = {Verdict.ACCEPTED: "accepted", Verdict.CONTENT_REFUSED: "refused", Verdict.REFUSED: "refused"}
OUTCOMES = ("accepted", "refused", "failed")
_LONGEST_WAIT_SECONDS = 3600.0
_NOTABLE_SKEW_SECONDS = 2.0
"""Alertmanager's clock is known to the second."""
_HARMFUL_SKEW_SECONDS = 60.0


class Client(Protocol):
    """What carries a post to one Alertmanager."""

    def post(self, body: bytes) -> Answer:
        """Post a list of alerts in JSON; does not raise for what goes wrong out there."""


@dataclass(frozen=True, slots=True)
class Status:
    """What has become of the posts to one Alertmanager so far."""

    alertmanager: str
    """Its URL as configured."""
    up: bool | None
    """Whether it accepted the last post; None: there was none yet."""
    alerts: tuple[tuple[str, int], ...]
    """Alerts by outcome, see OUTCOMES."""


class Poster:
    """Posts alerts when they open, again while they are open, and once more when they are over."""

    def __init__(
        self,
        clients: Mapping[str, Client],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``clients`` by URL. ``wall`` tells Unix time, ``chance`` gives numbers from 0 to 1."""
        self._board = _Board()
        self._couriers = [_Courier(url, client, self._board, clock, wall, chance) for url, client in clients.items()]
        self._changes = OnChange(log)

    def start(self) -> None:
        """Begin to post."""
        for courier in self._couriers:
            courier.start()

    def update(self, alerts: Sequence[Alert]) -> None:
        """Take ``alerts`` for those that are open now. Returns at once, whatever the Alertmanagers do."""
        if len(alerts) > MOST_ALERTS:
            self._changes.failed("many", "too many alerts: only the first are posted", f"more than {MOST_ALERTS}")
        else:
            self._changes.over("many", "all alerts are posted again")
        self._board.put(tuple(alerts[:MOST_ALERTS]))

    def statuses(self) -> tuple[Status, ...]:
        """How each Alertmanager is doing, in the order of the configuration."""
        return tuple([courier.status() for courier in self._couriers])

    def stop(self, seconds: float) -> bool:
        """End the threads without a last word: the alerts stay open, and the next process goes on with them.

        Returns whether all ended within ``seconds``; one that waits for an answer is left to the end of the process.
        """
        self._board.close()
        until = time.monotonic() + seconds
        return all(courier.ended(until - time.monotonic()) for courier in self._couriers)


def open_poster(urls: Sequence[str], config_file: Path | None) -> Poster:
    """A poster for the Alertmanagers at ``urls``; to be called by the main thread before it starts others.

    Raises:
        ClientConfigError: the configuration is refused; the message names file, key and remedy.
    """
    from gpufleet.notify.credentials import read_client_config
    from gpufleet.notify.session import Alertmanager

    config = read_client_config(config_file)
    if config.tls is not None and not config.tls.verify:
        log.warning(
            "Alertmanager's certificate is not verified: whoever is on the way reads and changes alerts; "
            "set tls_config.ca_file instead of insecure_skip_verify",
            extra={"file": str(config_file)},
        )
    return Poster({url: Alertmanager(url, config) for url in urls})


class _Board:
    """The alerts that are open, as the faults thread last said, for all couriers to see."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alerts: tuple[Alert, ...] = ()
        self._closed = False

    def put(self, alerts: tuple[Alert, ...]) -> None:
        with self._changed:
            if alerts != self._alerts:
                self._alerts = alerts
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def look(self) -> tuple[Alert, ...] | None:
        """The open alerts; None: it's time to go."""
        return None if self._closed else self._alerts

    def wait(self, seen: tuple[Alert, ...], seconds: float) -> None:
        """Until something else than ``seen`` is open, or for ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._alerts is not seen, seconds)


class _Courier:
    """The thread that talks to one Alertmanager."""

    def __init__(
        self,
        url: str,
        client: Client,
        board: _Board,
        clock: Callable[[], float],
        wall: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._url = url
        self._client = client
        self._board = board
        self._clock, self._wall, self._chance = clock, wall, chance
        self._target = Target({})
        self._skew = 0.0
        self._up: bool | None = None
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._changes = OnChange(log)
        self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ended(self, seconds: float) -> bool:
        self._thread.join(max(seconds, 0))
        return not self._thread.is_alive()

    def status(self) -> Status:
        return Status(self._url, self._up, tuple(self._counts.items()))

    def _run(self) -> None:
        while (alerts := self._board.look()) is not None:
            now = self._clock()
            self._target = forget(alerts, self._target, now)
            step = next_step(alerts, self._target, now)
            if isinstance(step, Wait):
                self._board.wait(alerts, min(step.until - now, _LONGEST_WAIT_SECONDS))
            else:
                self._deliver(step)

    def _deliver(self, post: Post) -> None:
        before = self._wall()
        try:
            answer = self._client.post(encode(post, before + self._skew))
        except Exception as error:
            log.exception("posting to Alertmanager failed inside", exc_info=error, extra={"alertmanager": self._url})
            answer = Answer(Verdict.FAILED, f"{type(error).__name__} inside gpufleet")
        self._account(post, answer)
        self._target = learned(self._target, post, answer.verdict, self._clock(), self._chance())
        self._mind_the_clock(answer, (before + self._wall()) / 2)

    def _account(self, post: Post, answer: Answer) -> None:
        accepted = answer.verdict is Verdict.ACCEPTED
        self._counts[_OUTCOMES.get(answer.verdict, "failed")] += len(post)
        self._up = accepted
        if not accepted:
            self._changes.failed(
                "post", "Alertmanager does not take alerts", answer.detail, alertmanager=self._url, alerts=len(post)
            )
            return
        self._changes.over("post", "Alertmanager takes alerts again", alertmanager=self._url)
        for alert in post.firing:
            standing = self._target.standings.get(alert.labels)
            if standing is None or standing.accepted_at is None:
                self._say("alert posted", alert)
        for alert in post.resolved:
            self._say("alert resolved", alert)

    def _say(self, what: str, alert: Alert) -> None:
        labels = dict(alert.labels)
        about = {name: labels.get(name) for name in ("incident", "fault", "uuid")}
        log.info(what, extra={"alertmanager": self._url, **about})

    def _mind_the_clock(self, answer: Answer, now: float) -> None:
        """Times in posts are by Alertmanager's clock; what it was told by another is told again."""
        if answer.server_time is None:
            return
        skew = answer.server_time + 0.5 - now
        skew = skew if abs(skew) > _NOTABLE_SKEW_SECONDS else 0.0
        if abs(skew - self._skew) > _HARMFUL_SKEW_SECONDS:
            self._target = told_by_a_wrong_clock(self._target, self._clock())
        self._skew = skew
        if abs(skew) > _HARMFUL_SKEW_SECONDS:
            minutes = f"{abs(skew) / 60:.0f} minutes {'behind' if skew > 0 else 'ahead'}"
            self._changes.failed(
                "clock", "this node's clock is not Alertmanager's; check both", minutes, alertmanager=self._url
            )
        else:
            self._changes.over("clock", "this node's clock is Alertmanager's again", alertmanager=self._url)
