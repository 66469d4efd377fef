from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import pytest

from gpufleet.simulate.health import Condition, Hang, ScheduledXid, Tally, Troubles, Window
from gpufleet.simulate.scripts import uniform
from gpufleet.sources.nvml.calls import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    SUCCESS,
    TIMEOUT,
    UNINITIALIZED,
    UNKNOWN,
)
from tests.support.scripted_caller import ALL_LINKS, Caller
from tests.waiting import until

XID, MIG_CHANGE = 0x8, 0x100
ENERGY = 83
SECOND = 1000


def troubled(troubles: Troubles, **options: object) -> Caller:
    """Two H100s, the second with troubles."""
    first, second = uniform("h100-80gb-hbm3", 2)
    return Caller([first, replace(second, troubles=troubles)], **options)


def test_a_return_code_is_forced_on_one_gpu_or_all() -> None:
    """Only the function and GPU that are meant fail, until they are told to behave again."""
    caller = Caller(uniform("h100-80gb-hbm3", 2))
    driver, (first, second) = caller.driver, caller.handles

    driver.set_return("nvmlDeviceGetPowerUsage", NO_PERMISSION, gpu=1)
    assert [caller.code("nvmlDeviceGetPowerUsage", handle) for handle in (first, second)] == [0, NO_PERMISSION]
    assert caller.code("nvmlDeviceGetMinorNumber", second) == SUCCESS
    driver.set_return("nvmlDeviceGetPowerUsage", UNKNOWN)
    assert [caller.code("nvmlDeviceGetPowerUsage", handle) for handle in (first, second)] == [UNKNOWN, NO_PERMISSION]
    driver.set_return("nvmlDeviceGetPowerUsage", None)
    driver.set_return("nvmlDeviceGetPowerUsage", None, gpu=1)
    assert [caller.code("nvmlDeviceGetPowerUsage", handle) for handle in (first, second)] == [0, 0]


def test_library_functions_can_fail_too() -> None:
    """Init, count and the rest answer with the code that they are given."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))

    caller.driver.set_return("nvmlDeviceGetCount_v2", UNKNOWN)
    assert caller.calls["nvmlDeviceGetCount_v2"]((ctypes.c_uint32 * 1)()) == UNKNOWN


def test_a_hang_holds_calls_until_it_is_released() -> None:
    """The caller of the hung GPU waits, the others go on; after the release it gets its answer."""
    caller = Caller(uniform("h100-80gb-hbm3", 2))
    hanging = caller.driver.hang(gpu=1, function="nvmlDeviceGetMinorNumber")
    answers: list[int] = []
    thread = threading.Thread(
        target=lambda: answers.append(caller.code("nvmlDeviceGetMinorNumber", caller.handles[1])), daemon=True
    )
    thread.start()

    assert hanging.entered.wait(10)
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == SUCCESS
    assert caller.code("nvmlDeviceGetPowerUsage", caller.handles[1]) == SUCCESS
    assert answers == []
    caller.driver.unhang(hanging)
    thread.join(10)
    assert answers == [SUCCESS]
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[1]) == SUCCESS


def test_the_driver_wide_lock_holds_every_gpu() -> None:
    """A hang of no GPU in particular is that of the driver: every call waits."""
    caller = Caller(uniform("h100-80gb-hbm3", 2))
    hanging = caller.driver.hang()
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda h=h: answers.append(caller.code("nvmlDeviceGetMinorNumber", h)), daemon=True)
        for h in caller.handles
    ]
    for thread in threads:
        thread.start()

    assert hanging.entered.wait(10)
    assert answers == []
    caller.driver.unhang(hanging)
    for thread in threads:
        thread.join(10)
    assert answers == [SUCCESS, SUCCESS]


def test_a_scheduled_hang_lasts_as_long_as_it_says() -> None:
    """In its time the calls of the GPU do not return; where threads are shared they time out instead."""
    window = Hang(Window(10 * SECOND, 20 * SECOND), "nvmlDeviceGetPowerUsage")
    caller = troubled(Troubles(hangs=(window,)), blocking=False)
    second = caller.handles[1]

    assert caller.code("nvmlDeviceGetPowerUsage", second) == SUCCESS
    caller.clock.forward(15)
    assert caller.code("nvmlDeviceGetPowerUsage", second) == TIMEOUT
    assert caller.code("nvmlDeviceGetMinorNumber", second) == SUCCESS
    caller.clock.forward(6)
    assert caller.code("nvmlDeviceGetPowerUsage", second) == SUCCESS


def test_a_lost_gpu_answers_nothing_and_is_not_found() -> None:
    """Every call on it says so, and so does looking for it; reset, it counts anew."""
    caller = Caller(uniform("h100-80gb-hbm3", 2))
    caller.clock.forward(60)
    before = caller.field(caller.handles[1], ENERGY)
    caller.driver.lose(1)

    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[1]) == GPU_IS_LOST
    assert caller.calls["nvmlGpmSampleGet"](caller.handles[1], caller.sample()) == GPU_IS_LOST
    assert caller.handle(1).value is None
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == SUCCESS
    caller.driver.recover(1)
    assert caller.field(caller.handles[1], ENERGY) < before / 10


def test_a_gpu_is_taken_out_and_put_back() -> None:
    """The session that is open finds it lost, the next does not list it, and the one after its return does."""
    caller = Caller(uniform("h100-80gb-hbm3", 3))
    caller.driver.remove(1)
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[1]) == GPU_IS_LOST

    caller.calls["nvmlShutdown"]()
    caller.open()
    assert len(caller.handles) == 2
    caller.driver.add(1)
    caller.calls["nvmlShutdown"]()
    caller.open()
    assert len(caller.handles) == 3


def test_a_gpu_that_needs_a_reset() -> None:
    """Every call gets the code, also looking for it by its index."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    caller.driver.set_down(0, RESET_REQUIRED)

    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == RESET_REQUIRED
    out = (ctypes.c_void_p * 1)()
    assert caller.calls["nvmlDeviceGetHandleByIndex_v2"](0, out) == RESET_REQUIRED
    caller.driver.set_down(0, SUCCESS)
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == SUCCESS


def test_the_driver_is_unloaded_and_loaded_again() -> None:
    """Calls and init say that it is not loaded; loaded, it wants a new session; counters start at zero."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    caller.clock.forward(100)
    energy = caller.field(caller.handles[0], ENERGY)

    caller.driver.unload()
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == DRIVER_NOT_LOADED
    assert caller.calls["nvmlInitWithFlags"](0) == DRIVER_NOT_LOADED
    caller.driver.load()
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == UNINITIALIZED
    old = caller.handles[0]
    caller.open()
    assert caller.code("nvmlDeviceGetMinorNumber", old) == INVALID_ARGUMENT
    caller.clock.forward(1)
    assert caller.field(caller.handles[0], ENERGY) < energy / 10


def test_a_scheduled_restart_is_one() -> None:
    """In its time the driver is away; afterwards the old session is void, on every GPU."""
    caller = Caller(uniform("h100-80gb-hbm3", 2), restarts=[Window(10 * SECOND, 20 * SECOND)])

    caller.clock.forward(15)
    assert {caller.code("nvmlDeviceGetMinorNumber", handle) for handle in caller.handles} == {DRIVER_NOT_LOADED}
    assert caller.calls["nvmlInitWithFlags"](0) == DRIVER_NOT_LOADED
    caller.clock.forward(10)
    assert {caller.code("nvmlDeviceGetMinorNumber", handle) for handle in caller.handles} == {UNINITIALIZED}
    caller.open()
    assert caller.field(caller.handles[0], ENERGY) < 10_000_000
    caller.clock.forward(10)
    assert caller.code("nvmlDeviceGetMinorNumber", caller.handles[0]) == SUCCESS


def test_an_xid_is_told_once_to_whoever_waits() -> None:
    """The event names the GPU by the handle of the registration, and its number."""
    caller = Caller(uniform("h100-80gb-hbm3", 2))
    waiting, bystander = caller.event_set(), caller.event_set()
    for handle in caller.handles:
        assert caller.register(handle, XID, waiting) == SUCCESS
    assert caller.register(caller.handles[0], MIG_CHANGE, bystander) == SUCCESS

    caller.driver.inject_xid(1, 31)
    assert caller.wait(waiting) == (SUCCESS, (caller.handles[1].value, XID, 31))
    assert caller.wait(waiting)[0] == TIMEOUT
    assert caller.wait(bystander)[0] == TIMEOUT


def test_an_event_wakes_a_waiter() -> None:
    """A wait of a minute ends as soon as something happens."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    waiting = caller.event_set()
    caller.register(caller.handles[0], XID, waiting)
    found: list[tuple[int, tuple[int, int, int]]] = []
    thread = threading.Thread(target=lambda: found.append(caller.wait(waiting, 60_000)), daemon=True)
    thread.start()
    caller.driver.inject_xid(0, 94)

    thread.join(10)
    assert found == [(SUCCESS, (caller.handles[0].value, XID, 94))]


def test_events_from_before_the_registration_are_gone() -> None:
    """Delivery is edge-only, as in the real driver: nobody is told what happened before."""
    caller = troubled(Troubles(xids=(ScheduledXid(31, 5 * SECOND), ScheduledXid(48, 50 * SECOND))))
    caller.driver.inject_xid(0, 13)
    caller.clock.forward(10)
    waiting = caller.event_set()
    for handle in caller.handles:
        caller.register(handle, XID, waiting)

    assert caller.wait(waiting)[0] == TIMEOUT
    caller.clock.forward(60)
    assert caller.wait(waiting) == (SUCCESS, (caller.handles[1].value, XID, 48))
    assert caller.wait(waiting)[0] == TIMEOUT


def test_a_scheduled_xid_comes_again_in_each_round() -> None:
    """Where the scenario starts again, so do its Xids."""
    caller = troubled(Troubles(xids=(ScheduledXid(31, 5 * SECOND, period=60 * SECOND),)))
    waiting = caller.event_set()
    caller.register(caller.handles[1], XID, waiting)

    told = []
    for _ in range(4):
        caller.clock.forward(30)
        told.append(caller.wait(waiting)[0])
    assert told == [SUCCESS, TIMEOUT, SUCCESS, TIMEOUT]


def test_a_lost_gpu_makes_the_wait_return_at_once_and_every_time() -> None:
    """The known trap: who does not pause after GPU_IS_LOST spins. What was reported before it is lost comes first."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    waiting = caller.event_set()
    caller.register(caller.handles[0], XID, waiting)
    caller.driver.inject_xid(0, 79)
    caller.driver.lose(0)

    codes = [caller.wait(waiting, 60_000)[0] for _ in range(3)]
    assert codes == [SUCCESS, GPU_IS_LOST, GPU_IS_LOST]


def test_what_event_calls_refuse() -> None:
    """A type that the driver lacks is refused whole; a set that was freed is no set any more."""
    caller = Caller(uniform("h100-80gb-hbm3", 1), driver_version="550.54.15")
    waiting = caller.event_set()

    assert caller.number("nvmlDeviceGetSupportedEventTypes", caller.handles[0], size=8) == (SUCCESS, 0x10F)
    assert caller.register(caller.handles[0], XID | 0x8000, waiting) == NOT_SUPPORTED
    caller.driver.inject_xid(0, 31)
    assert caller.wait(waiting)[0] == TIMEOUT
    assert caller.calls["nvmlEventSetFree"](waiting) == SUCCESS
    assert caller.wait(waiting)[0] == INVALID_ARGUMENT
    assert caller.register(caller.handles[0], XID, waiting) == INVALID_ARGUMENT


def test_a_shutdown_ends_a_wait() -> None:
    """Whoever waits when the session ends is told so, or quiesce would take a minute."""
    caller = Caller(uniform("h100-80gb-hbm3", 1))
    waiting = caller.event_set()
    caller.register(caller.handles[0], XID, waiting)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(caller.wait(waiting, 60_000)[0]), daemon=True)
    thread.start()
    until(thread.is_alive, "the waiter runs")
    caller.calls["nvmlShutdown"]()

    thread.join(10)
    assert codes == [UNINITIALIZED]


def test_errors_are_counted_where_they_belong() -> None:
    """ECC, remapped rows, recovery action and link errors appear in their fields, from when they happen."""
    troubles = Troubles(
        tallies=(
            Tally("ecc_correctable_dram", 10 * SECOND, per_hour=3600),
            Tally("ecc_uncorrectable_sram", 10 * SECOND, once=2),
            Tally("remap_uncorrectable", 10 * SECOND, once=1),
            Tally("nvlink_replay", 10 * SECOND, per_hour=3600, link=7),
        ),
        conditions=(
            Condition("remap_pending", Window(10 * SECOND, 40 * SECOND)),
            Condition("recovery_action", Window(10 * SECOND, 40 * SECOND), 1),
            Condition("links_down", Window(10 * SECOND), 2),
        ),
        lifetime=(("ecc_correctable_dram", 100),),
    )
    caller = troubled(troubles)
    handle = caller.handles[1]
    wanted = [(11, 0), (22, 0), (4, 0), (143, 0), (144, 0), (230, 0), (161, 7), (161, 6), (52, 0), (165, 1), (165, 2)]

    assert [value for _, value in caller.fields(handle, *wanted)] == [0, 100, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    caller.clock.forward(20)
    assert [value for _, value in caller.fields(handle, *wanted)] == [10, 110, 2, 1, 1, 1, 10, 0, 10, 0, 1]
    caller.clock.forward(30)
    assert [value for _, value in caller.fields(handle, *wanted)] == [40, 140, 2, 1, 0, 0, 40, 0, 40, 0, 1]
    caller.driver.restart()
    caller.open()
    after = [value for _, value in caller.fields(caller.handles[1], *wanted)]
    assert after == [0, 140, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert caller.fields(caller.handles[0], (161, ALL_LINKS))[0][0] == NOT_SUPPORTED


@pytest.mark.parametrize("time", [0, 5, 999, 10_000, 123_456])
def test_windows_of_a_story_that_repeats(time: int) -> None:
    """Begin, end and what is left agree with each other in every round."""
    window = Window(200, 500, period=1000)
    local = time % 1000

    assert window.holds(time) == (200 <= local < 500)
    following = window.next_start(time)
    assert following is not None
    assert following > time
    assert following % 1000 == 200
    last = window.last_end(time)
    assert last is None or (last <= time and last % 1000 == 500)
