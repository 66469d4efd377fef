"""Snapshots made by hand, with every reading that a Hopper GPU can have, for the tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.meter import Account, MeterView, Price
from gpufleet.model.owner import Hold, Holding, OwnersView, Workload
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import GpuSnapshot, NodeIdentity, PollHealth, SliceSnapshot, Snapshot, SourceHealth
from gpufleet.model.state import GpuState, NvmlState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufleet.model.readings import Number

GIB = 2**30
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
RECOVERY_ACTIONS = (
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
PIPES = ("int", "fp16", "fp32", "fp64", "tensor_half", "tensor_int8", "tensor_fp64")
NODE = NodeIdentity(
    node="gpu-node-01",
    boot_id="7c2a3b6e-3a8e-4b54-9d0e-0f3f5a1a9c11",
    driver_version="580.65.06",
    nvml_version="13.580.65.06",
    cuda_version="13.0",
)


def keys(name: str, members: Iterable[str] = ()) -> list[Key]:
    """One key for each member; one without members when there are none."""
    return [Key(name, (member,)) for member in members] or [Key(name)]


def pairs(name: str, first: Iterable[str], second: Iterable[str]) -> list[Key]:
    """One key for each pair of members."""
    seconds = tuple(second)
    return [Key(name, (one, two)) for one in first for two in seconds]


FAST = (
    *keys("utilization_ratio"),
    *keys("memory_utilization_ratio"),
    *keys("sm_clock_hertz"),
    *keys("memory_clock_hertz"),
    *keys("clock_event_active", REASONS),
    *keys("performance_state"),
    *keys("temperature_celsius"),
    *keys("memory_temperature_celsius"),
    *keys("temperature_margin_celsius"),
    *keys("power_watts"),
    *keys("energy_joules"),
    *keys("memory_used_bytes"),
    *keys("memory_free_bytes"),
    *keys("memory_reserved_bytes"),
    *keys("memory_total_bytes"),
    *keys("pcie_replays"),
    *keys("remapped_rows", ("correctable", "uncorrectable")),
    *keys("row_remap_pending"),
    *keys("row_remap_failure"),
    *keys("recovery_action", RECOVERY_ACTIONS),
    *keys("nvlink_transmit_bytes"),
    *keys("nvlink_receive_bytes"),
    *keys("busy_seconds"),
    *keys("clock_event_seconds", (*REASONS, "low_utilization", "below_base_clock")),
)
GPM = (
    *keys("sm_active_ratio"),
    *keys("sm_occupancy_ratio"),
    *keys("tensor_active_ratio"),
    *keys("dram_active_ratio"),
    *keys("pipe_active_ratio", PIPES),
    *keys("pcie_transmit_bytes_per_second"),
    *keys("pcie_receive_bytes_per_second"),
    *keys("sm_active_seconds"),
    *keys("tensor_active_seconds"),
)
MEDIUM = (
    *keys("encoder_utilization_ratio"),
    *keys("decoder_utilization_ratio"),
    *keys("jpeg_utilization_ratio"),
    *keys("ofa_utilization_ratio"),
    *keys("graphics_clock_hertz"),
    *keys("video_clock_hertz"),
    *keys("mig_enabled"),
    *keys("nvlink_links", ("active", "inactive", "sleep")),
    *keys("nvlink_errors", ("crc", "replay", "recovery", "ecc")),
    *keys("nvlink_worst_link_errors", ("crc", "replay", "recovery", "ecc")),
)
SLOW = (
    *keys("power_limit_watts", ("enforced", "requested", "default", "min", "max")),
    *keys("bar1_used_bytes"),
    *keys("bar1_total_bytes"),
    *keys("ecc_enabled"),
    *pairs("ecc_errors", ("correctable", "uncorrectable"), ("dram", "sram", "total")),
    *pairs("ecc_aggregate_errors", ("correctable", "uncorrectable"), ("dram", "sram", "total")),
    *keys("ecc_sram_threshold_exceeded"),
    *keys("row_remap_banks", ("max", "high", "partial", "low", "none")),
    *keys("pcie_link_generation", ("current", "max")),
    *keys("pcie_link_width", ("current", "max")),
    *keys("fabric_state", ("not_started", "in_progress", "completed")),
    *keys("fabric_health", ("degraded_bandwidth", "incorrect_configuration")),
    *keys("processes"),
    *keys("sm_clock_max_hertz"),
    *keys("memory_clock_max_hertz"),
    *keys("temperature_margin_threshold_celsius", ("shutdown", "slowdown", "memory_max", "gpu_max")),
)
# Readings that no Hopper GPU has, so that every family is met.
OTHERS = (
    *keys("temperature_threshold_celsius", ("shutdown", "slowdown")),
    *keys("fan_speed_ratio", ("0", "1")),
    *keys("retired_pages", ("single_bit", "double_bit")),
)
SLICE = (
    *keys("mig_graphics_active_ratio"),
    *keys("mig_sm_active_ratio"),
    *keys("mig_sm_occupancy_ratio"),
    *keys("mig_tensor_active_ratio"),
    *keys("mig_dram_active_ratio"),
    *keys("mig_pipe_active_ratio", PIPES),
    *keys("mig_memory_used_bytes"),
    *keys("mig_memory_free_bytes"),
    *keys("mig_memory_total_bytes"),
    *keys("mig_compute_fraction"),
    *keys("mig_sm_active_seconds"),
    *keys("mig_tensor_active_seconds"),
)


def value_of(key: Key, *, gpu: int = 0, poll: int = 1) -> Number:
    """A value that is likely for the reading; activity, power and counters are other ones at each poll."""
    beat = 0.3 + 0.6 * ((poll * 7 + gpu * 3 + len(key.name)) % 11) / 11
    likely: tuple[tuple[str, Number], ...] = (
        ("_ratio", beat),
        ("_fraction", 1 / 7),
        ("_seconds", 1000.0 * gpu + poll * beat),
        ("memory_total_bytes", 80 * GIB),
        ("memory_used_bytes", 61 * GIB + poll % 2),
        ("_bytes_per_second", 1e9 * beat),
        ("_bytes", GIB * (poll if key.name.startswith("nvlink") else 2)),
        ("_max_hertz", 1_980_000_000),
        ("_hertz", 1_755_000_000),
        ("margin_threshold_celsius", -2),
        ("_celsius", 54 + gpu),
        ("power_limit_watts", 700.0),
        ("_watts", 480.125 + poll % 5),
        ("_joules", 1e6 * gpu + 480.5 * poll),
    )
    for ending, value in likely:
        if key.name.endswith(ending):
            return value
    if key.name in {"clock_event_active", "recovery_action", "fabric_state"}:
        return int(key.members[0] in {"sw_power_cap", "none", "completed"})
    return int(key.name in {"ecc_enabled", "performance_state"})


def readings(these: tuple[Key, ...], *, gpu: int = 0, poll: int = 1) -> Readings:
    """Likely values for these keys."""
    return Readings(these, tuple([value_of(key, gpu=gpu, poll=poll) for key in these]))


def identity(number: int) -> GpuIdentity:
    """An H100 of the node."""
    return GpuIdentity(
        uuid=f"GPU-8f1e2d3c-4b5a-6978-8796-a5b4c3d2e1{number:02x}",
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"0000:{0x1B + number * 0x10:02x}:00.0",
        serial=f"165152301{number:04}",
        architecture="hopper",
        vbios_version="96.00.89.00.01",
        minor=number,
    )


def mig_slice(gpu: int, place: int, *, poll: int = 1) -> SliceSnapshot:
    """A 1g.10gb slice."""
    who = SliceIdentity(
        mig_uuid=f"MIG-5c1d{gpu:02x}{place:02x}-2b7a-5f3e-9c41-d0e1f2a3b4c5",
        profile="1g.10gb",
        gpu_instance=7 + place,
        compute_instance=0,
        compute_fraction=16 / 132,
        memory_bytes=10 * GIB,
    )
    return SliceSnapshot(who, (readings(SLICE, gpu=gpu + place, poll=poll),))


def gpu(
    number: int, *, poll: int = 1, slices: int = 0, parts: tuple[tuple[Key, ...], ...] | None = None
) -> GpuSnapshot:
    """A GPU that is well, with all that it can report."""
    plan = parts if parts is not None else (FAST, GPM, MEDIUM, SLOW)
    return GpuSnapshot(
        number=number,
        identity=identity(number),
        state=GpuState.OK,
        polled_at=1_764_500_000.25 + poll,
        parts=tuple([readings(part, gpu=number, poll=poll) for part in plan]),
        slices=tuple([mig_slice(number, place, poll=poll) for place in range(slices)]),
        utilization_basis="sm",
    )


def down(number: int, state: GpuState, reason: str) -> GpuSnapshot:
    """A GPU that does not answer, with the driver errors that were counted for it."""
    return GpuSnapshot(
        number=number,
        identity=identity(number),
        state=state,
        polled_at=1_764_499_000.5,
        standing=(Readings((Key("xid_errors", ("79",)), Key("xid_errors", ("48",))), (1, 2)),),
        reason=reason,
    )


def node(*gpus: GpuSnapshot, poll: int = 1) -> Snapshot:
    """A node with these GPUs, everything well."""
    return Snapshot(
        sequence=poll,
        at=1_764_500_000.5 + poll,
        monotonic=float(poll),
        node=NODE,
        nvml_state=NvmlState.OK,
        gpus=gpus,
        gpus_expected=len(gpus),
        gpus_visible=len(gpus),
        poll=PollHealth(
            duration_seconds=0.0021,
            nvml_errors=(("gpu_is_lost", 3), ("timeout", 1)),
            invalid_readings=(("power_watts", 2),),
            polls=poll,
            gaps=0,
        ),
        sources=(SourceHealth("nvml_events", up=True), SourceHealth("udev", up=False, reason="no netlink socket")),
    )


def held(snapshot: Snapshot, *, labels: tuple[tuple[str, str], ...] = ()) -> Snapshot:
    """The same node, each GPU held by a run at 4.80 an hour, but for the last, which nobody holds."""
    uuids = [each.identity.uuid for each in snapshot.gpus]
    holdings = [
        Holding(
            uuid, 1.0, Workload("llm", "llm-7b", "worker", str(rank), "1", "ada", "17", "ml", "pod-1", "main", labels)
        )
        for rank, uuid in enumerate(uuids[:-1])
    ]
    accounts = [Account(number, uuid, "llm", "llm-7b", "worker", "USD") for number, uuid in enumerate(uuids[:-1])]
    meter = MeterView(
        accounts=(*accounts, Account(len(uuids) - 1, uuids[-1], "(unallocated)", currency="USD")),
        values=(3600.0, 3000.5, 4.8, 0.8, 0.0) * len(accounts) + (60.0, None, 0.08, None, None),
        prices=tuple([Price(uuid, 4.8, "USD", "4.8", "h100") for uuid in uuids]),
        unbilled_seconds=16.0,
    )
    view = OwnersView(
        holdings=(*holdings, Holding(uuids[-1], 1.0, hold=Hold.UNALLOCATED)),
        conflicts=1,
        refreshed_at=(("podresources", 1_764_500_000.5),),
    )
    return replace(snapshot, owners=view, meter=meter)


def hopper_node(count: int = 8, *, slices: int = 0, poll: int = 1) -> Snapshot:
    """A node of H100s, MIG-partitioned where ``slices`` says so."""
    return node(*[gpu(number, slices=slices, poll=poll) for number in range(count)], poll=poll)


def simulated(snapshot: Snapshot) -> Snapshot:
    """The same node, of a scripted driver."""
    return replace(snapshot, node=replace(snapshot.node, simulated=True))
