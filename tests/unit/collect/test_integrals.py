"""Ratios and flags summed up over time."""

from __future__ import annotations

import pytest

from gpufleet.collect.integrals import MOST_LAYOUTS, Integrals, integrable
from gpufleet.model.readings import Key, Number, Readings

SM = Key("sm_active_ratio")
SM_SECONDS = Key("sm_active_seconds")
CAP = Key("clock_event_active", ("sw_power_cap",))
CAP_SECONDS = Key("clock_event_seconds", ("sw_power_cap",))


def reading(**values: float) -> Readings:
    """Readings without members."""
    return Readings(tuple(map(Key, values)), tuple(values.values()))


def sums(integrals: Integrals) -> dict[Key, Number]:
    """What is shown."""
    shown = integrals.readings()
    return {key: value for key, value in zip(shown.keys, shown.values, strict=True) if value is not None}


def test_a_known_pattern_is_summed_exactly() -> None:
    """Half a second at each of 0, 1/4, 1/2 and 1, and a second at 3/4."""
    integrals = Integrals()

    for ratio, seconds in ((0.0, 0.5), (0.25, 0.5), (0.5, 0.5), (1.0, 0.5), (0.75, 1.0)):
        integrals.add([reading(utilization_ratio=ratio, sm_active_ratio=ratio / 2)], seconds)

    assert sums(integrals) == {Key("busy_seconds"): 1.625, SM_SECONDS: 0.8125}


def test_a_sum_is_there_with_its_first_reading() -> None:
    """At zero: a counter that appears with its first growth loses that growth to rate()."""
    integrals = Integrals()

    integrals.add([reading(tensor_active_ratio=0.5)], 0.0)

    assert sums(integrals) == {Key("tensor_active_seconds"): 0.0}


def test_what_is_no_ratio_is_not_summed() -> None:
    """Temperatures, clocks, bytes and memory utilization have no sum."""
    integrals = Integrals()

    integrals.add([reading(temperature_celsius=70, memory_utilization_ratio=1.0, dram_active_ratio=1.0)], 1.0)

    assert sums(integrals) == {}


def test_a_reading_that_is_missing_once_keeps_its_sum() -> None:
    """Nothing is added, nothing is lost."""
    integrals = Integrals()
    integrals.add([reading(sm_active_ratio=0.5, utilization_ratio=1.0)], 2.0)

    integrals.add([reading(utilization_ratio=1.0)], 2.0)

    assert sums(integrals) == {SM_SECONDS: 1.0, Key("busy_seconds"): 4.0}


def test_slices_have_sums_of_their_own() -> None:
    """Under names of their own, so that a sum over GPUs counts no slice twice."""
    integrals = Integrals()

    integrals.add([reading(mig_sm_active_ratio=0.5, mig_tensor_active_ratio=0.25)], 2.0)

    assert sums(integrals) == {Key("mig_sm_active_seconds"): 1.0, Key("mig_tensor_active_seconds"): 0.5}


def test_clock_events_are_timed_where_the_driver_does_not() -> None:
    """Each reason by itself."""
    integrals = Integrals()
    other = Key("clock_event_active", ("gpu_idle",))

    integrals.add([Readings((CAP, other), (1, 0))], 3.0)
    integrals.add([Readings((CAP, other), (1, 1))], 1.0)

    assert sums(integrals) == {CAP_SECONDS: 4.0, Key("clock_event_seconds", ("gpu_idle",)): 1.0}


def test_an_event_that_the_driver_times_itself_is_not_timed_twice() -> None:
    """Also in a poll in which the driver's own counter is missing."""
    integrals = Integrals()
    integrals.add([Readings((CAP_SECONDS, CAP), (7.5, 1))], 1.0)

    integrals.add([Readings((CAP,), (1,))], 1.0)

    assert sums(integrals) == {}


def test_a_counter_of_the_drivers_that_comes_later_replaces_the_sum() -> None:
    """Never both under one name."""
    integrals = Integrals()
    integrals.add([Readings((CAP,), (1,))], 1.0)

    integrals.add([Readings((CAP_SECONDS, CAP), (7.5, 1))], 1.0)

    assert sums(integrals) == {}


def test_an_earlier_layout_may_come_back_once_the_driver_times_the_event_itself() -> None:
    """Its counter is missing in one poll after it was there: nothing is added for it, the other sums go on."""
    integrals = Integrals()
    without = Readings((SM, CAP), (0.5, 1))
    integrals.add([without], 1.0)
    integrals.add([Readings((CAP_SECONDS, CAP, SM), (7.5, 1, 0.5))], 1.0)

    integrals.add([without], 1.0)

    assert sums(integrals) == {SM_SECONDS: 1.5}


def test_the_keys_are_one_object_while_they_are_the_same() -> None:
    """Renderers cache by identity."""
    integrals = Integrals()
    integrals.add([reading(sm_active_ratio=0.5)], 1.0)
    first = integrals.readings().keys

    integrals.add([reading(sm_active_ratio=0.7)], 1.0)
    assert integrals.readings().keys is first

    integrals.add([reading(utilization_ratio=0.7)], 1.0)
    assert integrals.readings().keys is not first


def test_layouts_without_end_cost_no_memory_without_end() -> None:
    """Readings that come and go make new tuples of keys for ever; the sums stay right."""
    integrals = Integrals()

    for number in range(5 * MOST_LAYOUTS):
        integrals.add([Readings((SM, Key(f"other_{number}")), (0.5, 1))], 1.0)

    assert sums(integrals) == {SM_SECONDS: 2.5 * MOST_LAYOUTS}
    assert len(integrals._known) <= MOST_LAYOUTS


@pytest.mark.parametrize(
    ("elapsed", "interval", "expected"),
    [(1.0, 1.0, True), (5.0, 1.0, True), (5.1, 1.0, False), (0.0, 1.0, True), (-1.0, 1.0, False), (299.0, 60.0, True)],
)
def test_a_gap_of_more_than_five_intervals_is_left_out(elapsed: float, interval: float, expected: bool) -> None:
    """Nobody knows what the GPU did in it."""
    assert integrable(elapsed, interval) is expected
