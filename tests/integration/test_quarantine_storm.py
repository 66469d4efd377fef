"""A whole fleet that alerts at once, at a real API server: answered in time, within the budget, by few writes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.kubernetes_api import KubernetesApi
from tests.integration.quarantine_process import QuarantineProcess
from tests.integration.test_quarantine_serve import Rig, kubernetes
from tests.support.quarantined import incident, payload

__all__ = ["kubernetes"]

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

NODES = 2048
ANSWER_SECONDS = 15.0
"""The peer of a highly available Alertmanager sends the same alert after so long."""
MEMORY_MIB = 150


@pytest.fixture(scope="module")
def fleet(kubernetes: KubernetesApi) -> KubernetesApi:
    """2,048 nodes with GPUs."""
    status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}

    def make(number: int) -> None:
        name = f"n{number}"
        kubernetes.create_node(name, {})
        kubernetes.request(
            "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind="application/merge-patch+json"
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(NODES)))
    return kubernetes


@pytest.fixture
def rig(fleet: KubernetesApi, tmp_path: Path) -> Rig:
    """With the default budget and breaker, and a ledger of the test's own."""
    made = Rig(fleet, tmp_path)
    made.policy.write_text("mode: act\nledger: {namespace: gpufleet}\n")
    return made


@pytest.fixture
def service(rig: Rig, tmp_path: Path) -> Iterator[QuarantineProcess]:
    """The service."""
    with QuarantineProcess(tmp_path / "service", rig.policy, f"--kubeconfig={rig.kubeconfig}") as running:
        yield running


def peak_mib(service: QuarantineProcess) -> float:
    """The most memory that the process has had."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_a_fleet_that_alerts_at_once(rig: Rig, service: QuarantineProcess) -> None:
    """First as one payload of a megabyte, then as Alertmanager sends it: each incident by itself, all at once."""
    since = time.time()
    told = [incident(10**6 + number, f"n{number}", since=since) for number in range(NODES)]
    whole = payload(told)
    assert len(whole) > 10**6
    begin = time.monotonic()
    status, text = service.ask("/v1/alerts", whole)
    first = time.monotonic() - begin
    assert (status, text) == (200, "2 quarantine (isolate), 2046 defer (breaker)\n")

    again = [incident(10**7 + number, f"n{number}", since=since) for number in range(NODES)]

    def ask(number: int) -> float:
        asked = time.monotonic()
        status, _ = service.ask("/v1/alerts", payload([again[number]]))
        assert status == 200
        return time.monotonic() - asked

    before = _writes(service)
    begin = time.monotonic()
    with ThreadPoolExecutor(256) as pool:
        took = sorted(pool.map(ask, range(NODES)))
    whole_time = time.monotonic() - begin
    audit = [json.loads(line) for line in service.audit.read_text().splitlines()]
    marked = {line["target"] for line in audit if line["event"] == "intent" and line["action"] == "cordon"}

    writes = _writes(service) - before

    print(
        f"one payload of {len(whole) / 1e6:.2f} MB: {first:.2f} s; {NODES} payloads in {whole_time:.1f} s, the slowest "
        f"{took[-1]:.2f} s; {peak_mib(service):.0f} MiB; {writes:.0f} writes; "
        f"ledger {len(json.dumps(_ledger(rig))) / 1024:.0f} KiB"
    )
    assert first < ANSWER_SECONDS
    assert took[-1] < ANSWER_SECONDS
    assert 0 < writes <= whole_time + 1
    assert peak_mib(service) < MEMORY_MIB
    time.sleep(2)
    nodes = rig.api.request("GET", "/api/v1/nodes")["items"]
    assert sum(each["spec"].get("unschedulable") is True for each in nodes) == 2
    assert len(marked) == 2
    assert "gpufleet_quarantine_breaker_open 1.0" in service.ask("/metrics")[1]


def _writes(service: QuarantineProcess) -> float:
    return float(service.ask("/metrics")[1].partition("\ngpufleet_quarantine_ledger_writes_total ")[2].split()[0])


def _ledger(rig: Rig) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = rig.api.request(
        "GET", "/api/v1/namespaces/gpufleet/configmaps/gpufleet-quarantine"
    )
    return found
