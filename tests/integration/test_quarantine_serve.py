"""The whole way: a line of a node's kernel log, the exporter, a real Alertmanager, the service, a real API server."""

from __future__ import annotations

import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.quarantine.incident import Holder
from tests.conftest import ROOT, program
from tests.integration.alertmanager_server import AlertmanagerServer
from tests.integration.conftest import Monitoring
from tests.integration.exporter_process import ExporterProcess
from tests.integration.kubernetes_api import BUILD_REMEDY, KubernetesApi, kubernetes_program
from tests.integration.quarantine_process import TOKEN, QuarantineProcess, gpufleet
from tests.integration.test_line_to_alert import KernelLog, address
from tests.integration.test_quarantine_kubernetes import WHERE
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_profiles import H100
from tests.support.pems import write_pems
from tests.support.quarantined import incident, labels_of, payload
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

pytestmark = pytest.mark.component

MERGE = "application/merge-patch+json"
TAINT = "gpufleet.io/quarantine"
POLICY = """\
mode: act
budget: {share: 100%, most: 100, most_share: 100%, out_share: 100%, new: 100}
breaker: {same_fault_nodes: 50, pool_share: 100%}
ledger: {namespace: gpufleet}
"""


def number() -> int:
    """Of an incident that no test has told before: the ledger outlives them."""
    return time.time_ns()


class Rig:
    """The API server, and the kubeconfig of the service's own account, which has the roles of the manifest."""

    def __init__(self, api: KubernetesApi, directory: Path) -> None:
        self.api = api
        self.kubeconfig = directory / "kubeconfig"
        self.policy = directory / "policy.yaml"
        self.policy.write_text(POLICY)
        self._number = 0
        path = "/api/v1/namespaces/gpufleet/serviceaccounts/gpufleet-quarantine/token"
        token = api.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        cluster = {"server": api.url, "certificate-authority": str(api.ca_file)}
        content = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        self.kubeconfig.write_text(json.dumps(content))

    def node(self, name: str) -> None:
        """A node with GPUs that takes work, in the place of one that an earlier test had."""
        with contextlib.suppress(urllib.error.HTTPError):
            self.api.request("DELETE", f"/api/v1/nodes/{name}")
        self.api.create_node(name, {})
        status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
        self.api.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind=MERGE)

    def spec(self, name: str) -> dict[str, Any]:
        """A node's spec."""
        found: dict[str, Any] = self.api.request("GET", f"/api/v1/nodes/{name}")["spec"]
        return found

    def is_tainted(self, name: str) -> bool:
        """Whether a node bears our taint."""
        return any(each["key"] == TAINT for each in self.spec(name).get("taints", ()))

    def is_out(self, name: str) -> bool:
        """Whether it is cordoned, too."""
        return self.spec(name).get("unschedulable") is True and self.is_tainted(name)

    def command(self, *words: str) -> Any:  # noqa: ANN401 - a completed process
        """A word of `gpufleet quarantine` about this cluster."""
        return gpufleet(
            "quarantine", words[0], f"--policy.file={self.policy}", f"--kubeconfig={self.kubeconfig}", *words[1:]
        )


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """One API server for this module, with the roles of the manifest."""
    apiserver = kubernetes_program("kube-apiserver")
    if apiserver is None:
        pytest.skip(f"no kube-apiserver: {BUILD_REMEDY}")
    with KubernetesApi(apiserver, program("etcd"), tmp_path_factory.mktemp("serve") / "api") as running:
        running.create_namespace("gpufleet")
        manifest = ROOT / "deploy" / "kubernetes" / "quarantine-rbac.yaml"
        for each in yaml.safe_load_all(manifest.read_text(encoding="utf-8")):
            running.request("POST", WHERE[each["kind"]], each)
        yield running


@pytest.fixture
def rig(kubernetes: KubernetesApi, tmp_path: Path) -> Rig:
    """What a test needs to start the service."""
    return Rig(kubernetes, tmp_path)


@pytest.fixture
def service(rig: Rig, tmp_path: Path) -> Iterator[QuarantineProcess]:
    """The service, by the policy of the rig."""
    with QuarantineProcess(tmp_path / "service", rig.policy, f"--kubeconfig={rig.kubeconfig}") as running:
        yield running


@pytest.fixture
def alerting(service: QuarantineProcess, monitoring: Monitoring, tmp_path: Path) -> Iterator[AlertmanagerServer]:
    """Each Alertmanager there is, with the example's routes and inhibitions, and the service as its quarantine."""
    config = yaml.safe_load((ROOT / "alerts" / "alertmanager.example.yml").read_text())
    for receiver in config["receivers"]:
        hooks = receiver.get("webhook_configs", ())
        receiver.clear()
        receiver["name"] = "nobody"
        if hooks and "quarantine" in hooks[0]["url"]:
            authorization = {"credentials_file": str(service.token)}
            receiver.update(
                name="quarantine",
                webhook_configs=[{"url": service.url, "http_config": {"authorization": authorization}}],
            )
    names = [receiver["name"] for receiver in config["receivers"]]
    routes = [route for route in config["route"]["routes"] if route["receiver"] == "quarantine"]
    config["receivers"] = [next(each for each in config["receivers"] if each["name"] == name) for name in {*names}]
    config["route"] = {"receiver": "nobody", "routes": routes}
    with AlertmanagerServer(monitoring.alertmanager, tmp_path / "alertmanager", config=config) as running:
        yield running


def test_a_line_in_the_kernel_log_takes_the_node_out_within_two_seconds(
    rig: Rig, alerting: AlertmanagerServer, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    """By the direct path: exporter, Alertmanager, service, node. An application's fault does not."""
    name = f"node-{number()}"
    rig.node(name)
    fake_nvml.set_gpus(8, H100)
    kmsg = KernelLog(tmp_path / "kmsg")
    flags = (f"--kmsg.path={kmsg.path}", f"--alertmanager.url={alerting.url}", "--alertmanager.label=cluster=east-1")
    started = ExporterProcess(fake_nvml, tmp_path, *flags)
    started.arguments = [each.replace("=node-1", f"={name}") for each in started.arguments]
    with started as exporter:
        exporter.wait_for(r"^gpu_power_watts\{")
        exporter.wait_for(r"^gpufleet_alertmanager_up\{[^}]*\} 1")
        for code in (13, 31, 43, 45):
            kmsg.say(f"NVRM: Xid (PCI:{address(fake_nvml, exporter, 2)}): {code}, pid=77, name=python3, Ch 00000008")
        exporter.wait_for(r'^gpu_xid_errors_total\{[^}]*xid="45"')
        where = address(fake_nvml, exporter, 3)
        assert not rig.is_out(name)
        begin = time.monotonic()
        kmsg.say(f"NVRM: Xid (PCI:{where}): 79, pid=12, name=python3, GPU has fallen off the bus.")
        until(lambda: rig.is_out(name), "the node is out", every=0.01)
        took = time.monotonic() - begin

    print(f"from the line to the cordoned node: {took:.2f} s")
    (taint,) = [each for each in rig.spec(name)["taints"] if each["key"] == TAINT]
    assert taint["value"] == "xid-79"
    listed = rig.command("list")
    assert (listed.returncode, name in listed.stdout, "79" in listed.stdout) == (0, True, True)


def test_people_list_show_and_release(rig: Rig, service: QuarantineProcess) -> None:
    """And the incident never comes back, whoever sends it again."""
    rig.node("gpu-9")
    told = incident(number(), "gpu-9", since=time.time())
    assert service.ask("/v1/alerts", payload([told]))[0] == 200
    until(lambda: rig.is_out("gpu-9"), "the node is out", seconds=60, every=0.2)
    shown = rig.command("show", "gpu-9")
    assert "quarantine (isolate)" in shown.stdout
    assert "team-a run-1 task ns/pod-gpu-9" in shown.stdout
    (line,) = [json.loads(each) for each in rig.command("list", "--json").stdout.splitlines() if "gpu-9" in each]
    assert (line["node"], line["fault"], line["runs"]) == ("gpu-9", "79", ["run-1"])

    released = rig.command("release", "gpu-9")

    assert (released.returncode, released.stdout) == (0, "gpu-9 is given back.\n")
    assert "unschedulable" not in rig.spec("gpu-9")
    assert "suppress (released)" in service.ask("/v1/alerts", payload([told]))[1]
    assert rig.command("release", "gpu-9").returncode == 0
    nothing = rig.command("release", "elsewhere")
    assert (nothing.returncode, "no node or incident 'elsewhere'" in nothing.stderr) == (1, True)


def test_kubectl_uncordon_is_a_release(rig: Rig, service: QuarantineProcess) -> None:
    """It is noticed, and what is left of our mark comes off."""
    rig.node("gpu-8")
    service.ask("/v1/alerts", payload([incident(number(), "gpu-8", since=time.time())]))
    until(lambda: rig.is_out("gpu-8"), "the node is out", seconds=60, every=0.2)
    until(lambda: '"marked"' in rig.command("show", "--json", "gpu-8").stdout, "the ledger has it", every=0.5)
    rig.api.request("PATCH", "/api/v1/nodes/gpu-8", {"spec": {"unschedulable": None}}, kind=MERGE)

    until(lambda: not rig.is_tainted("gpu-8"), "our taint is off", seconds=60, every=0.5)
    assert "released" in rig.command("list", "--all").stdout


def test_a_service_that_was_killed_goes_on_where_it_was(rig: Rig, tmp_path: Path) -> None:
    """What it had answered with 200 is done by the next one, once."""
    rig.node("gpu-7")
    flags = f"--kubeconfig={rig.kubeconfig}"
    with QuarantineProcess(tmp_path / "first", rig.policy, flags) as first:
        assert first.ask("/v1/alerts", payload([incident(number(), "gpu-7", since=time.time())]))[0] == 200
        first.kill()
    with QuarantineProcess(tmp_path / "second", rig.policy, flags):
        until(lambda: rig.is_out("gpu-7"), "the node is out", seconds=60)


def test_without_mode_act_nothing_is_touched(rig: Rig, tmp_path: Path) -> None:
    """It is written down what would be."""
    rig.node("gpu-6")
    rig.policy.write_text(POLICY.replace("mode: act", "mode: dry-run"))
    before = rig.api.request("GET", "/api/v1/nodes/gpu-6")
    with QuarantineProcess(tmp_path / "service", rig.policy, f"--kubeconfig={rig.kubeconfig}") as service:
        assert (
            "plan (dry_run)" in service.ask("/v1/alerts", payload([incident(number(), "gpu-6", since=time.time())]))[1]
        )
        until(lambda: "cordon" in rig.command("show", "gpu-6").stdout, "the plan is there", seconds=60, every=0.5)

    assert rig.api.request("GET", "/api/v1/nodes/gpu-6") == before


def test_alertmanager_keeps_what_the_service_could_not_write(
    rig: Rig, service: QuarantineProcess, alerting: AlertmanagerServer
) -> None:
    """While the API server is away it is answered 503; afterwards the node goes out without anybody's help."""
    rig.node("gpu-5")
    rig.api.stop()
    told = labels_of(incident(number(), "gpu-5"))
    alerting.post([{"labels": told, "annotations": {}}])
    until(lambda: 'deliveries_total{code="503"}' in service.ask("/metrics")[1], "it was refused", seconds=60)
    rig.api.start()

    until(lambda: rig.is_out("gpu-5"), "the node is out", seconds=120, every=0.5)


def test_strangers_are_not_listened_to(rig: Rig) -> None:
    """On more than the loopback, nobody is told apart without a token or certificates."""
    open_to_all = gpufleet(
        "quarantine",
        "serve",
        f"--policy.file={rig.policy}",
        f"--kubeconfig={rig.kubeconfig}",
        "--web.listen-address=:0",
    )

    assert open_to_all.returncode == 2
    assert "--web.bearer-token-file" in open_to_all.stderr
    assert TOKEN not in open_to_all.stderr


def test_launchers_and_the_api_server_have_listeners_of_their_own(rig: Rig, tmp_path: Path) -> None:
    """Without Alertmanager's token, and with nothing of what it may do."""
    (tmp_path / "pems").mkdir()
    pems = write_pems(tmp_path / "pems")
    config = tmp_path / "admission.yml"
    config.write_text(
        f"tls_server_config: {{cert_file: {pems.folder}/server.crt, key_file: {pems.folder}/server.key}}\n"
    )
    flags = (
        f"--kubeconfig={rig.kubeconfig}",
        "--verdict.listen-address=127.0.0.1:0",
        "--admission.listen-address=127.0.0.1:0",
        f"--admission.config.file={config}",
    )
    rig.node("gpu-4")
    # No other test's run: theirs were hit within the minute, too.
    told = incident(number(), "gpu-4", since=time.time(), holders=(Holder("team-a", "of-its-own"),))
    with QuarantineProcess(tmp_path / "service", rig.policy, *flags) as service:
        assert service.ask("/v1/alerts", payload([told]))[0] == 200
        until(lambda: rig.is_out("gpu-4"), "the node is out", seconds=60, every=0.2)
        (line,) = [each for each in service.log() if "verdicts" in each]
        asked = f"http://{line['verdicts']}/v1/verdict?project=team-a&run=of-its-own&age=60"
        with urllib.request.urlopen(asked, timeout=10) as response:
            assert [each["fault"] for each in json.load(response)["incidents"]] == ["79"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{line['verdicts']}/v1/alerts", data=b"{}", timeout=10)
        context = ssl.create_default_context(cafile=str(pems.folder / "ca.crt"))
        review = urllib.request.Request(f"https://{line['admission']}/v1/admit", data=b"{}")
        with urllib.request.urlopen(review, timeout=10, context=context) as response:
            assert json.load(response)["response"]["allowed"] is True
    plain = rig.command("serve", "--admission.listen-address=127.0.0.1:0", "--web.listen-address=127.0.0.1:0")
    assert (plain.returncode, "speaks TLS only" in plain.stderr) == (2, True)
