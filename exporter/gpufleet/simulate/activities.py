"""What a GPU does at one moment, turned into the rates and levels of a regime for one kind of GPU.

The figures of each activity keep the proportions by which practitioners tell them apart: computing runs the SMs and
the tensor cores and draws power; communicating moves NVLink with few SMs; waiting in a collective shows 100 %
utilization (the NCCL kernel spins) and next to nothing else; waiting for data shows nothing at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gpufleet.simulate.profiles import Profile
from gpufleet.simulate.timeline import COUNTERS, Regime

GPU_IDLE = 0x1
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL_SLOWDOWN = 0x20
HW_THERMAL_SLOWDOWN = 0x40
HW_POWER_BRAKE_SLOWDOWN = 0x80
"""Clock-event reasons, as bits of nvmlDeviceGetCurrentClocksEventReasons."""

_POWER_EXPONENT = 2.2
"""Dynamic power falls faster than the clock, because the voltage falls with it."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Fractions of what the part can do; ``power`` is the share of the span from idle power to the limit."""

    name: str
    utilization: float = 0.0
    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    integer: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    nvlink: float = 0.0
    pcie_transmit: float = 0.0
    pcie_receive: float = 0.0
    decoder: float = 0.0
    power: float = 0.0
    memory: float = 0.0
    """Share of the usable memory that is used."""
    clock: float = 1.0
    """Share of the highest SM clock; a GPU that nobody holds has an idle clock instead."""
    held: bool = True
    """Whether a process has the GPU."""


COMPUTE = Activity(
    "compute", 1.0, 0.94, 0.43, 0.57, 0.52, 0.12, 0.11, 0.03, 0.16, 0.02, 0.03, power=0.965, memory=0.91, clock=0.955
)
COMMUNICATE = Activity(
    "communicate", 1.0, 0.27, 0.14, 0.0, 0.21, 0.05, 0.06, 0.01, 0.72, 0.01, 0.01, power=0.44, memory=0.91
)
WAIT = Activity("wait", 1.0, 0.11, 0.05, 0.0, 0.02, 0.04, 0.0, 0.0, 0.004, 0.001, 0.001, power=0.26, memory=0.91)
CHECKPOINT = Activity(
    "checkpoint", 0.14, 0.04, 0.02, 0.0, 0.06, 0.01, 0.01, 0.0, 0.0, 0.46, 0.02, power=0.1, memory=0.91
)
LOAD = Activity("load", 0.03, 0.01, 0.004, 0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0.004, 0.17, power=0.075, memory=0.74)
FEED = Activity("feed", 0.97, 0.78, 0.35, 0.39, 0.41, 0.1, 0.12, 0.03, 0.1, 0.02, 0.06, 0.22, power=0.71, memory=0.74)
SERVE = Activity("serve", 1.0, 0.71, 0.29, 0.31, 0.68, 0.12, 0.09, 0.04, 0.07, 0.03, 0.05, power=0.72, memory=0.88)
EVALUATE = Activity("evaluate", 1.0, 0.82, 0.38, 0.41, 0.5, 0.11, 0.1, 0.03, 0.0, 0.01, 0.03, power=0.74, memory=0.63)
HELD = Activity("held", power=0.045, memory=0.17)
"""A notebook that holds a context and memory and runs nothing: the clock stays up, so it is not free."""
IDLE = Activity("idle", held=False)


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What keeps a GPU below its clock: ``speed`` is the share of the clock that is left."""

    speed: float = 1.0
    reasons: int = 0


FREE = Hindrance()


@lru_cache(maxsize=4096)
def regime(profile: Profile, activity: Activity, level: float = 1.0, hindrance: Hindrance = FREE) -> Regime:
    """The regime of a profile for an activity at a level from 0 to 1, hindered or not.

    Activities are shares of elapsed cycles, so a lower clock leaves them as they are; power and throughput fall.
    """
    if activity.held and level <= 0:
        activity, level = HELD, 1.0
    moving = activity.held and activity is not HELD
    speed = hindrance.speed if moving else 1.0
    clocks = profile.clocks
    # Clocks move in steps of 15 MHz.
    sm_clock = round(clocks.sm_max * activity.clock * speed / 15) * 15 if activity.held else clocks.sm_idle
    power_share = activity.power * level * speed**_POWER_EXPONENT
    watts = profile.power.idle + (profile.power.limit - profile.power.idle) * power_share

    def millionths(fraction: float) -> int:
        return round(fraction * level * 1_000_000)

    def bytes_each_ms(fraction: float, per_second: float) -> int:
        return round(fraction * level * speed * per_second / 1000)

    pcie = profile.pcie.bytes_per_second
    nvlink = profile.nvlink.bytes_per_second if profile.nvlink else 0.0
    capped = round(62 * level) if activity.power > 0.9 and hindrance.reasons == 0 else 0
    reasons = hindrance.reasons if moving else 0
    if not moving:
        reasons |= GPU_IDLE

    def nanoseconds(reason: int) -> int:
        return 1_000_000 if reasons & reason else 0

    rates = (
        round(watts * 1000),
        millionths(activity.utilization),
        millionths(activity.sm),
        millionths(activity.occupancy),
        millionths(activity.tensor),
        millionths(activity.dram),
        millionths(activity.integer),
        0,
        millionths(activity.fp32),
        millionths(activity.fp16),
        millionths(activity.tensor * 0.985),
        millionths(activity.tensor * 0.012),
        0,
        millionths(activity.decoder),
        millionths(activity.decoder * 0.4),
        bytes_each_ms(activity.pcie_transmit, pcie),
        bytes_each_ms(activity.pcie_receive, pcie),
        bytes_each_ms(activity.nvlink, nvlink),
        bytes_each_ms(activity.nvlink, nvlink),
        capped * 1_000_000 // 1024,
        nanoseconds(SW_THERMAL_SLOWDOWN),
        nanoseconds(HW_THERMAL_SLOWDOWN),
        nanoseconds(HW_POWER_BRAKE_SLOWDOWN),
        1_000_000 if moving and sm_clock < clocks.sm_base else 0,
    )
    if len(rates) != COUNTERS:
        raise AssertionError(rates)
    return Regime(
        name=activity.name,
        rates=rates,
        utilization=round(100 * activity.utilization * level) if level < 1 else round(100 * activity.utilization),
        memory_utilization=round(100 * activity.dram * level * 0.9),
        encoder_utilization=0,
        decoder_utilization=round(100 * activity.decoder * level),
        sm_clock=sm_clock,
        memory_clock=clocks.memory_max if activity.held else clocks.memory_idle,
        video_clock=clocks.video_max if activity.held else clocks.video_idle,
        memory_thousandths=round(1000 * activity.memory),
        reasons=reasons,
        power_cap_share=capped,
        idle=not activity.held,
    )
