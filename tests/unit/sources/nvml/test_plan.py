"""What is due in a poll."""

from __future__ import annotations

from collections import Counter

import pytest

from gpufleet.model.readings import Key, Number, Readings
from gpufleet.sources.nvml.calls import GPU_IS_LOST, NOT_SUPPORTED, TIMEOUT, UNINITIALIZED, NvmlError, Trace
from gpufleet.sources.nvml.plan import MOST_CALLS, Abandoned, Columns, Pace, Plan
from gpufleet.sources.nvml.tally import Item, Tally, Tier


class Scripted:
    """An item that counts its calls and answers as it is told."""

    def __init__(self, name: str, tier: Tier) -> None:
        self.function = f"nvml{name}"
        self.tier = tier
        self.keys: tuple[Key, ...] = (Key(name),)
        self.values: list[Number | None] = [0]
        self.code = 0
        self.calls = 0

    def run(self, _: Tally) -> int:
        """One call."""
        self.calls += 1
        self.values = [None] if self.code else [self.calls]
        return self.code


def items(fast: int, medium: int, slow: int) -> list[Scripted]:
    """So many of each tier."""
    tiers = (*[Tier.FAST] * fast, *[Tier.MEDIUM] * medium, *[Tier.SLOW] * slow)
    return [Scripted(f"Get{number}", tier) for number, tier in enumerate(tiers)]


def plan_of(scripted: list[Scripted], interval: float = 1.0, extra: int = 0, trace: Trace | None = None) -> Plan:
    """A plan whose probe was at time 0."""
    plan = Plan(list[Item](scripted), Pace(interval), Tally(), trace or Trace(), extra)
    plan.spread(0.0)
    return plan


def shown(parts: tuple[Readings, ...]) -> dict[str, Number | None]:
    """Values by name."""
    return {key.name: value for part in parts for key, value in zip(part.keys, part.values, strict=True)}


@pytest.mark.parametrize(("interval", "polls"), [(0.1, 3000), (1.0, 600), (10.0, 60), (60.0, 40)])
@pytest.mark.parametrize(
    ("fast", "medium", "slow", "extra"), [(8, 8, 10, 4), (10, 9, 20, 2), (19, 30, 30, 0), (25, 9, 9, 4)]
)
def test_no_poll_makes_more_calls_than_it_may(
    interval: float, polls: int, fast: int, medium: int, slow: int, extra: int
) -> None:
    """And each item has its turn within its period, or as soon as the bound lets it; no value runs out before."""
    scripted = items(fast, medium, slow)
    plan = plan_of(scripted, interval, extra)
    most = max(MOST_CALLS - extra, fast + 1)
    for poll in range(1, polls + 1):
        before = sum(item.calls for item in scripted)
        parts = plan.run(poll * interval)
        assert sum(item.calls for item in scripted) - before <= most
        assert None not in shown(parts).values()
        assert len(shown(parts)) == len(scripted)
    seconds = polls * interval
    turn = interval * -(-(medium + slow) // max(1, MOST_CALLS - fast - extra))
    for item in scripted:
        period = {Tier.FAST: interval, Tier.MEDIUM: max(10.0, turn), Tier.SLOW: max(60.0, turn)}[item.tier]
        assert item.calls >= int(seconds / period) - 1


def test_the_turns_of_a_tier_are_spread_over_its_period() -> None:
    """Ten items every ten seconds are one each second, not ten at once."""
    scripted = items(1, 10, 0)
    plan = plan_of(scripted)
    per_poll = Counter[int]()
    for poll in range(1, 101):
        before = sum(item.calls for item in scripted)
        plan.run(float(poll))
        per_poll[sum(item.calls for item in scripted) - before - 1] += 1

    assert per_poll == {1: 100}


def test_a_value_is_good_for_two_periods() -> None:
    """While the fast poll succeeds; after that it is not known any more."""
    scripted = items(1, 1, 0)
    plan = plan_of(scripted)
    plan.run(10.0)
    scripted[1].code = TIMEOUT
    scripted[1].run = lambda _: TIMEOUT  # type: ignore[method-assign]

    assert shown(plan.run(29.0))["Get1"] == 1
    assert "Get1" not in shown(plan.run(30.5))


def test_a_slow_call_that_failed_is_tried_again_soon() -> None:
    """A tenth of its period later, not a whole one."""
    scripted = items(1, 0, 1)
    plan = plan_of(scripted)
    scripted[1].code = TIMEOUT
    plan.run(60.0)
    plan.run(63.0)
    assert scripted[1].calls == 1
    plan.run(66.0)
    assert scripted[1].calls == 2
    assert plan.tally.errors == {"timeout": 2}


@pytest.mark.parametrize("code", [GPU_IS_LOST, UNINITIALIZED])
def test_a_device_or_library_that_is_down_ends_the_poll(code: int) -> None:
    """Whatever call says so."""
    scripted = items(3, 1, 0)
    scripted[2].code = code
    plan = plan_of(scripted)

    with pytest.raises(NvmlError) as raised:
        plan.run(1.0)

    assert (raised.value.function, raised.value.code) == ("nvmlGet2", code)


def test_the_first_fast_item_speaks_for_the_device() -> None:
    """It is the field batch: without it a poll would be next to empty. Another one costs itself only."""
    scripted = items(2, 0, 0)
    plan = plan_of(scripted)
    scripted[1].code = TIMEOUT
    assert set(shown(plan.run(1.0))) == {"Get0"}

    scripted[0].code = TIMEOUT
    with pytest.raises(NvmlError):
        plan.run(2.0)


def test_what_is_not_supported_any_more_is_not_asked_again() -> None:
    """A change of mode took it away: the plan is made anew when the mode changes back."""
    scripted = items(2, 1, 0)
    plan = plan_of(scripted)
    scripted[1].code = scripted[2].code = NOT_SUPPORTED
    plan.run(10.0)

    for poll in range(11, 40):
        assert set(shown(plan.run(float(poll)))) == {"Get0"}

    assert (scripted[1].calls, scripted[2].calls) == (1, 1)
    assert plan.tally.dropped == {Key("Get1"): "not_supported", Key("Get2"): "not_supported"}


def test_a_poll_that_was_given_up_makes_no_other_call() -> None:
    """Its result is nobody's any more."""
    scripted = items(3, 0, 0)
    trace = Trace()
    plan = plan_of(scripted, trace=trace)

    def hang(_: Tally) -> int:
        scripted[1].calls += 1
        trace.given_up = True
        return 0

    scripted[1].run = hang  # type: ignore[method-assign]

    with pytest.raises(Abandoned):
        plan.run(1.0)
    assert [item.calls for item in scripted] == [1, 1, 0]
    assert trace.last == "nvmlGet1"


def test_the_slower_readings_are_one_object_until_one_of_them_is_read() -> None:
    """Whoever derives something from them can keep it."""
    plan = plan_of(items(1, 2, 0))
    first = plan.run(1.0)[1]

    assert plan.run(2.0)[1] is first
    assert plan.run(5.0)[1] is not first


def test_the_keys_are_one_object_while_the_same_is_reported() -> None:
    """Also when values change, and again after one was missing."""
    one, two = Scripted("One", Tier.FAST), Scripted("Two", Tier.FAST)
    columns = Columns([one, two])
    first = columns.readings().keys
    one.run(Tally())
    assert columns.readings().keys is first

    two.values = [None]
    assert columns.readings() == Readings((Key("One"),), (1,))
    two.values = [2]
    assert columns.readings().keys == first
