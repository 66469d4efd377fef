"""``/v1/faults``: what has befallen the GPUs of the pod or job that asks, for ``gpufleet run`` in it.

Who asks is known by the address that the connection comes from, which the pod's network gives and the pod does not
choose; on a unix socket by the control group of the process that the kernel names. So a request names no GPU, and
nobody learns of another's. Times are our own, as ages: no clocks need agree.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from gpufleet.model.owner import Hold
from gpufleet.sources.processes import process_facts
from gpufleet.web.addresses import PROCESS
from gpufleet.web.app import App
from gpufleet.web.endpoint import Endpoint, open_endpoint
from gpufleet.web.message import Response, plain_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from gpufleet.commands.faulting import Faults
    from gpufleet.commands.owning import Owning
    from gpufleet.model.claims import Pod, ProcessFacts
    from gpufleet.model.incident import FaultsView, Incident
    from gpufleet.model.owner import OwnersView, Workload
    from gpufleet.model.snapshot import SourceHealth
    from gpufleet.web.addresses import ListenAddress
    from gpufleet.web.message import Request

_log = logging.getLogger(__name__)

PATH = "/v1/faults"
_VERSION = 1
_MOST_SECONDS = 30 * 86_400.0
_NO_STORE = (("Cache-Control", "no-store"),)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a pod, or a job of Slurm by its number."""

    pod: Pod | None = None
    job: str = ""
    called: tuple[str, str] | None = None
    """Project and run of one that holds no GPU itself, such as the head of a cluster of Ray."""

    def holds(self, workload: Workload) -> bool:
        """Whether a holder is this one."""
        if self.job:
            return workload.workload_job == self.job
        return self.pod is not None and self.is_pod(workload.workload_namespace, workload.workload_pod)

    def is_pod(self, namespace: str, name: str) -> bool:
        """Whether it is the pod of that name."""
        return self.pod is not None and (namespace, name) == (self.pod.namespace, self.pod.name)


class OwnFaults:
    """Answers pods and jobs. The arguments give what is known now.

    ``pods`` gives None while nobody can say who is who; ``process`` the facts of a process, ``trouble`` why not
    everything is seen, empty while it is, and ``called`` project and run of a pod.
    """

    def __init__(
        self,
        faults: Callable[[], FaultsView],
        owners: Callable[[], OwnersView],
        pods: Callable[[], Mapping[tuple[str, str], Pod] | None],
        *,
        wall: Callable[[], float],
        process: Callable[[int], ProcessFacts | None] = lambda _: None,
        trouble: Callable[[], str] = lambda: "",
        called: Callable[[Pod], tuple[str, str] | None] = lambda _: None,
    ) -> None:
        self._faults = faults
        self._owners = owners
        self._pods = pods
        self._wall = wall
        self._process = process
        self._trouble = trouble
        self._called = called

    def answer(self, request: Request) -> Response:
        """``GET /v1/faults?age=SECONDS``: incidents since the program was started, so many seconds ago."""
        age = _age(request.query)
        if age is None:
            return plain_response(400, "ask /v1/faults?age=SECONDS, the seconds since the program was started")
        caller = self._who(request.peer)
        if isinstance(caller, Response):
            return caller
        body = told(self._faults(), self._owners(), caller, age, self._wall(), self._trouble())
        return Response(200, body, "application/json", _NO_STORE)

    def _who(self, peer: str) -> Caller | Response:
        uid = ""
        if peer.startswith(PROCESS):
            facts = self._process(int(peer.removeprefix(PROCESS)))
            if facts is not None and facts.cgroup.slurm_job:
                return Caller(job=facts.cgroup.slurm_job)
            uid = (facts.cgroup.pod_uid if facts is not None else None) or ""
            if not uid:
                return plain_response(403, "only processes in a pod's or a Slurm job's control group are answered")
        pods = self._pods()
        if pods is None:
            return plain_response(503, "who holds which GPU is not known: no API server answers")
        asking = [
            pod
            for pod in pods.values()
            if not pod.is_over and (pod.uid == uid if uid else bool(peer) and peer in pod.addresses)
        ]
        if len(asking) != 1:
            return plain_response(403, "only pods of this node with an address of their own are answered")
        return Caller(asking[0], called=self._called(asking[0]))


def serve_own_faults(addresses: Iterable[ListenAddress], faults: Faults, owning: Owning, procfs: Path) -> Endpoint:
    """Answer pods on a listener of its own, which has nothing else. Raises ListenError."""
    asked = OwnFaults(
        lambda: faults.watch.view,
        lambda: owning.watch.view,
        owning.pods,
        wall=time.time,
        process=lambda pid: process_facts(pid, procfs),
        trouble=lambda: trouble_of((*faults.health(), *owning.watch.health()), owners_ready=owning.watch.ready),
        called=owning.called,
    )
    endpoint = open_endpoint(App({("GET", PATH): asked.answer}), map(str, addresses))
    _log.info("pods may ask for their own faults", extra={"addresses": ",".join(endpoint.server.addresses)})
    return endpoint


def told(faults: FaultsView, owners: OwnersView, caller: Caller, age: float, now: float, trouble: str = "") -> bytes:
    """What is known of a caller's GPUs, ``age`` seconds back from the Unix time ``now``. Pure."""
    mine = [each for each in owners.holdings if each.hold is Hold.HELD and caller.holds(each.workload)]
    gpus = frozenset(each.uuid for each in mine)
    named = frozenset((each.workload.project, each.workload.run) for each in mine)
    called = named or frozenset({caller.called} if caller.called else ())
    runs = named if caller.job else frozenset()

    def is_its(incident: Incident) -> bool:
        """Whether it is about what the caller held as of the fault or, where that is not known, holds now."""
        owner = incident.owner
        if owner.run and caller.job:
            return (owner.project, owner.run) in runs
        if owner.workload_pod:
            return caller.is_pod(owner.workload_namespace, owner.workload_pod)
        # Of the node as a whole: whoever has a GPU there.
        return incident.uuid in gpus if incident.uuid is not None else bool(gpus)

    since = now - age
    return json.dumps(
        {
            "version": _VERSION,
            "settling": any(is_its(each) and each.last_at >= since for each in faults.settling),
            "incidents": [
                {
                    "incident": each.id,
                    "fault": each.labels().fault,
                    "class": each.labels().class_,
                    "isolate": each.isolate,
                    "refund": each.refund,
                    "age_seconds": round(max(0.0, now - each.opened_at), 3),
                }
                for each in (*faults.closed, *faults.active)
                if each.opened_at >= since and is_its(each)
            ],
            **({"unknown": True, "reason": trouble} if trouble else {}),
            # So that a launcher need not be told by what names the quarantine knows its run.
            **(dict(zip(("project", "run"), next(iter(called)), strict=True)) if len(called) == 1 else {}),
        }
    ).encode()


def trouble_of(sources: Iterable[SourceHealth], *, owners_ready: bool) -> str:
    """Why not every fault and every holder is seen; empty while they are. Pure."""
    down = [f"{each.source}: {each.reason or 'does not answer'}" for each in sources if not each.up]
    if not owners_ready:
        down.append("owners: not known yet")
    return "; ".join(down)


def _age(query: str) -> float | None:
    try:
        age = float(parse_qs(query).get("age", [""])[0])
    except ValueError:
        return None
    return age if 0 <= age <= _MOST_SECONDS else None
