"""Every reading of every GPU model, through the real ctypes path, equals what the driver was told to say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpufleet.model.readings import Key, Number
from tests.abi.opened import Values, device, session
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_layout import ABSENT32, ABSENT64, ABSENT_MARGIN, Gpu
from tests.support.fake_nvml_profiles import ALL, B200, GB10, PROFILES, T4, Profile, gpm_values

THRESHOLDS = ("shutdown", "slowdown", "memory_max", "gpu_max")
REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
    "unknown",
)
# Reading -> (field id, scope, factor to the SI unit, or the divisor where it is negative).
FIELDS: tuple[tuple[str, tuple[str, ...], int, int, int], ...] = (
    ("power_limit_watts", ("enforced",), 190, 0, -1000),
    ("power_limit_watts", ("requested",), 192, 0, -1000),
    ("power_limit_watts", ("default",), 189, 0, -1000),
    ("power_limit_watts", ("min",), 187, 0, -1000),
    ("power_limit_watts", ("max",), 188, 0, -1000),
    ("energy_joules", (), 83, 0, -1000),
    ("memory_temperature_celsius", (), 82, 0, 1),
    ("clock_event_seconds", ("sw_power_cap",), 74, 0, -(10**9)),
    ("clock_event_seconds", ("sync_boost",), 76, 0, -(10**9)),
    ("clock_event_seconds", ("board_limit",), 77, 0, -(10**9)),
    ("clock_event_seconds", ("low_utilization",), 78, 0, -(10**9)),
    ("clock_event_seconds", ("reliability",), 79, 0, -(10**9)),
    ("clock_event_seconds", ("below_base_clock",), 81, 0, -(10**9)),
    ("clock_event_seconds", ("sw_thermal_slowdown",), 269, 0, -(10**9)),
    ("clock_event_seconds", ("hw_thermal_slowdown",), 270, 0, -(10**9)),
    ("clock_event_seconds", ("hw_power_brake_slowdown",), 271, 0, -(10**9)),
    ("ecc_enabled", (), 1, 0, 1),
    ("ecc_errors", ("correctable", "dram"), 11, 0, 1),
    ("ecc_errors", ("uncorrectable", "dram"), 12, 0, 1),
    ("ecc_aggregate_errors", ("correctable", "dram"), 22, 0, 1),
    ("ecc_aggregate_errors", ("uncorrectable", "dram"), 23, 0, 1),
    ("retired_pages", ("single_bit",), 29, 0, 1),
    ("retired_pages", ("double_bit",), 30, 0, 1),
    ("remapped_rows", ("correctable",), 142, 0, 1),
    ("remapped_rows", ("uncorrectable",), 143, 0, 1),
    ("row_remap_pending", (), 144, 0, 1),
    ("row_remap_failure", (), 145, 0, 1),
    ("pcie_replays", (), 94, 0, 1),
    ("nvlink_transmit_bytes", (), 138, ALL, 1024),
    ("nvlink_receive_bytes", (), 139, ALL, 1024),
    ("nvlink_transmit_bytes", (), 202, ALL, 1),
    ("nvlink_receive_bytes", (), 204, ALL, 1),
)
MADE_BEHIND_THE_LINK = {
    "malformed_packet",
    "buffer_overrun",
    "receive",
    "receive_remote",
    "receive_general",
    "transmit_discard",
}
LINK_ERRORS = (
    ("replay", 161),
    ("recovery", 162),
    ("crc", 163),
    ("malformed_packet", 206),
    ("buffer_overrun", 207),
    ("receive", 208),
    ("receive_remote", 209),
    ("receive_general", 210),
    ("local_integrity", 211),
    ("transmit_discard", 212),
    ("recovery_failed", 214),
    ("recovery_total", 215),
    ("effective", 219),
    ("symbol", 221),
)
GPM = (
    ("sm_active_ratio", (), 2),
    ("sm_occupancy_ratio", (), 3),
    ("tensor_active_ratio", (), 5),
    ("dram_active_ratio", (), 10),
    ("pipe_active_ratio", ("int",), 4),
    ("pipe_active_ratio", ("fp16",), 13),
    ("pipe_active_ratio", ("fp32",), 12),
    ("pipe_active_ratio", ("fp64",), 11),
    ("pipe_active_ratio", ("tensor_half",), 7),
    ("pipe_active_ratio", ("tensor_int8",), 9),
    ("pipe_active_ratio", ("tensor_fp64",), 6),
)


def raw_field(gpu: Gpu, field_id: int, scope: int = 0) -> int | None:
    """A field's value in the driver's table, found by looking at every cell."""
    wanted = (field_id << 8 | (255 if scope == ALL else scope)) + 1
    return next((int(cell.value) for cell in gpu.field if cell.key == wanted), None)


def scaled(raw: int, factor: int) -> Number:
    """A driver's number in SI units."""
    return raw * factor if factor > 0 else raw / -factor


def expected(fake: FakeNvml, number: int) -> Values:
    """What the exporter has to report of a GPU, from the driver's memory."""
    return dict(pair for pairs in _expected(fake.gpus[number]) for pair in pairs)


def _expected(gpu: Gpu) -> Iterator[list[tuple[Key, Number]]]:
    yield _of_fields(gpu)
    yield _of_memory(gpu)
    yield _of_scalars(gpu)
    yield _of_links(gpu)
    yield _of_health(gpu)
    yield [(Key("clock_event_active", (reason,)), gpu.reasons >> bit & 1) for bit, reason in enumerate(REASONS)]


def _of_fields(gpu: Gpu) -> list[tuple[Key, Number]]:
    found: list[tuple[Key, Number]] = []
    for name, members, field_id, scope, factor in FIELDS:
        if (raw := raw_field(gpu, field_id, scope)) is not None:
            found.append((Key(name, members), scaled(raw, factor)))
    average = raw_field(gpu, 185)
    power = average if average is not None else raw_field(gpu, 186)
    assert power is not None
    found.append((Key("power_watts"), power / 1000))
    if (action := raw_field(gpu, 230)) is not None:
        found += [(Key("recovery_action", (name,)), int(place == action)) for place, name in enumerate(ACTIONS)]
    offsets = [raw_field(gpu, field_id) for field_id in (193, 194, 195, 196)]
    for name, offset, absolute in zip(THRESHOLDS, offsets, gpu.threshold, strict=False):
        if offset is not None:
            signed = offset - (1 << 32) if offset >> 31 else offset
            found.append((Key("temperature_margin_threshold_celsius", (name,)), signed))
        elif absolute != ABSENT32:
            found.append((Key("temperature_threshold_celsius", (name,)), absolute))
    return found


def _of_memory(gpu: Gpu) -> list[tuple[Key, Number]]:
    if gpu.memory_total == ABSENT64:
        return []
    return [
        (Key("memory_total_bytes"), gpu.memory_total),
        (Key("memory_reserved_bytes"), gpu.memory_reserved),
        (Key("memory_used_bytes"), gpu.memory_used),
        (Key("memory_free_bytes"), gpu.memory_total - gpu.memory_reserved - gpu.memory_used),
        (Key("bar1_total_bytes"), gpu.bar1_total),
        (Key("bar1_used_bytes"), gpu.bar1_used),
    ]


def _of_scalars(gpu: Gpu) -> list[tuple[Key, Number]]:
    found: list[tuple[Key, Number]] = [
        (Key("utilization_ratio"), gpu.utilization_gpu / 100),
        (Key("memory_utilization_ratio"), gpu.utilization_memory / 100),
        (Key("encoder_utilization_ratio"), gpu.encoder / 100),
        (Key("decoder_utilization_ratio"), gpu.decoder / 100),
        (Key("jpeg_utilization_ratio"), gpu.jpeg / 100),
        (Key("ofa_utilization_ratio"), gpu.ofa / 100),
        (Key("temperature_celsius"), gpu.temperature),
        (Key("performance_state"), gpu.performance_state),
        (Key("pcie_link_generation", ("current",)), gpu.pcie_generation),
        (Key("pcie_link_generation", ("max",)), gpu.pcie_generation_max),
        (Key("pcie_link_width", ("current",)), gpu.pcie_width),
        (Key("pcie_link_width", ("max",)), gpu.pcie_width_max),
        (Key("processes"), gpu.process_count),
    ]
    for place, name in enumerate(("graphics", "sm", "memory", "video")):
        if gpu.clock[place] != ABSENT32:
            found.append((Key(f"{name}_clock_hertz"), gpu.clock[place] * 1_000_000))
    for place, name in ((1, "sm"), (2, "memory")):
        if gpu.clock_max[place] != ABSENT32:
            found.append((Key(f"{name}_clock_max_hertz"), gpu.clock_max[place] * 1_000_000))
    if gpu.margin != ABSENT_MARGIN:
        found.append((Key("temperature_margin_celsius"), gpu.margin))
    if gpu.mig_mode != ABSENT32:
        found.append((Key("mig_enabled"), gpu.mig_mode))
    found += [(Key("fan_speed_ratio", (str(fan),)), gpu.fan[fan] / 100) for fan in range(gpu.fan_count)]
    return found


def _of_links(gpu: Gpu) -> list[tuple[Key, Number]]:
    links = range(gpu.nvlink_count)
    if not links:
        return []
    found: list[tuple[Key, Number]] = [
        (Key("nvlink_links", ("inactive",)), 0),
        (Key("nvlink_links", ("active",)), len(links)),
        (Key("nvlink_links", ("sleep",)), 0),
    ]
    for name, field_id in LINK_ERRORS:
        counts = [count for link in links if (count := raw_field(gpu, field_id, link)) is not None]
        if counts:
            found.append((Key("nvlink_errors", (name,)), sum(counts)))
            if name not in MADE_BEHIND_THE_LINK:
                found.append((Key("nvlink_worst_link_errors", (name,)), max(counts)))
    return found


def _of_health(gpu: Gpu) -> list[tuple[Key, Number]]:
    found: list[tuple[Key, Number]] = []
    kinds = ("correctable", "uncorrectable")
    if gpu.sram[0] != ABSENT64:
        aggregate_parity, aggregate_secded, aggregate_corrected, parity, secded, corrected = gpu.sram[:6]
        for name, numbers in (
            ("ecc_errors", (corrected, parity + secded)),
            ("ecc_aggregate_errors", (aggregate_corrected, aggregate_parity + aggregate_secded)),
        ):
            found += [(Key(name, (kind, "sram")), count) for kind, count in zip(kinds, numbers, strict=True)]
        found.append((Key("ecc_sram_threshold_exceeded"), gpu.sram_threshold_exceeded))
    elif gpu.ecc_current == 1:
        for error, kind in enumerate(kinds):
            found.append((Key("ecc_errors", (kind, "sram")), gpu.ecc_count[error][0][7]))
            found.append((Key("ecc_aggregate_errors", (kind, "sram")), gpu.ecc_count[error][1][7]))
    if gpu.histogram[0] != ABSENT32:
        names = ("max", "high", "partial", "low", "none")
        found += [(Key("row_remap_banks", (n,)), banks) for n, banks in zip(names, gpu.histogram, strict=True)]
    if gpu.fabric_version:
        states = ("not_started", "in_progress", "completed", "unknown")
        found += [(Key("fabric_state", (name,)), int(name == "completed")) for name in states]
        issues = ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery")
        found += [(Key("fabric_health", (issue,)), 0) for issue in (*issues, "incorrect_configuration")]
    return found


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_reading_is_what_the_driver_said(fake_nvml: FakeNvml, profile: Profile) -> None:
    """Nothing is missing, nothing is invented, and each value is in its SI unit."""
    fake_nvml.set_gpus(3, profile)

    with device(fake_nvml, 2) as watched:
        assert watched.values() == expected(fake_nvml, 2)
        assert watched.device.tally.errors == {}
        assert watched.device.tally.invalid == {}


@pytest.mark.parametrize("profile", [p for p in PROFILES.values() if p.gpm], ids=lambda profile: profile.name)
def test_activity_comes_from_gpm(fake_nvml: FakeNvml, profile: Profile) -> None:
    """Percentages become ratios, MiB/s bytes per second."""
    fake_nvml.set_gpus(2, profile)
    wanted: Values = {Key(name, members): gpm_values(1)[metric] / 100 for name, members, metric in GPM}
    wanted[Key("pcie_transmit_bytes_per_second")] = gpm_values(1)[20] * 1048576
    wanted[Key("pcie_receive_bytes_per_second")] = gpm_values(1)[21] * 1048576

    with device(fake_nvml, 1) as watched:
        assert watched.activity() == pytest.approx(wanted)


@pytest.mark.parametrize("profile", [p for p in PROFILES.values() if not p.gpm], ids=lambda profile: profile.name)
def test_a_part_without_gpm_is_not_asked_for_it(fake_nvml: FakeNvml, profile: Profile) -> None:
    """Before Hopper, and on the desktop, there is no activity and no sample is made."""
    fake_nvml.set_gpus(1, profile)

    with device(fake_nvml) as watched:
        assert not watched.device.samples_gpm
        watched.poll()
    assert ("nvmlGpmSampleAlloc", None) not in fake_nvml.counts()


@pytest.mark.parametrize("profile", [B200, PROFILES["NVIDIA H100 80GB HBM3"]], ids=lambda profile: profile.name)
def test_each_link_by_itself(fake_nvml: FakeNvml, profile: Profile) -> None:
    """With a series a link there is no total beside them that a sum would count twice."""
    fake_nvml.set_gpus(1, profile)
    transmit, receive, factor = (202, 204, 1) if profile is B200 else (138, 139, 1024)

    with device(fake_nvml, each_link=True) as watched:
        found = watched.values()

    gpu = fake_nvml.gpus[0]
    for name, field_id in (("nvlink_transmit_bytes", transmit), ("nvlink_receive_bytes", receive)):
        wanted = {Key(name, (str(link),)): (raw_field(gpu, field_id, link) or 0) * factor for link in range(18)}
        assert {key: value for key, value in found.items() if key.name == name} == wanted
    errors = {key.members for key in found if key.name == "nvlink_errors"}
    reported = [name for name, field_id in LINK_ERRORS if raw_field(gpu, field_id, 0) is not None]
    assert errors == {(name, str(link)) for name in reported for link in range(18)}


@pytest.mark.parametrize("profile", [T4, GB10, B200], ids=lambda profile: profile.name)
def test_the_identity_is_the_boards(fake_nvml: FakeNvml, profile: Profile) -> None:
    """UUID, name and address as the kernel writes it; the minor number is not the index."""
    fake_nvml.set_gpus(2, profile)

    with device(fake_nvml, 1) as watched:
        identity = watched.device.identity

    assert identity.uuid == fake_nvml.uuid(1)
    assert identity.name == profile.name
    assert identity.pci_bus_id == "0000:23:00.0"
    assert identity.serial == ("1653000000001" if profile.datacenter else None)
    assert identity.architecture == {6: "turing", 10: "blackwell"}[profile.architecture]
    assert identity.vbios_version == "96.00.74.00.01"
    assert identity.minor == fake_nvml.gpus[1].minor != 1


def test_versions_come_from_the_library(fake_nvml: FakeNvml) -> None:
    """Driver, NVML and CUDA versions; CUDA's without loading libcuda."""
    fake_nvml.set_gpus(1)

    with session(fake_nvml) as opened:
        versions = opened.versions

    assert (versions.driver, versions.nvml, versions.cuda) == ("595.45.04", "13.595.45.04", "13.2")
    assert ("nvmlSystemGetCudaDriverVersion_v2", None) not in fake_nvml.counts()
