"""Each function that the exporter calls, hung in turn on one GPU: what it costs, and whom."""

from __future__ import annotations

import pytest

from gpufleet.collect.options import PollerOptions
from gpufleet.collect.poller import GRACE_SECONDS
from gpufleet.model.snapshot import Snapshot
from gpufleet.sources.nvml.calls import SIGNATURES
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, H100, RTX4090, SEVEN_SLICES, SINGLE_CALL, T4, Profile
from tests.support.poller_rig import Rig, all_report, keys, rig_on, states

GPUS = 8
VICTIM = 3
OTHERS = [number for number in range(GPUS) if number != VICTIM]
EACH_POLL = PollerOptions(node="node-1", interval=1.0, deadline=1.0, medium_seconds=1.0, slow_seconds=1.0)
"""Every tier is due in each poll, as far as the bound on calls lets it."""
POLLS_OF_A_TURN = 6
"""Within so many polls each of them has had its turn."""

IN_EACH_POLL = (
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
ON_OTHER_PARTS: dict[str, tuple[Profile, bool]] = {
    # Function -> where it is polled: the part, and whether the driver is of the 470 series.
    "nvmlDeviceGetMemoryInfo": (A100, True),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (A100, True),
    "nvmlDeviceGetTemperature": (A100, True),
    "nvmlDeviceGetMemoryErrorCounter": (A100, True),
    "nvmlDeviceGetPowerUsage": (T4, True),
    "nvmlDeviceGetFanSpeed_v2": (RTX4090, False),
    "nvmlDeviceGetGpuFabricInfo": (H100, False),
}
ON_A_CUT_GPU = ("nvmlGpmMigSampleGet", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUUID")
WHILE_IT_IS_CUT_ANEW = (
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
)
WHILE_OPENING = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetNumFans",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlGpmQueryDeviceSupport",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
)
WHILE_OPENING_OTHERS: dict[str, tuple[Profile, bool]] = {
    "nvmlDeviceGetTemperatureThreshold": (A100, False),
    "nvmlDeviceGetSupportedClocksThrottleReasons": (A100, True),
}
OF_THE_LIBRARY = (
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlEventSetCreate",
    "nvmlEventSetFree",
    "nvmlEventSetWait_v2",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
)
"""No GPU's in particular; their hangs are in test_poller_sessions.py, those of samples at the end of this file."""
WHEN_LOST = ("nvmlDeviceGetHandleByUUID",)
NEVER_CALLED = ("nvmlDeviceGetEccMode",)
"""The mode is field 1 of the slow batch."""


def test_every_function_has_its_turn() -> None:
    """A function that is added to the exporter's table needs a place in these tests."""
    hung = (
        *IN_EACH_POLL,
        *ON_OTHER_PARTS,
        *ON_A_CUT_GPU,
        *WHILE_IT_IS_CUT_ANEW,
        *WHILE_OPENING,
        *WHILE_OPENING_OTHERS,
        *OF_THE_LIBRARY,
        *WHEN_LOST,
    )

    assert {*hung, *NEVER_CALLED} == set(SIGNATURES)


class Watch:
    """What the other GPUs must go on to show in every snapshot, early ones included."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._whole = {number: keys(rig.latest.gpus[number]) for number in OTHERS}
        self._begun = len(rig.history)

    def others_are_complete(self) -> None:
        """Each was read in the poll at hand or the one before, and shows all that it showed before."""
        published = self._rig.history[self._begun :]
        assert published
        for publication in published:
            snapshot = publication.snapshot
            for number in OTHERS:
                gpu = snapshot.gpus[number]
                assert gpu.state == "ok", (number, gpu.state, gpu.reason)
                assert self._whole[number] <= keys(gpu)
                assert gpu.polled_at is not None
                assert snapshot.at - gpu.polled_at <= self._rig.options.interval + GRACE_SECONDS + 0.05


def poll_until_hung(rig: Rig, function: str) -> Snapshot:
    """Poll until the victim's call is overdue."""
    for _ in range(POLLS_OF_A_TURN):
        if rig.poll().gpus[VICTIM].state == "hung":
            break
    victim = rig.latest.gpus[VICTIM]
    assert (victim.state, victim.reason) == ("hung", f"{function} has not returned")
    assert (victim.parts, victim.slices) == ((), ())
    return rig.latest


def poll_until_whole(rig: Rig, whole: set[object]) -> None:
    """Poll until all is there again."""
    for _ in range(3 * POLLS_OF_A_TURN):
        if all_report(rig.poll(), GPUS) and whole <= keys(rig.latest.gpus[VICTIM]):
            return
    pytest.fail(f"{states(rig.latest)}, {whole - keys(rig.latest.gpus[VICTIM])} did not come back")


def hang_and_come_back(fake: FakeNvml, rig: Rig, function: str) -> None:
    """The story of one hang in a poll, from its beginning to its end."""
    rig.poll(2)
    whole: set[object] = set(keys(rig.latest.gpus[VICTIM]))
    identity = rig.latest.gpus[VICTIM].identity
    watch = Watch(rig)
    fake.hang(function, VICTIM)

    hung = poll_until_hung(rig, function)
    assert hung.gpus[VICTIM].identity == identity
    assert (hung.gpus_visible, hung.gpus_expected, hung.nvml_state) == (GPUS - 1, GPUS, "ok")
    rig.poll(3)
    watch.others_are_complete()
    assert fake.stuck(VICTIM) == 1

    fake.release()
    poll_until_whole(rig, whole)
    watch.others_are_complete()


@pytest.mark.parametrize("function", IN_EACH_POLL)
def test_a_call_that_hangs_in_a_poll_costs_its_own_gpu(fake_nvml: FakeNvml, function: str) -> None:
    """The GPU says so, the other seven stay complete, nothing more is asked of it, and it comes back by itself."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml, EACH_POLL) as rig:
        hang_and_come_back(fake_nvml, rig, function)


def test_the_list_of_an_mps_server_hangs_as_well(fake_nvml: FakeNvml) -> None:
    """It is asked for in a poll where the server has clients."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.gpus[VICTIM].process[0].client = 1
    with rig_on(fake_nvml, EACH_POLL) as rig:
        hang_and_come_back(fake_nvml, rig, "nvmlDeviceGetMPSComputeRunningProcesses_v3")


@pytest.mark.usefixtures("nvml_build")
@pytest.mark.parametrize("function", ON_OTHER_PARTS)
def test_a_call_that_stands_in_for_another_hangs_as_well(function: str) -> None:
    """What is asked only of older drivers and other parts costs its own GPU, too."""
    profile, old = ON_OTHER_PARTS[function]
    with FakeNvml(old=old, driver_version="470.256.02" if old else "595.45.04") as fake:
        fake.set_gpus(GPUS, profile)
        for gpu in range(GPUS):
            fake.gpus[gpu].fabric_version = min(fake.gpus[gpu].fabric_version, 1)
            if function == "nvmlDeviceGetPowerUsage":
                fake.set_field(gpu, 185, 44_000, flags=SINGLE_CALL)
                fake.fail_field(gpu, 186, 3)
        with rig_on(fake, EACH_POLL) as rig:
            hang_and_come_back(fake, rig, function)


@pytest.mark.parametrize("function", ON_A_CUT_GPU)
def test_a_call_that_hangs_on_a_cut_gpu_costs_that_gpu(fake_nvml: FakeNvml, function: str) -> None:
    """The slices go with the GPU and come back with it."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.set_mig(VICTIM, SEVEN_SLICES)
    with rig_on(fake_nvml, EACH_POLL) as rig:
        hang_and_come_back(fake_nvml, rig, function)
        assert len(rig.latest.gpus[VICTIM].slices) == len(SEVEN_SLICES)


@pytest.mark.parametrize("function", WHILE_IT_IS_CUT_ANEW)
def test_a_call_that_hangs_while_slices_are_looked_for_costs_that_gpu(fake_nvml: FakeNvml, function: str) -> None:
    """Once it returns, the new slices are there."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.set_mig(VICTIM, SEVEN_SLICES)
    with rig_on(fake_nvml, EACH_POLL) as rig:
        rig.poll(2)
        watch = Watch(rig)
        fake_nvml.hang(function, VICTIM)
        fake_nvml.set_mig(VICTIM, SEVEN_SLICES[:3], notify=False)

        poll_until_hung(rig, function)
        rig.poll(2)
        watch.others_are_complete()

        fake_nvml.release()
        for _ in range(POLLS_OF_A_TURN):
            rig.poll()
        assert [one.identity.mig_uuid for one in rig.latest.gpus[VICTIM].slices] == fake_nvml.mig_uuids(VICTIM)
        watch.others_are_complete()


def opening_story(fake: FakeNvml, function: str) -> None:
    """A hang at the first start, and the same one when the GPUs are opened anew on a restarted driver."""
    fake.hang(function, VICTIM)
    with rig_on(fake) as rig:
        # Whoever has no name yet is not in the list, but counted.
        rig.poll(3)
        others = [gpu for gpu in rig.latest.gpus if gpu.identity.uuid != fake.uuid(VICTIM)]
        assert [gpu.number for gpu in others] == OTHERS
        assert all(gpu.state == "ok" and gpu.parts for gpu in others)
        assert (rig.latest.gpus_visible, rig.latest.gpus_expected) == (GPUS - 1, GPUS)
        assert not rig.quiesce().ok

        fake.release()
        rig.poll(2)
        assert all_report(rig.latest, GPUS)
        whole = {number: keys(rig.latest.gpus[number]) for number in range(GPUS)}

        assert rig.quiesce().ok
        fake.restart_driver()
        fake.hang(function, VICTIM)
        rig.poller.resume()
        rig.poll(3)
        victim = rig.latest.gpus[VICTIM]
        assert victim.state == "hung"
        assert function in (victim.reason or "")
        assert not victim.parts
        assert [states(rig.latest)[number] for number in OTHERS] == ["ok"] * len(OTHERS)
        assert all(keys(rig.latest.gpus[number]) == whole[number] for number in OTHERS)

        fake.release()
        rig.poll(3)
        assert all_report(rig.latest, GPUS)
        assert keys(rig.latest.gpus[VICTIM]) == whole[VICTIM]


@pytest.mark.parametrize(
    "function", sorted({*WHILE_OPENING, *IN_EACH_POLL} - {"nvmlGpmSampleGet", "nvmlGpmMetricsGet"})
)
def test_a_call_that_hangs_while_a_gpu_is_opened_does_not_hold_the_others(fake_nvml: FakeNvml, function: str) -> None:
    """At the first start and after a restart of the driver, and it joins them when its call returns."""
    fake_nvml.set_gpus(GPUS)
    opening_story(fake_nvml, function)


@pytest.mark.usefixtures("nvml_build")
@pytest.mark.parametrize("function", WHILE_OPENING_OTHERS)
def test_opening_calls_of_other_parts_hang_as_well(function: str) -> None:
    """What only older parts and drivers are asked when they are opened."""
    profile, old = WHILE_OPENING_OTHERS[function]
    with FakeNvml(old=old) as fake:
        fake.set_gpus(GPUS, profile)
        opening_story(fake, function)


def test_a_lost_gpu_whose_search_hangs_holds_nobody(fake_nvml: FakeNvml) -> None:
    """It is looked for by UUID after a while; a hang of that call is told as one."""
    fake_nvml.set_gpus(GPUS)
    with rig_on(fake_nvml) as rig:
        rig.poll(2)
        watch = Watch(rig)
        fake_nvml.lose(VICTIM)
        assert rig.poll().gpus[VICTIM].state == "lost"
        fake_nvml.hang("nvmlDeviceGetHandleByUUID", VICTIM)
        rig.poll(33)
        assert rig.latest.gpus[VICTIM].state == "hung"
        assert "nvmlDeviceGetHandleByUUID" in (rig.latest.gpus[VICTIM].reason or "")
        watch.others_are_complete()

        fake_nvml.lose(VICTIM, 0)
        fake_nvml.release()
        rig.poll(2)
        assert all_report(rig.latest, GPUS)


def test_a_call_that_returns_late_is_followed_by_no_other(fake_nvml: FakeNvml) -> None:
    """With slices there are eight readers of activity on a GPU: when the call of one was given up, the thread that took
    over is in the driver for others, and two there at once have crashed it.
    """
    fake_nvml.set_gpus(GPUS)
    fake_nvml.set_mig(VICTIM, SEVEN_SLICES)
    with rig_on(fake_nvml) as rig:
        rig.poll(2)
        fake_nvml.hang("nvmlGpmSampleGet", VICTIM)
        poll_until_hung(rig, "nvmlGpmSampleGet")
        rig.rest()
        fake_nvml.reset_counts()

        fake_nvml.release()
        fake_nvml.wait_until(lambda: not rig.poller._roster.gpus[fake_nvml.uuid(VICTIM)].out)

        assert {name for name, gpu in fake_nvml.counts() if gpu == VICTIM} == set()
