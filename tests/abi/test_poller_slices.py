"""GPUs that are cut into slices, polled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpufleet.model.readings import Key, Number
from gpufleet.model.snapshot import GpuSnapshot
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, H200, SEVEN_SLICES, SHARED_INSTANCE, Slice
from tests.support.poller_rig import OPTIONS, Rig, all_report, keys, rig_on, values

HALVES = (
    Slice(1, 0, "3g.40gb", 3, 3, 60, 40448 << 20, 37 << 20),
    Slice(2, 0, "3g.40gb", 3, 3, 60, 40448 << 20, 37 << 20),
)


def uuids(gpu: GpuSnapshot) -> list[str]:
    """The slices that are shown, in order."""
    return [one.identity.mig_uuid for one in gpu.slices]


def of_slices(gpu: GpuSnapshot, name: str) -> list[Number | None]:
    """One reading of each slice."""
    return [values(one.parts).get(Key(name)) for one in gpu.slices]


@pytest.fixture
def cut(fake_nvml: FakeNvml) -> Iterator[Rig]:
    """Two GPUs, the second of which is cut in seven, a few polls old."""
    fake_nvml.set_gpus(2)
    fake_nvml.set_mig(1, SEVEN_SLICES)
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        yield rig


def wait_for_event(fake: FakeNvml, rig: Rig, gpu: int) -> None:
    """The event thread hears in real time."""
    device = rig.poller._roster.gpus[fake.uuid(gpu)].device
    fake.wait_until(lambda: device is not None and device._mig_changed)


def test_seven_slices_are_shown_whole(fake_nvml: FakeNvml, cut: Rig) -> None:
    """Identity, memory, share, activity and its sums, each under the slice's own UUID."""
    gpu = cut.latest.gpus[1]
    assert uuids(gpu) == fake_nvml.mig_uuids(1)
    assert {one.identity.profile for one in gpu.slices} == {"1g.10gb"}
    assert [one.identity.gpu_instance for one in gpu.slices] == list(range(7, 14))
    names = {key.name for key in values(gpu.slices[0].parts)}
    assert {"mig_memory_used_bytes", "mig_compute_fraction", "mig_sm_active_ratio", "mig_sm_active_seconds"} <= names
    assert all(set(values(one.parts)) == set(values(gpu.slices[0].parts)) for one in gpu.slices)
    assert not cut.latest.gpus[0].slices


def test_a_new_cut_that_is_announced_is_there_with_the_next_poll(fake_nvml: FakeNvml, cut: Rig) -> None:
    """None of the former slices is shown any more, and nothing of theirs is added to the new ones."""
    fake_nvml.set_mig(1, HALVES, stale_code=0)
    wait_for_event(fake_nvml, cut, 1)
    cut.poll()
    gpu = cut.latest.gpus[1]
    assert uuids(gpu) == fake_nvml.mig_uuids(1)
    assert [one.identity.profile for one in gpu.slices] == ["3g.40gb", "3g.40gb"]
    assert of_slices(gpu, "mig_memory_used_bytes") == [37 << 20, 37 << 20]
    assert of_slices(gpu, "mig_sm_active_seconds") == [None, None]
    cut.poll(2)
    ratios, sums = (of_slices(cut.latest.gpus[1], f"mig_sm_active_{unit}") for unit in ("ratio", "seconds"))
    assert sums == pytest.approx([2 * ratio for ratio in ratios if ratio is not None])


@pytest.mark.parametrize("stale_code", [2, 6, 15, 0])
def test_a_new_cut_that_nobody_announces_is_found(fake_nvml: FakeNvml, cut: Rig, stale_code: int) -> None:
    """By a handle that fails at once, by the UUIDs within ten seconds; the GPU itself is never down for it."""
    begun = len(cut.history)
    fake_nvml.set_mig(1, tuple(reversed(SEVEN_SLICES)), stale_code=stale_code, notify=False)
    for _ in range(2 if stale_code else 11):
        cut.poll()
    assert sorted(uuids(cut.latest.gpus[1])) == sorted(fake_nvml.mig_uuids(1))
    assert all(publication.snapshot.gpus[1].state == "ok" for publication in cut.history[begun:])


def test_mig_is_switched_on_and_off_while_it_is_polled(fake_nvml: FakeNvml) -> None:
    """Utilization comes from whoever has it, and its integral goes on all the while."""
    fake_nvml.set_gpus(2)
    busy = Key("busy_seconds")
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        before = values(rig.latest.gpus[0].parts)
        assert {Key("utilization_ratio"), Key("remapped_rows", ("correctable",))} <= set(before)

        fake_nvml.set_mig(0, SEVEN_SLICES)
        wait_for_event(fake_nvml, rig, 0)
        rig.poll(3)
        cut = values(rig.latest.gpus[0].parts)
        assert uuids(rig.latest.gpus[0]) == fake_nvml.mig_uuids(0)
        assert Key("remapped_rows", ("correctable",)) not in cut
        assert cut[Key("mig_enabled")] == 1
        assert cut[busy] >= before[busy]

        # This time without a word: the mode is read every ten seconds.
        fake_nvml.set_mig(0, None, notify=False)
        rig.poll(12)
        rig.poll(2)
        after = values(rig.latest.gpus[0].parts)
        assert uuids(rig.latest.gpus[0]) == []
        assert set(after) == set(before)
        assert after[busy] > cut[busy]


def test_what_compute_instances_share_is_counted_once(fake_nvml: FakeNvml) -> None:
    """Memory and activity of their GPU instance are shown on the first of them."""
    fake_nvml.set_gpus(1, H200)
    fake_nvml.set_mig(0, SHARED_INSTANCE)
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        gpu = rig.latest.gpus[0]
        assert [one.identity.carries_instance for one in gpu.slices] == [True, True, False]
        assert of_slices(gpu, "mig_memory_used_bytes") == [44 << 20, 50 << 20, None]
        assert [value is None for value in of_slices(gpu, "mig_sm_active_seconds")] == [False, False, True]


def test_slices_of_a_part_without_activity_show_none(fake_nvml: FakeNvml) -> None:
    """An A100 measures no activity of a slice: absent, not zero; memory and share are there."""
    fake_nvml.set_gpus(1, A100)
    fake_nvml.set_mig(0, SEVEN_SLICES)
    with rig_on(fake_nvml) as rig:
        rig.poll(3)
        gpu = rig.latest.gpus[0]
        assert {key.name for key in keys(gpu) if key.name.startswith("mig_")} == {
            "mig_enabled",
            "mig_memory_total_bytes",
            "mig_memory_free_bytes",
            "mig_memory_used_bytes",
            "mig_compute_fraction",
        }
        assert gpu.utilization_basis is None


@pytest.mark.parametrize("code", [4, 10, 999])
def test_memory_that_can_not_be_read_costs_nothing_else(fake_nvml: FakeNvml, cut: Rig, code: int) -> None:
    """Of a slice as of a GPU: it is absent, the rest is there, and no slice is looked for over and over."""
    fake_nvml.set_return("nvmlDeviceGetMemoryInfo_v2", 1, code)
    cut.poll()
    fake_nvml.reset_counts()
    cut.poll(5)
    gpu = cut.latest.gpus[1]
    assert gpu.state == "ok"
    assert of_slices(gpu, "mig_memory_used_bytes") == [None] * 7
    assert None not in of_slices(gpu, "mig_sm_active_ratio")
    assert Key("memory_used_bytes") not in values(gpu.parts)
    assert ("nvmlDeviceGetAttributes_v2", 1) not in fake_nvml.counts()

    fake_nvml.set_return("nvmlDeviceGetMemoryInfo_v2", 1, 0)
    cut.poll()
    assert None not in of_slices(cut.latest.gpus[1], "mig_memory_used_bytes")


def test_a_slice_that_answers_nothing_is_left_out_alone(fake_nvml: FakeNvml, cut: Rig) -> None:
    """It loses its memory at once and its place within ten seconds; it is not looked for in each turn."""
    fake_nvml.gpus[1].mig[3].code = 999
    cut.poll()
    memory = of_slices(cut.latest.gpus[1], "mig_memory_used_bytes")
    assert [value is None for value in memory] == [place == 3 for place in range(7)]
    cut.poll(22)
    uuids_now = uuids(cut.latest.gpus[1])
    assert uuids_now == [uuid for place, uuid in enumerate(fake_nvml.mig_uuids(1)) if place != 3]
    fake_nvml.reset_counts()
    cut.poll(22)
    assert ("nvmlDeviceGetAttributes_v2", 1) not in fake_nvml.counts()
    assert cut.latest.gpus[1].state == "ok"

    fake_nvml.gpus[1].mig[3].code = 0
    cut.poll(11)
    assert uuids(cut.latest.gpus[1]) == fake_nvml.mig_uuids(1)


def test_fifty_six_slices_cost_three_calls_each(fake_nvml: FakeNvml) -> None:
    """Eight GPUs in seven: twenty calls a GPU at most, and three a slice."""
    fake_nvml.set_gpus(8)
    for gpu in range(8):
        fake_nvml.set_mig(gpu, SEVEN_SLICES)
    with rig_on(fake_nvml, replace(OPTIONS, medium_seconds=5.0, slow_seconds=10.0)) as rig:
        rig.poll(3)
        most = [0] * 8
        for _ in range(25):
            rig.rest()
            fake_nvml.reset_counts()
            rig.poll()
            assert all_report(rig.latest, 8)
            assert all(len(gpu.slices) == 7 for gpu in rig.latest.gpus)
            most = [max(high, fake_nvml.calls_of(gpu)) for gpu, high in enumerate(most)]
        assert max(most) <= 20 + 3 * 7
