"""``gpufleet run`` on a node with a real exporter: a line in the kernel's log, and what the program's end becomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.exporter_process import ExporterProcess
from tests.integration.faulty_node import FaultyNode, wait_for_replay
from tests.support.api_server import ScriptedApi, pod_object
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.kmsg_records import RecordFile
from tests.support.kubelet import Kubelet, pod_with
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

RUN = [str(Path(sys.executable).with_name("gpufleet")), "run"]
MINE, OTHERS = 0, 1
UID = "0f5e6f30-73a8-4b0f-8a6f-0d4a3c1f2b11"
APPLICATION = "pid=1234, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address"


@dataclass(frozen=True, slots=True)
class Running:
    """A node with two pods and a job, and the program of one of them."""

    node: FaultyNode
    exporter: ExporterProcess
    directory: Path
    socket: Path

    @property
    def url(self) -> str:
        """Where pods ask."""
        return f"http://{self.exporter.said('pods may ask for their own faults')[-1]['addresses']}".partition(",")[0]

    def launch(self, exporter: str, *, name: str = "program") -> subprocess.Popen[str]:
        """Start a program that ends with 3 when it is told to."""
        program = f"touch {self.directory}/{name}; until [ -e {self.directory}/end ]; do sleep 0.05; done; exit 3"
        words = [*RUN, f"--exporter={exporter}", "--", "sh", "-c", program]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        until((self.directory / name).exists, "the program has begun")
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Let the program fail; what the launcher exits with and says."""
        (self.directory / "end").touch()
        _, said = process.communicate(timeout=40)
        return process.returncode, said

    def put_into(self, process: subprocess.Popen[str], cgroup: str) -> None:
        """Say of which control group a process is."""
        facts = self.node.fake.procfs / str(process.pid)
        facts.mkdir()
        (facts / "status").write_text("Name:\tgpufleet\nUid:\t1000\t1000\t1000\t1000\n")
        (facts / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.fixture
def running(fake_nvml: FakeNvml, tmp_path: Path) -> Iterator[Running]:
    """The first GPU is that of a pod with our address, the second another pod's, the third a job's."""
    fake_nvml.set_gpus(4)
    os.mkfifo(tmp_path / "kmsg")
    node = FaultyNode(fake_nvml, tmp_path, RecordFile(tmp_path / "kmsg"))
    path = tmp_path / "faults.sock"
    jobs, resources = tmp_path / "slurm", tmp_path / "pod-resources"
    jobs.mkdir()
    resources.mkdir()
    file = {"device": fake_nvml.uuid(2), "job": "42", "user": "ada", "account": "physics"}
    (jobs / f"{fake_nvml.uuid(2)}.42.json").write_text(json.dumps(file))
    with ScriptedApi() as api, Kubelet(resources) as kubelet:
        for name, address, uid in (("mine", "127.0.0.1", UID), ("other", "127.0.0.9", "uid-other")):
            pod = pod_object("ml", name, uid=uid, phase="Running")
            pod["status"]["podIPs"] = [{"ip": address}]
            api.put(pod)
        kubelet.list_pods(
            [pod_with("ml", "mine", fake_nvml.uuid(MINE)), pod_with("ml", "other", fake_nvml.uuid(OTHERS))]
        )
        flags = (
            f"--podresources.socket={kubelet.socket}",
            f"--kubernetes.api-server={api.url}",
            f"--slurm.dir={jobs}",
            "--owners.interval=1s",
            "--faults.listen-address=127.0.0.1:0",
            f"--faults.listen-address=unix:{path}",
        )
        with node.start(*flags) as exporter:
            # The listeners for launchers come after that of the metrics.
            exporter.address = str(exporter.said("listening")[0]["address"])
            wait_for_replay(exporter, gpus=4)
            exporter.wait_for(r'gpu_owner_info\{.*workload_job="42"')
            exporter.wait_for(r'gpu_owner_info\{.*workload_pod="mine"')
            yield Running(node, exporter, tmp_path, path)


def test_a_fault_of_its_gpu_is_told_by_the_code(running: Running) -> None:
    """Xid 79, while it ran."""
    process = running.launch(running.url)
    running.node.xid(79, MINE)
    status, said = running.end(process)

    assert (status, said.count("\n")) == (250, 1), said
    assert "hardware fault 79" in said


def test_the_node_says_what_the_run_is_called(running: Running) -> None:
    """As it says it to Prometheus, so that the quarantine knows it by the same names."""
    with urllib.request.urlopen(f"{running.url}/v1/faults?age=1", timeout=10) as answer:
        told = json.load(answer)

    assert told == {"version": 1, "settling": False, "incidents": [], "project": "ml", "run": "mine"}


def test_a_fault_that_is_settled_later_is_waited_for(running: Running) -> None:
    """Xid 48 may be an echo for five seconds; the launcher asks as long as that."""
    process = running.launch(running.url)
    running.node.xid(48, MINE, "pid=7062, name=python3, DBE (double bit error) on subpartition 0")
    begin = time.monotonic()
    status, said = running.end(process)

    assert status == 250, said
    assert 3.5 < time.monotonic() - begin < 20


def test_an_error_of_the_program_is_its_own(running: Running) -> None:
    """Xid 13, which anybody can bring about: no free retry, however long it is asked."""
    process = running.launch(running.url)
    running.node.xid(13, MINE, APPLICATION)
    begin = time.monotonic()

    assert running.end(process)[0] == 3
    assert time.monotonic() - begin < 22


def test_anothers_fault_and_one_of_before_excuse_nobody(running: Running) -> None:
    """The other pod's GPU; and one's own, when it was broken already: or the launcher would say 250 for ever."""
    process = running.launch(running.url)
    running.node.xid(79, OTHERS)
    assert running.end(process)[0] == 3

    running.node.xid(79, MINE)
    running.exporter.wait_for(r'gpu_fault_active\{.*gpu="0"')
    assert running.end(running.launch(running.url, name="again"))[0] == 3


@pytest.mark.parametrize(
    ("cgroup", "gpu"),
    [
        (f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope", MINE),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", 2),
    ],
)
def test_a_unix_socket_knows_pods_and_jobs_by_their_group(running: Running, cgroup: str, gpu: int) -> None:
    """A pod on the node's network, and a job of Slurm, which has no address of its own."""
    process = running.launch(f"unix:{running.socket}")
    running.put_into(process, cgroup)
    running.node.xid(79, gpu)
    status, said = running.end(process)
    assert status == 250, said

    (running.directory / "end").unlink()
    stranger = running.launch(f"unix:{running.socket}", name="stranger")
    running.node.xid(119, gpu)
    status, said = running.end(stranger)
    assert status == 3
    assert "403" in said


def test_an_exporter_that_is_gone_costs_three_seconds(running: Running) -> None:
    """And the status is the program's own."""
    process = running.launch(running.url)
    running.node.xid(79, MINE)
    running.exporter.process.kill()
    running.exporter.process.wait(30)
    begin = time.monotonic()
    status, said = running.end(process)

    assert status == 3
    assert "no verdict" in said
    assert time.monotonic() - begin < 8
