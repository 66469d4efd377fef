"""The price book of a running exporter: read at the start, and again when its file has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpufleet.cost.node_facts import node_facts
from gpufleet.cost.pricer import Pricer
from gpufleet.cost.prices import PriceBook, PriceBookError
from gpufleet.logs import OnChange
from gpufleet.model.meter import Price
from gpufleet.model.snapshot import GpuSnapshot, SourceHealth

log = logging.getLogger(__name__)

SOURCE = "prices"


class PriceSource:
    """Prices of one node's GPUs. ``price_of`` is for the poll thread; the rest for one other."""

    def __init__(
        self,
        file: Path | None,
        node: str,
        labels: Mapping[str, str],
        *,
        built_in: PriceBook | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``built_in`` takes the place of a file where none is given.

        Raises PriceBookError when the file is refused.
        """
        self._file = file
        self._node = node
        self._given = dict(labels)
        self._labels = dict(labels)
        self._wall = wall
        self._said = OnChange(log)
        self._reason: str | None = None
        self._mark = _mark(file)
        self._book = built_in if file is None else PriceBook.load(file)
        self._pricer = self._new_pricer()
        if self._book is None:
            log.info("no --prices.file: GPU time is metered, and no cost is shown")
        else:
            self._warn(self._book)

    def price_of(self, gpu: GpuSnapshot) -> Price | None:
        """What the whole GPU costs now; ``None`` without a price book, or when no rule of it is for the GPU."""
        pricer = self._pricer
        if pricer is None:
            return None
        price = pricer.price_of(gpu)
        key = f"price {gpu.identity.uuid}"
        if price is None:
            self._said.failed(
                key,
                "no rule of the price book is for a GPU: it has no cost; gpufleet prices explain says why",
                gpu.identity.name,
                gpu=gpu.number,
                uuid=gpu.identity.uuid,
            )
        else:
            self._said.over(key, "a GPU has a price again", gpu=gpu.number, rule=price.rule)
        return price

    def health(self) -> tuple[SourceHealth, ...]:
        """Whether the file is good as it is now; nothing where there is none."""
        if self._file is None:
            return ()
        return (SourceHealth(SOURCE, up=self._reason is None, reason=self._reason),)

    def look(self) -> None:
        """Take a file up that has changed; a bad one changes nothing but is told of."""
        if self._file is None:
            return
        mark = _mark(self._file)
        if mark == self._mark and self._reason is None:
            return
        try:
            book = PriceBook.load(self._file)
        except PriceBookError as error:
            self._reason = str(error)
            self._said.failed("file", "the price book is refused: the one before stays in force", str(error))
            return
        if mark != self._mark:
            log.info("the price book has changed", extra={"file": str(self._file), "rules": len(book.rules)})
        self._said.over("file", "the price book is good again", file=str(self._file))
        self._mark, self._reason, self._book = mark, None, book
        self._warn(book)
        self._pricer = self._new_pricer()

    def node_labels(self, labels: Mapping[str, str]) -> None:
        """Take the node's labels from its API server; those that were given as options win."""
        merged = {**labels, **self._given}
        if merged != self._labels:
            self._labels = merged
            self._pricer = self._new_pricer()

    def _new_pricer(self) -> Pricer | None:
        if self._book is None:
            return None
        return Pricer(self._book, node_facts(self._node, self._labels), self._wall)

    @staticmethod
    def _warn(book: PriceBook) -> None:
        for warning in book.warnings:
            log.warning("the price book has a rule that does nothing", extra={"err": warning})


def _mark(file: Path | None) -> tuple[int, int, int] | None:
    """What changes when a file does, also when a mounted ConfigMap is exchanged."""
    if file is None:
        return None
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)
