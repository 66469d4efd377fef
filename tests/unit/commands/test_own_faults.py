"""What a pod hears of its own GPUs, and of nobody else's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpufleet.commands.own_faults import Caller, OwnFaults, told, trouble_of
from gpufleet.model.claims import Cgroup, Pod, ProcessFacts
from gpufleet.model.incident import NOBODY, FaultsView, Owner
from gpufleet.model.owner import Holding, OwnersView, Workload
from gpufleet.model.snapshot import SourceHealth
from gpufleet.web.message import Request
from tests.support.incidents import INCIDENT

NOW = INCIDENT.opened_at + 10
POD = Pod("uid-1", "ml", "train-0", phase="Running", addresses=("10.1.0.7",))
OTHER = Pod("uid-2", "ml", "train-1", phase="Running", addresses=("10.1.0.8",))
ITS = Owner("vision", "run", "train", "ml", "train-0", "main")
UUID = INCIDENT.uuid or ""
OWNERS = OwnersView((Holding(UUID, 1.0, Workload(workload_namespace="ml", workload_pod="train-0")),))
MINE = replace(INCIDENT, owner=ITS)


def heard(faults: FaultsView, pod: Pod = POD, age: float = 60.0) -> tuple[list[str], bool]:
    """Incidents that a pod hears of, and whether it shall ask again."""
    answer = json.loads(told(faults, OWNERS, Caller(pod), age, NOW))
    return [each["incident"] for each in answer["incidents"]], answer["settling"]


def test_a_pod_hears_of_the_fault_of_its_gpu() -> None:
    """Whether it is open or closed already, with its age by our clock."""
    assert heard(FaultsView(active=(MINE,))) == ([MINE.id], False)
    assert heard(FaultsView(closed=(MINE,))) == ([MINE.id], False)
    (incident,) = json.loads(told(FaultsView(active=(MINE,)), OWNERS, Caller(POD), 60, NOW))["incidents"]
    assert (incident["age_seconds"], incident["fault"], incident["refund"]) == (10.0, "79", True)


def test_nobody_hears_of_anothers() -> None:
    """Nor of what was before his program began."""
    assert heard(FaultsView(active=(MINE,)), OTHER) == ([], False)
    assert heard(FaultsView(active=(MINE,)), age=5.0) == ([], False)


def test_without_an_owner_it_is_whoever_holds_the_gpu() -> None:
    """And a fault of the node is everybody's who has a GPU there."""
    unknown = replace(INCIDENT, owner=NOBODY)
    of_node = replace(unknown, uuid=None)

    assert heard(FaultsView(active=(unknown,))) == ([unknown.id], False)
    assert heard(FaultsView(active=(unknown,)), OTHER) == ([], False)
    assert heard(FaultsView(active=(of_node,))) == ([of_node.id], False)
    assert heard(FaultsView(active=(of_node,)), OTHER) == ([], False)


def test_what_is_not_certain_yet_is_to_be_asked_again() -> None:
    """By its holder alone."""
    assert heard(FaultsView(settling=(MINE,))) == ([], True)
    assert heard(FaultsView(settling=(MINE,)), OTHER) == ([], False)


@pytest.mark.parametrize(
    ("peer", "query", "status"),
    [
        ("10.1.0.7", "age=60", 200),
        ("10.1.0.9", "age=60", 403),  # no pod of this node
        ("10.1.0.7", "", 400),
        ("10.1.0.7", "age=x", 400),
        ("10.1.0.7", "age=-1", 400),
        ("10.1.0.7", "age=inf", 400),
    ],
)
def test_who_asks_is_known_by_his_address(peer: str, query: str, status: int) -> None:
    """A request names no GPU."""
    asked = OwnFaults(
        lambda: FaultsView(active=(MINE,)), lambda: OWNERS, lambda: {("ml", "train-0"): POD}, wall=lambda: NOW
    )

    assert asked.answer(Request("GET", "/v1/faults", query, {}, b"", peer)).status == status


def test_an_address_that_two_pods_have_is_nobodys() -> None:
    """One of them has just ended, perhaps; a pod that is over is none."""
    twins = {("ml", "train-0"): POD, ("ml", "train-1"): replace(OTHER, addresses=POD.addresses)}
    request = Request("GET", "/v1/faults", "age=60", {}, b"", "10.1.0.7")
    asked = OwnFaults(FaultsView, lambda: OWNERS, lambda: twins, wall=lambda: NOW)
    assert asked.answer(request).status == 403

    twins["ml", "train-1"] = replace(twins["ml", "train-1"], phase="Succeeded")
    assert asked.answer(request).status == 200


def test_without_an_api_server_nobody_is_answered() -> None:
    """Never by what was known last."""
    asked = OwnFaults(FaultsView, lambda: OWNERS, lambda: None, wall=lambda: NOW)

    assert asked.answer(Request("GET", "/v1/faults", "age=60", {}, b"", "10.1.0.7")).status == 503


POD_UID = "0f5e6f30-73a8-4b0f-8a6f-0d4a3c1f2b11"


@pytest.mark.parametrize(
    ("cgroup", "status", "heard"),
    [
        (Cgroup(pod_uid=POD_UID), 200, ["pod"]),
        (Cgroup(slurm_job="42"), 200, ["job"]),
        (Cgroup(slurm_job="43"), 200, []),
        (Cgroup(pod_uid="0f5e6f30-73a8-4b0f-8a6f-0d4a3c1f2b12"), 403, None),
        (Cgroup(unit="session-3.scope"), 403, None),
        (Cgroup(), 403, None),
        (None, 403, None),  # it is gone, or hidden from us
    ],
)
def test_on_a_unix_socket_the_control_group_says_who_asks(
    cgroup: Cgroup | None, status: int, heard: list[str] | None
) -> None:
    """Of a pod, on the node's network too, or of a job of Slurm."""
    job = Workload(project="physics", run="42", workload_job="42")
    owners = OwnersView((*OWNERS.holdings, Holding("GPU-2", 1.0, job)))
    incidents = (replace(MINE, id="pod"), replace(INCIDENT, id="job", uuid="GPU-2", owner=job.owner))
    host_network = replace(POD, uid=POD_UID, addresses=())
    asked = OwnFaults(
        lambda: FaultsView(active=incidents),
        lambda: owners,
        lambda: {("ml", "train-0"): host_network},
        wall=lambda: NOW,
        process=lambda pid: None if cgroup is None or pid != 7 else ProcessFacts(pid, "ada", cgroup),
    )

    answer = asked.answer(Request("GET", "/v1/faults", "age=60", {}, b"", "pid:7"))
    assert answer.status == status
    if heard is not None:
        assert [each["incident"] for each in json.loads(answer.body)["incidents"]] == heard


def test_a_peer_without_a_name_is_nobody() -> None:
    """A process of another PID namespace has none, and a pod may have no address yet."""
    asked = OwnFaults(FaultsView, lambda: OWNERS, lambda: {("a", "b"): Pod("", "a", "b")}, wall=lambda: NOW)

    assert asked.answer(Request("GET", "/v1/faults", "age=60", {}, b"", "")).status == 403


def test_a_caller_learns_what_its_run_is_called() -> None:
    """By its GPUs; of several runs none is the one."""
    one = Workload("vision", "run-7", workload_namespace="ml", workload_pod="train-0")
    two = OwnersView((Holding(UUID, 0.5, one), Holding(UUID, 0.5, replace(one, run="run-8"))))

    answer = json.loads(told(FaultsView(), OwnersView(two.holdings[:1]), Caller(POD), 60, NOW))
    assert (answer["project"], answer["run"]) == ("vision", "run-7")
    assert "run" not in json.loads(told(FaultsView(), two, Caller(POD), 60, NOW))
    assert "run" not in json.loads(told(FaultsView(), two, Caller(OTHER), 60, NOW))
    head = json.loads(told(FaultsView(), two, Caller(OTHER, called=("vision", "run-7")), 60, NOW))
    assert (head["project"], head["run"], head["incidents"]) == ("vision", "run-7", [])


def test_whoever_cannot_see_says_so() -> None:
    """What was known last is no answer to what is now."""
    down = trouble_of((SourceHealth("kmsg", up=False, reason="no such file"),), owners_ready=False)
    answer = json.loads(told(FaultsView(active=(MINE,)), OWNERS, Caller(POD), 60, NOW, down))

    assert answer["unknown"] is True
    assert answer["reason"] == "kmsg: no such file; owners: not known yet"
    assert trouble_of((SourceHealth("kmsg", up=True),), owners_ready=True) == ""
    assert "unknown" not in json.loads(told(FaultsView(), OWNERS, Caller(POD), 60, NOW))
