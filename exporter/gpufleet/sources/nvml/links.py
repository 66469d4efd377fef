"""NVLink, link by link, in one field batch: states, error counters, and bytes where each link is shown by itself."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from gpufleet.model.readings import Key, Number
from gpufleet.sources.nvml.batch import FieldRequest
from gpufleet.sources.nvml.calls import NEVER_HERE, NO_PERMISSION, SUCCESS, Calls, NvmlError
from gpufleet.sources.nvml.fields import (
    LINK_BYTES,
    LINK_COUNT,
    LINK_ERRORS,
    LINK_STATE,
    LINK_STATES,
    MADE_BEHIND_THE_LINK,
)
from gpufleet.sources.nvml.tally import UNWRITTEN, Tally, Tier
from gpufleet.sources.nvml.units import BLANKS, COUNT64, U32, Unit

MOST_LINKS = 36
"""Of any part so far (NVML_NVLINK_MAX_LINKS); a larger count is a driver's error, not a reason for a larger buffer."""

_REFUSED = NEVER_HERE | {NO_PERMISSION, UNWRITTEN}


class LinkBatch:
    """All links of one device. Totals and the worst link by default; every link with ``each_link``.

    A link that can't be read this time leaves its share out of no total: the whole total is absent then, since a sum
    that loses a term would go down and look like a counter reset.
    """

    function = FieldRequest.function
    tier = Tier.MEDIUM

    def __init__(self, calls: Calls, handle: ctypes.c_void_p, links: int, *, each_link: bool) -> None:
        self._links = links
        self._each_link = each_link
        self._calls = calls
        self._handle = handle
        self._columns: list[tuple[str, str | None, int, Unit]] = [
            ("nvlink_errors", error, field, COUNT64) for error, field in LINK_ERRORS
        ]
        if each_link:
            self._columns += [(name, None, field, unit) for name, field, unit in LINK_BYTES]
        self._request = self._make_request()
        self._answering: dict[int, int] = {}
        self._has_state = True
        self.keys: tuple[Key, ...] = ()
        self.values: list[Number | None] = []

    def _make_request(self) -> FieldRequest:
        fields = [LINK_STATE, *(field for _, _, field, _ in self._columns)]
        return FieldRequest(
            self._calls, self._handle, [(field, link) for field in fields for link in range(self._links)]
        )

    def probe(self) -> int:
        """Drop the columns that no link reports; returns the code of the call as a whole."""
        code = self._request.send()
        if code:
            return code
        reply = self._request.reply()
        self._has_state = not {reply[2 * link] for link in range(self._links)} <= _REFUSED
        kept = []
        seen: set[tuple[str, str | None]] = set()
        for column, (name, error, field, unit) in enumerate(self._columns):
            codes = [reply[2 * self._at(column + 1, link)] for link in range(self._links)]
            if _REFUSED.issuperset(codes):
                continue
            # Bytes have two ids, Blackwell's first: the second is only for parts that lack the first.
            if (name, error) not in seen:
                seen.add((name, error))
                kept.append((name, error, field, unit))
                # One that can't be read just now is missed from the start: without its share the sum would be too low.
                self._answering[len(kept)] = len([code for code in codes if code not in _REFUSED])
        self._columns = kept
        self._request = self._make_request()
        self.keys = tuple(self._make_keys())
        self.values = [None] * len(self.keys)
        return SUCCESS

    def _at(self, column: int, link: int) -> int:
        return column * self._links + link

    def _make_keys(self) -> Iterator[Key]:
        if self._has_state:
            yield from (Key("nvlink_links", (state,)) for state in LINK_STATES)
        for name, error, _, _ in self._columns:
            if self._each_link:
                members = () if error is None else (error,)
                yield from (Key(name, (*members, str(link))) for link in range(self._links))
            elif error is not None:
                yield Key(name, (error,))
                if error not in MADE_BEHIND_THE_LINK:
                    yield Key("nvlink_worst_link_errors", (error,))

    def run(self, tally: Tally) -> int:
        """Ask for every link and fill ``values``."""
        code = self._request.send()
        if code:
            self.values = [None] * len(self.keys)
            return code
        reply = self._request.reply()
        counts = [0] * len(LINK_STATES)
        for link in range(self._links):
            state = reply[2 * link + 1] & U32
            if reply[2 * link] == SUCCESS and state < len(counts):
                counts[state] += 1
        values: list[Number | None] = list(counts) if self._has_state else []
        for column, (name, error, _, unit) in enumerate(self._columns, start=1):
            of_links: list[int | None] = []
            for link in range(self._links):
                at = 2 * self._at(column, link)
                raw = reply[at + 1] & unit.mask
                if reply[at] != SUCCESS:
                    of_links.append(None)
                    if reply[at] not in NEVER_HERE:
                        tally.error(reply[at])
                elif raw > unit.high or raw in BLANKS:
                    of_links.append(None)
                    tally.impossible(Key(name))
                else:
                    of_links.append(raw * unit.times)
            if self._each_link:
                values += of_links
            elif error is not None:
                known = [count for count in of_links if count is not None]
                whole = len(known) == self._expected(column, len(known))
                summed = (sum(known), max(known)) if known and whole else (None, None)
                values += summed[:1] if error in MADE_BEHIND_THE_LINK else summed
        self.values = values
        return SUCCESS

    def _expected(self, column: int, known: int) -> int:
        """Links that have ever answered for a column: only they are missed when they fall silent."""
        most = self._answering.get(column, 0)
        if known > most:
            self._answering[column] = known
            return known
        return most


def count_links(calls: Calls, handle: ctypes.c_void_p) -> int:
    """NVLinks of the device; 0 where it has none or does not say. Raises NvmlError for a passing reason."""
    request = FieldRequest(calls, handle, [(LINK_COUNT, 0)])
    code = request.send()
    if code != SUCCESS and code not in _REFUSED:
        raise NvmlError(request.function, code)
    if code != SUCCESS:
        return 0
    code, links = request.reply()
    links &= U32
    return links if code == SUCCESS and links <= MOST_LINKS else 0
