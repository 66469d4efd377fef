"""The newest text for scrapes: made once a snapshot, whoever asks and however many ask at once.

A scrape never waits for the driver. It gets the text of the latest snapshot, most often made and compressed before it
came. Threads scrape while the poll thread publishes.
"""

from __future__ import annotations

import threading
import time
import zlib
from typing import TYPE_CHECKING, Protocol

from gpufleet.metrics.family import Level
from gpufleet.metrics.render import OPENMETRICS_END, Renderer

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.metrics.selfmetrics import SelfMetrics
    from gpufleet.model.snapshot import Snapshot

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STALE_INTERVALS = 3
"""A snapshot older than so many poll intervals says nothing of now."""

# Text is made ahead of scrapes for as long after the last one (longer than any usual scrape interval), and about once a
# second however fast the polls are; a little less, so that of polls each second none is left out.
_WATCHED_SECONDS = 120.0
_AHEAD_SECONDS = 0.9
# The first polls of a start bring new series one after the other, in less than a second: each of them is made ahead.
_STARTING_SECONDS = 5.0
# Process metrics are read anew at this age: reading them costs about what rendering four GPUs does.
_SELF_SECONDS = 5.0

_GZIP = 16 + zlib.MAX_WBITS
# Level 6 takes three times as long and saves a quarter of what is a tenth of the text already.
_GZIP_LEVEL = 1

_Form = tuple[bool, bool]  # OpenMetrics or text, compressed or not


def openmetrics_content_type(version: str) -> str:
    """Return the content type of OpenMetrics, in the version that was negotiated."""
    return f"application/openmetrics-text; version={version}; charset=utf-8"


class SnapshotSource(Protocol):
    """Where snapshots come from."""

    @property
    def latest(self) -> Snapshot:
        """The newest snapshot."""

    def subscribe(self, callback: Callable[[Snapshot], None]) -> None:
        """Call ``callback`` with every snapshot from now on, once it is ``latest``."""


class _Edition:
    """All that was made of one snapshot."""

    __slots__ = ("bodies", "made_at", "snapshot", "stale")

    def __init__(self, snapshot: Snapshot, made_at: float, *, stale: bool) -> None:
        self.snapshot = snapshot
        self.made_at = made_at
        self.stale = stale
        self.bodies: dict[_Form, bytes] = {}


class Exposition:
    """Serves the newest snapshot as text. ``body`` may be called from any thread.

    ``interval`` is the poll interval in seconds; ``clock`` is the monotonic clock that stamps the snapshots.
    """

    def __init__(
        self,
        source: SnapshotSource,
        self_metrics: SelfMetrics,
        *,
        interval: float,
        level: Level = Level.STANDARD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._self_metrics = self_metrics
        self._oldest = STALE_INTERVALS * interval
        self._level = level
        self._clock = clock
        self._lock = threading.Lock()  # held to make something; what is made is read without it
        self._renderer = Renderer(level)
        self._edition: _Edition | None = None
        self._wanted: dict[_Form, float] = {}
        self._ahead_at = float("-inf")
        self._starting_until = float("-inf")
        self._self_texts: dict[bool, bytes] = {}
        self._self_at = float("-inf")
        source.subscribe(self._published)

    def body(self, *, openmetrics: bool = False, gzip: bool = False) -> bytes:
        """Return the exposition: in the text format 0.0.4 or OpenMetrics 1.0, as it is or compressed."""
        form = (openmetrics, gzip)
        now = self._clock()
        self._wanted[form] = now
        edition = self._edition
        if edition is not None and self._current(edition, now):
            body = edition.bodies.get(form)
            if body is not None:
                return body
        with self._lock:
            return self._body(self._newest_edition(), form)

    def expect(self, *, openmetrics: bool = False, gzip: bool = False) -> None:
        """Take a form as wanted before anybody has asked for it.

        The first rendering works out every line's name and labels and takes ten times as long as a later one: at a
        start the poll's thread has the time for it that the first scrape has not.
        """
        now = self._clock()
        self._wanted[openmetrics, gzip] = now
        self._starting_until = now + _STARTING_SECONDS

    def _published(self, _: Snapshot) -> None:
        """Make, on the poll's thread, what scrapes have wanted lately."""
        now = self._clock()
        if self._starting_until < now < self._ahead_at + _AHEAD_SECONDS:
            return
        wanted = [form for form, at in tuple(self._wanted.items()) if now - at < _WATCHED_SECONDS]
        if wanted:
            self._ahead_at = now
            with self._lock:
                edition = self._newest_edition()
                for form in wanted:
                    self._body(edition, form)

    def _stale(self, snapshot: Snapshot, now: float) -> bool:
        return now - snapshot.monotonic > self._oldest

    def _current(self, edition: _Edition, now: float) -> bool:
        return (
            edition.snapshot is self._source.latest
            and edition.stale == self._stale(edition.snapshot, now)
            and now - edition.made_at < _SELF_SECONDS
        )

    def _newest_edition(self) -> _Edition:
        now = self._clock()
        edition = self._edition
        if edition is None or not self._current(edition, now):
            snapshot = self._source.latest
            edition = self._edition = _Edition(snapshot, now, stale=self._stale(snapshot, now))
        return edition

    def _body(self, edition: _Edition, form: _Form) -> bytes:
        body = edition.bodies.get(form)
        if body is None:
            openmetrics, gzip = form
            body = compressed(self._body(edition, (openmetrics, False))) if gzip else self._text(edition, openmetrics)
            edition.bodies[form] = body
        return body

    def _text(self, edition: _Edition, openmetrics: bool) -> bytes:  # noqa: FBT001 - private, and named by its callers
        parts = [self._snapshot_text(edition, openmetrics=openmetrics), self._self_text(openmetrics=openmetrics)]
        if openmetrics:
            parts.append(OPENMETRICS_END.encode())
        return b"".join(parts)

    def _snapshot_text(self, edition: _Edition, *, openmetrics: bool) -> bytes:
        make = self._renderer.openmetrics if openmetrics else self._renderer.text
        try:
            text = make(edition.snapshot, stale=edition.stale).encode()
        except Exception as error:  # noqa: BLE001 - whatever it is, the scrape answers with the rest
            self._renderer = Renderer(self._level)  # what it remembers may be half of one snapshot and half of another
            self._self_metrics.failed("snapshot", error)
            self._self_texts.clear()
            return b""
        self._self_metrics.worked("snapshot")
        return text

    def _self_text(self, *, openmetrics: bool) -> bytes:
        now = self._clock()
        if now - self._self_at >= _SELF_SECONDS:
            self._self_texts.clear()
            self._self_at = now
        text = self._self_texts.get(openmetrics)
        if text is None:
            text = self._self_metrics.openmetrics() if openmetrics else self._self_metrics.text()
            self._self_texts[openmetrics] = text
        return text


def compressed(body: bytes) -> bytes:
    """Return the body as gzip; the same bytes give the same, whenever."""
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    return compressor.compress(body) + compressor.flush()
