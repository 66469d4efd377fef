"""What the stand-in driver's GPUs answer until a test says otherwise: one profile a GPU model.

Written from NVIDIA's header and public captures, and on purpose not from gpufleet's own tables: a wrong id or unit
there must not be wrong here as well. Values differ from GPU to GPU, so that a mix-up of two GPUs shows.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.fake_nvml_layout import (
    ABSENT32,
    ABSENT64,
    ABSENT_MARGIN,
    GPM_METRICS,
    MIG_GPM_METRICS,
    Gpu,
    field_place,
)

F64, U32, ULONG, U64, I64, I32, U16 = range(7)

NOT_SUPPORTED = 3

UNTOUCHED, ZEROED, DIRTY_HIGH, NOT_ON_MIG, SINGLE_CALL = 1, 2, 4, 8, 16

ALL = 0xFFFFFFFF
"""The scope that stands for the sum over all links."""

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its id, scope, value, NVML's type of it, and how it moves (a rate per second or an amplitude)."""

    id: int
    value: int
    type: int = U32
    scope: int = 0
    rate: int = 0
    wobble: int = 0
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU model: memory in bytes, power in milliwatts, clocks in MHz (graphics, SM, memory, video)."""

    name: str
    architecture: int
    cuda: tuple[int, int]
    memory_total: int
    memory_reserved: int
    power: int
    power_limit: int
    clock: tuple[int, int, int, int]
    clock_max: tuple[int, int, int, int]
    gpm: bool = False
    average_power: bool = True
    margins: tuple[int, int, int, int] | None = None
    thresholds: tuple[int, int, int] | None = None
    memory_temperature: bool = True
    remapping: bool = True
    retired_pages: bool = False
    links: int = 0
    nvlink: int = 0
    mig_maximum: int = 0
    multiprocessors: int = 0
    fans: int = 0
    fabric_version: int = 0
    ecc: bool = True
    unified_memory: bool = False
    datacenter: bool = True


H100 = Profile(
    "NVIDIA H100 80GB HBM3", 9, (9, 0), 81559 * MIB, 479 * MIB, 500_000, 700_000,
    (1755, 1755, 2619, 1545), (1980, 1980, 2619, 1980),
    gpm=True, margins=(-8, -2, 0, 0), links=18, nvlink=4, mig_maximum=7, multiprocessors=132, fabric_version=3,
)  # fmt: skip
H200 = Profile(
    "NVIDIA H200", 9, (9, 0), 143771 * MIB, 607 * MIB, 520_000, 700_000,
    (1755, 1755, 3201, 1545), (1980, 1980, 3201, 1980),
    gpm=True, margins=(-8, -2, 0, 0), links=18, nvlink=4, mig_maximum=7, multiprocessors=132, fabric_version=3,
)  # fmt: skip
B200 = Profile(
    "NVIDIA B200", 10, (10, 0), 183359 * MIB, 712 * MIB, 800_000, 1_000_000,
    (1830, 1830, 3996, 1500), (1965, 1965, 3996, 1965),
    gpm=True, margins=(-8, -2, 0, 0), links=18, nvlink=5, mig_maximum=7, multiprocessors=148, fabric_version=3,
)  # fmt: skip
A100 = Profile(
    "NVIDIA A100-SXM4-80GB", 7, (8, 0), 81920 * MIB, 660 * MIB, 310_000, 400_000,
    (1410, 1410, 1593, 1275), (1410, 1410, 1593, 1290),
    average_power=False, thresholds=(92, 89, 95), links=12, nvlink=3, mig_maximum=7, multiprocessors=98,
)  # fmt: skip
L4 = Profile(
    "NVIDIA L4", 8, (8, 9), 23034 * MIB, 492 * MIB, 60_000, 72_000,
    (2040, 2040, 6251, 1770), (2040, 2040, 6251, 1770), margins=(-5, -2, 0, 0), memory_temperature=False,
)  # fmt: skip
T4 = Profile(
    "Tesla T4", 6, (7, 5), 15360 * MIB, 450 * MIB, 60_000, 70_000,
    (1590, 1590, 5000, 1470), (1590, 1590, 5001, 1470),
    average_power=False, thresholds=(96, 93, 0), memory_temperature=False, remapping=False, retired_pages=True,
)  # fmt: skip
GB10 = Profile(
    "NVIDIA GB10", 10, (12, 1), 0, 0, 20_000, 0,
    (2400, 2400, 0, 1500), (3003, 3003, 0, 3003),
    memory_temperature=False, remapping=False, ecc=False, unified_memory=True, datacenter=False,
)  # fmt: skip
RTX4090 = Profile(
    "NVIDIA GeForce RTX 4090", 8, (8, 9), 24564 * MIB, 382 * MIB, 300_000, 450_000,
    (2520, 2520, 10501, 1950), (3105, 3105, 10501, 2415),
    thresholds=(100, 97, 0), memory_temperature=False, remapping=False, ecc=False, fans=2, datacenter=False,
)  # fmt: skip

PROFILES = {p.name: p for p in (H100, H200, B200, A100, L4, T4, GB10, RTX4090)}


def gpu_uuid(number: int) -> str:
    """The UUID of the stand-in GPU with that number."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'gpu {number}')}"


def mig_uuid(number: int, gi: int, ci: int, generation: int) -> str:
    """The UUID of an instance; another one after each re-partitioning."""
    return f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'gpu {number} {gi} {ci} {generation}')}"


def clock_event_ids(driver_version: str) -> tuple[int, int, int] | None:
    """The ids of SW thermal, HW thermal and power brake slowdown in this driver; None where it has none.

    575 and 580 before 580.82 number them 251 to 253; older drivers lack them; all others have 269 to 271.
    """
    match = re.match(r"(\d+)\.(\d+)", driver_version)
    if match is None:
        raise ValueError(f"not a driver version: {driver_version}")
    branch, build = int(match[1]), int(match[2])
    if branch < 575:
        return None
    return (251, 252, 253) if branch == 575 or (branch == 580 and build < 82) else (269, 270, 271)


def apply(profile: Profile, gpu: Gpu, number: int, driver_version: str) -> None:
    """Fill a GPU of the shared memory with a profile."""
    gpu.uuid = gpu_uuid(number).encode()
    gpu.name = profile.name.encode()
    gpu.serial = f"16530{number:08d}".encode() if profile.datacenter else b""
    gpu.vbios = b"96.00.74.00.01"
    gpu.part = b"692-2G520-0200-000" if profile.datacenter else b""
    gpu.present = 1
    gpu.code = 0
    gpu.domain, gpu.bus, gpu.device = 0, 0x1B + 8 * number, 0
    gpu.pci_device_id, gpu.pci_subsystem_id = 0x233010DE, 0x16C110DE
    # Never the enumeration index: code that takes one for the other shows.
    gpu.minor = (number + 3) % 16
    gpu.architecture = profile.architecture
    gpu.brand = 14
    gpu.cuda_major, gpu.cuda_minor = profile.cuda
    gpu.cores = 16896
    gpu.bus_width = 5120
    _apply_readings(profile, gpu, number)
    apply_fields(profile, gpu, number, driver_version)
    _apply_gpm(profile, gpu, number)


def _apply_readings(profile: Profile, gpu: Gpu, number: int) -> None:
    absent_clock = [ABSENT32 if mhz == 0 else mhz for mhz in profile.clock]
    gpu.clock[:] = [mhz if mhz == ABSENT32 else mhz + number for mhz in absent_clock]
    gpu.clock_max[:] = [ABSENT32 if mhz == 0 else mhz for mhz in profile.clock_max]
    gpu.utilization_gpu = 80 + number
    gpu.utilization_memory = 40 + number
    gpu.encoder, gpu.decoder = 1 + number % 4, 5 + number % 4
    turing_or_newer = profile.architecture >= 6
    gpu.jpeg = 3 if turing_or_newer else ABSENT32
    gpu.ofa = 2 if turing_or_newer else ABSENT32
    gpu.performance_state = 0
    gpu.temperature = 55 + number
    gpu.margin = 32 - number if profile.margins else ABSENT_MARGIN
    gpu.threshold[:] = [ABSENT32] * 8
    if profile.thresholds:
        shutdown, slowdown, memory_max = profile.thresholds
        gpu.threshold[0], gpu.threshold[1], gpu.threshold[3] = shutdown, slowdown, slowdown - 4
        gpu.threshold[2] = memory_max or ABSENT32
    gpu.fan_count = profile.fans
    gpu.fan[:] = [30 + number, 32 + number, 0, 0]
    gpu.fan_rpm = 1500
    gpu.pcie_generation, gpu.pcie_width = (5, 16) if profile.architecture >= 9 else (4, 16)
    gpu.pcie_generation_max, gpu.pcie_width_max = gpu.pcie_generation, gpu.pcie_width
    gpu.pcie_throughput = 123_456
    gpu.persistence, gpu.compute_mode, gpu.display = 1, 0, 0
    gpu.ecc_current = gpu.ecc_pending = 1 if profile.ecc else ABSENT32
    gpu.reasons = 0x4
    gpu.reasons_supported = 0x1FF
    gpu.events_supported = 0xFFDF if profile.architecture >= 9 else 0x19F
    gpu.memory_total = ABSENT64 if profile.unified_memory else profile.memory_total
    gpu.memory_reserved = profile.memory_reserved
    gpu.memory_used = (11 + number) * GIB if profile.memory_total > 64 * GIB else GIB
    gpu.bar1_total = ABSENT64 if profile.unified_memory else 128 * GIB
    gpu.bar1_used = (2 + number) * MIB
    for error in range(2):
        for counter in range(2):
            for location in range(8):
                # Volta and newer count SRAM (7) and DRAM (2); what they fold into SRAM is not reported.
                kept = profile.ecc and location in {2, 7}
                value = 10 * error + 5 * counter + location
                gpu.ecc_count[error][counter][location] = value if kept else ABSENT64
    gpu.sram[:] = list(range(11)) if profile.remapping else [ABSENT64] * 11
    gpu.sram_threshold_exceeded = 0
    gpu.histogram[:] = [640, 1, 0, 0, 0] if profile.remapping else [ABSENT32] * 5
    gpu.fabric_version = profile.fabric_version
    gpu.fabric_state, gpu.fabric_status, gpu.fabric_clique = 3, 0, 32
    # Not degraded, no route trouble, configuration correct.
    gpu.fabric_health_mask = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8
    gpu.fabric_health_summary = 1
    gpu.fabric_cluster[:] = uuid.uuid5(uuid.NAMESPACE_OID, "cluster").bytes
    gpu.nvlink_count = profile.links
    gpu.process_count, gpu.process_stride = 1, 24
    gpu.process[0].pid, gpu.process[0].used_memory = 4000 + number, 10 * GIB
    gpu.process[0].gi = gpu.process[0].ci = ABSENT32
    gpu.mig_mode = 0 if profile.mig_maximum else ABSENT32
    gpu.mig_mode_pending = 0
    gpu.mig_maximum = profile.mig_maximum
    gpu.multiprocessors = profile.multiprocessors
    gpu.mig_stale_code = 2


def apply_fields(profile: Profile, gpu: Gpu, number: int, driver_version: str) -> None:
    """Fill a GPU's field table as a driver of that version would."""
    for cell in gpu.field:
        cell.key = 0
    for field in _fields(profile, number, driver_version):
        put(gpu, field)


def put(gpu: Gpu, field: Field, code: int = 0) -> None:
    """Set one entry of a GPU's field table. The key comes last: the driver may be reading."""
    cell = field_place(gpu.field, field.id, field.scope)
    cell.flags, cell.code, cell.type = field.flags, code, field.type
    cell.value = field.value & ABSENT64
    cell.rate, cell.wobble = field.rate, field.wobble
    scope = 255 if field.scope == ALL else field.scope
    cell.key = (field.id << 8 | scope) + 1


def _fields(profile: Profile, number: int, driver_version: str) -> Iterator[Field]:
    yield from _power_fields(profile, number)
    seconds = 1_000_000_000
    yield Field(74, (100 + number) * seconds, U64, rate=50_000_000)
    yield Field(75, (20 + number) * seconds, U64)
    for clock_event in (76, 77, 78, 79, 81):
        yield Field(clock_event, clock_event * seconds, U64)
    if (ids := clock_event_ids(driver_version)) is not None:
        for offset, field_id in enumerate(ids):
            yield Field(field_id, (20 - 5 * offset + number) * seconds, U64)
        if profile.architecture >= 10:
            # Power smoothing has the other numbers: plausible values that no one must take for nanoseconds.
            for field_id in range(251, 274):
                if field_id not in ids:
                    yield Field(field_id, 7 + field_id, U32)
    if profile.memory_temperature:
        yield Field(82, 60 + number, U32, wobble=3)
    if profile.margins:
        for field_id, margin in zip((193, 194, 195, 196), profile.margins, strict=True):
            yield Field(field_id, margin & ABSENT32, I32)
    yield from _ecc_fields(profile, number)
    yield Field(94, 2 + number, U32)
    yield Field(95, 0, U32)
    if profile.datacenter and profile.architecture >= 7:
        for field_id in (169, *range(173, 184)):
            yield Field(field_id, 0, U32)
        yield Field(197, 123_456, U32, rate=1_000_000)
        yield Field(198, 654_321, U32, rate=1_000_000)
    if profile.architecture >= 7:
        yield Field(230, 0, U32)
    yield from _link_fields(profile)


def _power_fields(profile: Profile, number: int) -> Iterator[Field]:
    power = profile.power + 1000 * number
    yield Field(83, 5_000_000_000 + number, U64, rate=power)
    yield Field(186, power, U32, wobble=8000)
    if profile.average_power:
        yield Field(185, power - 500, U32, wobble=4000)
    if profile.power_limit:
        yield Field(187, profile.power_limit * 2 // 7, U32)
        for field_id in (188, 189, 190, 192):
            yield Field(field_id, profile.power_limit, U32)


def _ecc_fields(profile: Profile, number: int) -> Iterator[Field]:
    if not profile.ecc:
        return
    yield Field(1, 1, U32)
    yield Field(2, 1, U32)
    # Type 0 although the value is a u64: drivers are known to say so.
    for field_id, value in ((3, 4 + number), (4, 0), (5, 40 + number), (6, 1), (11, 2), (12, 0), (22, 20), (23, 1)):
        yield Field(field_id, value, F64)
    if profile.remapping:
        for field_id, value in ((142, 1), (143, 2), (144, 0), (145, 0)):
            yield Field(field_id, value, U32)
    if profile.retired_pages:
        for field_id, value in ((29, 3), (30, 1), (31, 0)):
            yield Field(field_id, value, U64)


def _link_fields(profile: Profile) -> Iterator[Field]:
    links = range(profile.links)
    if not links:
        return
    yield Field(91, profile.links, U32)
    yield Field(147, profile.links, U32)
    for link in links:
        yield Field(164, 26562, U32, link, flags=NOT_ON_MIG)
        yield Field(165, 1, U32, link, flags=NOT_ON_MIG)
        yield Field(166, 6, U32, link, flags=NOT_ON_MIG)
        yield Field(146, link, U32, link, flags=NOT_ON_MIG)
    yield from _nvlink5(links) if profile.nvlink >= 5 else _nvlink4(links)


def _nvlink4(links: range) -> Iterator[Field]:
    for scope, factor in (*((link, 1) for link in links), (ALL, len(links))):
        for field_id, kib in ((138, 1_000_000), (139, 2_000_000), (140, 1_100_000), (141, 2_200_000)):
            yield Field(field_id, kib * factor, U64, scope, rate=10_000 * factor, flags=NOT_ON_MIG)
    for link in links:
        for field_id, value in ((161, link), (162, 0), (163, 2 * link)):
            yield Field(field_id, value, U64, link, flags=NOT_ON_MIG)
    # The older numbering by link ends at link 11, and asks for the link as the scope too.
    for first, second, value in ((32, 96, 2), (39, 102, 3), (46, 108, 1), (53, 114, 0)):
        for link in range(min(12, len(links))):
            field_id = first + link if link < 6 else second + link - 6
            yield Field(field_id, value * link, U64, link, flags=NOT_ON_MIG)
    ecc_links = range(min(12, len(links)))
    for link in ecc_links:
        yield Field(148 + link, link, U64, link, flags=NOT_ON_MIG)
    for field_id, value in ((38, 132), (45, 198), (52, 66), (59, 0), (160, 66)):
        yield Field(field_id, value, U64, flags=NOT_ON_MIG)


def _nvlink5(links: range) -> Iterator[Field]:
    for scope, factor in (*((link, 1) for link in links), (ALL, len(links))):
        for field_id, count in ((201, 4_000_000), (202, 1 << 34), (203, 8_000_000), (204, 1 << 35)):
            yield Field(field_id, count * factor, U64, scope, rate=10_000_000 * factor, flags=NOT_ON_MIG)
    for link in links:
        for field_id in (*range(206, 216), 219, 221):
            yield Field(field_id, (field_id - 205) * link, U64, link, flags=NOT_ON_MIG)
        for field_id in (220, 222):
            yield Field(field_id, 0xF | 1 << 8, U64, link, flags=NOT_ON_MIG)
        for field_id in range(235, 251):
            yield Field(field_id, 1000 - field_id, U64, link, flags=NOT_ON_MIG)
    for field_id in (*range(206, 216), 219, 221):
        yield Field(field_id, (field_id - 205) * sum(links), U64, ALL, flags=NOT_ON_MIG)


def gpm_values(number: int) -> dict[int, float]:
    """GPM metric id to value (percent, MiB/s) of a Hopper GPU."""
    values = {1: 92.5, 2: 71.25, 3: 43.5, 4: 12.0, 5: 38.75, 6: 0.25, 7: 38.5, 9: 0.0, 10: 55.5, 11: 0.5, 12: 8.25}
    values |= {13: 1.5, 20: 1200.5, 21: 3400.25, 60: 5000.0, 61: 6000.0}
    values |= dict.fromkeys((*range(30, 38), *range(40, 48), 50), 4.0)
    return {key: value + number / 8 if 0 < value < 80 else value for key, value in values.items()}


def _apply_gpm(profile: Profile, gpu: Gpu, number: int) -> None:
    gpu.gpm_supported = 1 if profile.gpm else 0
    values = gpm_values(number) if profile.gpm else {}
    for metric in range(GPM_METRICS):
        cell = gpu.gpm[metric]
        cell.value = values.get(metric, 0.0)
        cell.wobble = 4.0 if 0 < cell.value < 80 else 0.0
        cell.code = 0 if metric in values else NOT_SUPPORTED
    for place in range(len(gpu.mig)):
        for metric in range(MIG_GPM_METRICS):
            cell = gpu.mig[place].gpm[metric]
            cell.code = 0 if metric in values and metric < 20 else NOT_SUPPORTED
            cell.value = values.get(metric, 0.0) / 2 + place
            cell.wobble = 0.0


@dataclass(frozen=True, slots=True)
class Slice:
    """One compute instance: its GPU instance, its share of it, memory in bytes (the GPU instance's)."""

    gi: int
    ci: int = 0
    profile: str = "1g.10gb"
    gi_slices: int = 1
    ci_slices: int = 1
    multiprocessors: int = 16
    memory_total: int = 9984 * MIB
    memory_used: int = 13 * MIB


SEVEN_SLICES = tuple(Slice(gi) for gi in range(7, 14))
"""7 x 1g.10gb of an H100 80GB."""

SHARED_INSTANCE = (
    Slice(1, 0, "3g.71gb", 3, 3, 60, 72320 * MIB, 44 * MIB),
    Slice(2, 0, "1c.3g.71gb", 3, 1, 16, 72320 * MIB, 50 * MIB),
    Slice(2, 1, "2c.3g.71gb", 3, 2, 32, 72320 * MIB, 50 * MIB),
)
"""An H200 whose GPU instance 2 holds two compute instances, which share its memory and its samples."""
