"""A source of owners on a thread of its own: asked in turn, its last answer kept with its age.

A kubelet that hangs, or a directory on a file system that does, costs its own answer and nobody else's time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpufleet.logs import OnChange
from gpufleet.model.snapshot import SourceHealth

log = logging.getLogger(__name__)

T = TypeVar("T")

SHORTEST_PAUSE_SECONDS = 1.0
"""Between two questions, however often somebody says that the answer has changed: the kubelet limits its rate."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a source said."""

    value: T
    monotonic: float
    """When."""
    at: float
    """The same as Unix time."""


class Witness(Generic[T]):
    """Asks ``ask`` at each interval and whenever it is woken. ``answer`` may be read from any thread."""

    def __init__(
        self,
        source: str,
        ask: Callable[[], T],
        *,
        errors: Callable[[], type[Exception]],
        interval: float,
        answered: Callable[[], None],
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """``errors`` gives the exception that says in words for a person why there is no answer.

        ``answered`` is called by this thread after each answer that is another one than before, and after the first.
        """
        self.source = source
        self.answer: Answer[T] | None = None
        self.health = SourceHealth(source, up=False, reason="has not been asked yet")
        self._ask = ask
        self._errors = errors
        self._interval = interval
        self._answered = answered
        self._monotonic = monotonic
        self._wall = wall
        self._said = OnChange(log)
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=source, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. Does not wait: a question may be out for as long as its source likes."""
        self._ended.set()
        self._wake.set()

    def wake(self) -> None:
        """Ask soon: the answer is most likely another one now."""
        self._wake.set()

    def overdue(self, now: float, limit: float) -> bool:
        """Whether a question has been out for longer than ``limit`` seconds."""
        asked_at = self._asked_at
        return asked_at is not None and now - asked_at > limit

    def _run(self) -> None:
        while not self._ended.is_set():
            self._once()
            # First the pause that is due in any case: whoever wakes this thread meanwhile is answered after it.
            self._ended.wait(min(SHORTEST_PAUSE_SECONDS, self._interval))
            self._wake.wait(max(0.0, self._interval - SHORTEST_PAUSE_SECONDS))
            self._wake.clear()

    def _once(self) -> None:
        self._asked_at = self._monotonic()
        try:
            value = self._ask()
        except self._errors() as error:
            self._failed(str(error))
        except Exception as error:
            log.exception("a source of owners failed in a way that it should not", extra={"source": self.source})
            self._failed(f"{type(error).__name__}: {error}")
        else:
            before = self.answer
            self.answer = Answer(value, self._monotonic(), self._wall())
            if not self.health.up:
                self.health = SourceHealth(self.source, up=True)
            self._said.over(self.source, "a source of owners answers again", source=self.source)
            if before is None or before.value != value:
                self._answered()
        finally:
            self._asked_at = None

    def _failed(self, reason: str) -> None:
        self.health = SourceHealth(self.source, up=False, reason=reason)
        self._said.failed(self.source, "a source of owners does not answer", reason, source=self.source)
