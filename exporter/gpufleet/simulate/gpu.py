"""One scripted GPU: its identity, its timeline, and what it reads at a moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.simulate.activities import SW_POWER_CAP
from gpufleet.simulate.columns import CONDITIONS, LIFETIME, VOLATILE
from gpufleet.simulate.health import FOR_EVER, NO_TROUBLE, Heat, Troubles
from gpufleet.simulate.profiles import MIB, MigProfile, Profile
from gpufleet.simulate.timeline import (
    BELOW_BASE,
    COUNTERS,
    ENERGY,
    HW_THERMAL,
    NVLINK_RECEIVE,
    NVLINK_TRANSMIT,
    POWER_BRAKE,
    POWER_CAP,
    SW_THERMAL,
    Regime,
    Timeline,
    Totals,
)


@dataclass(frozen=True, slots=True)
class Compute:
    """A MIG compute instance: ``slices`` of the compute slices of its GPU instance."""

    identifier: int
    slices: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG GPU instance and what runs on it."""

    identifier: int
    profile: MigProfile
    timeline: Timeline
    computes: tuple[Compute, ...]


@dataclass(frozen=True, slots=True)
class GpuScript:
    """Everything that makes a GPU what it is."""

    profile: Profile
    uuid: str
    serial: str
    bus: int
    """PCI bus number; device and function are 0."""
    minor: int
    seed: int
    timeline: Timeline
    troubles: Troubles = NO_TROUBLE
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    run: str = ""
    """Name of the scenario's run that has it, slices included; empty where none has."""


_MIX = 0x9E37_79B9_7F4A_7C15
_MASK = (1 << 64) - 1


def noise(seed: int, moment: int) -> int:
    """64 bits that look random and are the same each time for one seed and moment."""
    mixed = (seed + moment * _MIX) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return mixed ^ (mixed >> 31)


class Reading:
    """One GPU at one moment; made once and never changed."""

    __slots__ = ("noise", "power", "regime", "temperature", "time", "totals", "values")

    def __init__(
        self, time: int, regime: Regime, totals: Totals, values: list[int], temperature: int, power: int, bits: int
    ) -> None:
        self.time = time
        self.regime = regime
        self.totals = totals
        """Counters since time 0, as the timeline has them: GPM takes differences."""
        self.values = values
        """By the columns of ``columns``."""
        self.temperature = temperature
        self.power = power
        """Milliwatts at this moment."""
        self.noise = bits


class ScriptedGpu:
    """Computes readings of one GPU; holds nothing but figures that do not change while its script stands."""

    __slots__ = (
        "_base",
        "_conditions",
        "_health",
        "_idle_power",
        "_power_gain",
        "_span",
        "_warmth",
        "activity_gain",
        "has_link_errors",
        "loaded_at",
        "script",
    )

    def __init__(self, script: GpuScript) -> None:
        self.script = script
        profile = script.profile
        bits = noise(script.seed, 1)
        # No two boards draw the same power at the same work, nor sit in the same place of the air stream.
        self._power_gain = 1004 + bits % 36
        self._warmth = (bits >> 8) % 7 - 3
        self.activity_gain = 0.985 + (bits >> 16) % 16 / 1000
        self._idle_power = profile.power.idle * 1000
        self._span = max(1, profile.power.limit * 1000 - self._idle_power)
        self.loaded_at = 0
        self._base: Totals = [0] * COUNTERS
        self._conditions = script.troubles.conditions
        self.has_link_errors = any(tally.kind.startswith("nvlink_") for tally in script.troubles.tallies)
        self._health = self._counts(0)

    def load(self, time: int) -> None:
        """The driver takes the GPU (again) at ``time``: everything it counts starts anew, the InfoROM does not."""
        self.loaded_at = time
        self._base = list(self.script.timeline.totals(time))

    def _counts(self, time: int) -> list[int]:
        """Health columns at ``time``."""
        troubles = self.script.troubles
        now: dict[str, int] = {}
        volatile: dict[str, int] = {}
        for tally in troubles.tallies:
            count = tally.count(time)
            now[tally.kind] = now.get(tally.kind, 0) + count
            volatile[tally.kind] = volatile.get(tally.kind, 0) + count - tally.count(self.loaded_at)
        for kind, count in troubles.lifetime:
            now[kind] = now.get(kind, 0) + count
        return [
            *(volatile.get(kind, 0) for kind in VOLATILE),
            *(now.get(kind, 0) for kind in LIFETIME),
            *(self._condition(kind, time) for kind in CONDITIONS),
        ]

    def _condition(self, kind: str, time: int) -> int:
        return max((c.value for c in self._conditions if c.kind == kind and c.window.holds(time)), default=0)

    def link_errors(self, kind: str, link: int | None, time: int) -> int:
        """Errors of an NVLink since the driver was loaded; of all links for ``None``."""
        return sum(
            tally.count(time) - tally.count(self.loaded_at)
            for tally in self.script.troubles.tallies
            if tally.kind == kind and (link is None or tally.link == link)
        )

    def read(self, time: int) -> Reading:
        """What the GPU reads at ``time`` milliseconds."""
        script = self.script
        timeline = script.timeline
        totals = timeline.totals(time)
        regime = timeline.at(time)
        base = self._base
        bits = noise(script.seed, time // 100)
        gain = self._power_gain

        energy = totals[ENERGY]
        second = min(1000, time)
        average = (energy - timeline.energy(time - second)) // second if second else regime.rates[ENERGY]
        # +-1.5 % of the moment, none of it in the mean.
        power = (regime.rates[ENERGY] * gain >> 10) * (1009 + (bits & 31)) >> 10
        temperature = self._temperature(time, energy, bits)
        memory_above = script.profile.temperature.memory_above or 0
        hot = regime.memory_utilization >> 4
        values = [
            (energy - base[ENERGY]) * gain // 1_024_000,
            average * gain >> 10,
            power,
            power * (9 + regime.memory_utilization // 10) // 100,
            temperature + memory_above + hot,
            totals[NVLINK_TRANSMIT] - base[NVLINK_TRANSMIT],
            totals[NVLINK_RECEIVE] - base[NVLINK_RECEIVE],
            totals[POWER_CAP] - base[POWER_CAP],
            totals[SW_THERMAL] - base[SW_THERMAL],
            totals[HW_THERMAL] - base[HW_THERMAL],
            totals[POWER_BRAKE] - base[POWER_BRAKE],
            totals[BELOW_BASE] - base[BELOW_BASE],
        ]
        troubles = script.troubles
        if troubles.tallies or troubles.conditions:
            values += self._counts(time)
        else:
            values += self._health
        return Reading(time, regime, totals, values, temperature, power, bits)

    def _temperature(self, time: int, energy: int, bits: int) -> int:
        """The chip follows the power of the last seconds, the heat sink that of the last minute."""
        profile = self.script.profile
        timeline = self.script.timeline
        lately = timeline.energy(max(0, time - 8_000))
        before = timeline.energy(max(0, time - 48_000))
        near = (energy - lately) + self._idle_power * max(0, 8_000 - time)
        far = (lately - before) + self._idle_power * min(40_000, max(0, 48_000 - time))
        power = (near * 5 + far) // 80_000
        cool = profile.temperature
        celsius = cool.idle + self._warmth + (cool.full - cool.idle) * (power - self._idle_power) / self._span
        for heat in self.script.troubles.heats:
            celsius += (heat.celsius - celsius) * _ramp(heat, time)
        # A third of a degree of noise: the reading flickers only near a half.
        return math.floor(celsius + 0.5 + ((bits >> 5) % 64 - 32) / 96)

    def reasons(self, reading: Reading) -> int:
        """Clock-event reasons of the moment, as bits."""
        regime = reading.regime
        if regime.power_cap_share > (reading.noise >> 12) & 1023:
            return regime.reasons | SW_POWER_CAP
        return regime.reasons

    def sm_clock(self, reading: Reading) -> int:
        """MHz; under load it moves in steps of 15."""
        clock = reading.regime.sm_clock
        return clock - 15 * ((reading.noise >> 22) % 4) if reading.regime.power_cap_share else clock

    def utilization(self, reading: Reading) -> int:
        """Percent."""
        percent = reading.regime.utilization
        return max(0, percent - (reading.noise >> 24) % 2) if percent > 2 else percent

    def memory_used(self, reading: Reading) -> int:
        """Bytes used, the driver's reserve not counted."""
        memory = self.script.profile.memory
        if memory is None:
            return 0
        if self.script.mig:
            return sum(self.instance_memory_used(i, reading) for i in self.script.instances)
        usable = memory.total_mib - memory.reserved_mib
        return _used(usable, reading.regime.memory_thousandths, self.script.seed)

    def instance_memory_used(self, instance: Instance, reading: Reading) -> int:
        """Bytes used of a GPU instance's memory."""
        thousandths = instance.timeline.at(reading.time).memory_thousandths
        return _used(instance.profile.memory_mib, thousandths, self.script.seed + instance.identifier)


def _used(usable_mib: int, thousandths: int, seed: int) -> int:
    """Bytes; a few MiB differ from one GPU to the next."""
    if thousandths == 0:
        return MIB * min(usable_mib, 1 + seed % 4)
    return MIB * (usable_mib * thousandths // 1000 - seed % 61)


def _ramp(heat: Heat, time: int) -> float:
    """How far a heat has come, from 0 to 1."""
    window = heat.window
    local = time % window.period if window.period else time
    if local < window.start:
        return 0.0
    if local < window.end:
        return 1.0 - math.exp((window.start - local) / heat.lag)
    if window.end >= FOR_EVER:
        return 0.0
    reached = 1.0 - math.exp((window.start - window.end) / heat.lag)
    return reached * math.exp((window.end - local) / heat.lag)


def pci_bus_id(bus: int) -> str:
    """As the driver writes it, with a domain of eight digits."""
    return f"00000000:{bus:02X}:00.0"


def uuid_from(prefix: str, seed: int, number: int) -> str:
    """A UUID of the driver's form, always the same for a seed and number."""
    digits = f"{noise(seed, 2 * number):016x}{noise(seed, 2 * number + 1):016x}"
    parts: Sequence[str] = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return prefix + "-".join(parts)
