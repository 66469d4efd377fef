from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.metrics.catalog import FAMILIES, READINGS
from gpufleet.metrics.family import GPU, SLICE, Level
from gpufleet.metrics.labels import MOST_BYTES, fit
from gpufleet.metrics.render import OPENMETRICS_END, Renderer
from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.readings import Key, Number, Readings
from gpufleet.model.snapshot import (
    GpuSnapshot,
    NodeIdentity,
    PollHealth,
    SliceSnapshot,
    Snapshot,
    SourceHealth,
)
from gpufleet.model.state import GpuState, NvmlState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

# Lone halves of surrogate pairs included: names from outside are decoded with whatever error handler.
TEXT = st.text(st.characters(codec=None), max_size=140)
NUMBER: st.SearchStrategy[Number | None] = st.one_of(
    st.none(),
    st.integers(min_value=0, max_value=2**64 - 1),
    st.integers(),
    st.floats(),
    st.booleans(),
)
COUNTS = st.lists(st.tuples(TEXT, st.integers(0, 2**53)), max_size=3, unique_by=lambda count: count[0]).map(tuple)


def readings_of(subject: tuple[str, ...]) -> st.SearchStrategy[Readings]:
    """Readings of this subject, with any members, also too many, and any values."""
    names = sorted(name for name, family in READINGS.items() if (family.labels[:3] == SLICE) == (subject == SLICE))
    keys = st.builds(Key, st.sampled_from(names), st.lists(TEXT, max_size=3).map(tuple))
    return st.lists(st.tuples(keys, NUMBER), max_size=12).map(
        lambda pairs: Readings(tuple([key for key, _ in pairs]), tuple([value for _, value in pairs]))
    )


SLICES = st.builds(
    SliceSnapshot,
    st.builds(SliceIdentity, TEXT, TEXT, st.integers(0, 14), st.integers(0, 7)),
    st.lists(readings_of(SLICE), max_size=2).map(tuple),
)
GPUS = st.builds(
    GpuSnapshot,
    number=st.integers(0, 15),
    identity=st.builds(
        GpuIdentity,
        uuid=TEXT,
        name=TEXT,
        pci_bus_id=TEXT,
        serial=st.none() | TEXT,
        architecture=st.none() | TEXT,
        vbios_version=st.none() | TEXT,
    ),
    state=st.sampled_from(GpuState),
    polled_at=st.none() | st.floats(0, 2e9),
    parts=st.lists(readings_of(GPU), max_size=3).map(tuple),
    standing=st.lists(readings_of(GPU), max_size=1).map(tuple),
    slices=st.lists(SLICES, max_size=2).map(tuple),
    utilization_basis=st.sampled_from((None, "sm", "gpu")),
)
SNAPSHOTS = st.builds(
    Snapshot,
    sequence=st.just(1),
    at=st.just(1.0),
    monotonic=st.just(1.0),
    node=st.builds(NodeIdentity, TEXT, st.none() | TEXT, st.none() | TEXT, simulated=st.booleans()),
    nvml_state=st.sampled_from(NvmlState),
    gpus=st.lists(GPUS, max_size=3).map(tuple),
    gpus_expected=st.none() | st.integers(0, 16),
    gpus_visible=st.none() | st.integers(0, 16),
    quiesced=st.booleans(),
    poll=st.builds(PollHealth, st.floats(), COUNTS, COUNTS),
    sources=st.lists(st.builds(SourceHealth, TEXT, st.booleans()), max_size=2).map(tuple),
)


def samples_of(families: Iterable[Metric]) -> list[Sample]:
    """All samples, each of a family of the catalogue, none twice, no family twice."""
    found = list(families)
    assert max(Counter(family.name for family in found).values(), default=1) == 1
    samples = [sample for family in found for sample in family.samples]
    once = {(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}
    assert len(once) == len(samples)
    assert {sample.name for sample in samples} <= set(FAMILIES)
    return samples


@given(snapshot=SNAPSHOTS, level=st.sampled_from(Level), stale=st.booleans())
def test_any_snapshot_gives_text_that_both_parsers_accept(*, snapshot: Snapshot, level: Level, stale: bool) -> None:
    """Whatever the outside world says: one valid exposition without NaN, infinities, duplicates and empty families."""
    renderer = Renderer(level)
    text = renderer.text(snapshot, stale=stale)
    samples = samples_of(parse_text(text))
    for sample in samples:
        assert math.isfinite(sample.value)
        assert all(0 < len(value.encode()) <= MOST_BYTES for value in sample.labels.values())
    # This parser knows only what OpenMetrics allows, such as counters at or above zero.
    lowest = min((sample.value for sample in samples if sample.name.endswith("_total")), default=0)
    openmetrics = renderer.openmetrics(snapshot, stale=stale)
    if lowest >= 0:
        assert samples_of(parse_openmetrics(openmetrics + OPENMETRICS_END)) == samples


@given(first=SNAPSHOTS, second=SNAPSHOTS, level=st.sampled_from(Level))
def test_what_a_renderer_remembers_never_shows(first: Snapshot, second: Snapshot, level: Level) -> None:
    """Two unlike snapshots, one after the other and back: the same text as from a new renderer."""
    warm = Renderer(level)
    for snapshot in (first, second, first):
        assert warm.text(snapshot) == Renderer(level).text(snapshot)


@given(snapshot=SNAPSHOTS, values=st.lists(st.lists(NUMBER, min_size=6, max_size=6), min_size=1, max_size=4))
def test_the_same_series_with_other_values(snapshot: Snapshot, values: list[list[Number | None]]) -> None:
    """Values that come, go and change under the same keys: the same text as from a new renderer."""
    keys = tuple([Key("nvlink_errors", (member,)) for member in ("crc", "replay")])
    keys += tuple([Key(name) for name in ("power_watts", "utilization_ratio", "energy_joules", "memory_used_bytes")])
    warm = Renderer()
    for row in values:
        gpus = tuple([replace(gpu, parts=(Readings(keys, tuple(row)),)) for gpu in snapshot.gpus])
        changed = replace(snapshot, gpus=gpus)
        assert warm.text(changed) == Renderer().text(changed)


@given(texts=st.tuples(TEXT, TEXT, TEXT), number=st.floats(allow_nan=False, allow_infinity=False))
def test_labels_and_numbers_are_read_back_as_they_were(texts: tuple[str, str, str], number: float) -> None:
    """Up to the cut and to characters that are no text, a label is what it was; a number is exactly what it was."""
    uuid, name, fan = texts
    snapshot = Snapshot(
        sequence=1,
        at=1.0,
        monotonic=1.0,
        node=NodeIdentity("n"),
        nvml_state=NvmlState.OK,
        gpus=(
            GpuSnapshot(
                number=0,
                identity=GpuIdentity(uuid, name, "0000:1b:00.0"),
                state=GpuState.OK,
                polled_at=None,
                parts=(Readings((Key("fan_speed_ratio", (fan,)),), (number,)),),
            ),
        ),
    )
    renderer = Renderer()
    for families in (
        parse_text(renderer.text(snapshot)),
        parse_openmetrics(renderer.openmetrics(snapshot) + OPENMETRICS_END),
    ):
        samples = {sample.name: sample for sample in samples_of(families)}
        assert samples["gpu_info"].labels.get("name", "") == fit(name)
        assert samples["gpu_info"].labels.get("uuid", "") == fit(uuid)
        assert samples["gpu_fan_speed_ratio"].labels.get("fan", "") == fit(fan)
        assert samples["gpu_fan_speed_ratio"].value == number


@given(value=st.text(max_size=200))
def test_a_cut_label_is_a_beginning_of_the_whole(value: str) -> None:
    """Nothing is invented: character by character it is the original, or the replacement for what is no text."""
    cut = fit(value)
    assert len(cut.encode()) <= MOST_BYTES
    for shown, original in zip(cut, value, strict=False):
        assert shown in {original, "�"}
    if len(value.encode()) <= MOST_BYTES and "�" not in cut:
        assert cut == value
