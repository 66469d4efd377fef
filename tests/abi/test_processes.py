"""Who has a context on a GPU, as the driver lists it through its own ABI."""

from __future__ import annotations

import pytest

from gpufleet.model.claims import GpuProcess
from gpufleet.model.readings import Key
from gpufleet.sources.nvml.device import DeviceReading
from gpufleet.sources.nvml.plan import Pace
from tests.abi.opened import Watched, device, values
from tests.abi.polled import polled
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_layout import ABSENT32
from tests.support.fake_nvml_profiles import SEVEN_SLICES

COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
CLIENTS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
EACH_POLL = Pace(1.0, 1.0, 1.0)
"""Every tier has its turn in each poll, or in the next."""


def run(fake: FakeNvml, *processes: tuple[int, int, int], gpu: int = 0, client: bool = False) -> None:
    """Let these (pid, GPU instance, compute instance) run on a GPU, beside those of the other kind."""
    kept = [(p.pid, p.gi, p.ci, p.client) for p in fake.gpus[gpu].process[: fake.gpus[gpu].process_count]]
    rows = [row for row in kept if row[3] != client] + [(*process, int(client)) for process in processes]
    for entry, (pid, gi, ci, of_server) in zip(fake.gpus[gpu].process, rows, strict=False):
        entry.pid, entry.gi, entry.ci, entry.client, entry.used_memory = pid, gi, ci, of_server, pid << 20
    fake.gpus[gpu].process_count = len(rows)


def fifth(watched: Watched) -> DeviceReading:
    """The fifth of the next polls."""
    return [watched.poll() for _ in range(5)][-1]


def whole(pid: int) -> tuple[int, int, int]:
    """A process of the uncut GPU."""
    return pid, ABSENT32, ABSENT32


def test_a_gpu_lists_its_processes(fake_nvml: FakeNvml) -> None:
    """In order, and as the same object until one comes or goes."""
    fake_nvml.set_gpus(1)
    run(fake_nvml, whole(900), whole(17))

    with device(fake_nvml, pace=EACH_POLL) as watched:
        first = watched.poll().processes
        assert first == (GpuProcess(17), GpuProcess(900))
        assert [watched.poll().processes is first for _ in range(10)] == [True] * 10

        run(fake_nvml, whole(900))
        reading = fifth(watched)
        assert reading.processes == (GpuProcess(900),)
        assert values(*reading.parts)[Key("processes")] == 1


def test_processes_of_slices_name_their_instances(fake_nvml: FakeNvml) -> None:
    """The whole GPU's list has them all; no slice is asked for its own."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)
    run(fake_nvml, (300, 9, 0), (200, 7, 0))
    fake_nvml.reset_counts()

    with device(fake_nvml) as watched:
        assert watched.poll().processes == (GpuProcess(200, 7, 0), GpuProcess(300, 9, 0))
    assert fake_nvml.counts()[COMPUTE, 0] == 1


@pytest.mark.parametrize("stride", [24, 32])
@pytest.mark.parametrize("count", [1, 2, 16, 17, 64])
def test_any_number_in_either_size_of_entry(fake_nvml: FakeNvml, count: int, stride: int) -> None:
    """With more than there is room for at first, and with the entries of early R535."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].process_stride = stride
    run(fake_nvml, *[whole(pid) for pid in range(1000, 1000 + count)])

    with device(fake_nvml) as watched:
        reading = watched.poll()

    assert reading.processes == tuple(GpuProcess(pid) for pid in range(1000, 1000 + count))
    assert values(*reading.parts)[Key("processes")] == count


def test_clients_of_an_mps_server_are_in_the_list(fake_nvml: FakeNvml) -> None:
    """Those that come and those that go."""
    fake_nvml.set_gpus(1)
    run(fake_nvml, whole(60))
    run(fake_nvml, whole(70), whole(71), client=True)

    with device(fake_nvml, pace=EACH_POLL) as watched:
        assert watched.poll().processes == (GpuProcess(60), GpuProcess(70), GpuProcess(71))

        run(fake_nvml, whole(71), client=True)
        reading = fifth(watched)
        assert reading.processes == (GpuProcess(60), GpuProcess(71))
        assert values(*reading.parts)[Key("processes")] == 1


@pytest.mark.parametrize("code", [3, 4, 13])
def test_a_driver_that_does_not_tell(fake_nvml: FakeNvml, code: int) -> None:
    """Without privileges on a cut GPU, say: no list and no count, and it is not asked again."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_return(COMPUTE, 0, code)

    with device(fake_nvml, pace=EACH_POLL) as watched:
        fake_nvml.reset_counts()
        reading = fifth(watched)
        assert reading.processes is None
        assert Key("processes") not in values(*reading.parts)
    assert {COMPUTE, CLIENTS} & {name for name, _ in fake_nvml.counts()} == set()


def test_it_costs_one_call_a_turn(fake_nvml: FakeNvml) -> None:
    """Ten seconds have one of them, whatever is running, and the clients of MPS are asked for on a change only."""
    fake_nvml.set_gpus(1)
    run(fake_nvml, *[whole(pid) for pid in range(1000, 1060)])

    with device(fake_nvml) as watched:
        watched.after(130)
        fake_nvml.reset_counts()
        watched.after(600)
        made = fake_nvml.counts()
    assert made[COMPUTE, 0] == pytest.approx(60, abs=2)
    assert (CLIENTS, 0) not in made


def test_processes_that_come_and_go_all_the_time_keep_to_the_budget(fake_nvml: FakeNvml) -> None:
    """Also in the turn that needs more room."""
    fake_nvml.set_gpus(1)
    with device(fake_nvml) as watched:
        most = 0
        for second in range(200):
            run(fake_nvml, *[whole(pid) for pid in range(1000, 1001 + second * 7 % 60)])
            run(fake_nvml, whole(5), client=True) if second < 100 else run(fake_nvml, client=True)
            fake_nvml.reset_counts()
            watched.poll()
            watched.device.sample(watched.now)
            most = max(most, fake_nvml.calls_of(0))
    assert most <= 20


def test_the_poller_shows_the_list(fake_nvml: FakeNvml) -> None:
    """Of a GPU that is well; of one that is lost nothing is known."""
    fake_nvml.set_gpus(2)
    run(fake_nvml, whole(4321), gpu=1)
    with polled(fake_nvml) as running:
        snapshot = running.all_ok()
        assert [gpu.processes for gpu in snapshot.gpus] == [(GpuProcess(4000),), (GpuProcess(4321),)]

        run(fake_nvml, whole(4322), gpu=1)
        changed = running.until(lambda s: s.gpus[1].processes == (GpuProcess(4322),), "the other process")
        assert changed.gpus[0].processes is snapshot.gpus[0].processes

        fake_nvml.lose(1)
        lost = running.until(lambda s: s.gpus[1].state == "lost", "GPU 1 is lost")
        assert [gpu.processes for gpu in lost.gpus] == [(GpuProcess(4000),), None]
