"""The exporter with a kubelet that speaks gRPC, Slurm's files and a price book: holders, and what they cost."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.exporter_process import ExporterProcess
from tests.support.api_server import ScriptedApi, pod_object
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_profiles import SEVEN_SLICES
from tests.support.kubelet import Kubelet, PodOnNode, busy_node, pod_with
from tests.support.pems import write_pems
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

GPUS = 4
Sample = tuple[dict[str, str], float]


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    """One that lists no pods yet."""
    directory = tmp_path / "pod-resources"
    directory.mkdir()
    with Kubelet(directory) as running:
        yield running


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Every GPU costs 3.60 an hour: a thousandth a second."""
    file = tmp_path / "prices.yml"
    file.write_text("currency: EUR\nrules:\n  - {name: all, per_hour: 3.60}\n", encoding="utf-8")
    return file


class Node(ExporterProcess):
    """The exporter, asked by family."""

    def samples(self, family: str) -> list[Sample]:
        """Labels and values of the series of that name."""
        return [
            (dict(sample.labels), float(sample.value))
            for metric in text_string_to_metric_families(self.metrics())
            for sample in metric.samples
            if sample.name == family
        ]

    def holders(self) -> dict[str, list[str]]:
        """Pods, or projects where there is no pod, by number of the GPU."""
        found: dict[str, list[str]] = {}
        for labels, _ in self.samples("gpu_owner_share"):
            found.setdefault(labels["gpu"], []).append(labels.get("workload_pod") or labels["project"])
        return {gpu: sorted(names) for gpu, names in found.items()}

    def wait_for_holders(self, expected: dict[str, list[str]]) -> None:
        """Wait until they are so."""
        seen: list[dict[str, list[str]]] = []

        def same() -> bool:
            seen[:] = [self.holders()]
            return seen[0] == expected

        try:
            until(same, "holders", seconds=60)
        except TimeoutError:
            assert seen[0] == expected

    def totals(self, family: str) -> dict[tuple[str, str, str], float]:
        """By GPU, project and run."""
        return {
            (labels["gpu"], labels["project"], labels.get("run", "")): value for labels, value in self.samples(family)
        }


def exporter(
    nvml: FakeNvml, directory: Path, *flags: str, api: str = "none", environ: Mapping[str, str] | None = None
) -> Node:
    """One that polls and asks quickly."""
    quick = ("--poll.interval=200ms", "--owners.interval=1s", f"--kubernetes.api-server={api}")
    return Node(nvml, directory, *quick, *flags, environ=environ)


def given(nvml: FakeNvml, *names: str) -> list[PodOnNode]:
    """The first GPUs to a pod each."""
    return [pod_with("ml", name, nvml.uuid(number)) for number, name in enumerate(names)]


def device_series(exposition: str) -> set[str]:
    """Names and labels of everything that the driver reports."""
    ours = ("gpu_owner", "gpu_allocated", "gpu_productive", "gpu_cost", "gpu_unused", "gpu_clock_event_seconds")
    return {
        line.rpartition(" ")[0]
        for line in exposition.splitlines()
        if line.startswith("gpu_") and not line.startswith(ours)
    }


def test_each_gpu_has_its_holder_and_its_cost(
    fake_nvml: FakeNvml, tmp_path: Path, kubelet: Kubelet, prices: Path
) -> None:
    """From the kubelet's list to money; whoever holds nothing any more is gone at the next refresh, its totals stay."""
    fake_nvml.set_gpus(GPUS)
    kubelet.list_pods(given(fake_nvml, "a", "b"))
    flags = (f"--podresources.socket={kubelet.socket}", f"--prices.file={prices}")
    with exporter(fake_nvml, tmp_path, *flags) as node:
        node.wait_for_holders({"0": ["a"], "1": ["b"], "2": ["(unallocated)"], "3": ["(unallocated)"]})
        until(lambda: node.totals("gpu_cost_total").get(("0", "ml", "a"), 0.0) > 0.001, "it costs")
        # Of one exposition: the sums were made by one poll.
        families = {
            family: {
                (sample.labels["gpu"], sample.labels.get("run", "")): sample.value
                for metric in text_string_to_metric_families(body)
                for sample in metric.samples
                if sample.name == family and sample.labels.get("reason", "idle") == "idle"
            }
            for body in [node.metrics()]
            for family in (
                "gpu_allocated_seconds_total",
                "gpu_productive_seconds_total",
                "gpu_cost_total",
                "gpu_unused_cost_total",
            )
        }
        for number, run in (("0", "a"), ("1", "b"), ("2", ""), ("3", "")):
            seconds = families["gpu_allocated_seconds_total"][number, run]
            assert families["gpu_cost_total"][number, run] == pytest.approx(seconds / 1000)
        assert set(families["gpu_unused_cost_total"]) == {("0", "a"), ("1", "b")}
        assert set(families["gpu_productive_seconds_total"]) == {("0", "a"), ("1", "b")}
        info = {labels["gpu"]: labels for labels, _ in node.samples("gpu_info")}
        assert {(labels["cost_per_hour"], labels["currency"]) for labels in info.values()} == {("3.6", "EUR")}

        kubelet.list_pods(given(fake_nvml, "c"))
        node.wait_for_holders({"0": ["c"], "1": ["(unallocated)"], "2": ["(unallocated)"], "3": ["(unallocated)"]})
        totals = node.totals("gpu_allocated_seconds_total")
        assert {key for key in totals if key[0] == "0"} == {("0", "ml", "a"), ("0", "ml", "c")}


@pytest.mark.parametrize("trouble", ["hang", "kill", "refuse", "garbage", "lies"])
def test_a_kubelet_in_trouble_never_changes_a_device_series(
    fake_nvml: FakeNvml, tmp_path: Path, kubelet: Kubelet, trouble: str
) -> None:
    """What the driver reports keeps its names and labels; holders are those of the last good answer."""
    fake_nvml.set_gpus(GPUS)
    kubelet.list_pods(given(fake_nvml, "a", "b"))
    with exporter(fake_nvml, tmp_path, f"--podresources.socket={kubelet.socket}") as node:
        node.wait_for_holders({"0": ["a"], "1": ["b"], "2": ["(unallocated)"], "3": ["(unallocated)"]})
        until(lambda: "gpu_sm_active_ratio{" in node.metrics(), "activity is known")
        before = device_series(node.metrics())
        calls = kubelet.calls
        if trouble == "hang":
            kubelet.hang()
        elif trouble == "kill":
            kubelet.kill()
        elif trouble == "refuse":
            kubelet.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        elif trouble == "garbage":
            kubelet.reply_with(os.urandom(100_000))
        else:
            uuid = fake_nvml.uuid(0)
            kubelet.list_pods(
                [
                    *given(fake_nvml, "a", "b"),
                    *given(fake_nvml, "a", "b"),  # twice
                    pod_with("ml", "x", "GPU-00000000-0000-0000-0000-000000000000", "nonsense", "nvidia77"),
                    pod_with("ml", 'y"\n', f"{uuid}x", resource="cpu"),
                    pod_with("n" * 5000, "z" * 5000, "GPU-1"),
                ]
            )
        if trouble == "lies":
            until(lambda: kubelet.calls > calls + 1, "it was asked again")
        else:
            node.wait_for(r'gpufleet_source_up\{source="podresources"\} 0', seconds=60)
        assert device_series(node.metrics()) == before
        assert node.holders() == {"0": ["a"], "1": ["b"], "2": ["(unallocated)"], "3": ["(unallocated)"]}
        if trouble == "kill":
            kubelet.start()
        kubelet.list_pods(given(fake_nvml, "back"))
        node.wait_for_holders({"0": ["back"], **{str(number): ["(unallocated)"] for number in range(1, GPUS)}})
        node.wait_for(r'gpufleet_source_up\{source="podresources"\} 1')
        assert device_series(node.metrics()) == before


def test_labels_of_pods_name_project_run_and_task(fake_nvml: FakeNvml, tmp_path: Path, kubelet: Kubelet) -> None:
    """From the API server, and changed when they change; without it there are namespace and name."""
    fake_nvml.set_gpus(2)
    kubelet.list_pods(given(fake_nvml, "a", "over"))
    labels = {"flyte.org/project": "llm", "flyte.org/run": "r7", "task-name": "pretrain", "attempt": "2"}
    with ScriptedApi() as api:
        api.put(pod_object("ml", "a", labels=labels))
        api.put(pod_object("ml", "over", phase="Succeeded"))
        with exporter(fake_nvml, tmp_path, f"--podresources.socket={kubelet.socket}", api=api.url) as node:
            node.wait_for(r'gpu_owner_info\{[^}]*project="llm"', seconds=60)
            ((found, _),) = node.samples("gpu_owner_info")
            assert (found["run"], found["task"], found["attempt"]) == ("r7", "pretrain", "2")
            assert (found["workload_namespace"], found["workload_pod"]) == ("ml", "a")
            assert node.holders()["1"] == ["(unallocated)"]
            api.put(pod_object("ml", "a", labels=labels, annotations={"gpufleet.io/run": "mine"}))
            node.wait_for(r'gpu_owner_info\{[^}]*run="mine"', seconds=60)


def test_time_slicing_mps_and_slices_share_honestly(fake_nvml: FakeNvml, tmp_path: Path, kubelet: Kubelet) -> None:
    """Replicas, many ids of one pod, and a GPU cut into slices: each GPU's shares sum to 1."""
    fake_nvml.set_gpus(GPUS)
    fake_nvml.set_mig(3, SEVEN_SLICES[:4])
    slices = fake_nvml.mig_uuids(3)
    first, second = fake_nvml.uuid(0), fake_nvml.uuid(1)
    kubelet.list_pods(
        [
            *[pod_with("ml", f"sliced-{number}", f"{first}::{number}") for number in range(3)],
            pod_with("ml", "many", *[f"{second}::{number}" for number in range(48)]),
            pod_with("ml", "mig-0", slices[0], resource="nvidia.com/mig-1g.10gb"),
            pod_with("ml", "mig-1a", f"{slices[1]}::0", resource="nvidia.com/mig-1g.10gb.shared"),
            pod_with("ml", "mig-1b", f"{slices[1]}::1", resource="nvidia.com/mig-1g.10gb.shared"),
        ]
    )
    with exporter(fake_nvml, tmp_path, f"--podresources.socket={kubelet.socket}") as node:
        node.wait_for_holders(
            {
                "0": ["sliced-0", "sliced-1", "sliced-2"],
                "1": ["many"],
                "2": ["(unallocated)"],
                "3": ["(unallocated)", "(unallocated)", "(unsliced)", "mig-0", "mig-1a", "mig-1b"],
            }
        )
        sums: dict[str, float] = {}
        for labels, share in node.samples("gpu_owner_share"):
            sums[labels["uuid"]] = sums.get(labels["uuid"], 0.0) + share
        assert sums == {fake_nvml.uuid(number): pytest.approx(1.0, abs=1e-9) for number in range(GPUS)}


def test_totals_never_restart_lower(fake_nvml: FakeNvml, tmp_path: Path, kubelet: Kubelet, prices: Path) -> None:
    """Killed at any moment and started again, every counter goes on from where it was; also a run's that ended."""
    fake_nvml.set_gpus(GPUS)
    kubelet.list_pods(given(fake_nvml, "gone", "b"))
    flags = (f"--podresources.socket={kubelet.socket}", f"--prices.file={prices}")
    families = (
        "gpu_allocated_seconds_total",
        "gpu_productive_seconds_total",
        "gpu_cost_total",
        "gpu_unused_cost_total",
    )
    before: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for start in range(4):
        with exporter(fake_nvml, tmp_path, *flags) as node:
            node.wait_for(r'gpu_productive_seconds_total\{[^}]*run="b"')
            if start == 0:
                until(
                    lambda: node.totals("gpu_allocated_seconds_total").get(("0", "ml", "gone"), 0) > 1, "time is billed"
                )
                kubelet.list_pods(given(fake_nvml, "a", "b"))
                node.wait_for(r'gpu_owner_share\{[^}]*run="a"')
            now = {
                family: {tuple(sorted(labels.items())): value for labels, value in node.samples(family)}
                for family in families
            }
            for family, rows in before.items():
                for labels, value in rows.items():
                    assert now[family].get(labels, -1.0) >= value, (start, family, labels)
            assert any('run="gone"' in line for line in node.metrics().splitlines())
            before = now
            node.process.kill()
            node.process.wait(30)


def test_files_of_slurm_name_holders(fake_nvml: FakeNvml, tmp_path: Path, prices: Path) -> None:
    """Account, job and user, within two seconds of the file's coming, and gone with it."""
    fake_nvml.set_gpus(GPUS)
    directory = tmp_path / "slurm"
    directory.mkdir()
    with exporter(fake_nvml, tmp_path, f"--slurm.dir={directory}", f"--prices.file={prices}") as node:
        node.wait_for_holders({str(number): ["(unallocated)"] for number in range(GPUS)})
        file = directory / f"{fake_nvml.uuid(2)}.42.json"
        temporary = directory / ".new"
        temporary.write_text(
            json.dumps({"device": fake_nvml.uuid(2), "job": "42", "user": "ada", "account": "physics"}),
            encoding="utf-8",
        )
        temporary.rename(file)
        until(lambda: node.holders()["2"] == ["physics"], "the job's account holds it", seconds=60)
        ((labels, _),) = node.samples("gpu_owner_info")
        assert (labels["workload_job"], labels["workload_user"], labels["gpu"]) == ("42", "ada", "2")
        file.unlink()
        until(lambda: node.holders()["2"] == ["(unallocated)"], "it is free again", seconds=60)


def test_a_fault_names_the_holder_of_its_moment(fake_nvml: FakeNvml, tmp_path: Path, kubelet: Kubelet) -> None:
    """An Xid of the driver becomes an incident with the project, run and pod that held the GPU."""
    fake_nvml.set_gpus(GPUS)
    kubelet.list_pods(given(fake_nvml, "a", "b"))
    flags = (f"--podresources.socket={kubelet.socket}", f"--kmsg.path={tmp_path / 'none'}")
    with exporter(fake_nvml, tmp_path, *flags) as node:
        node.wait_for_holders({"0": ["a"], "1": ["b"], "2": ["(unallocated)"], "3": ["(unallocated)"]})
        fake_nvml.inject_xid(1, 79)
        body = node.wait_for(r"gpu_fault_active\{")
        (line,) = re.findall(r"^gpu_fault_active\{.*", body, re.MULTILINE)
        for label in ('project="ml"', 'run="b"', 'workload_namespace="ml"', 'workload_pod="b"'):
            assert label in line
        assert ("1", "ml", "b") in node.totals("gpu_allocated_seconds_total")


def test_a_full_node_costs_little(fake_nvml: FakeNvml, tmp_path: Path, kubelet: Kubelet, prices: Path) -> None:
    """250 pods on 8 times 7 slices, the API server over TLS: all are attributed, and the process stays below 45 MiB."""
    fake_nvml.set_gpus(8)
    slices = []
    for number in range(8):
        fake_nvml.set_mig(number, SEVEN_SLICES)
        slices += fake_nvml.mig_uuids(number)
    pods = [
        PodOnNode(pod.namespace, pod.name, pod.containers)
        if number >= len(slices)
        else pod_with(pod.namespace, pod.name, slices[number], resource="nvidia.com/mig-1g.10gb")
        for number, pod in enumerate(busy_node())
    ]
    kubelet.list_pods(pods)
    pems = write_pems(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems.folder / "server.crt", pems.folder / "server.key")
    flags = (f"--podresources.socket={kubelet.socket}", f"--prices.file={prices}")
    trust = {"SSL_CERT_FILE": str(pems.folder / "ca.crt")}
    with ScriptedApi(context=context) as api, exporter(fake_nvml, tmp_path, *flags, api=api.url, environ=trust) as node:
        for pod in pods:
            api.put(pod_object(pod.namespace, pod.name, labels={"flyte.org/run": pod.name, "app": "x" * 60}))
        api.compact()
        api.drop_watches()
        until(
            lambda: sum("run" in labels for labels, _ in node.samples("gpu_owner_info")) == len(slices),
            "every slice has its holder",
            seconds=60,
        )
        node.wait_for(r'gpufleet_source_up\{source="pods"\} 1', seconds=60)
        # Some polls and scrapes later, as it is from then on.
        for _ in range(20):
            node.metrics()
        until(lambda: node.samples("gpufleet_polls_total")[0][1] > 30, "it has polled for a while", seconds=60)
        status = Path(f"/proc/{node.process.pid}/status").read_text(encoding="ascii")
        assert int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) < 45 * 1024


@pytest.mark.parametrize(
    ("flags", "content", "words"),
    [
        (("--prices.file",), "currency: EUR\nrules:\n  - {name: all, per_huor: 1}\n", "per_huor"),
        (("--owners.config.file",), "label: [team]\n", "did you mean labels?"),
    ],
)
def test_a_file_that_is_refused_ends_the_start(
    fake_nvml: FakeNvml, tmp_path: Path, flags: tuple[str, ...], content: str, words: str
) -> None:
    """Status 2, and the log names file, key and remedy."""
    file = tmp_path / "file.yml"
    file.write_text(content, encoding="utf-8")
    node = exporter(fake_nvml, tmp_path, *[f"{flag}={file}" for flag in flags])
    with pytest.raises(AssertionError):
        node.__enter__()
    assert node.process.wait(30) == 2
    (line,) = node.said("the configuration is refused")
    assert str(file) in str(line["err"])
    assert words in str(line["err"])
