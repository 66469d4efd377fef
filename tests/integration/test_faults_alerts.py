"""From a line of the kernel's log to an alert in a real Alertmanager: how soon, how many, and for how long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpufleet.collect.control import ask
from gpufleet.sources.nvml.calls import GPU_IS_LOST
from tests.integration.alertmanager_server import AlertmanagerServer
from tests.integration.conftest import Monitoring
from tests.integration.exporter_process import ExporterProcess
from tests.integration.faulty_node import FaultyNode, wait_for_replay, wait_for_roots
from tests.integration.test_direct_path import replica
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_layout import SYSTEM
from tests.support.kmsg_records import RecordFile
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

AT_ONCE = (79, 64, 95, 119, 62, 143)
LIMIT_SECONDS = 2.0
"""The promise is one second; a busy machine that runs tests has as much again."""


@pytest.fixture
def node(fake_nvml: FakeNvml, alertmanager: AlertmanagerServer, tmp_path: Path) -> FaultyNode:
    """Eight H100 that are polled each second, and an exporter that tells Alertmanager itself."""
    fake_nvml.set_gpus(8)
    os.mkfifo(tmp_path / "kmsg")
    flags = (f"--alertmanager.url={alertmanager.url}", "--alertmanager.label=cluster=east-1")
    return FaultyNode(fake_nvml, tmp_path, RecordFile(tmp_path / "kmsg"), flags)


@pytest.fixture
def exporter(node: FaultyNode) -> Iterator[ExporterProcess]:
    """The exporter, once it shows everything and Alertmanager has answered it."""
    with node.start() as running:
        wait_for_replay(running)
        running.wait_for(r"^gpufleet_alertmanager_up\{[^}]*\} 1")
        yield running


def seconds_to_alert(alertmanager: AlertmanagerServer, gpu: int, fault: str) -> float:
    """Wait from now on until a fault of a GPU is an open alert."""
    begun = time.monotonic()

    def there() -> bool:
        labels = [alert["labels"] for alert in alertmanager.alerts()]
        return any((each.get("gpu"), each["fault"]) == (str(gpu), fault) for each in labels)

    until(there, f"the alert of {fault} of GPU {gpu}", every=0.005)
    return time.monotonic() - begun


def test_what_is_shown_at_once_is_an_alert_within_a_second(
    node: FaultyNode,
    exporter: ExporterProcess,
    alertmanager: AlertmanagerServer,
) -> None:
    """Each line by itself, and a GPU that is lost without one, which ends the wait for events and is seen by a poll."""
    assert exporter.process.poll() is None
    took: dict[str, float] = {}
    for gpu, code in enumerate(AT_ONCE):
        node.xid(code, gpu)
        took[str(code)] = seconds_to_alert(alertmanager, gpu, str(code))
    node.fake.lose(7)
    node.fake.set_return("nvmlEventSetWait_v2", SYSTEM, GPU_IS_LOST)
    took["gpu_lost"] = seconds_to_alert(alertmanager, 7, "gpu_lost")
    print(", ".join(f"{fault}: {1000 * seconds:.0f} ms" for fault, seconds in took.items()))
    assert max(took.values()) < LIMIT_SECONDS, took
    assert len(alertmanager.alerts()) == len(took)


def test_a_driver_that_hangs_delays_no_alert(
    node: FaultyNode, exporter: ExporterProcess, alertmanager: AlertmanagerServer
) -> None:
    """Every call on every GPU is stuck, polls time out, and nothing waits for them."""
    node.fake.hang(None, None)
    for gpu in range(8):
        node.fake.wait_until_stuck(gpu)
    node.xid(119, 5)
    assert seconds_to_alert(alertmanager, 5, "119") < LIMIT_SECONDS
    node.fake.release()
    assert exporter.process.poll() is None


@pytest.mark.parametrize("how", ["cleared", "reset"])
def test_an_alert_ends_with_its_incident(
    how: str, node: FaultyNode, exporter: ExporterProcess, alertmanager: AlertmanagerServer
) -> None:
    """Whether a person says so, or the driver."""
    node.xid(119, 5)
    node.xid(154, 5, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    node.xid(95, 2)
    seconds_to_alert(alertmanager, 5, "119")
    seconds_to_alert(alertmanager, 2, "95")
    if how == "cleared":
        reply = ask(exporter.control, "clear", seconds=10, incident=incident_of(alertmanager, "119"))
        assert reply["cleared"] is True
    else:
        node.xid(154, 5, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    begun = time.monotonic()
    until(
        lambda: [each["labels"]["fault"] for each in alertmanager.alerts()] == ["95"], "its alert is over", every=0.01
    )
    assert time.monotonic() - begun < LIMIT_SECONDS
    wait_for_roots(exporter, ("2", "95"))


def incident_of(alertmanager: AlertmanagerServer, fault: str) -> str:
    """The incident of the one alert with this root."""
    (name,) = [each["labels"]["incident"] for each in alertmanager.alerts() if each["labels"]["fault"] == fault]
    return str(name)


def test_a_killed_exporter_ends_no_alert(
    node: FaultyNode, exporter: ExporterProcess, alertmanager: AlertmanagerServer
) -> None:
    """The next process goes on with it under the same name, and ends it when it is over."""
    node.xid(64, 5)
    seconds_to_alert(alertmanager, 5, "64")
    (before,) = alertmanager.alerts()
    exporter.process.kill()
    exporter.process.wait(30)
    received = alertmanager.received()
    with node.start() as another:
        until(lambda: alertmanager.received() > received, "the next process tells it again")
        (after,) = alertmanager.alerts()
        assert (after["labels"], after["startsAt"]) == (before["labels"], before["startsAt"])
        ask(another.control, "clear", seconds=10, incident=after["labels"]["incident"])
        until(lambda: alertmanager.alerts() == [], "its alert is over")


def test_the_exporter_and_two_prometheus_make_one_alert(
    node: FaultyNode,
    exporter: ExporterProcess,
    alertmanager: AlertmanagerServer,
    monitoring: Monitoring,
    tmp_path: Path,
) -> None:
    """The rule fires in both replicas on what they scrape, the exporter posts: for each incident there is one alert,
    with its node's name though the target has another, and after its end there is none.
    """
    with ExitStack() as running:
        pair = [
            running.enter_context(replica(monitoring, tmp_path, name, exporter.address, alertmanager.url))
            for name in ("a", "b")
        ]
        for each in pair:
            each.wait_until_up(1)
        node.xid(79, 3)
        node.xid(31, 1, "pid=7, name=python3, Ch 00000008")
        assert seconds_to_alert(alertmanager, 3, "79") < LIMIT_SECONDS
        (direct,) = alertmanager.alerts()
        firing = 'count(ALERTS{alertname="GpuHardwareIncident", alertstate="firing"})'
        until(lambda: [each.value(firing) for each in pair] == [1, 1], "the rule fires in both")
        until(lambda: alertmanager.received() >= 3, "all three have told it")
        (alert,) = alertmanager.alerts()
        assert (alert["labels"], alert["annotations"]) == (direct["labels"], direct["annotations"])
        assert (alert["labels"]["node"], alert["labels"]["cluster"]) == ("node-1", "east-1")
        ask(exporter.control, "clear", seconds=10, incident=alert["labels"]["incident"])
        until(lambda: [each.value("count(ALERTS)") for each in pair] == [None] * 2, "the rule is over in both")
        until(lambda: alertmanager.alerts() == [], "no alert is left")
