"""The list of a device's compute processes."""

from __future__ import annotations

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.claims import GpuProcess
from gpufleet.sources.nvml.calls import (
    GPU_IS_LOST,
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    UNKNOWN,
    Calls,
    NvmlFunction,
    Trace,
)
from gpufleet.sources.nvml.processes import MOST_PROCESSES, ProcessList, parse
from gpufleet.sources.nvml.tally import Tally

COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
CLIENTS = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
NONE = 0xFFFF_FFFF
Entry = tuple[int, int, int, int]
"""pid, bytes of memory, GPU instance, compute instance."""


class Lists:
    """A driver that has two lists and nothing else."""

    simulated = False

    def __init__(self, lacking: tuple[str, ...] = ()) -> None:
        self.lacking = lacking
        self.lists: dict[str, list[Entry]] = {COMPUTE: [], CLIENTS: []}
        self.codes: dict[str, int] = {}
        self.made: list[str] = []
        self.stride = 24
        self.says: int | None = None
        """Count that it gives in place of the true one."""

    def function(self, name: str) -> NvmlFunction | None:
        """One of the two."""
        if name not in self.lists or name in self.lacking:
            return None

        def call(_: object, count: ctypes.Array[ctypes.c_uint32], buffer: ctypes.Array[ctypes.c_char]) -> int:
            self.made.append(name)
            if code := self.codes.get(name):
                return code
            entries = self.lists[name]
            room = int(count[0])
            count[0] = len(entries) if self.says is None else self.says
            for place, (pid, used, gpu, compute) in enumerate(entries[:room]):
                struct.pack_into("<IxxxxQII", buffer, self.stride * place, pid, used, gpu, compute)
                if self.stride == 32:
                    struct.pack_into("<Q", buffer, self.stride * place + 24, used)
            return INSUFFICIENT_SIZE if len(entries) > room else SUCCESS

        return call


class Asker:
    """A list of a device of that driver, and what it counted."""

    def __init__(self, driver: Lists) -> None:
        self.driver = driver
        self.trace = Trace()
        self.tally = Tally()
        self.item = ProcessList(Calls(driver).traced(self.trace), ctypes.c_void_p(1), self.trace)

    def ask(self, *entries: Entry) -> tuple[GpuProcess, ...] | None:
        """One turn, after which the driver has these entries."""
        self.driver.lists[COMPUTE] = list(entries)
        assert self.item.run(self.tally) == SUCCESS
        return self.item.processes


@pytest.fixture
def asker() -> Asker:
    """On a driver with nothing running."""
    return Asker(Lists())


def whole(pid: int, used: int = 1 << 30) -> Entry:
    """A process of the uncut GPU."""
    return pid, used, NONE, NONE


def test_an_idle_gpu_has_an_empty_list(asker: Asker) -> None:
    """Nobody is something else than not told."""
    assert asker.ask() == ()
    assert asker.item.values == [0]


def test_processes_are_listed_in_order_and_once(asker: Asker) -> None:
    """A process with two contexts is one process, and instances that there are not are ``None``; the count is the
    driver's.
    """
    found = asker.ask(whole(50), (40, 1, 2, 0), whole(30), whole(50))

    assert found == (GpuProcess(30), GpuProcess(40, 2, 0), GpuProcess(50))
    assert asker.item.values == [4]


def test_the_list_is_the_same_object_until_it_changes(asker: Asker) -> None:
    """Memory that a process takes or gives back is no change."""
    first = asker.ask(whole(30), whole(50))

    assert asker.ask(whole(30), whole(50)) is first
    assert asker.ask(whole(50, used=7), whole(30)) is first
    assert asker.ask(whole(30)) == (GpuProcess(30),)


def test_a_reply_that_is_the_last_one_again_is_not_looked_into(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is parsed for it."""
    first = asker.ask(whole(30), whole(50))
    monkeypatch.setattr("gpufleet.sources.nvml.processes.parse", lambda *_: pytest.fail("parsed"))

    assert asker.ask(whole(30), whole(50)) is first


def test_one_call_a_turn(asker: Asker) -> None:
    """As long as nothing changes."""
    asker.ask(whole(30))
    asker.driver.made.clear()

    asker.ask(whole(30))

    assert asker.driver.made == [COMPUTE]


def test_more_processes_than_there_is_room_for_are_asked_for_again(asker: Asker) -> None:
    """Once, with room for all and for some that come."""
    many = [whole(pid) for pid in range(1, 101)]

    assert asker.ask(*many) == tuple(GpuProcess(pid) for pid in range(1, 101))
    assert asker.driver.made == [COMPUTE, COMPUTE]
    asker.driver.made.clear()
    assert asker.ask(*many, whole(101)) is not None
    assert asker.driver.made.count(COMPUTE) == 1


def test_too_many_processes_are_counted_and_not_listed(asker: Asker) -> None:
    """The bound is on memory, not on the truth."""
    assert asker.ask(*[whole(pid) for pid in range(1, MOST_PROCESSES + 2)]) is None
    assert asker.item.values == [MOST_PROCESSES + 1]
    assert asker.driver.made.count(COMPUTE) == 1

    assert asker.ask(whole(5)) == (GpuProcess(5),)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_entries_of_32_bytes_are_told_from_those_of_24(asker: Asker, count: int) -> None:
    """Drivers of early R535 have them behind the same symbol."""
    asker.driver.stride = 32
    entries = [(pid, 1 << 34, 3, 1) for pid in range(100, 100 + count)]

    assert asker.ask(*entries) == tuple(GpuProcess(pid, 3, 1) for pid in range(100, 100 + count))


@pytest.mark.parametrize("pid", [0, 4_194_304, 0xFFFF_FFFF, 0x7FFF_FFF0])
def test_a_pid_that_no_process_has_is_dropped_and_counted(asker: Asker, pid: int) -> None:
    """The others stay."""
    assert asker.ask(whole(pid), whole(77)) == (GpuProcess(77),)
    assert asker.tally.invalid == {"processes": 1}


def test_a_driver_that_writes_less_than_it_says_tells_nothing(asker: Asker) -> None:
    """What was in the buffer is nobody's process."""
    asker.driver.says = 3

    assert asker.ask(whole(30)) is None
    assert asker.item.values == [3]


def test_a_count_beyond_the_room_with_no_complaint_is_no_list(asker: Asker) -> None:
    """Nothing behind the buffer's end is read."""
    asker.driver.says = 5000

    assert asker.ask(whole(30)) is None


@pytest.mark.parametrize("count", [0xFFFF_FFFF, 0x7FFF_FFF0, 4_194_304])
def test_a_count_that_can_not_be_true_is_dropped(asker: Asker, count: int) -> None:
    """A sentinel for "no value" is neither a count nor a list."""
    asker.driver.says = count

    assert asker.ask(whole(30)) is None
    assert asker.item.values == [None]
    assert asker.tally.invalid == {"processes": 1}


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_SUPPORTED, TIMEOUT, GPU_IS_LOST])
def test_what_the_driver_refuses_to_tell_is_not_told(asker: Asker, code: int) -> None:
    """Not even as it was before; and the same list is there again with the driver's next word."""
    first = asker.ask(whole(30))
    asker.driver.codes[COMPUTE] = code

    assert asker.item.run(asker.tally) == code
    assert (asker.item.processes, asker.item.values) == (None, [None])

    del asker.driver.codes[COMPUTE]
    assert asker.ask(whole(30)) is first


def test_a_value_that_grew_too_old_takes_the_list_with_it(asker: Asker) -> None:
    """The plan removes values that were not read for two turns."""
    asker.ask(whole(30))
    asker.item.values = [None]

    assert asker.item.processes is None


def test_clients_of_an_mps_server_are_listed_with_it(asker: Asker) -> None:
    """Their own list is asked when the other one changes, and as long as it has anybody in it."""
    asker.ask()
    asker.driver.made.clear()
    asker.driver.lists[CLIENTS] = [whole(70), whole(71)]

    assert asker.ask(whole(60)) == (GpuProcess(60), GpuProcess(70), GpuProcess(71))
    asker.driver.lists[CLIENTS] = [whole(71)]
    assert asker.ask(whole(60)) == (GpuProcess(60), GpuProcess(71))
    asker.driver.lists[CLIENTS] = []
    assert asker.ask(whole(60)) == (GpuProcess(60),)
    asker.driver.made.clear()
    asker.ask(whole(60))
    assert asker.driver.made == [COMPUTE]


def test_a_turn_makes_at_most_two_calls(asker: Asker) -> None:
    """Where the list had to be asked for again, clients are a matter of the next turn."""
    many = [whole(pid) for pid in range(1, 41)]
    asker.driver.lists[CLIENTS] = [whole(70)]

    asker.ask(*many)
    assert asker.driver.made == [COMPUTE, COMPUTE]

    found = asker.ask(*many)
    assert asker.driver.made == [COMPUTE, COMPUTE, COMPUTE, CLIENTS]
    assert found is not None
    assert found[-1] == GpuProcess(70)


def test_more_clients_than_there_is_room_for_are_there_in_the_next_turn(asker: Asker) -> None:
    """The list without them is true until then."""
    asker.driver.lists[CLIENTS] = [whole(pid) for pid in range(100, 140)]

    assert asker.ask(whole(60)) == (GpuProcess(60),)
    found = asker.ask(whole(60))
    assert found is not None
    assert len(found) == 41


@pytest.mark.parametrize("lacking", [(), (CLIENTS,)])
def test_a_driver_without_a_list_of_clients_is_asked_once_at_most(lacking: tuple[str, ...]) -> None:
    """Nothing of it is counted as an error."""
    asker = Asker(Lists(lacking))
    asker.driver.codes[CLIENTS] = NOT_SUPPORTED

    assert asker.ask(whole(60)) == (GpuProcess(60),)
    assert asker.ask(whole(61)) == (GpuProcess(61),)
    assert asker.driver.made.count(CLIENTS) == (0 if lacking else 1)
    assert asker.tally.errors == {}


def test_a_list_of_clients_that_fails_for_once_is_asked_again(asker: Asker) -> None:
    """It costs the other list nothing and is counted."""
    asker.driver.codes[CLIENTS] = UNKNOWN
    assert asker.ask(whole(60)) == (GpuProcess(60),)
    assert asker.tally.errors == {"unknown": 1}

    asker.driver.codes.clear()
    asker.driver.lists[CLIENTS] = [whole(70)]
    assert asker.ask(whole(60)) == (GpuProcess(60), GpuProcess(70))


def test_a_gpu_that_is_lost_meanwhile_is_reported_as_lost(asker: Asker) -> None:
    """Whichever of the two calls says so."""
    asker.driver.codes[CLIENTS] = GPU_IS_LOST

    assert asker.item.run(asker.tally) == GPU_IS_LOST
    assert asker.item.processes is None


def test_no_second_call_is_made_once_the_poll_was_given_up(asker: Asker) -> None:
    """The first one was overdue when it returned."""
    asker.trace.given_up = True
    asker.driver.lists[COMPUTE] = [whole(pid) for pid in range(1, 41)]

    asker.item.run(asker.tally)

    assert asker.driver.made == [COMPUTE]
    assert asker.item.processes is None


def test_the_trace_names_the_call_that_is_made(asker: Asker) -> None:
    """A hang is blamed on the function that it is in."""
    asker.ask(whole(60))

    assert asker.trace.last == CLIENTS


@given(st.binary(min_size=0, max_size=320))
def test_no_reply_is_too_strange(raw: bytes) -> None:
    """Whatever is in the buffer: a list of pids that can be, in order and without doubles, or none."""
    count = len(raw) // 32

    found = parse(raw[: 32 * count], count, Tally())

    assert found is None or all(0 < one.pid < 4_194_304 for one in found)
    assert found is None or len(set(found)) == len(found) <= count
    assert found is None or [one.pid for one in found] == sorted(one.pid for one in found)
