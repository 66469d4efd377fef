"""NVLink, link by link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpufleet.model.readings import Key, Number
from gpufleet.sources.nvml.calls import GPU_IS_LOST, NOT_SUPPORTED, TIMEOUT, UNKNOWN, NvmlError
from gpufleet.sources.nvml.fields import LINK_COUNT, LINK_ERRORS, LINK_STATE
from gpufleet.sources.nvml.links import MOST_LINKS, LinkBatch, count_links
from gpufleet.sources.nvml.tally import Tally
from tests.unit.sources.nvml.answers import HANDLE, Answers, FieldTable

REPLAY, RECOVERY, CRC = 161, 162, 163
ERRORS = Key("nvlink_errors", ("replay",))
WORST = Key("nvlink_worst_link_errors", ("replay",))


def table(*replays: int) -> FieldTable:
    """Links that are all active and have so many replays."""
    found = FieldTable({(LINK_STATE, link): (0, 1) for link in range(len(replays))})
    found.entries |= {(REPLAY, link): (0, count) for link, count in enumerate(replays)}
    return found


def batch_on(fields: FieldTable, links: int, *, each_link: bool = False) -> LinkBatch:
    """What is asked of so many links."""
    batch = LinkBatch(Answers({"nvmlDeviceGetFieldValues": fields}).calls(), HANDLE, links, each_link=each_link)
    assert batch.probe() == 0
    return batch


def read(batch: LinkBatch, tally: Tally | None = None) -> dict[Key, Number | None]:
    """One turn."""
    assert batch.run(tally or Tally()) == 0
    return dict(zip(batch.keys, batch.values, strict=True))


def test_the_sum_and_the_worst_link_are_shown() -> None:
    """A single bad cable does not drown in the sum of eighteen links."""
    found = read(batch_on(table(1, 0, 40), 3))

    assert (found[ERRORS], found[WORST]) == (41, 40)
    assert found[Key("nvlink_links", ("active",))] == 3


def test_states_are_counted() -> None:
    """A state that is not known is none of them."""
    fields = table(0, 0, 0, 0, 0)
    fields.entries |= {(LINK_STATE, link): (0, state) for link, state in enumerate((1, 1, 0, 2, 9))}

    found = read(batch_on(fields, 5))

    assert [found[Key("nvlink_links", (state,))] for state in ("active", "inactive", "sleep")] == [2, 1, 1]


def test_a_sum_that_lacks_a_term_is_absent() -> None:
    """It would go down, and look like a reset of the counter."""
    fields = table(10, 20, 30)
    batch = batch_on(fields, 3)
    assert read(batch)[ERRORS] == 60
    fields.entries[REPLAY, 1] = (TIMEOUT, 0)
    tally = Tally()

    found = read(batch, tally)

    assert (found[ERRORS], found[WORST]) == (None, None)
    assert tally.errors == {"timeout": 1}
    fields.entries[REPLAY, 1] = (0, 21)
    assert read(batch)[ERRORS] == 61


def test_a_link_that_is_silent_from_the_start_is_missed_if_it_may_come() -> None:
    """A device that is opened just then has to wait for it; a link that has no counter is never missed."""
    fields = table(10, 20, 30)
    fields.entries[REPLAY, 1] = (TIMEOUT, 0)
    fields.entries[REPLAY, 2] = (NOT_SUPPORTED, 0)
    batch = batch_on(fields, 3)
    assert read(batch)[ERRORS] is None

    fields.entries[REPLAY, 1] = (0, 20)

    assert read(batch)[ERRORS] == 30


def test_counters_that_no_link_has_are_not_asked() -> None:
    """Blackwell's are asked on Blackwell only."""
    fields = table(1, 2)
    batch = batch_on(fields, 2)
    read(batch)

    assert {field for field, _ in fields.asked[-1]} == {LINK_STATE, REPLAY}
    assert {key.name for key in batch.keys} == {"nvlink_links", "nvlink_errors", "nvlink_worst_link_errors"}


@pytest.mark.parametrize("count", [0x7FFF_FFEF, 0x8000_0000, 0xFFFF_FFFE, 0x1_0000_0000])
def test_a_count_beside_the_blanks_is_a_count(count: int) -> None:
    """A link makes more symbol errors than 32 bits hold: only the words for "no value" are none."""
    found = read(batch_on(table(0, count), 2))

    assert (found[ERRORS], found[WORST]) == (count, count)


def test_an_impossible_count_is_dropped_and_counted() -> None:
    """And the sum with it."""
    fields = table(1, 2)
    batch = batch_on(fields, 2)
    fields.entries[REPLAY, 1] = (0, (1 << 64) - 1)
    tally = Tally()

    assert read(batch, tally)[ERRORS] is None
    assert tally.invalid == {"nvlink_errors": 1}


def test_each_link_by_itself() -> None:
    """With bytes; then there are no sums beside them."""
    fields = table(1, 2)
    fields.entries |= {(138, link): (0, 10 + link) for link in range(2)}
    found = read(batch_on(fields, 2, each_link=True))

    assert found[Key("nvlink_errors", ("replay", "1"))] == 2
    assert found[Key("nvlink_transmit_bytes", ("1",))] == 11 * 1024
    assert ERRORS not in found
    assert WORST not in found


def test_newer_byte_counters_win() -> None:
    """Blackwell counts bytes under new ids; the old ones count KiB."""
    fields = table(1)
    fields.entries |= {(138, 0): (0, 10), (202, 0): (0, 999)}

    assert read(batch_on(fields, 1, each_link=True))[Key("nvlink_transmit_bytes", ("0",))] == 999


def test_a_batch_that_fails_keeps_no_value() -> None:
    """The plan judges the code."""
    fields = table(1)
    batch = batch_on(fields, 1)
    fields.code = TIMEOUT

    assert batch.run(Tally()) == TIMEOUT
    assert set(batch.values) == {None}


def counts() -> Iterator[tuple[FieldTable, int]]:
    """Answers to the question how many there are."""
    yield FieldTable({(LINK_COUNT, 0): (0, 18)}), 18
    yield FieldTable({(LINK_COUNT, 0): (0, 0xAAAA_0000_0012)}), 18
    yield FieldTable({(LINK_COUNT, 0): (NOT_SUPPORTED, 18)}), 0
    yield FieldTable({(LINK_COUNT, 0): (0, MOST_LINKS + 1)}), 0
    refused = FieldTable()
    refused.code = NOT_SUPPORTED
    yield refused, 0


@pytest.mark.parametrize(("fields", "expected"), list(counts()))
def test_links_are_counted(fields: FieldTable, expected: int) -> None:
    """Dirty upper bits are masked; a count that no part has is a driver's error and not a reason for a huge buffer."""
    assert count_links(Answers({"nvmlDeviceGetFieldValues": fields}).calls(), HANDLE) == expected


@pytest.mark.parametrize("code", [TIMEOUT, UNKNOWN, GPU_IS_LOST])
def test_a_count_that_fails_for_now_opens_no_device(code: int) -> None:
    """It would be without links until it is opened again."""
    fields = FieldTable()
    fields.code = code
    with pytest.raises(NvmlError):
        count_links(Answers({"nvmlDeviceGetFieldValues": fields}).calls(), HANDLE)


@pytest.mark.parametrize("error", ["transmit_discard", "receive_remote", "buffer_overrun"])
def test_of_what_is_made_behind_the_link_there_is_a_sum_only(error: str) -> None:
    """Traffic and peers are no matter of one cable; each link is shown where all are."""
    field = dict(LINK_ERRORS)[error]
    fields = table(0, 0, 0)
    fields.entries |= {(field, link): (0, 7 * link) for link in range(3)}

    found = read(batch_on(fields, 3))
    assert found[Key("nvlink_errors", (error,))] == 21
    assert Key("nvlink_worst_link_errors", (error,)) not in found
    assert found[WORST] == 0

    each = read(batch_on(fields, 3, each_link=True))
    assert [each[Key("nvlink_errors", (error, str(link)))] for link in range(3)] == [0, 7, 14]
