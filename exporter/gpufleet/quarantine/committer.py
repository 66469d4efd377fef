"""The one door to the ledger: changes wait together, are decided together, and written once.

Whoever asks gets an answer only when what was decided is durable. At most one write a second, however many ask: two
thousand alerts at once are two thousand decisions and one write.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpufleet.logs import OnChange
from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.decide import Session
from gpufleet.quarantine.stores import ConflictError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.stores import Held, Store
    from gpufleet.quarantine.view import View

_log = logging.getLogger(__name__)

_WRITE_EVERY = 1.0
_TRIES = 5
"""Another replica has written in between: read, decide again. After so many whoever asks is told to come again."""
_VIEW_SECONDS = 10.0
"""What was seen of the nodes is good for so long."""
_LONGEST_WAIT = 4.5
"""An HA Alertmanager's peer sends the same alert after 15 s; under 5 s the answer never matters to it."""


class NotRecordedError(Exception):
    """What was asked for is not in the ledger: it must be asked for again. Says why."""


@dataclass(slots=True)
class _Asked:
    change: Callable[[Session], Any]
    needs_view: bool
    done: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    error: NotRecordedError | None = None


class Committer:
    """Applies changes to the ledger's book, in batches, on a thread of its own.

    ``view`` reads the nodes and raises UnobservableError; ``clock`` is Unix time, ``monotonic`` seconds;
    ``wrote`` is called after each write of the ledger.
    """

    def __init__(
        self,
        store: Store,
        view: Callable[[], View],
        policy: Policy,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        wrote: Callable[[], object] = lambda: None,
        wait: Callable[[threading.Condition, float], object] = lambda condition, seconds: condition.wait(seconds),
    ) -> None:
        self._store = store
        self._read_view = view
        self._policy = policy
        self._clock = clock
        self._monotonic = monotonic
        self._wait = wait
        self._wrote = wrote
        self._held: Held | None = None
        self._view: View | None = None
        self._viewed_at = self._loaded_at = float("-inf")
        self._written_at = float("-inf")
        self._waiting: list[_Asked] = []
        self._changed = threading.Condition()
        self._reading = threading.Lock()
        self._started = self._stopping = False
        self._failures = OnChange(_log)

    @property
    def book(self) -> Book | None:
        """The book as it was last loaded or written; None before the first time."""
        held = self._held
        return None if held is None else held.book

    @property
    def view(self) -> View | None:
        """The nodes as they were last seen."""
        return self._view

    def start(self) -> None:
        """Begin to serve."""
        self._started = True
        threading.Thread(target=self._run, name="ledger", daemon=True).start()

    def stop(self) -> None:
        """Answer what waits with a refusal, and take no more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def apply(self, change: Callable[[Session], Any], *, needs_view: bool = True, wait: float = _LONGEST_WAIT) -> Any:  # noqa: ANN401 - whatever the change returns
        """Have a change made, and wait until it is durable; return what it returned.

        Before ``start`` it is made on the caller's own thread, at once: for commands.

        The change may be called more than once, each time with another session, and must do nothing but change it.

        Raises:
            NotRecordedError: it is not written, as far as is known.
        """
        asked = _Asked(change, needs_view)
        if not self._started:
            self.commit([asked])
            return _answer(asked)
        with self._changed:
            if self._stopping:
                raise NotRecordedError("the service is shutting down")
            self._waiting.append(asked)
            self._changed.notify_all()
        if not asked.done.wait(wait):
            raise NotRecordedError(f"the ledger was not written within {wait:g} s")
        return _answer(asked)

    def fresh(self) -> tuple[Book, View]:
        """Read both anew, the ledger first: whatever it says was done was done before the nodes were seen.

        Raises:
            UnobservableError, NotRecordedError: one of them cannot be read.
        """
        try:
            held = self._store.load()
        except StoreError as error:
            raise NotRecordedError(str(error)) from error
        view = self._read_view()
        with self._reading:
            self._held = held
            self._view = view
            self._viewed_at = self._loaded_at = self._monotonic()
        return held.book, view

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                # Those that come within the second since the last write go together with these.
                while not self._stopping and (left := self._written_at + _WRITE_EVERY - self._monotonic()) > 0:
                    self._wait(self._changed, left)
                batch, self._waiting = self._waiting, []
                stopping = self._stopping
            if stopping:
                self._refuse(batch, "the service is shutting down")
                return
            self.commit(batch)

    def commit(self, batch: list[_Asked]) -> None:
        """Decide on a batch and write it; every one of it has its answer afterwards."""
        try:
            with self._reading:
                self._commit(batch)
        except UnobservableError as error:
            self._refuse(batch, f"the nodes cannot be seen: {error}")
        except StoreError as error:
            self._held = None
            self._refuse(batch, str(error))
        except Exception as error:  # noqa: BLE001 - a flaw costs its batch, and never the thread that serves all
            _log.exception("a decision failed")
            self._held = None
            self._refuse(batch, f"a decision failed: {error!r}")
        else:
            self._failures.over("commit", "the ledger is written again")

    def _commit(self, batch: list[_Asked]) -> None:
        view = (
            self._seen(_VIEW_SECONDS) if any(asked.needs_view for asked in batch) or self._view is None else self._view
        )
        for _ in range(_TRIES):
            held = self._held
            # A person's command, or another replica, may have written since.
            if held is None or self._monotonic() - self._loaded_at > _WRITE_EVERY:
                self._held = held = self._store.load()
                self._loaded_at = self._monotonic()
            session, answers = self._session(held.book, view, batch)
            if session.missed_a_node and (newer := self._seen(_WRITE_EVERY)) is not view:
                # It may have joined since the nodes were looked at.
                view = newer
                session, answers = self._session(held.book, view, batch)
            if session.book is not held.book:
                try:
                    self._held = self._store.save(session.book, held.version)
                    self._loaded_at = self._monotonic()
                except ConflictError:
                    self._held = None
                    continue
                self._written_at = self._monotonic()
                self._wrote()
            for asked, answer in zip(batch, answers, strict=True):
                asked.answer = answer
                asked.done.set()
            return
        raise StoreError(f"others have written the ledger {_TRIES} times in between")

    def _session(self, book: Book, view: View, batch: list[_Asked]) -> tuple[Session, list[Any]]:
        session = Session(book, view, self._policy, self._clock())
        return session, [asked.change(session) for asked in batch]

    def _seen(self, seconds: float) -> View:
        """The nodes as they were at most so long ago."""
        if self._view is None or self._monotonic() - self._viewed_at > seconds:
            self._view = self._read_view()
            self._viewed_at = self._monotonic()
        return self._view

    def _refuse(self, batch: list[_Asked], why: str) -> None:
        if batch:
            self._failures.failed("commit", "what was asked for is not recorded", why, level=logging.ERROR)
        for asked in batch:
            asked.error = NotRecordedError(why)
            asked.done.set()


def _answer(asked: _Asked) -> Any:  # noqa: ANN401
    if asked.error is not None:
        raise asked.error
    return asked.answer
