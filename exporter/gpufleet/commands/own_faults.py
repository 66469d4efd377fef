"""``/v1/faults``: what has befallen the GPUs of the pod that asks, for ``gpufleet run`` in it.

Who asks is known by the address that the connection comes from, which the pod's network gives and the pod does not
choose. So a request names no GPU, and nobody learns of another's. Times are our own, as ages: no clocks need agree.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from gpufleet.model.owner import Hold
from gpufleet.web.app import App
from gpufleet.web.endpoint import Endpoint, open_endpoint
from gpufleet.web.message import Response, plain_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpufleet.model.claims import Pod
    from gpufleet.model.incident import FaultsView, Incident
    from gpufleet.model.owner import OwnersView
    from gpufleet.web.addresses import ListenAddress
    from gpufleet.web.message import Request

_log = logging.getLogger(__name__)

PATH = "/v1/faults"
_VERSION = 1
_MOST_SECONDS = 30 * 86_400.0
_SLACK = 1.0
"""Seconds: the program may have begun in the second in which its age was measured."""
_NO_STORE = (("Cache-Control", "no-store"),)


class OwnFaults:
    """Answers pods. The arguments give what is known now; ``pods`` gives None while nobody can say who is who."""

    def __init__(
        self,
        faults: Callable[[], FaultsView],
        owners: Callable[[], OwnersView],
        pods: Callable[[], Mapping[tuple[str, str], Pod] | None],
        *,
        wall: Callable[[], float],
    ) -> None:
        self._faults = faults
        self._owners = owners
        self._pods = pods
        self._wall = wall

    def answer(self, request: Request) -> Response:
        """``GET /v1/faults?age=SECONDS``: incidents since the program was started, so many seconds ago."""
        age = _age(request.query)
        if age is None:
            return plain_response(400, "ask /v1/faults?age=SECONDS, the seconds since the program was started")
        pods = self._pods()
        if pods is None:
            return plain_response(503, "who holds which GPU is not known: no API server answers")
        asking = [pod for pod in pods.values() if request.peer in pod.addresses and not pod.is_over]
        if len(asking) != 1:
            return plain_response(403, "only pods of this node with an address of their own are answered")
        body = told(self._faults(), self._owners(), asking[0], age, self._wall())
        return Response(200, body, "application/json", _NO_STORE)


def serve_own_faults(
    addresses: Iterable[ListenAddress],
    faults: Callable[[], FaultsView],
    owners: Callable[[], OwnersView],
    pods: Callable[[], Mapping[tuple[str, str], Pod] | None],
) -> Endpoint:
    """Answer pods on a listener of its own, which has nothing else. Raises ListenError."""
    asked = OwnFaults(faults, owners, pods, wall=time.time)
    endpoint = open_endpoint(App({("GET", PATH): asked.answer}), map(str, addresses))
    _log.info("pods may ask for their own faults", extra={"addresses": ",".join(endpoint.server.addresses)})
    return endpoint


def told(faults: FaultsView, owners: OwnersView, pod: Pod, age: float, now: float) -> bytes:
    """What is known of a pod's GPUs, ``age`` seconds back from the Unix time ``now``. Pure."""
    mine = frozenset(
        holding.uuid
        for holding in owners.holdings
        if holding.hold is Hold.HELD
        and (holding.workload.workload_namespace, holding.workload.workload_pod) == (pod.namespace, pod.name)
    )
    known = [each for each in (*faults.closed, *faults.active) if _is_of(each, pod, mine)]
    since = now - age - _SLACK
    return json.dumps(
        {
            "version": _VERSION,
            "settling": any(_is_of(each, pod, mine) and each.last_at >= since for each in faults.settling),
            "incidents": [
                {
                    "incident": each.id,
                    "fault": each.labels().fault,
                    "class": each.labels().class_,
                    "isolate": each.isolate,
                    "refund": each.refund,
                    "age_seconds": round(max(0.0, now - each.opened_at), 3),
                }
                for each in known
                if each.opened_at >= since
            ],
        }
    ).encode()


def _is_of(incident: Incident, pod: Pod, gpus: frozenset[str]) -> bool:
    """Whether it is about what the pod held as of the fault or, where that is not known, holds now."""
    owner = incident.owner
    if owner.workload_pod:
        return (owner.workload_namespace, owner.workload_pod) == (pod.namespace, pod.name)
    # Of the node as a whole: whoever has a GPU there.
    return incident.uuid in gpus if incident.uuid is not None else bool(gpus)


def _age(query: str) -> float | None:
    try:
        age = float(parse_qs(query).get("age", [""])[0])
    except ValueError:
        return None
    return age if 0 <= age <= _MOST_SECONDS else None
