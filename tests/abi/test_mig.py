"""Slices: found, read once, and found again when the GPU is cut anew under the exporter."""

from __future__ import annotations

import pytest

from gpufleet.model.gpu import SliceIdentity
from gpufleet.model.readings import Key
from tests.abi.opened import Values, Watched, device, values
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, H100, H200, MIB, SEVEN_SLICES, SHARED_INSTANCE, Slice

HALVES = (
    Slice(1, 0, "3g.40gb", 3, 3, 60, 40448 * MIB, 100 * MIB),
    Slice(2, 0, "3g.40gb", 3, 3, 60, 40448 * MIB, 200 * MIB),
)


def slices(watched: Watched) -> dict[str, tuple[SliceIdentity, Values]]:
    """What one poll reports of each slice, by UUID."""
    return {identity.mig_uuid: (identity, values(*parts)) for identity, parts in watched.poll().slices}


def sampled(watched: Watched) -> dict[str, Values]:
    """The activity of each slice between the last two samples, by UUID."""
    return {uuid: values(readings) for uuid, (readings, _) in watched.device.sample(watched.now).slices.items()}


def test_each_slice_is_read(fake_nvml: FakeNvml) -> None:
    """Seven slices with their profile, ids, share of the GPU and memory."""
    fake_nvml.set_gpus(2)
    fake_nvml.set_mig(1, SEVEN_SLICES)

    with device(fake_nvml, 1) as watched:
        found = slices(watched)

    assert list(found) == fake_nvml.mig_uuids(1)
    for (identity, read), wanted in zip(found.values(), SEVEN_SLICES, strict=True):
        assert (identity.profile, identity.gpu_instance, identity.compute_instance) == ("1g.10gb", wanted.gi, 0)
        assert identity.compute_fraction == pytest.approx(16 / 132)
        assert identity.memory_bytes == 9984 * MIB
        assert read == {
            Key("mig_memory_total_bytes"): wanted.memory_total,
            Key("mig_memory_used_bytes"): wanted.memory_used,
            Key("mig_memory_free_bytes"): wanted.memory_total - wanted.memory_used,
            Key("mig_compute_fraction"): pytest.approx(16 / 132, abs=1e-6),
        }


def test_slices_report_their_activity(fake_nvml: FakeNvml) -> None:
    """GPM is read per GPU instance."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        sampled(watched)
        watched.poll()
        found = sampled(watched)

    assert list(found) == fake_nvml.mig_uuids(0)
    for place, read in enumerate(found.values()):
        assert read[Key("mig_sm_active_ratio")] == pytest.approx((71.25 / 2 + place) / 100)
        assert read[Key("mig_pipe_active_ratio", ("tensor_half",))] == pytest.approx((38.5 / 2 + place) / 100)


def test_what_compute_instances_share_is_shown_once(fake_nvml: FakeNvml) -> None:
    """Two compute instances of one GPU instance report its memory and activity once: sums stay true."""
    fake_nvml.set_gpus(1, H200)
    fake_nvml.set_mig(0, SHARED_INSTANCE)

    with device(fake_nvml) as watched:
        found = slices(watched)
        sampled(watched)
        watched.poll()
        activity = sampled(watched)

    uuids = fake_nvml.mig_uuids(0)
    used = [read[Key("mig_memory_used_bytes")] for _, read in found.values() if Key("mig_memory_used_bytes") in read]
    assert used == [44 * MIB, 50 * MIB]
    assert list(activity) == uuids[:2]
    assert [identity.profile for identity, _ in found.values()] == ["3g.71gb", "1c.3g.71gb", "2c.3g.71gb"]
    assert [identity.carries_instance for identity, _ in found.values()] == [True, True, False]
    assert [read[Key("mig_compute_fraction")] for _, read in found.values()] == pytest.approx(
        [60 / 132, 16 / 132, 32 / 132], abs=1e-6
    )


def test_holes_in_the_enumeration_are_passed_over(fake_nvml: FakeNvml) -> None:
    """Instance 3 may be there where 2 is not."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, [None, SEVEN_SLICES[0], None, None, SEVEN_SLICES[3]])

    with device(fake_nvml) as watched:
        assert [identity.gpu_instance for identity, _ in slices(watched).values()] == [7, 10]


def test_a_slice_without_activity_where_there_is_no_gpm(fake_nvml: FakeNvml) -> None:
    """An A100's slices have memory and a share, and no activity."""
    fake_nvml.set_gpus(1, A100)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        assert not watched.device.samples_gpm
        found = slices(watched)

    assert [read[Key("mig_compute_fraction")] for _, read in found.values()] == pytest.approx([16 / 98] * 7, abs=1e-6)


def test_the_whole_gpu_while_it_is_cut(fake_nvml: FakeNvml) -> None:
    """Utilization and codecs are refused then: the engine's activity stands in, links and remapped rows are absent."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        found = watched.values()
        activity = watched.activity()
        assert watched.device.tally.errors == {}

    assert found[Key("mig_enabled")] == 1
    assert found[Key("power_watts")] == 499.5
    assert activity[Key("utilization_ratio")] == pytest.approx(0.925)
    absent = {"utilization_ratio", "encoder_utilization_ratio", "nvlink_errors", "remapped_rows"}
    assert {key.name for key in found} & absent == set()


def test_memory_that_needs_privilege_is_absent_on_the_gpu_and_there_on_its_slices(fake_nvml: FakeNvml) -> None:
    """Without the monitor capability the GPU's own memory is refused: one reading less, not a GPU less."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)
    fake_nvml.gpus[0].mig_parent_memory_code = 4

    with device(fake_nvml) as watched:
        reading = watched.poll()

    found = values(*reading.parts)
    assert Key("memory_used_bytes") not in found
    assert Key("power_watts") in found
    assert all(Key("mig_memory_used_bytes") in values(*parts) for _, parts in reading.slices)


@pytest.mark.parametrize("stale_code", [2, 6, 15])
def test_a_new_cut_is_seen_when_a_former_handle_fails(fake_nvml: FakeNvml, stale_code: int) -> None:
    """The GPU itself answers, so it is not down: its slices are looked for again, and are there a poll later."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        sampled(watched)
        assert len(slices(watched)) == 7
        fake_nvml.set_mig(0, HALVES, stale_code=stale_code, notify=False)
        watched.poll()
        sampled(watched)
        found = slices(watched)
        sampled(watched)
        watched.poll()
        activity = sampled(watched)

    assert list(found) == fake_nvml.mig_uuids(0)
    assert [identity.profile for identity, _ in found.values()] == ["3g.40gb", "3g.40gb"]
    assert list(activity) == fake_nvml.mig_uuids(0)


def test_a_new_cut_behind_the_same_handles_is_seen(fake_nvml: FakeNvml) -> None:
    """Old handles may go on to answer, for other slices: within a turn of the watch the UUIDs tell."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        slices(watched)
        fake_nvml.set_mig(0, tuple(reversed(SEVEN_SLICES)), stale_code=0, notify=False)
        seen = 0
        while set(slices(watched)) != set(fake_nvml.mig_uuids(0)):
            seen += 1
            assert seen <= 11


def test_a_new_cut_that_the_driver_announces_is_seen_at_once(fake_nvml: FakeNvml) -> None:
    """The event marks the device, and its next poll has the new slices."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        slices(watched)
        fake_nvml.set_mig(0, HALVES, stale_code=0)
        watched.device.mig_has_changed()
        assert list(slices(watched)) == fake_nvml.mig_uuids(0)


def test_fewer_slices_are_seen(fake_nvml: FakeNvml) -> None:
    """Slices that were destroyed leave the output, with their samples freed."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        sampled(watched)
        slices(watched)
        assert fake_nvml.control.samples_live == 16
        fake_nvml.set_mig(0, [], notify=False)
        watched.poll()
        assert slices(watched) == {}
        sampled(watched)
        assert fake_nvml.control.samples_live == 2


def test_mig_is_switched_on_and_off_under_the_exporter(fake_nvml: FakeNvml) -> None:
    """What the driver refuses depends on the mode: everything is asked anew, and comes back."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        before = watched.values()
        fake_nvml.set_mig(0, SEVEN_SLICES, notify=False)
        cut = watched.after(11)
        assert len(slices(watched)) == 7
        fake_nvml.set_mig(0, None, notify=False)
        after = watched.after(11)
        assert slices(watched) == {}

    assert Key("utilization_ratio") in before
    assert Key("utilization_ratio") not in cut
    assert after == before


@pytest.mark.parametrize("profile", [H100, A100], ids=lambda profile: profile.name)
def test_a_slice_costs_at_most_three_calls_a_poll(fake_nvml: FakeNvml, profile: object) -> None:
    """Memory, and with GPM a sample and its computation."""
    fake_nvml.set_gpus(1, H100 if profile is H100 else A100)
    gpm = profile is H100
    fake_nvml.set_mig(0, SEVEN_SLICES)

    with device(fake_nvml) as watched:
        for _ in range(2):
            watched.poll()
            watched.device.sample(watched.now)
        fake_nvml.reset_counts()
        watched.poll()
        watched.device.sample(watched.now)
        made = fake_nvml.counts()

    own_memory = 1
    assert made["nvmlDeviceGetMemoryInfo_v2", 0] - own_memory == 7
    assert made.get(("nvmlGpmMigSampleGet", 0), 0) == (7 if gpm else 0)
    own_gpm = 1
    assert made.get(("nvmlGpmMetricsGet", 0), 0) == (7 + own_gpm if gpm else 0)
