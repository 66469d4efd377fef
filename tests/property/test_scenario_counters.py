"""Counters of scripted GPUs, whoever reads them and when."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.simulate.profiles import profile_names
from gpufleet.simulate.scenario_file import default_scenario
from gpufleet.simulate.scripts import PATTERNS, uniform
from gpufleet.simulate.staging import Stage
from gpufleet.simulate.timeline import Totals
from gpufleet.sources.nvml.calls import SUCCESS
from tests.support.scripted_caller import ALL_LINKS, Caller

FIELDS = (3, 4, 11, 12, 52, 59, 74, 75, 81, 83, 94, 142, 143, 269, 270, 271)
LINKED = ((138, ALL_LINKS), (139, ALL_LINKS), (202, ALL_LINKS), (138, 0), (138, 11), (139, 17), (161, 7), (163, 7))
COUNTED = (*((field, 0) for field in FIELDS), *LINKED)
GAP = st.one_of(st.floats(0, 1), st.floats(0, 60), st.floats(0, 5000))
GAPS = st.lists(GAP, min_size=1, max_size=30)
STAGE = Stage(default_scenario())
WHOLE_NODES = tuple(name for name in STAGE.names if not STAGE.node(name).restarts)


def read(caller: Caller, gpu: int) -> list[int]:
    """The counters of a GPU; 0 where it has none."""
    answers = caller.fields(caller.handles[gpu], *COUNTED)
    return [value if code == SUCCESS else 0 for code, value in answers]


@given(profile=st.sampled_from(profile_names()), pattern=st.sampled_from(tuple(PATTERNS)), gaps=GAPS)
def test_counters_never_go_down(profile: str, pattern: str, gaps: list[float]) -> None:
    """Between any two reads, a moment or an hour apart, each counter stays or grows, on every kind of GPU."""
    caller = Caller(uniform(profile, 1, pattern=pattern))
    seen = [read(caller, 0)]
    for gap in gaps:
        caller.clock.forward(gap)
        seen.append(read(caller, 0))

    assert all(b >= a for before, after in pairwise(seen) for a, b in zip(before, after, strict=True))


@given(node=st.sampled_from(WHOLE_NODES), gpu=st.integers(0, 7), gaps=GAPS)
def test_counters_of_a_scenario_never_go_down_while_the_gpu_is_there(node: str, gpu: int, gaps: list[float]) -> None:
    """Heat, errors and the story's new start don't take anything back; only the reset after a loss does."""
    script = STAGE.node(node).gpus[gpu]
    if script.troubles.losses or script.troubles.hangs:
        return
    caller = Caller([script])
    seen = [read(caller, 0)]
    for gap in gaps:
        caller.clock.forward(gap)
        seen.append(read(caller, 0))

    assert all(b >= a for before, after in pairwise(seen) for a, b in zip(before, after, strict=True))


@given(node=st.sampled_from(WHOLE_NODES), gpu=st.integers(0, 7), gaps=GAPS)
def test_counters_do_not_depend_on_who_reads_how_often(node: str, gpu: int, gaps: list[float]) -> None:
    """A GPU that was read many times shows exactly what one shows that is read now for the first time."""
    script = STAGE.node(node).gpus[gpu]
    if script.troubles.losses or script.troubles.hangs:
        return
    watched, unseen = Caller([script]), Caller([script])
    for gap in gaps:
        watched.clock.forward(gap)
        read(watched, 0)
    # A refresh apart from the last read, so that both compute this moment anew.
    watched.clock.forward(1)
    unseen.clock.now = watched.clock.now

    assert read(watched, 0) == read(unseen, 0)


@given(name=st.sampled_from(STAGE.names), gpu=st.integers(0, 7), times=st.lists(st.integers(0, 10**8), min_size=2))
def test_timelines_are_exact_integrals(name: str, gpu: int, times: list[int]) -> None:
    """Totals never go down over time, fit into it, and energy alone is what it is among the totals."""
    timeline = STAGE.node(name).gpus[gpu].timeline
    totals: list[tuple[int, Totals]] = [(time, list(timeline.totals(time))) for time in sorted(times)]

    for time, at_time in totals:
        assert timeline.energy(time) == at_time[0]
        assert all(0 <= activity <= time * 1_000_000 for activity in at_time[1:15])
    for (_, before), (_, after) in pairwise(totals):
        assert all(b >= a for a, b in zip(before, after, strict=True))


@given(name=st.sampled_from(STAGE.names), gpu=st.integers(0, 7), time=st.integers(0, 10**7))
def test_a_regime_is_the_slope_of_the_totals(name: str, gpu: int, time: int) -> None:
    """Gauges and counters tell one story: in each millisecond totals grow by the rates of its regime."""
    script = STAGE.node(name).gpus[gpu]
    if script.mig:
        return
    timeline = script.timeline
    here = timeline.at(time)
    growth = [b - a for a, b in zip(list(timeline.totals(time)), list(timeline.totals(time + 1)), strict=True)]

    assert tuple(growth) == here.rates
