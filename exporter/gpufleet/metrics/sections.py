"""Which series a snapshot has: the one place where facts of the model meet names of the catalogue. Pure.

A snapshot is taken apart into sections. A section's *layout* says everything about its series but their values, so that
a renderer which has met an equal layout before need only look at the values. To show something new, yield a section.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpufleet.metrics.catalog import FAMILIES, READINGS
from gpufleet.metrics.family import GPU, SLICE, Family
from gpufleet.metrics.fault_sections import fault_rows
from gpufleet.metrics.labels import pairs
from gpufleet.metrics.nic_sections import nic_rows
from gpufleet.metrics.owner_sections import holdings_by_gpu, meter_row, owner_row, prices_by_gpu, self_rows
from gpufleet.metrics.training_sections import training_rows
from gpufleet.model.state import GpuState, NvmlState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpufleet.model.gpu import GpuIdentity, SliceIdentity
    from gpufleet.model.meter import Price
    from gpufleet.model.readings import Key, Number
    from gpufleet.model.snapshot import GpuSnapshot, NodeIdentity, Snapshot

Rank = tuple[tuple[int, str], ...]


class Series(NamedTuple):
    """One series without its value and its subject."""

    family: Family
    labels: str = ""
    """Labels after the subject's, as written between the braces."""
    member: str | None = None
    """Value of the first label after the subject's: it can decide whether level core shows the series."""
    rank: Rank = ()
    """Place among the series of the same family and subject; those of a histogram have none and stay together."""
    suffix: str = ""
    """Of a part of a histogram: what follows the family's name."""


class Section(NamedTuple):
    """Series that appear and go together, with their values."""

    subject: tuple[int, int]
    """Place of the subject: number of the GPU, then of the slice (0: the GPU itself)."""
    describe: Callable[..., tuple[str, Sequence[Series | None]]]
    """``describe(*layout)`` gives the subject's labels, as written between the braces, and one series a value (None
    where the catalogue has no name for it).
    """
    layout: tuple[object, ...]
    values: tuple[Number | None, ...]


_GPU_STATES = {state: tuple([int(member is state) for member in GpuState]) for state in GpuState}
_NVML_STATES = {state: tuple([int(member is state) for member in NvmlState]) for state in NvmlState}
_NO_GPU_STATE = (None,) * len(GpuState)
_NO_NVML_STATE = (None,) * len(NvmlState)
_NODE = (-1, 0)
_MOST_DIGITS = 18  # of a label value that is sorted as a number; names come after all of them


def sections_of(snapshot: Snapshot, *, stale: bool = False) -> list[Section]:
    """Return the sections of a snapshot: the node, then its GPUs by number.

    ``stale`` says that the snapshot is too old to tell how anything is now. Then identity, faults and what gpufleet
    counts of itself are shown, no driver reading is, and no GPU is called up.
    """
    # Quiesced, nobody asks the driver: calling a GPU up or down would be made up, and a "down" raises an alert.
    known = not stale and not snapshot.quiesced
    sections = list(_node(snapshot, known=known))
    if not stale:
        sections += _reported(snapshot)
    holdings, prices = holdings_by_gpu(snapshot.owners), prices_by_gpu(snapshot.meter)
    for gpu in sorted(snapshot.gpus, key=_number):
        uuid = gpu.identity.uuid
        sections += _gpu(gpu, snapshot, prices.get(uuid), known=known)
        if uuid in holdings:
            describe, layout, shares = owner_row(snapshot.node.node, gpu.number, holdings[uuid])
            sections.append(Section((gpu.number, 0), _describe_rows, (describe, *layout), shares))
    return sections


def _number(gpu: GpuSnapshot) -> int:
    return gpu.number


def _node(snapshot: Snapshot, *, known: bool) -> Iterator[Section]:
    node, poll = snapshot.node, snapshot.poll
    values: tuple[Number | None, ...] = (
        snapshot.gpus_expected,
        snapshot.gpus_visible if known else None,
        1,
        _up(up=known and snapshot.nvml_state is NvmlState.OK, quiesced=snapshot.quiesced),
        *(_NVML_STATES[snapshot.nvml_state] if known else _NO_NVML_STATE),
        poll.duration_seconds,
        poll.polls,
        poll.gaps,
        int(snapshot.quiesced),
        int(node.simulated),
    )
    yield Section(_NODE, _describe_node, (node,), values)
    yield _counted("gpufleet_source_up", "source", tuple([(each.source, int(each.up)) for each in snapshot.sources]))
    yield _counted("gpufleet_nvml_errors_total", "return", poll.nvml_errors)
    yield _counted("gpufleet_invalid_readings_total", "reading", poll.invalid_readings)
    for describe, layout, counts in fault_rows(snapshot.faults):
        yield Section(_NODE, _describe_faults, (describe, *layout), counts)
    for rows, columns, totals in (meter_row(node.node, snapshot.meter), *self_rows(snapshot.owners, snapshot.meter)):
        yield Section(_NODE, _describe_rows, (rows, *columns), totals)


def _reported(snapshot: Snapshot) -> Iterator[Section]:
    """What training processes and adapters tell; neither needs the driver."""
    for parts, process, told in training_rows(snapshot.node.node, snapshot.training):
        yield Section(_NODE, _describe_parts, (parts, *process), told)
    for rows, port, counted in nic_rows(snapshot.node.node, snapshot.nics):
        yield Section(_NODE, _describe_rows, (rows, *port), counted)


def _counted(family: str, label: str, counts: tuple[tuple[str, int], ...]) -> Section:
    members = tuple([member for member, _ in counts])
    return Section(_NODE, _describe_counted, (family, label, members), tuple([count for _, count in counts]))


def _gpu(gpu: GpuSnapshot, snapshot: Snapshot, price: Price | None, *, known: bool) -> Iterator[Section]:
    number, identity, node = gpu.number, gpu.identity, snapshot.node
    subject = (number, 0)
    current = known and gpu.state is GpuState.OK
    values: tuple[Number | None, ...] = (
        1,
        _up(up=current, quiesced=snapshot.quiesced),
        *(_GPU_STATES[gpu.state] if known else _NO_GPU_STATE),
        gpu.polled_at,
        None if price is None else price.per_hour,
    )
    yield Section(subject, _describe_gpu, (identity, number, node, gpu.utilization_basis, price), values)
    for readings in gpu.standing:
        yield Section(subject, _describe_readings, (readings.keys, number, identity.uuid), readings.values)
    if current:
        for readings in gpu.parts:
            yield Section(subject, _describe_readings, (readings.keys, number, identity.uuid), readings.values)
    for place, part in enumerate(gpu.slices, start=1):
        subject = (number, place)
        yield Section(subject, _describe_slice, (part.identity, number, identity.uuid), (1,))
        if current:
            slice_uuid = part.identity.mig_uuid
            for readings in part.parts:
                layout = (readings.keys, number, identity.uuid, slice_uuid)
                yield Section(subject, _describe_readings, layout, readings.values)


def _up(*, up: bool, quiesced: bool) -> int | None:
    return None if quiesced else int(up)


def _describe_node(node: NodeIdentity) -> tuple[str, list[Series]]:
    about = pairs((("node", node.node), ("boot_id", node.boot_id), ("driver_version", node.driver_version)))
    return "", [
        Series(FAMILIES["gpu_count_expected"]),
        Series(FAMILIES["gpu_count_visible"]),
        Series(FAMILIES["gpufleet_node_info"], about),
        Series(FAMILIES["gpufleet_nvml_up"]),
        *_members("gpufleet_nvml_state", "state", NvmlState),
        Series(FAMILIES["gpufleet_poll_duration_seconds"]),
        Series(FAMILIES["gpufleet_polls_total"]),
        Series(FAMILIES["gpufleet_poll_gaps_total"]),
        Series(FAMILIES["gpufleet_quiesced"]),
        Series(FAMILIES["gpufleet_simulated"]),
    ]


def _describe_faults(
    describe: Callable[..., tuple[str, Sequence[tuple[Family, str, str]]]], *layout: object
) -> tuple[str, list[Series]]:
    subject, rows = describe(*layout)
    return subject, [Series(family, labels, None, ((0, place),)) for family, labels, place in rows]


def _describe_rows(
    describe: Callable[..., tuple[str, Sequence[tuple[Family, str]]]], *layout: object
) -> tuple[str, list[Series]]:
    subject, rows = describe(*layout)
    return subject, [Series(family, labels) for family, labels in rows]


def _describe_parts(
    describe: Callable[..., tuple[str, Sequence[tuple[Family, str, str]]]], *layout: object
) -> tuple[str, list[Series]]:
    subject, rows = describe(*layout)
    return subject, [Series(family, labels, suffix=suffix) for family, labels, suffix in rows]


def _describe_counted(name: str, label: str, members: tuple[str, ...]) -> tuple[str, list[Series]]:
    return "", _members(name, label, members)


def _members(name: str, label: str, members: Iterable[str]) -> list[Series]:
    family = FAMILIES[name]
    return [Series(family, pairs(((label, member),)), member, _rank(family, (member,))) for member in members]


def _describe_gpu(
    identity: GpuIdentity, number: int, node: NodeIdentity, basis: str | None, price: Price | None
) -> tuple[str, list[Series | None]]:
    about = pairs(
        (
            ("node", node.node),
            ("name", identity.name),
            ("pci_bus_id", identity.pci_bus_id),
            ("serial", identity.serial),
            ("architecture", identity.architecture),
            ("driver_version", node.driver_version),
            ("vbios_version", identity.vbios_version),
            ("cost_per_hour", None if price is None else price.text),
            ("currency", None if price is None else price.currency),
            ("utilization_basis", basis),
        )
    )
    return _subject(number, identity.uuid), [
        Series(FAMILIES["gpu_info"], about),
        Series(FAMILIES["gpu_up"]),
        *_members("gpu_state", "state", GpuState),
        Series(FAMILIES["gpufleet_last_poll_timestamp_seconds"]),
        None if price is None else Series(FAMILIES["gpu_price_per_hour"], pairs((("currency", price.currency),))),
    ]


def _describe_slice(identity: SliceIdentity, number: int, uuid: str) -> tuple[str, list[Series]]:
    about = (
        ("profile", identity.profile),
        ("gi", str(identity.gpu_instance)),
        ("ci", str(identity.compute_instance)),
    )
    return _subject(number, uuid, identity.mig_uuid), [Series(FAMILIES["gpu_mig_info"], pairs(about))]


def _describe_readings(keys: tuple[Key, ...], number: int, *uuids: str) -> tuple[str, tuple[Series | None, ...]]:
    return _subject(number, *uuids), _columns(keys)


def _subject(number: int, *uuids: str) -> str:
    return pairs(zip(SLICE, (str(number), *uuids), strict=False))


@lru_cache(maxsize=128)  # GPUs of one model share their plan's keys, and so do the nodes of a simulated fleet
def _columns(keys: tuple[Key, ...]) -> tuple[Series | None, ...]:
    return tuple([_column(key) for key in keys])


def _column(key: Key) -> Series | None:
    family = READINGS.get(key.name)
    if family is None:
        return None
    subject = SLICE if family.labels[: len(SLICE)] == SLICE else GPU
    extra = family.labels[len(subject) :]
    if len(key.members) > len(extra):
        return None
    member = key.members[0] if key.members else None
    return Series(family, pairs(zip(extra, key.members, strict=False)), member, _rank(family, key.members))


def _rank(family: Family, members: tuple[str, ...]) -> Rank:
    """Declared members in the order of the catalogue, numbers by value, everything else by name."""
    ranks: list[tuple[int, str]] = []
    for place, member in enumerate(members):
        if place == 0 and member in family.members:
            ranks.append((family.members.index(member), ""))
        elif member.isascii() and member.isdecimal() and len(member) <= _MOST_DIGITS:
            ranks.append((int(member), ""))
        else:
            ranks.append((10**_MOST_DIGITS, member))
    return tuple(ranks)
