"""What a GPU shows must fit together, or dashboards on it would teach the wrong thing."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import pairwise

import pytest

from gpufleet.simulate.health import Heat, Troubles, Window
from gpufleet.simulate.profiles import profile_names
from gpufleet.simulate.scenario_file import default_scenario
from gpufleet.simulate.scripts import PATTERNS, uniform
from gpufleet.simulate.staging import Stage
from gpufleet.sources.nvml.calls import SUCCESS
from tests.support.scripted_caller import Caller

ENERGY, POWER_INSTANT, SW_THERMAL, POWER_CAP, BELOW_BASE = 83, 186, 269, 74, 81
SM, TENSOR = 2, 5
RUN = ("gpu-node-01", "gpu-node-02", "gpu-node-03", "gpu-node-04")
HOT_AT, HOT_FOR = 90, 25 * 60
"""The default scenario's heat, in seconds."""


def on_node(name: str) -> Caller:
    """A caller of a node of the default scenario."""
    return Caller(Stage(default_scenario()).node(name).gpus)


def clock_of(caller: Caller, gpu: int) -> int:
    """SM clock in MHz."""
    return caller.number("nvmlDeviceGetClockInfo", caller.handles[gpu], 1)[1]


def temperature_of(caller: Caller, gpu: int) -> int:
    """Degrees Celsius."""
    return caller.number("nvmlDeviceGetTemperature", caller.handles[gpu], 0)[1]


def utilization_of(caller: Caller, gpu: int) -> int:
    """Percent."""
    out = (ctypes.c_uint32 * 2)()
    assert caller.calls["nvmlDeviceGetUtilizationRates"](caller.handles[gpu], out) == SUCCESS
    return int(out[0])


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("pattern", PATTERNS)
def test_energy_is_the_integral_of_power(profile: str, pattern: str) -> None:
    """Power read at short steps adds up to the energy counter; power stays between idle and the limit."""
    script = uniform(profile, 1, pattern=pattern)[0]
    caller = Caller([script])
    handle = caller.handles[0]
    before = caller.field(handle, ENERGY)
    watts = []
    for _ in range(1000):
        # No divisor of a workload's rhythm.
        caller.clock.forward(0.0617)
        watts.append(caller.field(handle, POWER_INSTANT) / 1000)
    joules = (caller.field(handle, ENERGY) - before) / 1000

    assert joules == pytest.approx(sum(watts) * 0.0617, rel=0.02)
    power = script.profile.power
    assert power.idle * 0.9 < min(watts)
    assert max(watts) < power.limit * 1.02


@pytest.mark.parametrize("profile", profile_names())
def test_a_gpu_stays_below_where_it_would_slow_down(profile: str) -> None:
    """At full work a healthy GPU is warm, keeps its clock and has no thermal slowdown."""
    caller = Caller(uniform(profile, 1))
    caller.clock.forward(600)
    cool = caller.driver.devices[0].gpu.script.profile.temperature
    limit = cool.limit_offsets.limit if cool.limit_offsets else cool.thresholds.gpu_max if cool.thresholds else 0

    assert cool.idle < temperature_of(caller, 0) < limit - 3
    reasons = caller.number("nvmlDeviceGetCurrentClocksEventReasons", caller.handles[0], size=8)[1]
    assert reasons & ~0x4 == 0
    assert caller.field(caller.handles[0], 75) == 0


def test_temperature_follows_power_slowly() -> None:
    """From cold to warm it takes about a minute, and it never jumps."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    seen = []
    for _ in range(90):
        caller.clock.forward(1)
        seen.append(temperature_of(caller, 0))

    assert seen[0] < 40
    assert seen[-1] > 52
    assert max(abs(b - a) for a, b in pairwise(seen)) <= 4
    assert seen.index(max(seen)) > 20


def test_the_hot_gpu_slows_down_and_says_why() -> None:
    """Its clock falls to about 62 %, it is at 86 degrees, the reason is software thermal slowdown and is counted."""
    caller = on_node(RUN[0])
    caller.clock.forward(HOT_AT - 5)
    normal = clock_of(caller, 5)
    assert caller.field(caller.handles[5], SW_THERMAL) == 0

    caller.clock.forward(HOT_FOR - 60)
    hot = caller.handles[5]
    assert 84 <= temperature_of(caller, 5) <= 87
    for _ in range(40):
        # Also at moments when it does not compute, the reason comes and goes; its counter tells all.
        caller.clock.forward(0.5)
        if clock_of(caller, 5) < normal * 0.8:
            break
    assert clock_of(caller, 5) == pytest.approx(1980 * 0.955 * 0.62, abs=20)
    assert caller.number("nvmlDeviceGetCurrentClocksEventReasons", hot, size=8)[1] & 0x20
    before, below = caller.field(hot, SW_THERMAL), caller.field(hot, BELOW_BASE)
    assert before > 0
    caller.clock.forward(10)
    assert 0.6e9 < (caller.field(hot, SW_THERMAL) - before) / 10 < 1e9
    assert caller.field(hot, BELOW_BASE) > below
    for gpu in (0, 4, 6, 7):
        assert caller.field(caller.handles[gpu], SW_THERMAL) == 0
        assert temperature_of(caller, gpu) < 75


def test_the_others_wait_for_the_hot_gpu() -> None:
    """All show full utilization, but the rest of the run has less SM and tensor activity than before."""
    slow = on_node(RUN[0])
    peers = [on_node(name) for name in RUN[1:]]
    before = [peer.activity(peer.handles[0], 60, SM, TENSOR) for peer in peers]
    for caller in (slow, *peers):
        caller.clock.forward(600)
    during = [peer.activity(peer.handles[0], 60, SM, TENSOR) for peer in peers]
    victim = slow.activity(slow.handles[5], 60, SM, TENSOR)
    neighbour = slow.activity(slow.handles[0], 60, SM, TENSOR)

    for (sm_before, tensor_before), (sm, tensor) in zip(before, during, strict=True):
        assert sm < sm_before * 0.8
        assert tensor < tensor_before * 0.75
    assert victim[0] > before[0][0]
    assert victim[0] > 1.3 * neighbour[0]
    assert neighbour == pytest.approx(during[0], rel=0.03)
    for caller in (slow, *peers):
        assert all(utilization_of(caller, gpu) >= 98 for gpu in range(8))


def test_all_recover_when_the_gpu_has_cooled() -> None:
    """After the heat the run works as before."""
    caller = on_node(RUN[1])
    before = caller.activity(caller.handles[0], 60, SM)[0]
    caller.clock.forward(HOT_AT + HOT_FOR + 120)

    assert caller.activity(caller.handles[0], 60, SM)[0] == pytest.approx(before, rel=0.03)


def test_a_power_brake_slows_a_whole_node() -> None:
    """The hardware's reasons show on all its GPUs, and their run waits for them."""
    node, peer = on_node("gpu-node-03"), on_node("gpu-node-02")
    for caller in (node, peer):
        caller.clock.forward(35 * 60 + 10)
    braked = []
    for _ in range(40):
        node.clock.forward(0.25)
        if clock_of(node, 4) < 1100:
            braked.append(node.number("nvmlDeviceGetCurrentClocksEventReasons", node.handles[4], size=8)[1] & 0xFB)

    assert set(braked) == {0x88}
    counted = [node.field(handle, 271) for handle in node.handles]
    assert min(counted) > 0
    assert {peer.field(handle, 271) for handle in peer.handles} == {0}
    assert peer.activity(peer.handles[0], 20, TENSOR)[0] < 30


def test_a_training_run_dips_at_checkpoints() -> None:
    """Every quarter of an hour the GPUs write instead of computing: low utilization, PCIe traffic."""
    caller = on_node(RUN[1])
    seen = []
    for _ in range(900):
        caller.clock.forward(1)
        seen.append(utilization_of(caller, 0))

    dips = [i for i, percent in enumerate(seen) if percent < 50]
    assert 20 <= len(dips) <= 30
    assert dips == list(range(dips[0], dips[0] + len(dips)))


def test_the_sandbox_holds_memory_and_does_nothing() -> None:
    """No activity at all, but memory, a process and more than idle power: that is what costs."""
    caller = on_node("gpu-node-06")
    handle = caller.handles[0]
    sm, tensor = caller.activity(handle, 300, SM, TENSOR)

    assert (sm, tensor, utilization_of(caller, 0)) == (0, 0, 0)
    assert caller.field(handle, POWER_INSTANT) > 80_000
    count = (ctypes.c_uint32 * 1)()
    caller.calls["nvmlDeviceGetComputeRunningProcesses_v3"](handle, count, None)
    assert count[0] == 1


def test_data_bound_work_is_told_from_waiting_in_a_collective() -> None:
    """A GPU that waits for data shows low utilization; one that waits for its peers shows full utilization."""
    starved = Caller(uniform("h100-80gb-hbm3", 1, pattern="data_bound"))
    graphics, sm = starved.activity(starved.handles[0], 60, 1, SM)

    assert graphics < 50
    assert sm < 40


def test_serving_follows_the_day() -> None:
    """Noon is busier than the night."""
    caller = Caller(uniform("h200", 1, pattern="inference"))
    night = caller.activity(caller.handles[0], 3600, SM)[0]
    caller.clock.forward(11 * 3600)
    noon = caller.activity(caller.handles[0], 3600, SM)[0]

    assert noon > 2 * night


def test_the_power_cap_is_counted_as_often_as_it_is_shown() -> None:
    """The reason's share of moments is the share of time of its counter, within chance."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    shown = 0
    for _ in range(2000):
        caller.clock.forward(0.1)
        shown += caller.number("nvmlDeviceGetCurrentClocksEventReasons", caller.handles[0], size=8)[1] >> 2 & 1

    assert shown / 2000 == pytest.approx(caller.field(caller.handles[0], POWER_CAP) / 200e9, abs=0.02)


def test_gpus_of_a_run_differ_a_little() -> None:
    """The same work draws different power and heats differently, as real boards do."""
    caller = Caller(uniform("h100-80gb-hbm3", 8))
    caller.clock.forward(300)
    energies = [caller.field(handle, ENERGY) for handle in caller.handles]

    assert len(set(energies)) > 5
    assert max(energies) < 1.05 * min(energies)
    assert len({temperature_of(caller, gpu) for gpu in range(8)}) > 1


def test_heat_that_never_ends_stays() -> None:
    """A cooling that fails for good holds its temperature."""
    script = uniform("a100-80gb", 1)[0]
    caller = Caller([replace(script, troubles=Troubles(heats=(Heat(Window(0), 88),)))])
    caller.clock.forward(86_400)

    assert 87 <= temperature_of(caller, 0) <= 89
