"""Queries about the memory's and the fabric's health: rows as in ``queries``, with decoders of their own."""

from __future__ import annotations

import pynvml

from gpufleet.model.readings import Key, Number
from gpufleet.sources.nvml.batch import state_set_values
from gpufleet.sources.nvml.queries import Query, linear, simple
from gpufleet.sources.nvml.tally import Tally, Tier
from gpufleet.sources.nvml.units import FLAG, MEMORY_ERRORS, PARTS

# --- SRAM errors ------------------------------------------------------------------------------------------------------
SRAM_VERSION = 104 | 1 << 24


def _decode_sram(raw: tuple[int, ...], tally: Tally) -> list[Number | None]:
    """Parity and SEC-DED errors are both uncorrectable; each happened once, so they add up."""
    counts = linear(_SRAM_COUNTS, [MEMORY_ERRORS] * 6)(raw[:6], tally)
    lifetime_parity, lifetime_secded, lifetime_corrected, parity, secded, corrected = counts
    exceeded = linear([Key("ecc_sram_threshold_exceeded")], [FLAG])(raw[6:], tally)

    def both(first: Number | None, second: Number | None) -> Number | None:
        return None if first is None or second is None else first + second

    return [corrected, both(parity, secded), lifetime_corrected, both(lifetime_parity, lifetime_secded), *exceeded]


_SRAM_COUNTS = tuple(Key(name) for name in ("ecc_aggregate_errors",) * 3 + ("ecc_errors",) * 3)
_UNCORRECTABLE, _SRAM_LOCATION = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_MEMORY_LOCATION_SRAM


def _sram_counter(kind: str, kind_code: int, name: str, counter: int) -> Query:
    key = Key(name, (kind, "sram"))
    return simple(
        "nvmlDeviceGetMemoryErrorCounter",
        Tier.SLOW,
        [(key, MEMORY_ERRORS)],
        "<Q",
        arguments=(kind_code, counter, _SRAM_LOCATION),
    )


# The detailed status is for administrators; the plain counters are for everybody and lack the threshold.
SRAM = Query(
    "nvmlDeviceGetSramEccErrorStatus",
    Tier.SLOW,
    (
        Key("ecc_errors", ("correctable", "sram")),
        Key("ecc_errors", ("uncorrectable", "sram")),
        Key("ecc_aggregate_errors", ("correctable", "sram")),
        Key("ecc_aggregate_errors", ("uncorrectable", "sram")),
        Key("ecc_sram_threshold_exceeded"),
    ),
    "<8xQQQQQQ40xI4x",
    _decode_sram,
    version=SRAM_VERSION,
    instead=(
        _sram_counter("correctable", 0, "ecc_errors", pynvml.NVML_VOLATILE_ECC),
        _sram_counter("uncorrectable", _UNCORRECTABLE, "ecc_errors", pynvml.NVML_VOLATILE_ECC),
        _sram_counter("correctable", 0, "ecc_aggregate_errors", pynvml.NVML_AGGREGATE_ECC),
        _sram_counter("uncorrectable", _UNCORRECTABLE, "ecc_aggregate_errors", pynvml.NVML_AGGREGATE_ECC),
    ),
)

# --- fabric -----------------------------------------------------------------------------------------------------------
FABRIC_STATES = ("not_started", "in_progress", "completed")
"""1 to 3; 0 is "not supported"."""
# Two bits each in the health mask: 0 not supported, 1 true, 2 false.
_HEALTH_PAIRS = (
    ("degraded_bandwidth", 0),
    ("route_recovery", 2),
    ("route_unhealthy", 4),
    ("access_timeout_recovery", 6),
)
_FABRIC_KEYS = (
    *(Key("fabric_state", (state,)) for state in (*FABRIC_STATES, "unknown")),
    *(Key("fabric_health", (issue,)) for issue, _ in _HEALTH_PAIRS),
    Key("fabric_health", ("incorrect_configuration",)),
)


def _decode_fabric(raw: tuple[int, ...], _: Tally) -> list[Number | None]:
    """State is one byte in C although the stock binding declares four: the padding beside it is not part of it."""
    state, mask = raw[0], raw[1] if len(raw) > 1 else 0
    if state == 0:
        # A part without a fabric, or one that is not in an NVSwitch system: nothing to say, rather than a row of
        # zeroes.
        return [None] * len(_FABRIC_KEYS)
    values = state_set_values(state - 1, len(FABRIC_STATES))
    for _issue, shift in _HEALTH_PAIRS:
        answer = mask >> shift & 3
        values.append(None if answer not in (1, 2) else int(answer == 1))
    configuration = mask >> 8 & 0xF
    values.append(None if configuration == 0 else int(configuration != 1))
    return values


def _fabric(function: str, layout: str, size_and_version: int, instead: tuple[Query, ...] = ()) -> Query:
    return Query(function, Tier.SLOW, _FABRIC_KEYS, layout, _decode_fabric, version=size_and_version, instead=instead)


FABRIC = _fabric(
    "nvmlDeviceGetGpuFabricInfoV",
    "<28xB3xI4x",
    40 | 3 << 24,
    (
        _fabric(
            "nvmlDeviceGetGpuFabricInfoV",
            "<28xB3xI",
            36 | 2 << 24,
            (_fabric("nvmlDeviceGetGpuFabricInfo", "<24xB3x", 0),),
        ),
    ),
)

# --- row remapping ----------------------------------------------------------------------------------------------------
# On some parts each call writes "Unsupported ROUTE_TO_PHYSICAL" into the kernel log; a refusal at the probe ends
# it.
ROW_REMAP_BANKS = simple(
    "nvmlDeviceGetRowRemapperHistogram",
    Tier.SLOW,
    [(Key("row_remap_banks", (banks,)), PARTS) for banks in ("max", "high", "partial", "low", "none")],
    "<IIIII",
)

HEALTH_QUERIES: tuple[Query, ...] = (SRAM, ROW_REMAP_BANKS, FABRIC)
