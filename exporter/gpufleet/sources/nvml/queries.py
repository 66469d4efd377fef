"""Readings that have no field id: one row a call.

A row names the function, how often it is asked, what it takes and the layout of what it writes (offsets of nvml.h,
proved against the header by the tests), and the older functions that stand in where the driver lacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pynvml

from gpufleet.model.readings import Key, Number
from gpufleet.sources.nvml.tally import Tally, Tier
from gpufleet.sources.nvml.units import (
    BLANK,
    BYTE,
    CELSIUS,
    FLAG,
    GENERATION,
    LANES,
    MEGAHERTZ,
    MILLIWATT,
    PERCENT,
    U32,
    Unit,
    signed,
)

Decode = Callable[[tuple[int, ...], Tally], list[Number | None]]


@dataclass(frozen=True, slots=True)
class Query:
    """One call on one device."""

    function: str
    tier: Tier
    keys: tuple[Key, ...]
    layout: str
    """struct format of the first buffer; its values go to ``decode``."""
    decode: Decode
    arguments: tuple[int, ...] = ()
    more_buffers: tuple[int, ...] = ()
    """Bytes of further out-parameters that are not read (a sampling period, the pending mode)."""
    version: int = 0
    """Version word to be written into the buffer before each call: the driver may overwrite it."""
    instead: tuple[Query, ...] = ()
    """What is asked where the driver does not have this one."""
    unit: Unit | None = None
    """For a query of one plain number: what ``decode`` does, as data."""


def linear(keys: Sequence[Key], units: Sequence[Unit]) -> Decode:
    """Decode by unit, value by value; impossible ones become ``None`` and are counted."""
    rows = tuple((key, unit.mask, unit.high, unit.times, unit.per) for key, unit in zip(keys, units, strict=True))

    def decode(raw: tuple[int, ...], tally: Tally) -> list[Number | None]:
        values: list[Number | None] = []
        for (key, mask, high, times, per), number in zip(rows, raw, strict=True):
            masked = number & mask
            if masked > high:
                tally.impossible(key)
                values.append(None)
            else:
                values.append(masked * times if per == 1 else masked / per)
        return values

    return decode


def simple(
    function: str,
    tier: Tier,
    rows: Sequence[tuple[Key, Unit]],
    layout: str,
    *,
    arguments: tuple[int, ...] = (),
    more_buffers: tuple[int, ...] = (),
    version: int = 0,
    instead: tuple[Query, ...] = (),
) -> Query:
    """A query whose numbers are readings as they stand, each under its key and in its unit."""
    keys = tuple(key for key, _ in rows)
    return Query(
        function,
        tier,
        keys,
        layout,
        linear(keys, [unit for _, unit in rows]),
        arguments,
        more_buffers,
        version,
        instead,
        rows[0][1] if len(rows) == 1 else None,
    )


def _one(function: str, tier: Tier, name: str, unit: Unit, *, arguments: tuple[int, ...] = ()) -> Query:
    return simple(function, tier, [(Key(name), unit)], "<I", arguments=arguments)


def _engine(function: str, name: str) -> Query:
    return simple(function, Tier.MEDIUM, [(Key(name), PERCENT)], "<I", more_buffers=(4,))


# --- memory -----------------------------------------------------------------------------------------------------------
MEMORY_V2_VERSION = 40 | 2 << 24
_MEMORY_V1 = simple(
    "nvmlDeviceGetMemoryInfo",
    Tier.FAST,
    [(Key("memory_total_bytes"), BYTE), (Key("memory_free_bytes"), BYTE), (Key("memory_used_bytes"), BYTE)],
    "<QQQ",
)
"""Here "used" includes what the driver reserves; the second version keeps the two apart."""

MEMORY = simple(
    "nvmlDeviceGetMemoryInfo_v2",
    Tier.FAST,
    [
        (Key("memory_total_bytes"), BYTE),
        (Key("memory_reserved_bytes"), BYTE),
        (Key("memory_free_bytes"), BYTE),
        (Key("memory_used_bytes"), BYTE),
    ],
    "<8xQQQQ",
    version=MEMORY_V2_VERSION,
    instead=(_MEMORY_V1,),
)

# --- temperature ------------------------------------------------------------------------------------------------------
TEMPERATURE_VERSION = 12 | 1 << 24
MARGIN_VERSION = 8 | 1 << 24


def _decode_margin(raw: tuple[int, ...], tally: Tally) -> list[Number | None]:
    degrees = signed(raw[0])
    if not -200 <= degrees <= 200:
        tally.impossible(Key("temperature_margin_celsius"))
        return [None]
    return [degrees]


# --- performance state: 0 to 15, 32 when the driver does not know -----------------------------------------------------
def _decode_performance_state(raw: tuple[int, ...], tally: Tally) -> list[Number | None]:
    state = raw[0]
    if state == pynvml.NVML_PSTATE_UNKNOWN:
        return [None]
    if state > 15:
        tally.impossible(Key("performance_state"))
        return [None]
    return [state]


# --- clock events -----------------------------------------------------------------------------------------------------
CLOCK_EVENT_BITS: tuple[tuple[int, str], ...] = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)


def clock_events(supported: int | None) -> Query:
    """The reasons that hold the clock down now, one 0 or 1 for each that this device can have."""
    wanted = [(bit, reason) for bit, reason in CLOCK_EVENT_BITS if supported is None or supported & bit]
    keys = tuple(Key("clock_event_active", (reason,)) for _, reason in wanted)
    bits = tuple(bit for bit, _ in wanted)

    def decode(raw: tuple[int, ...], tally: Tally) -> list[Number | None]:
        mask = raw[0]
        if mask & U32 >= BLANK:
            # Every reason at once, idle among them: no value.
            tally.impossible(Key("clock_event_active"))
            return [None] * len(keys)
        return [1 if mask & bit else 0 for bit in bits]

    old = Query("nvmlDeviceGetCurrentClocksThrottleReasons", Tier.FAST, keys, "<Q", decode)
    return Query("nvmlDeviceGetCurrentClocksEventReasons", Tier.FAST, keys, "<Q", decode, instead=(old,))


def _clock(tier: Tier, name: str, clock: int) -> Query:
    return _one("nvmlDeviceGetClockInfo", tier, name, MEGAHERTZ, arguments=(clock,))


FAST_QUERIES: tuple[Query, ...] = (
    MEMORY,
    simple(
        "nvmlDeviceGetUtilizationRates",
        Tier.FAST,
        [(Key("utilization_ratio"), PERCENT), (Key("memory_utilization_ratio"), PERCENT)],
        "<II",
    ),
    _clock(Tier.FAST, "sm_clock_hertz", pynvml.NVML_CLOCK_SM),
    _clock(Tier.FAST, "memory_clock_hertz", pynvml.NVML_CLOCK_MEM),
    simple(
        "nvmlDeviceGetTemperatureV",
        Tier.FAST,
        [(Key("temperature_celsius"), CELSIUS)],
        "<8xI",
        version=TEMPERATURE_VERSION,
        instead=(_one("nvmlDeviceGetTemperature", Tier.FAST, "temperature_celsius", CELSIUS, arguments=(0,)),),
    ),
    Query("nvmlDeviceGetPerformanceState", Tier.FAST, (Key("performance_state"),), "<I", _decode_performance_state),
)
"""Six calls; the field batch and the clock events make eight, GPM ten."""

POWER_USAGE = _one("nvmlDeviceGetPowerUsage", Tier.FAST, "power_watts", MILLIWATT)
"""Only for drivers that have no power fields."""

MEDIUM_QUERIES: tuple[Query, ...] = (
    _clock(Tier.MEDIUM, "graphics_clock_hertz", pynvml.NVML_CLOCK_GRAPHICS),
    _clock(Tier.MEDIUM, "video_clock_hertz", pynvml.NVML_CLOCK_VIDEO),
    _engine("nvmlDeviceGetEncoderUtilization", "encoder_utilization_ratio"),
    _engine("nvmlDeviceGetDecoderUtilization", "decoder_utilization_ratio"),
    _engine("nvmlDeviceGetJpgUtilization", "jpeg_utilization_ratio"),
    _engine("nvmlDeviceGetOfaUtilization", "ofa_utilization_ratio"),
    Query(
        "nvmlDeviceGetMarginTemperature",
        Tier.MEDIUM,
        (Key("temperature_margin_celsius"),),
        "<4xI",
        _decode_margin,
        version=MARGIN_VERSION,
    ),
    # Current and pending mode; only the current one is a fact.
    simple("nvmlDeviceGetMigMode", Tier.MEDIUM, [(Key("mig_enabled"), FLAG)], "<I", more_buffers=(4,)),
)

SLOW_QUERIES: tuple[Query, ...] = (
    simple(
        "nvmlDeviceGetBAR1MemoryInfo",
        Tier.SLOW,
        [(Key("bar1_total_bytes"), BYTE), (Key("bar1_used_bytes"), BYTE)],
        "<Q8xQ",
    ),
    simple(
        "nvmlDeviceGetCurrPcieLinkGeneration",
        Tier.SLOW,
        [(Key("pcie_link_generation", ("current",)), GENERATION)],
        "<I",
    ),
    simple("nvmlDeviceGetCurrPcieLinkWidth", Tier.SLOW, [(Key("pcie_link_width", ("current",)), LANES)], "<I"),
)


def fan(number: int) -> Query:
    """Speed of one fan; measured at 137 µs a call on a laptop, so never on the fast path."""
    key = Key("fan_speed_ratio", (str(number),))
    # Above 100 % is allowed: the driver documents that a fan may exceed its nominal speed.
    unit = Unit(per=100, high=200)
    return simple("nvmlDeviceGetFanSpeed_v2", Tier.SLOW, [(key, unit)], "<I", arguments=(number,))
