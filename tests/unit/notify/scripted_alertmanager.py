"""An Alertmanager that does what a test says, and the time in which it is posted to: no threads, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from gpufleet.notify.alert import Alert
from gpufleet.notify.decide import (
    REFRESH_SECONDS,
    VALID_SECONDS,
    Post,
    Target,
    Verdict,
    Wait,
    forget,
    learned,
    next_step,
)

if TYPE_CHECKING:
    from gpufleet.notify.alert import Pairs


class Mood(Enum):
    """How it takes a post."""

    UP = "takes it"
    GONE = "can't be reached"
    BROKEN = "answers 500 and takes nothing"
    MUTE = "takes it and answers too late"
    STRANGE = "refuses our credentials"
    PICKY = "refuses alerts whose number is odd, and takes the others"


def numbered(number: int) -> Alert:
    """One of a set of different alerts."""
    return Alert((("alertname", "GpuHardwareIncident"), ("incident", str(number))), (), 0.0)


@dataclass
class World:
    """One Alertmanager, the alerts that are open, and the time."""

    chance: float = 0.5
    now: float = 1000.0
    mood: Mood = Mood.UP
    target: Target = field(default_factory=lambda: Target({}))
    open: dict[int, Alert] = field(default_factory=dict)
    shown: dict[Pairs, float] = field(default_factory=dict)
    """What it shows as firing: until when it would, unless refreshed."""
    taken: set[Pairs] = field(default_factory=set)
    """What it ever took as firing."""
    posts: list[tuple[float, Post]] = field(default_factory=list)
    resolved: list[Pairs] = field(default_factory=list)
    """What it accepted as over."""
    forgot_at: float = 0.0

    def restart(self) -> None:
        """It starts anew and remembers nothing."""
        self.shown.clear()
        self.forgot_at = self.now

    def shows(self) -> set[int]:
        """The numbers of the alerts that it shows as firing."""
        return {int(dict(labels)["incident"]) for labels, until in self.shown.items() if until > self.now}

    def run(self, seconds: float) -> int:
        """Let the time go by; returns how many posts were made in it."""
        end = self.now + seconds
        before = len(self.posts)
        while True:
            alerts = list(self.open.values())
            self.target = forget(alerts, self.target, self.now)
            step = next_step(alerts, self.target, self.now)
            if isinstance(step, Post):
                self._carry(step)
                continue
            self._check(step)
            if step.until > end:
                self.now = end
                return len(self.posts) - before
            self.now = step.until

    def _carry(self, post: Post) -> None:
        self.posts.append((self.now, post))
        assert len(self.posts) < 100_000, "it posts without a pause"
        verdict = self._take(post)
        if verdict is Verdict.ACCEPTED:
            self.resolved += [alert.labels for alert in post.resolved]
        self.target = learned(self.target, post, verdict, self.now, self.chance)

    def _take(self, post: Post) -> Verdict:
        if self.mood is Mood.GONE:
            return Verdict.UNREACHED
        if self.mood is Mood.BROKEN:
            return Verdict.FAILED
        if self.mood is Mood.STRANGE:
            return Verdict.REFUSED
        verdict = Verdict.FAILED if self.mood is Mood.MUTE else Verdict.ACCEPTED
        for alert in (*post.firing, *post.resolved):
            if self.mood is Mood.PICKY and int(dict(alert.labels)["incident"]) % 2:
                verdict = Verdict.CONTENT_REFUSED
            elif alert in post.firing:
                self.shown[alert.labels] = self.now + VALID_SECONDS
                self.taken.add(alert.labels)
            else:
                self.shown.pop(alert.labels, None)
        return verdict

    def _check(self, step: Wait) -> None:
        """What holds whenever nothing is to be done: nobody waits without need, and nothing expires while waiting."""
        assert step.until > self.now
        if any(alert.labels not in self.target.standings for alert in self.open.values()):
            assert step.until <= self.now + 1, "news waits"
        if self.mood is Mood.UP and not self.target.failures and not self.target.refusals:
            for alert in self.open.values():
                standing = self.target.standings[alert.labels]
                if standing.refusals or self.now < self.forgot_at + REFRESH_SECONDS:
                    continue
                assert self.shown[alert.labels] > step.until, "it would expire before it is refreshed"
