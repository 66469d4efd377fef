"""Each detector of the stand-in driver bites: what it reports as clean is clean."""

from __future__ import annotations

import ctypes
import time

import pytest

from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import SEVEN_SLICES
from tests.support.nvml_client import Aside, Client

MEMORY = "nvmlDeviceGetMemoryInfo"


@pytest.fixture
def client(fake_nvml: FakeNvml) -> Client:
    """A client with the library open on two H100."""
    fake_nvml.set_gpus(2)
    fake_nvml.control.gpm_spacing_ms = 0
    client = Client(fake_nvml)
    assert client.init() == 0
    return client


def test_a_clean_session_shows_no_misuse(fake_nvml: FakeNvml, client: Client) -> None:
    """Readings, GPM and events used as they should be, then everything freed and shut down."""
    handle = client.handle(0)
    samples = [client.new_sample(), client.new_sample()]
    events = client.event_set()
    client.field(handle, 186)
    for sample in samples:
        assert client.sample(handle, sample) == 0
    assert client.metrics(samples[0], samples[1], 2) == (0, [(0, 71.25)])
    assert client.calls["nvmlDeviceRegisterEvents"](handle, 8, events) == 0
    assert client.wait_event(events, 1)[0] == 10
    assert client.calls["nvmlEventSetFree"](events) == 0
    for sample in samples:
        assert client.calls["nvmlGpmSampleFree"](sample) == 0
    assert client.shutdown() == 0

    assert fake_nvml.misuse() == {}
    assert fake_nvml.control.samples_live == 0


def test_a_call_before_init(fake_nvml: FakeNvml) -> None:
    """Without init, or after shutdown, calls answer UNINITIALIZED."""
    fake_nvml.set_gpus(1)
    client = Client(fake_nvml)

    assert client.count()[0] == 1

    assert fake_nvml.misuse() == {"uninitialized_call": 1}


def test_a_shutdown_too_many(fake_nvml: FakeNvml, client: Client) -> None:
    """Each init allows one shutdown."""
    assert (client.shutdown(), client.shutdown()) == (0, 1)

    assert fake_nvml.misuse() == {"unbalanced_shutdown": 1}


def test_a_handle_from_before_a_shutdown(fake_nvml: FakeNvml, client: Client) -> None:
    """After a new init old handles are recognised."""
    handle = client.handle(0)
    client.shutdown()
    client.init()

    assert client.number("nvmlDeviceGetMinorNumber", handle)[0] == 2

    assert fake_nvml.misuse() == {"stale_handle": 1}


def test_a_handle_cut_to_32_bits(fake_nvml: FakeNvml, client: Client) -> None:
    """A handle that went through a C int is not the handle any more."""
    handle = ctypes.c_void_p((client.handle(0).value or 0) & 0xFFFFFFFF)

    assert client.number("nvmlDeviceGetMinorNumber", handle)[0] == 2
    assert client.number("nvmlDeviceGetMinorNumber", ctypes.c_void_p(None))[0] == 2

    assert fake_nvml.misuse() == {"bad_handle": 2}


def test_a_freed_sample(fake_nvml: FakeNvml, client: Client) -> None:
    """A freed sample is told from the one that got its place."""
    freed = client.new_sample()
    client.calls["nvmlGpmSampleFree"](freed)
    client.new_sample()

    assert client.sample(client.handle(0), freed) == 2
    assert client.calls["nvmlGpmSampleFree"](freed) == 2

    assert fake_nvml.misuse() == {"freed_sample": 2}


def test_samples_of_two_gpus(fake_nvml: FakeNvml, client: Client) -> None:
    """Metrics come from two samples of one entity, the older first."""
    one, other = client.new_sample(), client.new_sample()
    client.sample(client.handle(0), one)
    client.sample(client.handle(1), other)
    assert client.metrics(one, other, 2)[0] == 2
    client.sample(client.handle(0), other)
    assert client.metrics(other, one, 2)[0] == 2
    assert client.metrics(one, one, 2)[0] == 2

    assert fake_nvml.misuse() == {"mismatched_samples": 3}


def test_samples_of_two_slices(fake_nvml: FakeNvml, client: Client) -> None:
    """Each slice has samples of its own."""
    fake_nvml.set_mig(0, SEVEN_SLICES)
    samples = [client.new_sample(), client.new_sample()]
    for sample, instance in zip(samples, (7, 8), strict=True):
        assert client.calls["nvmlGpmMigSampleGet"](client.handle(0), instance, sample) == 0

    assert client.metrics(samples[0], samples[1], 2)[0] == 2

    assert fake_nvml.misuse() == {"mismatched_samples": 1}


def test_samples_from_before_a_partitioning_are_refused(fake_nvml: FakeNvml, client: Client) -> None:
    """A sample of a former slice is not one of the slice that has its number now; but nobody can know that in time."""
    samples = [client.new_sample(), client.new_sample()]
    for sample in samples:
        fake_nvml.set_mig(0, SEVEN_SLICES)
        assert client.calls["nvmlGpmMigSampleGet"](client.handle(0), 7, sample) == 0

    assert client.metrics(samples[0], samples[1], 2)[0] == 2

    assert fake_nvml.misuse() == {}


def test_a_sample_freed_while_a_call_has_it(fake_nvml: FakeNvml, client: Client) -> None:
    """The driver still writes into a sample whose call hangs."""
    sample = client.new_sample()
    fake_nvml.hang("nvmlGpmSampleGet", 0)
    stuck = Aside(client.sample, client.handle(0), sample)
    fake_nvml.wait_until_stuck(0)

    client.calls["nvmlGpmSampleFree"](sample)

    assert fake_nvml.misuse() == {"sample_in_use": 1}
    fake_nvml.release()
    stuck.done()


def test_gpm_from_two_threads(fake_nvml: FakeNvml, client: Client) -> None:
    """Two GPM calls at once are the crash that gpud met."""
    samples = [client.new_sample(), client.new_sample()]
    fake_nvml.delay("nvmlGpmSampleGet", 0, 300_000)
    slow = Aside(client.sample, client.handle(0), samples[0])
    fake_nvml.wait_until(lambda: fake_nvml.control.out[0] > 0)

    client.sample(client.handle(1), samples[1])

    assert fake_nvml.misuse() == {"gpm_parallel": 1}
    slow.done()


def test_gpm_beside_a_stuck_call_is_no_misuse(fake_nvml: FakeNvml, client: Client) -> None:
    """A call stuck in the kernel computes nothing: the rest may go on with another thread."""
    samples = [client.new_sample(), client.new_sample()]
    fake_nvml.hang("nvmlGpmSampleGet", 0)
    stuck = Aside(client.sample, client.handle(0), samples[0])
    fake_nvml.wait_until_stuck(0)

    assert client.sample(client.handle(1), samples[1]) == 0

    fake_nvml.release()
    stuck.done()
    assert fake_nvml.misuse() == {}


def test_a_shutdown_while_a_call_is_out(fake_nvml: FakeNvml, client: Client) -> None:
    """The library is not shut down under a call."""
    fake_nvml.hang(MEMORY, 0)
    stuck = Aside(client.calls[MEMORY], client.handle(0), (ctypes.c_char * 24)())
    fake_nvml.wait_until_stuck(0)

    client.shutdown()

    assert fake_nvml.misuse() == {"shutdown_during_call": 1}
    fake_nvml.release()
    assert stuck.done() == 1


def test_what_is_not_freed_before_the_last_shutdown(fake_nvml: FakeNvml, client: Client) -> None:
    """Samples and event sets go first."""
    client.new_sample()
    client.event_set()
    client.event_set()

    client.shutdown()

    assert fake_nvml.misuse() == {"samples_left": 1, "event_sets_left": 2}


def test_an_event_set_after_its_end(fake_nvml: FakeNvml, client: Client) -> None:
    """A freed set, and one from before a shutdown, are recognised."""
    freed, forgotten = client.event_set(), client.event_set()
    client.calls["nvmlEventSetFree"](freed)
    assert client.wait_event(freed, 1)[0] == 2
    client.shutdown()
    client.init()
    assert client.wait_event(forgotten, 1)[0] == 2

    assert fake_nvml.misuse() == {"stale_event_set": 2, "event_sets_left": 1}


def test_an_event_set_freed_under_its_waiter(fake_nvml: FakeNvml, client: Client) -> None:
    """The waiter stops before the set is freed."""
    events = client.event_set()
    waiter = Aside(client.wait_event, events, 300)
    fake_nvml.wait_until(lambda: fake_nvml.counts().get(("nvmlEventSetWait_v2", None)) == 1)
    # Counted at its beginning; it has the set a moment later.
    time.sleep(0.02)

    client.calls["nvmlEventSetFree"](events)

    assert fake_nvml.misuse() == {"set_freed_during_wait": 1}
    waiter.done()


def test_a_buffer_that_a_stuck_call_still_has(fake_nvml: FakeNvml, client: Client) -> None:
    """A late answer is written into the buffer: no other call may have been given it."""
    buffer = (ctypes.c_char * 24)()
    fake_nvml.hang(MEMORY, 0)
    stuck = Aside(client.calls[MEMORY], client.handle(0), buffer)
    fake_nvml.wait_until_stuck(0)

    client.calls[MEMORY](client.handle(1), buffer)

    assert fake_nvml.misuse()["buffer_in_use"] == 1
    fake_nvml.release()
    stuck.done()


def test_a_further_call_on_a_gpu_with_one_stuck(fake_nvml: FakeNvml, client: Client) -> None:
    """A GPU that does not answer is left alone; a second stuck call on it shows in the highest number at once."""
    handles = [client.handle(0), client.handle(1)]
    fake_nvml.hang(MEMORY, 0)
    stuck = [Aside(client.calls[MEMORY], handles[0], (ctypes.c_char * 24)()) for _ in range(2)]
    fake_nvml.wait_until(lambda: fake_nvml.stuck(0) == 2)

    client.uuid(handles[1])

    assert fake_nvml.misuse() == {"call_while_stuck": 1}
    assert list(fake_nvml.control.misuse.call_while_stuck[:2]) == [1, 0]
    assert list(fake_nvml.control.max_stuck[:2]) == [2, 0]
    fake_nvml.release()
    for each in stuck:
        each.done()


@pytest.mark.parametrize(
    ("function", "size", "version"),
    [
        ("nvmlDeviceGetMemoryInfo_v2", 40, 0x01000028),
        ("nvmlDeviceGetTemperatureV", 12, 0),
        ("nvmlDeviceGetMarginTemperature", 8, 0),
        ("nvmlDeviceGetSramEccErrorStatus", 104, 0),
        ("nvmlDeviceGetGpuFabricInfoV", 40, 0x01000028),
        ("nvmlGpmQueryDeviceSupport", 8, 0x01000008),
    ],
)
def test_a_struct_without_its_version(
    fake_nvml: FakeNvml, client: Client, function: str, size: int, version: int
) -> None:
    """A version word that the driver does not know is refused with 25, and nothing is written."""
    buffer = (ctypes.c_uint32 * (size // 4))(version, *[0x55555555] * (size // 4 - 1))
    before = bytes(buffer)

    assert client.calls[function](client.handle(0), buffer) == 25

    assert bytes(buffer) == before
    assert fake_nvml.wrong_versions() == 1
    assert fake_nvml.misuse() == {}
