"""What users of other exporters go through when the driver restarts, is missing, hangs, or is to be let alone."""

from __future__ import annotations

import gc
import logging
import os
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpufleet.collect.options import World
from tests.acceptance.scraped import Scraped, scraped
from tests.support.fake_nvml import FakeNvml
from tests.support.poller_rig import OPTIONS, world_of

GPUS = 8


def driver_readings(node: Scraped) -> int:
    """Series that only the driver can give."""
    return sum(
        name in {"gpu_power_watts", "gpu_temperature_celsius", "gpu_sm_active_ratio"} for name, _ in node.scrape()
    )


def test_a_driver_that_restarts_is_never_answered_with_old_values_and_comes_back_by_itself(fake_nvml: FakeNvml) -> None:
    """Away for a minute: down, not ready, no reading of before; back: everything within one interval."""
    fake_nvml.set_gpus(GPUS)
    with scraped(fake_nvml) as node:
        whole = {gpu: node.names_of(gpu) for gpu in range(GPUS)}
        assert node.ready().ok
        fake_nvml.unload_driver()
        for _ in range(60):
            node.poll()
            assert (node.value("gpufleet_nvml_up"), node.state("gpufleet_nvml_state")) == (0, "no_driver")
            assert driver_readings(node) == 0
            assert node.values("gpu_up") == [0] * GPUS
            assert not node.ready().ok
            assert node.healthy().ok

        fake_nvml.load_driver()
        node.poll()

        assert node.value("gpufleet_nvml_up") == 1
        assert node.values("gpu_up") == [1] * GPUS
        assert node.ready().ok
        node.poll()
        assert {gpu: node.names_of(gpu) for gpu in range(GPUS)} == whole


@pytest.mark.parametrize(
    ("spoil", "state"),
    [
        (lambda fake: fake.unload_driver(), "no_driver"),
        (lambda fake: fake.fail_init(18), "mismatch"),
        (lambda fake: fake.fail_init(4), "no_permission"),
        (lambda fake: fake.set_gpus(0), "no_driver"),
    ],
    ids=["no driver", "mismatch", "no permission", "no GPU"],
)
def test_without_a_usable_driver_it_stays_up_and_says_why(
    fake_nvml: FakeNvml, spoil: Callable[[FakeNvml], None], state: str
) -> None:
    """No crash loop: alive, not ready, one series that says so, and nothing that looks like a GPU."""
    fake_nvml.set_gpus(GPUS)
    spoil(fake_nvml)
    with scraped(fake_nvml) as node:
        assert (node.value("gpufleet_nvml_up"), node.state("gpufleet_nvml_state")) == (0, state)
        assert node.healthy().ok
        assert not node.ready().ok
        assert node.values("gpu_up") == node.values("gpu_info") == []


def test_without_a_library_it_stays_up_and_takes_the_one_that_comes(fake_nvml: FakeNvml) -> None:
    """A container that was not given the driver's files, or a node whose driver is installed later."""
    fake_nvml.set_gpus(1)
    aside = fake_nvml.library.with_suffix(".aside")
    fake_nvml.library.rename(aside)
    with scraped(fake_nvml) as node:
        assert (node.value("gpufleet_nvml_up"), node.state("gpufleet_nvml_state")) == (0, "no_library")
        assert node.healthy().ok
        assert not node.ready().ok

        aside.rename(fake_nvml.library)
        node.poll()
        assert (node.value("gpufleet_nvml_up"), node.values("gpu_up")) == (1, [1])


def test_a_quiesced_exporter_holds_nothing_and_still_answers(fake_nvml: FakeNvml) -> None:
    """For a reset, a new cut or an upgrade: no device file of the driver is open, scrapes go on, a resume restores."""
    fake_nvml.set_gpus(GPUS)
    with scraped(fake_nvml) as node:
        whole = {gpu: node.names_of(gpu) for gpu in range(GPUS)}
        assert len(fake_nvml.open_files(os.getpid())) == GPUS + 1
        assert node.rig.quiesce().ok

        assert fake_nvml.open_files(os.getpid()) == []
        assert node.value("gpufleet_quiesced") == 1
        assert driver_readings(node) == 0
        assert node.values("gpu_info") == [1] * GPUS
        # Neither up nor down: nobody is called up for what was asked for.
        assert node.values("gpu_up") == []
        assert node.healthy().ok

        node.rig.poller.resume()
        node.poll(2)
        assert node.value("gpufleet_quiesced") == 0
        assert {gpu: node.names_of(gpu) for gpu in range(GPUS)} == whole


def test_a_gpu_may_sleep_while_the_exporter_is_quiesced(fake_nvml: FakeNvml) -> None:
    """An open handle alone keeps a GPU awake: none is open, and no call is made for as long as it lasts."""
    fake_nvml.set_gpus(2)
    with scraped(fake_nvml) as node:
        assert node.rig.quiesce().ok
        fake_nvml.reset_counts()
        node.poll(120)
        assert node.scrape()
        assert fake_nvml.counts() == {}
        assert fake_nvml.open_files() == []


def test_a_call_that_never_returns_is_made_once_whoever_scrapes(fake_nvml: FakeNvml) -> None:
    """Three Prometheus servers scrape: each is answered from the last snapshot, none adds a call to the driver."""
    fake_nvml.set_gpus(GPUS)
    with scraped(fake_nvml) as node:
        fake_nvml.hang("nvmlDeviceGetFieldValues", 2)
        node.poll(2)
        fake_nvml.reset_counts()
        bodies: list[bytes] = []
        servers = [
            threading.Thread(target=lambda: bodies.extend(node.exposition.body() for _ in range(50))) for _ in range(3)
        ]
        for server in servers:
            server.start()
        for server in servers:
            server.join(30)

        assert len(bodies) == 150
        assert len(set(bodies)) == 1
        assert fake_nvml.counts() == {}
        assert node.state("gpu_state", uuid=fake_nvml.uuid(2)) == "hung"
        node.poll(20)
        assert fake_nvml.stuck(2) == 1
        assert fake_nvml.calls_of(2) == 0


def test_memory_stays_flat_over_hundreds_of_polls(fake_nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    """Errors, losses and restarts among them; what is scraped included."""
    caplog.set_level(logging.CRITICAL + 1, logger="gpufleet")  # the test's own memory of the log grows with it
    fake_nvml.set_gpus(2)
    with scraped(fake_nvml, replace(OPTIONS, medium_seconds=2.0, slow_seconds=4.0)) as node:

        def a_hundred_polls() -> None:
            for turn in range(20):
                node.poll(5)
                node.exposition.body()
                node.rig.history.clear()
                if turn % 5 == 0:
                    fake_nvml.restart_driver()
                fake_nvml.lose(1, 15 if turn % 4 == 3 else 0)
                fake_nvml.set_return("nvmlDeviceGetMemoryInfo_v2", 0, 999 if turn % 3 == 0 else 0)
            fake_nvml.lose(1, 0)
            node.poll(35)
            node.rig.history.clear()
            gc.collect()

        for _ in range(2):
            a_hundred_polls()
        tracemalloc.start()
        try:
            a_hundred_polls()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(3):
                a_hundred_polls()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()

    assert grown < 40_000, f"{grown} bytes in 400 polls"


def test_a_scrape_touches_neither_driver_nor_files(fake_nvml: FakeNvml) -> None:
    """Its time is the text's alone, whatever the driver's calls take."""
    fake_nvml.set_gpus(GPUS)
    touched: list[str] = []
    surroundings = world_of(fake_nvml)

    def noting(name: str) -> Callable[[], object]:
        original: Callable[[], object] = getattr(surroundings, name)

        def call() -> object:
            touched.append(name)
            return original()

        return call

    noted: dict[str, Callable[[], object]] = {
        name: noting(name) for name in ("kernel_gpus", "driver_loaded", "open_device_files", "can_open_devices")
    }
    world: World = replace(surroundings, **noted)  # type: ignore[arg-type]
    with scraped(fake_nvml, world=world) as node:
        node.exposition.body()
        fake_nvml.reset_counts()
        touched.clear()
        for openmetrics in (False, True):
            for gzip in (False, True):
                node.exposition.body(openmetrics=openmetrics, gzip=gzip)
        assert fake_nvml.counts() == {}
        assert touched == []
