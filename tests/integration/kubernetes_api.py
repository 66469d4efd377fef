"""A real kube-apiserver on a real etcd, with RBAC and service accounts, started for one test and ended with it.

There is no scheduler and no kubelet: pods are put on a node by name, and a test says what becomes of them. Controllers
run where a test starts them.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.conftest import ROOT
from tests.support.pems import write_pems
from tests.waiting import until

BUILD_REMEDY = "install Go and run tools/build-kubernetes, or let KUBE_BIN_DIR name a folder that has it"
ADMIN = "admin-token-of-the-tests"
Json = dict[str, Any]


def kubernetes_program(name: str) -> Path | None:
    """A program of Kubernetes: from KUBE_BIN_DIR, else what tools/build-kubernetes has built; None without one."""
    folder = os.environ.get("KUBE_BIN_DIR")
    if not folder:
        asked = [str(ROOT / "tools" / "build-kubernetes"), "--where"]
        folder = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    path = Path(folder) / name
    return path if os.access(path, os.X_OK) else None


class KubernetesApi:
    """The server at ``url``, with the authority in ``ca_file``. A context manager that is ready on entry."""

    def __init__(self, apiserver: Path, etcd: Path, directory: Path) -> None:
        self._apiserver = apiserver
        self._etcd = etcd
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = dict(zip(("etcd", "peer", "api", "controllers"), _free_ports(4), strict=True))
        self.url = f"https://127.0.0.1:{self._ports['api']}"
        directory.mkdir()
        self.ca_file = write_pems(directory).folder / "ca.crt"
        self._context = ssl.create_default_context(cafile=str(self.ca_file))
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )
        key = rsa.generate_private_key(65537, 2048)
        (directory / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (directory / "tokens.csv").write_text(f'{ADMIN},admin,admin,"system:masters"\n', encoding="ascii")

    def __enter__(self) -> Self:
        try:
            self._start_etcd()
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _start_etcd(self) -> None:
        etcd = f"http://127.0.0.1:{self._ports['etcd']}"
        peer = f"http://127.0.0.1:{self._ports['peer']}"
        self._run(
            "etcd",
            str(self._etcd),
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def start(self) -> None:
        """Start the API server, on the same etcd and port, and wait until it is ready."""
        folder = self._directory
        self._run(
            "api",
            str(self._apiserver),
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['api']}",
            f"--tls-cert-file={folder / 'server.crt'}",
            f"--tls-private-key-file={folder / 'server.key'}",
            f"--service-account-key-file={folder / 'accounts.key'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens.csv'}",
            f"--cert-dir={folder / 'certs'}",
            # Pods of the tests have no service account of their own.
            "--disable-admission-plugins=ServiceAccount",
        )
        until(self._is_ready, "the API server is ready", seconds=120, every=0.2)

    def start_controllers(self, manager: Path, *names: str) -> None:
        """Start the kube-controller-manager at ``manager`` with these controllers only, as the administrator."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": ADMIN}}],
        }
        kubeconfig = self._directory / "controllers.kubeconfig"
        kubeconfig.write_text(json.dumps(content), encoding="ascii")
        self._run(
            "controllers",
            str(manager),
            f"--kubeconfig={kubeconfig}",
            f"--controllers={','.join(names)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['controllers']}",
            f"--cert-dir={self._directory / 'controllers'}",
        )
        until(self._controllers_are_ready, "the controllers are ready", seconds=60, every=0.2)

    def stop_controllers(self) -> None:
        """End the controllers."""
        self._finish("controllers")

    def _controllers_are_ready(self) -> bool:
        if self._processes["controllers"].poll() is not None:
            raise ChildProcessError(f"the controllers have ended: {self.log('controllers')[-2000:]}")
        # Its own certificate is made at its start, by no authority that anybody knows.
        unknown = ssl.create_default_context()
        unknown.check_hostname = False
        unknown.verify_mode = ssl.CERT_NONE
        try:
            where = f"https://127.0.0.1:{self._ports['controllers']}/healthz"
            with urllib.request.urlopen(where, timeout=5, context=unknown) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def stop(self) -> None:
        """End the API server; what it stored stays."""
        self._finish("api")

    def request(self, method: str, path: str, body: Json | None = None, *, kind: str = "application/json") -> Json:
        """The answer to a request as the administrator; HTTPError when it is refused."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
        request = urllib.request.Request(f"{self.url}{path}", content, headers, method=method)
        with self._opener.open(request, timeout=30) as response:
            found: Json = json.loads(response.read())
        return found

    def create_namespace(self, name: str) -> None:
        """A namespace."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def create_node(self, name: str, labels: dict[str, str]) -> None:
        """A node that nobody runs."""
        self.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})

    def create_pod(
        self,
        namespace: str,
        name: str,
        node: str,
        *,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        phase: str = "Running",
    ) -> None:
        """A pod that is on a node already, in a phase."""
        meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "none.invalid/image"}]}
        self.request("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})
        self.set_phase(namespace, name, phase)

    def set_phase(self, namespace: str, name: str, phase: str) -> None:
        """Say how far a pod is, as its kubelet would."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        self.request("PATCH", path, {"status": {"phase": phase}}, kind="application/merge-patch+json")

    def patch_pod(self, namespace: str, name: str, meta: Json) -> None:
        """Change a pod's metadata."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self.request("PATCH", path, {"metadata": meta}, kind="application/merge-patch+json")

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod at once: no kubelet would end it."""
        self.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    def allow(self, account: str, *rules: Json) -> None:
        """A service account in the namespace default, and what it may do in the whole cluster."""
        self.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": account}})
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        self.request("POST", f"{rbac}/clusterroles", {"metadata": {"name": account}, "rules": list(rules)})
        binding = {
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": account}],
        }
        self.request("POST", f"{rbac}/clusterrolebindings", binding)

    def token(self, account: str) -> str:
        """A new token of a service account, as the kubelet asks for it."""
        path = f"/api/v1/namespaces/default/serviceaccounts/{account}/token"
        made = self.request("POST", path, {"spec": {"expirationSeconds": 3600}})
        return str(made["status"]["token"])

    def log(self, name: str = "api") -> str:
        """What a process has logged."""
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def _is_ready(self) -> bool:
        process = self._processes["api"]
        if process.poll() is not None:
            raise ChildProcessError(f"the API server has ended: {self.log()[-2000:]}")
        try:
            self.request("GET", "/api/v1/namespaces/default")
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _run(self, name: str, *command: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _finish(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)

    def _end(self) -> None:
        for name in ("controllers", "api", "etcd"):
            self._finish(name)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
