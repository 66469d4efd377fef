"""The poller on a driver that hangs, loses GPUs, restarts and is let go of."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from gpufleet.model.readings import Key
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.state import GpuState, NvmlState
from tests.abi.polled import Polled, fresh, polled, read
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_layout import SYSTEM
from tests.support.fake_nvml_profiles import B200, H100, SEVEN_SLICES
from tests.support.nvml_client import Aside

GPUS = 4
VICTIM = 2

POLLED_FUNCTIONS = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetOfaUtilization",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
)
LIBRARY_FUNCTIONS = ("nvmlDeviceGetCount_v2", "nvmlEventSetWait_v2", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree")
OPENING_FUNCTIONS = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlGpmQueryDeviceSupport",
)


def has_activity(running: Polled, *numbers: int) -> None:
    """Wait until GPUs report what GPM measures: from then on a poll is complete."""
    running.until(
        lambda s: all(Key("sm_active_ratio") in read(g) for g in s.gpus if g.number in numbers) and len(s.gpus) == GPUS,
        "activity is there",
    )


def others_are_complete(running: Polled, *, down: int, rounds: int = 3) -> None:
    """Every other GPU is read again and again, with all that it reported before.

    Not in each single snapshot: on a machine that is late itself, a sample of activity can be older than it may be.
    """
    others = [number for number in range(GPUS) if number != down]
    has_activity(running, *others)
    complete = {gpu.number: set(read(gpu)) for gpu in running.poller.latest.gpus}
    for _ in range(rounds):
        now = time.time()
        running.until(
            lambda s, since=now: all(  # type: ignore[misc]
                fresh(gpu, since) and set(read(gpu)) >= complete[gpu.number] for gpu in s.gpus if gpu.number in others
            ),
            "the others are read, and complete",
            seconds=60.0,
        )


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetFieldValues", "nvmlDeviceGetBAR1MemoryInfo", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
def test_a_call_that_hangs_costs_its_own_gpu(fake_nvml: FakeNvml, function: str) -> None:
    """Whatever call it is: the GPU says so, the others stay complete, and it comes back when the call returns."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        has_activity(running, *range(GPUS))
        fake_nvml.hang(function, VICTIM)

        snapshot = running.state(VICTIM, GpuState.HUNG)

        victim = snapshot.gpus[VICTIM]
        assert victim.parts == ()
        assert function in (victim.reason or "")
        assert victim.identity.uuid == fake_nvml.uuid(VICTIM)
        others_are_complete(running, down=VICTIM)
        fake_nvml.release()
        running.all_ok()


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3"])
def test_a_gpu_that_hangs_while_it_is_opened_does_not_hold_the_others(fake_nvml: FakeNvml, function: str) -> None:
    """The rest of the node is there at once; the GPU joins when the driver lets it."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.hang(function, VICTIM)
    with polled(fake_nvml) as running:
        running.until(
            lambda s: sum(gpu.state is GpuState.OK and bool(gpu.parts) for gpu in s.gpus) == GPUS - 1,
            "the others are read",
        )
        fake_nvml.release()
        running.all_ok()


@pytest.mark.parametrize("function", ["nvmlDeviceGetUtilizationRates", "nvmlGpmSampleGet"])
def test_a_drivers_lock_held_by_one_call_is_named_by_every_gpu(fake_nvml: FakeNvml, function: str) -> None:
    """One stuck call under a driver-wide lock stops all GPUs: none shows readings, none is called healthy."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.serialize()
        fake_nvml.hang(function, VICTIM)

        snapshot = running.until(
            lambda s: all(gpu.state in (GpuState.HUNG, GpuState.DRIVER_BLOCKED) for gpu in s.gpus), "all are blocked"
        )

        assert GpuState.DRIVER_BLOCKED in {gpu.state for gpu in snapshot.gpus}
        assert all(gpu.parts == () for gpu in snapshot.gpus)
        fake_nvml.release()
        fake_nvml.serialize(on=False)
        running.all_ok()


def test_a_driver_that_answers_nothing_does_not_hold_the_exit(fake_nvml: FakeNvml) -> None:
    """With every call stuck the stop gives up in time and says so: the process has to be ended."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml, stops=False) as running:
        running.all_ok()
        fake_nvml.hold_all()
        running.until(lambda s: all(gpu.state is not GpuState.OK for gpu in s.gpus), "all are blocked")
        begun = time.monotonic()

        assert running.poller.stop(timeout=2.0) is False

        assert time.monotonic() - begun < 5
        fake_nvml.release_all()


def test_a_hang_of_nvml_init_is_a_state(fake_nvml: FakeNvml) -> None:
    """Snapshots are published from the start on; once init returns the GPUs are there."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.hang("nvmlInitWithFlags", SYSTEM)
    with polled(fake_nvml) as running:
        running.until(lambda s: s.nvml_state is NvmlState.HUNG, "the library hangs")
        fake_nvml.release()
        snapshot = running.all_ok()
        assert snapshot.nvml_state is NvmlState.OK


@pytest.mark.parametrize("function", ["nvmlEventSetWait_v2", "nvmlDeviceGetCount_v2"])
def test_a_hang_that_is_no_gpus_costs_no_gpu(fake_nvml: FakeNvml, function: str) -> None:
    """Waiting for events, or looking for new GPUs, may hang: polls go on."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.hang(function, SYSTEM)
        running.poller.devices_changed()
        fake_nvml.wait_until_stuck(None)

        for _ in range(4):
            running.all_ok()

        fake_nvml.release()


def test_a_lost_gpu_is_named_and_comes_back(fake_nvml: FakeNvml) -> None:
    """It keeps its number and identity without readings; the others do not notice."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.lose(VICTIM)

        snapshot = running.state(VICTIM, GpuState.LOST)

        assert snapshot.gpus[VICTIM].parts == ()
        assert snapshot.gpus[VICTIM].identity.uuid == fake_nvml.uuid(VICTIM)
        others_are_complete(running, down=VICTIM)


def test_a_gpu_that_needs_a_reset_says_so(fake_nvml: FakeNvml) -> None:
    """A state of its own, since what helps is another thing than for a lost one."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.lose(VICTIM, 16)
        running.state(VICTIM, GpuState.RESET_REQUIRED)


@pytest.mark.parametrize("code", [1, 15, 999])
def test_a_restarted_driver_is_taken_up_again(fake_nvml: FakeNvml, code: int) -> None:
    """Whatever the dead handles answer: a new session, the same numbers, the samples of the old one freed before."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        before = {gpu.identity.uuid: gpu.number for gpu in running.all_ok().gpus}
        fake_nvml.set_order(reversed(range(GPUS)))
        fake_nvml.restart_driver(code)

        after = running.all_ok()

        assert {gpu.identity.uuid: gpu.number for gpu in after.gpus} == before
        assert after.nvml_state is NvmlState.OK


def test_a_driver_that_goes_and_comes(fake_nvml: FakeNvml) -> None:
    """While it is away the GPUs stay in the list, down; no restart of the exporter is needed."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.unload_driver()

        away = running.until(lambda s: s.nvml_state is NvmlState.NO_DRIVER, "the driver is away")
        running.until(lambda s: all(gpu.state is GpuState.GONE for gpu in s.gpus), "the GPUs are gone")

        assert away.reason
        fake_nvml.wait_until(lambda: fake_nvml.open_files() == [])
        fake_nvml.load_driver()
        running.all_ok()


def test_a_library_that_does_not_match_the_module_is_named(fake_nvml: FakeNvml) -> None:
    """The state says which it is, with the remedy."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.fail_init(18)
    with polled(fake_nvml) as running:
        snapshot = running.until(lambda s: s.nvml_state is NvmlState.MISMATCH, "the mismatch is named")
        assert "kernel module" in (snapshot.reason or "")
        assert snapshot.gpus == ()


def test_a_gpu_that_may_not_be_opened_is_left_out(fake_nvml: FakeNvml) -> None:
    """The count includes GPUs that a container may not see: they are not this one's."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.set_return("nvmlDeviceGetHandleByIndex_v2", VICTIM, 4)
    with polled(fake_nvml) as running:
        snapshot = running.until(lambda s: sum(bool(gpu.parts) for gpu in s.gpus) == GPUS - 1, "the others are read")
        assert all(gpu.state in (GpuState.OK, GpuState.NO_PERMISSION) for gpu in snapshot.gpus)


def test_quiesce_closes_every_device_file(fake_nvml: FakeNvml) -> None:
    """Nothing of the driver is open until it is resumed, and then all is back."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        assert len(fake_nvml.open_files()) == GPUS + 1

        assert running.poller.quiesce().ok

        assert fake_nvml.open_files() == []
        assert fake_nvml.control.initialized == 0
        running.until(lambda s: s.quiesced, "the snapshot says so")
        fake_nvml.reset_counts()
        assert running.poller.quiesce().ok
        assert fake_nvml.counts() == {}
        running.poller.resume()
        running.all_ok()


def test_quiesce_resumes_by_itself(fake_nvml: FakeNvml) -> None:
    """Whoever forgot it does not leave the node blind."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml, quiesce_max=0.5) as running:
        running.all_ok()
        assert running.poller.quiesce().ok
        running.all_ok()


def test_quiesce_with_a_call_out_names_it_and_releases_nothing(fake_nvml: FakeNvml) -> None:
    """A handle under a stuck call cannot be given back: polls of the other GPUs go on."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.hang("nvmlDeviceGetClockInfo", VICTIM)
        running.state(VICTIM, GpuState.HUNG)

        outcome = running.poller.quiesce()

        assert not outcome.ok
        assert "nvmlDeviceGetClockInfo" in (outcome.blocked_by or "")
        assert fake_nvml.open_files()
        others_are_complete(running, down=VICTIM)
        fake_nvml.release()
        running.all_ok()


def test_gpus_that_come_and_go_keep_their_numbers(fake_nvml: FakeNvml) -> None:
    """One taken out stays in the list as gone; put back in it has its number again."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        before = {gpu.identity.uuid: gpu.number for gpu in running.all_ok().gpus}
        fake_nvml.remove_gpu(1)
        running.until(lambda s: s.gpus[1].state in (GpuState.LOST, GpuState.GONE), "the GPU is missed")
        fake_nvml.gpus[1].present = 1
        fake_nvml.set_order([3, 1, 0, 2])
        running.poller.devices_changed()
        # What is lost is opened again by and by; a new session is what finds it at once.
        assert running.poller.quiesce().ok
        running.poller.resume()

        after = running.all_ok()

        assert {gpu.identity.uuid: gpu.number for gpu in after.gpus} == before


@pytest.mark.parametrize("alias", [False, True])
def test_an_xid_is_counted_for_its_gpu(fake_nvml: FakeNvml, alias: bool) -> None:
    """By Xid; also when the driver names the GPU by another handle than the one registered."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        for xid in (94, 94, 48):
            fake_nvml.inject_xid(VICTIM, xid, alias=alias)

        def counted() -> dict[tuple[str, ...], object]:
            standing = running.poller.latest.gpus[VICTIM].standing
            return {
                key.members[:1]: value for part in standing for key, value in zip(part.keys, part.values, strict=True)
            }

        running.until(lambda _: counted() == {("94",): 2, ("48",): 1}, "the Xids are counted")
        assert all(gpu.standing == () for gpu in running.poller.latest.gpus if gpu.number != VICTIM)


@pytest.mark.parametrize("code", [15, 999])
def test_events_that_fail_are_not_waited_for_in_a_loop(fake_nvml: FakeNvml, code: int) -> None:
    """A lost GPU ends each wait at once: the thread pauses instead of spinning, and polls go on."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.set_return("nvmlEventSetWait_v2", None, code)
        fake_nvml.reset_counts()
        for _ in range(5):
            running.all_ok()
        assert fake_nvml.counts().get(("nvmlEventSetWait_v2", None), 0) <= 5
        fake_nvml.set_return("nvmlEventSetWait_v2", None, 0)


def test_slices_through_the_poller(fake_nvml: FakeNvml) -> None:
    """A GPU cut anew while it is polled shows its new slices, activity included."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.set_mig(VICTIM, SEVEN_SLICES)
        for _ in range(2):
            wanted = set(fake_nvml.mig_uuids(VICTIM))

            def there(snapshot: Snapshot, wanted: set[str] = wanted) -> bool:
                found = snapshot.gpus[VICTIM].slices
                active = [s for s in found if any(k.name == "mig_sm_active_ratio" for p in s.parts for k in p.keys)]
                return {s.identity.mig_uuid for s in active} == wanted

            running.until(there, "the slices are shown")
            fake_nvml.set_mig(VICTIM, SEVEN_SLICES, stale_code=6)
        fake_nvml.set_mig(VICTIM, None)
        running.until(lambda s: s.gpus[VICTIM].slices == (), "the slices are gone")
        others_are_complete(running, down=VICTIM)


def test_a_gpu_is_opened_by_one_thread_at_a_time(fake_nvml: FakeNvml) -> None:
    """A GPU that was lost and now hangs while it is opened by its index is not opened by its UUID as well."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.hang("nvmlDeviceGetPciInfo_v3", VICTIM)
        fake_nvml.restart_driver(999)
        fake_nvml.wait_until_stuck(VICTIM, 30)
        others_are_complete(running, down=VICTIM)

        assert fake_nvml.stuck(VICTIM) == 1
        fake_nvml.release()
        running.all_ok()


def test_samples_are_freed_though_the_call_for_it_hangs(fake_nvml: FakeNvml) -> None:
    """The samples of slices that are gone are given back when the driver takes them."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        fake_nvml.set_mig(VICTIM, SEVEN_SLICES)
        fake_nvml.wait_until(lambda: fake_nvml.control.samples_live == 2 * (GPUS + 7))
        fake_nvml.hang("nvmlGpmSampleFree", SYSTEM)
        fake_nvml.set_mig(VICTIM, None)
        running.state(VICTIM, GpuState.HUNG)
        fake_nvml.release()
        running.all_ok()
        fake_nvml.wait_until(lambda: fake_nvml.control.samples_live == 2 * GPUS)


def find_all(fake: FakeNvml) -> None:
    """No GPU is lost any more."""
    for number in range(GPUS):
        fake.lose(number, 0)


def disturb(fake: FakeNvml, chance: random.Random) -> None:
    """One thing that may happen to a driver or its GPUs."""
    gpu = chance.randrange(GPUS)
    happenings: list[Callable[[], object]] = [
        lambda: fake.hang(chance.choice((*POLLED_FUNCTIONS, *OPENING_FUNCTIONS)), gpu),
        lambda: fake.hang(chance.choice((*POLLED_FUNCTIONS, *OPENING_FUNCTIONS)), gpu),
        lambda: fake.hang(chance.choice(LIBRARY_FUNCTIONS), SYSTEM),
        fake.release,
        fake.release,
        lambda: fake.lose(gpu, chance.choice((15, 16, 999))),
        partial(find_all, fake),
        lambda: fake.restart_driver(chance.choice((1, 15, 999))),
        lambda: fake.set_mig(gpu, chance.choice((SEVEN_SLICES, None)), stale_code=chance.choice((0, 2, 6, 15))),
        lambda: fake.set_order(chance.sample(range(GPUS), GPUS)),
        lambda: fake.set_return(chance.choice(POLLED_FUNCTIONS), gpu, chance.choice((2, 3, 4, 6, 10, 21, 25, 999))),
        lambda: fake.set_return(None, None, 0),
    ]
    chance.choice(happenings)()


@pytest.mark.parametrize("seed", [3, 12])
def soak_nothing_is_misused_whatever_happens(fake_nvml: FakeNvml, seed: int) -> None:
    """Hangs, losses, restarts and re-partitionings on top of each other: no dead handle, no freed sample, no call on
    a GPU that has one stuck, at most one stuck thread a GPU, no reading shown twice; and all is well again after.
    """
    fake_nvml.set_gpus(GPUS, [H100, H100, B200, H100])
    chance = random.Random(seed)
    with polled(fake_nvml) as running:
        running.all_ok()
        for _ in range(60):
            disturb(fake_nvml, chance)
            before = running.poller.latest.sequence
            snapshot = running.until(lambda s, since=before: s.sequence > since, "polls go on")  # type: ignore[misc]
            for gpu in snapshot.gpus:
                assert read(gpu) == {} or gpu.state is GpuState.OK
            assert not fake_nvml.misuse(), fake_nvml.misuse()
        find_all(fake_nvml)
        fake_nvml.set_return(None, None, 0)
        fake_nvml.release()
        # Whoever was called lost waits half a minute for the next attempt; a new session does not.
        fake_nvml.restart_driver()
        running.all_ok()


def test_two_who_ask_to_quiesce_both_get_an_answer(fake_nvml: FakeNvml) -> None:
    """An administrator and a script at once."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        both = [Aside(running.poller.quiesce) for _ in range(2)]
        assert [each.done().ok for each in both] == [True, True]
        running.poller.resume()
        running.all_ok()


def test_threads_do_not_grow_with_sessions(fake_nvml: FakeNvml) -> None:
    """Lanes and samplers are used again, however often the driver is opened anew."""
    fake_nvml.set_gpus(GPUS)
    with polled(fake_nvml) as running:
        running.all_ok()
        has_activity(running, *range(GPUS))
        for _ in range(2):
            # The first of them may start what the later ones use again.
            fake_nvml.restart_driver()
            running.all_ok()
        before = threading.active_count()
        for _ in range(3):
            fake_nvml.restart_driver()
            running.all_ok()
        assert threading.active_count() <= before
