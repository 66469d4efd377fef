"""One GPU as the poll thread sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpufleet.collect.lanes import Lane
from gpufleet.collect.watched import MOST_SLICES, Activity, Claim, Watched
from gpufleet.model.claims import GpuProcess
from gpufleet.model.gpu import SliceIdentity
from gpufleet.model.readings import Key, Readings
from gpufleet.model.state import GpuState
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import uniform
from gpufleet.sources.nvml.device import Device, DeviceOptions, DeviceReading, GpmSample
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session
from tests.support.poller_rig import values

STATIC = Readings((Key("sm_clock_max_hertz"),), (1,))
SLOW = Readings((Key("ecc_enabled"),), (1,))
FAST = Key("utilization_ratio")
SM = Key("sm_active_ratio")
SM_SECONDS = Key("sm_active_seconds")


@pytest.fixture
def device() -> Iterator[Device]:
    """An open device; what it reads is of no matter here."""
    session = Session(ScriptedDriver(uniform("h100-80gb-hbm3", 1)))
    opened = Device(session.calls, session.handle(0), DeviceOptions(Pace(1.0)), 0.0)
    yield opened
    opened.close()
    session.close()


@pytest.fixture
def gpu(device: Device) -> Watched:
    """A GPU with that device, polled each second."""
    watched = Watched(3, device.identity, Lane("test"), 1.0)
    watched.adopt(device, watched.lane)
    return watched


def read(busy: float = 0.5, *slices: str) -> DeviceReading:
    """A worker's part of a poll."""
    parts = tuple(
        (SliceIdentity(uuid, "1g.10gb", number, 0), (Readings((Key("mig_memory_used_bytes"),), (7,)),))
        for number, uuid in enumerate(slices)
    )
    return DeviceReading((STATIC, SLOW, Readings((FAST,), (busy,))), parts, bool(slices))


def sampled(ratio: float, seconds: float = 1.0, **slices: float) -> GpmSample:
    """The GPM thread's part of a poll."""
    of_slices = {
        uuid: (Readings((Key("mig_sm_active_ratio"),), (of_slice,)), seconds) for uuid, of_slice in slices.items()
    }
    return GpmSample((Readings((SM,), (ratio,)), seconds), of_slices)


# --- who may call the driver ------------------------------------------------------------------------------------------
def doing(claim: Claim) -> Activity:
    """What is being done now."""
    return claim.activity


def test_a_claim_goes_from_hand_to_hand() -> None:
    """The worker, then the GPM thread, each only for the poll that it was told of."""
    claim = Claim()
    poll = claim.begin(1.0)
    assert doing(claim) == Activity.WAITING

    assert claim.move(poll, Activity.READING, 1.5)
    assert (doing(claim), claim.since) == (Activity.READING, 1.5)
    assert not claim.move(poll - 1, Activity.SAMPLING, 2.0)
    assert claim.move(poll, Activity.QUEUED, 2.0)
    claim.end()
    assert doing(claim) == Activity.IDLE
    assert claim.begin(3.0) == poll + 1


@pytest.mark.parametrize("activity", [Activity.WAITING, Activity.QUEUED])
def test_who_is_not_in_the_driver_can_be_taken_back(activity: Activity) -> None:
    """Whoever comes later with that poll is refused."""
    claim = Claim()
    poll = claim.begin(1.0)
    claim.move(poll, activity, 1.0)

    assert claim.withdraw()
    assert doing(claim) == Activity.IDLE
    assert not claim.move(poll, Activity.READING, 2.0)


@pytest.mark.parametrize("activity", [Activity.READING, Activity.SAMPLING])
def test_who_is_in_the_driver_can_not_be_taken_back(activity: Activity) -> None:
    """The call is out, whatever one would like."""
    claim = Claim()
    poll = claim.begin(1.0)
    claim.move(poll, activity, 1.0)

    assert not claim.withdraw()
    assert doing(claim) == activity


# --- what is shown ----------------------------------------------------------------------------------------------------
def test_a_gpu_shows_its_worker_s_and_the_sampler_s_readings_and_their_sums(gpu: Watched) -> None:
    """Side by side, no key twice."""
    gpu.take_reading(read(0.5), 10.0, 1010.0)
    gpu.take_sample(sampled(0.25), 10.1)
    gpu.take_reading(read(0.75), 11.0, 1011.0)

    shown = gpu.snapshot(11.1)

    assert (shown.number, shown.state, shown.polled_at, shown.reason) == (3, GpuState.OK, 1011.0, None)
    found = values(shown.parts)
    assert (found[FAST], found[SM]) == (0.75, 0.25)
    assert (found[Key("busy_seconds")], found[SM_SECONDS]) == (0.75, 0.25)
    assert found[Key("ecc_enabled")] == 1


def test_a_gpu_shows_its_processes_while_they_are_known(gpu: Watched) -> None:
    """The very tuple that the driver's list was made into; none once the GPU is down."""
    listed = (GpuProcess(7), GpuProcess(9, 1, 0))
    gpu.take_reading(replace(read(), processes=listed), 10.0, 1010.0)
    assert gpu.snapshot(10.5).processes is listed

    gpu.take_reading(read(), 11.0, 1011.0)
    assert gpu.snapshot(11.5).processes is None

    gpu.take_reading(replace(read(), processes=listed), 12.0, 1012.0)
    gpu.down(GpuState.LOST, "GetFieldValues returned gpu_is_lost (15)")
    assert gpu.snapshot(12.5).processes is None


def test_a_gpu_that_goes_down_shows_who_it_is_and_why(gpu: Watched) -> None:
    """No driver reading; identity, faults, the time of the last poll and the basis of utilization stay."""
    faults = (Readings((Key("xid_errors", ("79",)),), (1,)),)
    gpu.standing = faults
    gpu.take_reading(read(), 10.0, 1010.0)
    gpu.take_sample(sampled(0.25), 10.1)

    gpu.down(GpuState.LOST, "nvmlDeviceGetFieldValues returned gpu_is_lost (15)")

    shown = gpu.snapshot(10.5)
    assert (shown.state, shown.reason) == (GpuState.LOST, "nvmlDeviceGetFieldValues returned gpu_is_lost (15)")
    assert (shown.parts, shown.slices) == ((), ())
    assert (shown.standing, shown.polled_at, shown.utilization_basis) == (faults, 1010.0, "sm")
    assert shown.identity == gpu.identity


def test_nothing_of_before_is_shown_when_it_comes_back(gpu: Watched) -> None:
    """Activity has to be measured anew; sums go on."""
    gpu.take_reading(read(), 10.0, 1010.0)
    gpu.take_sample(sampled(0.25), 10.1)
    gpu.down(GpuState.HUNG, "x")

    gpu.take_reading(read(), 12.0, 1012.0)

    found = values(gpu.snapshot(12.0).parts)
    assert SM not in found
    assert found[SM_SECONDS] == 0.25


def test_a_sample_that_was_not_to_be_had_takes_nothing_away(gpu: Watched) -> None:
    """The driver asks for 100 ms between two samples: an earlier one is good for two intervals."""
    gpu.take_reading(read(), 10.0, 1010.0)
    gpu.take_sample(sampled(0.25), 10.0)
    gpu.take_sample(GpmSample(None, {}), 10.05)

    assert values(gpu.snapshot(11.9).parts)[SM] == 0.25
    assert values(gpu.snapshot(12.1).parts)[SM] == 0.25
    assert SM not in values(gpu.snapshot(12.2).parts)


def test_what_two_report_is_shown_once(gpu: Watched) -> None:
    """With MIG on the GPM thread reports utilization, without it the worker does."""
    gpu.take_reading(DeviceReading((STATIC, SLOW), (), is_cut=True), 10.0, 1010.0)
    gpu.take_sample(GpmSample((Readings((FAST,), (0.3,)), 1.0), {}), 10.1)
    assert values(gpu.snapshot(10.2).parts)[FAST] == 0.3

    gpu.take_reading(read(0.6), 11.0, 1011.0)

    assert values(gpu.snapshot(11.0).parts)[FAST] == 0.6


# --- sums -------------------------------------------------------------------------------------------------------------
def test_the_time_between_two_polls_is_summed(gpu: Watched) -> None:
    """As it was, not as it should have been."""
    for now, busy in ((10.0, 1.0), (11.25, 0.5), (12.0, 1.0)):
        gpu.take_reading(read(busy), now, 1000.0 + now)

    assert values(gpu.snapshot(12.0).parts)[Key("busy_seconds")] == 1.25 * 0.5 + 0.75
    assert gpu.gaps == 0


def test_a_long_gap_is_left_out_and_counted(gpu: Watched) -> None:
    """Nobody knows what happened in it."""
    gpu.take_reading(read(1.0), 10.0, 1010.0)
    gpu.take_reading(read(1.0), 15.0, 1015.0)
    gpu.take_reading(read(1.0), 20.1, 1020.1)
    gpu.take_reading(read(1.0), 21.1, 1021.1)

    assert values(gpu.snapshot(21.1).parts)[Key("busy_seconds")] == pytest.approx(6.0)
    assert gpu.gaps == 1


def test_a_window_is_summed_over_its_own_seconds(gpu: Watched) -> None:
    """The mean is over exactly that window; one that is too long is left out."""
    gpu.take_reading(read(), 10.0, 1010.0)
    gpu.take_sample(sampled(0.5, 0.2), 10.0)
    gpu.take_sample(sampled(0.25, 4.0), 14.0)
    gpu.take_sample(sampled(1.0, 60.0), 74.0)

    gpu.take_reading(read(), 74.0, 1074.0)
    assert values(gpu.snapshot(74.0).parts)[SM_SECONDS] == 0.1 + 1.0


def test_sums_outlive_the_device(gpu: Watched, device: Device) -> None:
    """A counter that starts at zero again looks like a fault of the process."""
    gpu.take_reading(read(1.0), 10.0, 1010.0)
    gpu.take_reading(read(1.0), 11.0, 1011.0)
    gpu.forget_device()
    gpu.adopt(device, gpu.lane)
    gpu.take_reading(read(1.0), 12.0, 1012.0)

    assert values(gpu.snapshot(12.0).parts)[Key("busy_seconds")] == 2.0


def test_errors_of_former_devices_are_kept(gpu: Watched, device: Device) -> None:
    """Self-metrics count since the process started."""
    device.tally.error(999)
    gpu.forget_device()
    gpu.failed(15)

    assert gpu.past.errors == {"unknown": 1, "gpu_is_lost": 1}
    assert gpu.last_error == 15


# --- slices -----------------------------------------------------------------------------------------------------------
def test_slices_have_their_own_activity_and_sums(gpu: Watched) -> None:
    """Each by its UUID, also when only one of them was sampled."""
    gpu.take_reading(read(0.5, "MIG-a", "MIG-b"), 10.0, 1010.0)
    gpu.take_sample(sampled(0.5, 1.0, **{"MIG-a": 0.25, "MIG-b": 0.75}), 10.0)
    gpu.take_sample(sampled(0.5, 1.0, **{"MIG-a": 0.5}), 11.0)

    first, second = gpu.snapshot(11.0).slices

    assert values(first.parts) == {
        Key("mig_memory_used_bytes"): 7,
        Key("mig_sm_active_ratio"): 0.5,
        Key("mig_sm_active_seconds"): 0.75,
    }
    assert values(second.parts)[Key("mig_sm_active_ratio")] == 0.75
    assert values(second.parts)[Key("mig_sm_active_seconds")] == 0.75


def test_a_slice_that_is_gone_is_not_shown(gpu: Watched) -> None:
    """What the worker found is what there is."""
    gpu.take_reading(read(0.5, "MIG-a", "MIG-b"), 10.0, 1010.0)
    gpu.take_sample(sampled(0.5, 1.0, **{"MIG-a": 0.25, "MIG-b": 0.75}), 10.0)

    gpu.take_reading(read(0.5, "MIG-b"), 11.0, 1011.0)

    assert [one.identity.mig_uuid for one in gpu.snapshot(11.0).slices] == ["MIG-b"]


def test_slices_without_end_cost_no_memory_without_end(gpu: Watched) -> None:
    """A GPU that is cut anew every minute has other slices each time."""
    for number in range(3 * MOST_SLICES):
        gpu.take_sample(sampled(0.5, 1.0, **{f"MIG-{number}": 0.5}), float(number))

    assert len(gpu._slice_integrals) <= MOST_SLICES + 1
    assert len(gpu.slice_activity) <= MOST_SLICES + 1
