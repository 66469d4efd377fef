"""A node goes out and comes back: what is written on it, what of others stays, and what is told."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.quarantine.actuators import UnobservableError
from gpufleet.quarantine.actuators.kubernetes.grants import QUARANTINE, ROLES, Grant
from gpufleet.quarantine.actuators.kubernetes.node_marks import NodeMarks
from gpufleet.quarantine.actuators.kubernetes.nodes import view
from gpufleet.quarantine.actuators.kubernetes.places import Place, node, pod
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.incident import Holder
from gpufleet.quarantine.policy import Nodes
from gpufleet.quarantine.record import Outcome, Record, Stage, Step
from gpufleet.quarantine.view import Mark
from tests.support.fake_kubernetes import Call, Crashed, FakeCluster, Fault
from tests.support.quarantine_records import UUID, incident, record

NOW = 1_700_000_100.0
KEY = "gpufleet.io/quarantine"
FOREIGN = {"key": "maintenance", "value": "", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z", "x": 1}
READY = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}


def cluster_with(*, cordoned: bool = False, taints: tuple[dict[str, Any], ...] = (FOREIGN,)) -> FakeCluster:
    """Node gpu-1 with a foreign taint and annotation, and the pod that held its GPU."""
    cluster = FakeCluster(lambda: NOW)
    spec: dict[str, Any] = {"providerID": "x"}
    if taints:
        spec["taints"] = list(taints)
    if cordoned:
        spec["unschedulable"] = True
    status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [READY]}
    cluster.put(node("gpu-1"), {"metadata": {"annotations": {"theirs": "é"}}, "spec": spec, "status": status})
    cluster.put(pod("research", "train-0"), {"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running"}})
    return cluster


def at(number: int, fault: Fault) -> Callable[[Call], Fault]:
    """A fault that befalls the call of that number."""
    calls = iter(range(1000))
    return lambda _: fault if next(calls) == number else Fault.NONE


class Rig:
    """One replica's marks, with its audit; no more rights than the first role has."""

    def __init__(
        self,
        cluster: FakeCluster,
        meet: Callable[[Call], Fault] = lambda _: Fault.NONE,
        grants: tuple[Grant, ...] = ROLES[QUARANTINE],
    ) -> None:
        self.cluster = cluster
        self.audited = io.StringIO()
        api = cluster.api(meet=meet, grants=grants)
        self.marks = NodeMarks(api, Audit(self.audited, lambda: NOW), Nodes(), lambda: NOW)

    def mark(self, told: Record | None = None) -> list[tuple[str, str, Outcome]]:
        """Mark; what came of each step."""
        return outcomes(self.marks.mark(told or record()))

    def release(self, told: Record | None = None, *, last: bool = True) -> list[tuple[str, str, Outcome]]:
        """Release; what came of each step."""
        return outcomes(self.marks.release(told or record(), last=last))

    def lines(self) -> list[dict[str, Any]]:
        """The audit."""
        return [json.loads(line) for line in self.audited.getvalue().splitlines()]

    @property
    def node(self) -> dict[str, Any]:
        """The node now."""
        return self.cluster.at(node("gpu-1"))


def outcomes(steps: tuple[Step, ...]) -> list[tuple[str, str, Outcome]]:
    """Steps without their details."""
    return [(step.action, step.target.partition("@")[0], step.outcome) for step in steps]


MARKED = [
    ("cordon", "node/gpu-1", Outcome.DONE),
    ("condition", "node/gpu-1", Outcome.DONE),
    ("event", "node/gpu-1", Outcome.DONE),
    ("event", "pod/research/train-0", Outcome.DONE),
]
SECOND = record(incident(name="i-2", fault="sxid_20034", uuid="", gpu="", pci_bus_id=""))


def test_a_node_is_marked_in_one_guarded_write() -> None:
    """Cordon, taint and annotation come together, with the resourceVersion that they were decided on."""
    rig = Rig(cluster_with())
    version = rig.node["metadata"]["resourceVersion"]

    assert rig.mark() == MARKED

    patches = [call for call in rig.cluster.calls if call.verb == "patch" and not call.place.subresource]
    ours = {"key": KEY, "value": "xid-79", "effect": "NoSchedule"}
    assert len(patches) == 1
    assert patches[0].body["metadata"]["resourceVersion"] == version
    assert rig.node["spec"] == {"providerID": "x", "unschedulable": True, "taints": [FOREIGN, ours]}
    assert rig.node["metadata"]["annotations"]["theirs"] == "é"
    assert json.loads(rig.node["metadata"]["annotations"][KEY]) == {
        "key": "prod/gpu-1/i-1",
        "fault": "79",
        "uuid": UUID,
        "since": 1_700_000_000.0,
        "by": "gpufleet-quarantine",
        "was_cordoned": False,
        "reasons": [],
    }


def test_people_are_told_of_gpu_and_fault() -> None:
    """By the node's condition and event, and by an event on the pod that held the GPU."""
    rig = Rig(cluster_with())
    rig.mark()

    ours, ready = rig.node["status"]["conditions"]
    assert ready == READY
    assert (ours["type"], ours["status"]) == ("GpufleetQuarantine", "True")
    events = rig.cluster.all("events")
    assert {each["involvedObject"]["kind"]: each["metadata"]["namespace"] for each in events} == {
        "Node": "default",
        "Pod": "research",
    }
    for text in [ours["message"], *(each["message"] for each in events)]:
        assert "Xid 79" in text
        assert UUID in text
    (about,) = [each["involvedObject"] for each in events if each["involvedObject"]["kind"] == "Pod"]
    assert about["uid"] == rig.cluster.at(pod("research", "train-0"))["metadata"]["uid"]


def test_marking_again_writes_nothing() -> None:
    """Whatever was done is found, and each event is there once."""
    rig = Rig(cluster_with())
    rig.mark()
    before = [*rig.cluster.all("nodes"), *rig.cluster.all("events")]

    again = rig.mark()

    assert [outcome for _, _, outcome in again] == [Outcome.ALREADY] * 4
    assert [*rig.cluster.all("nodes"), *rig.cluster.all("events")] == before


def test_every_write_is_in_the_audit_before_and_after() -> None:
    """With what it depended on and what it changes."""
    rig = Rig(cluster_with())
    rig.mark()

    lines = rig.lines()
    writes = [call for call in rig.cluster.calls if call.writes]
    assert [line["event"] for line in lines] == ["intent", "result"] * len(writes)
    assert {line["incident"] for line in lines} == {"prod/gpu-1/i-1"}
    assert lines[0]["action"] == "cordon"
    assert lines[0]["cordon"] == "true"
    assert json.loads(lines[0]["taints"])[0] == FOREIGN
    assert lines[1]["outcome"] == "done"


def test_a_second_incident_joins_the_reasons() -> None:
    """The first one's taint and its note of how the node was before stay."""
    rig = Rig(cluster_with())
    rig.mark()
    taints = rig.node["spec"]["taints"]

    rig.mark(SECOND)

    note = json.loads(rig.node["metadata"]["annotations"][KEY])
    assert (note["key"], [each["key"] for each in note["reasons"]]) == ("prod/gpu-1/i-1", ["prod/gpu-1/i-2"])
    assert rig.node["spec"]["taints"] == taints
    message = rig.node["status"]["conditions"][0]["message"]
    assert "Xid 79" in message
    assert "sxid_20034 on the node" in message


def test_a_release_leaves_the_node_as_it_was() -> None:
    """Taint, annotation, condition and cordon are gone, and nothing else."""
    rig = Rig(cluster_with())
    before = {name: rig.node[name] for name in ("spec", "status")}
    annotations = rig.node["metadata"]["annotations"]
    rig.mark()

    steps = rig.release()

    assert steps == [(action, "node/gpu-1", Outcome.DONE) for action in ("uncordon", "condition", "event")]
    assert {name: rig.node[name] for name in before} == before
    assert rig.node["metadata"]["annotations"] == annotations
    assert rig.release()[:2] == [(action, "node/gpu-1", Outcome.ALREADY) for action in ("uncordon", "condition")]


def test_a_node_without_taints_has_none_after_its_release() -> None:
    """Not an empty list either."""
    rig = Rig(cluster_with(taints=()))
    rig.mark()
    rig.release()

    assert rig.node["spec"] == {"providerID": "x"}


def test_somebody_elses_cordon_stays() -> None:
    """It was there before ours, and the annotation has remembered that."""
    rig = Rig(cluster_with(cordoned=True))
    rig.mark()
    assert json.loads(rig.node["metadata"]["annotations"][KEY])["was_cordoned"] is True

    rig.release()

    assert rig.node["spec"] == {"providerID": "x", "unschedulable": True, "taints": [FOREIGN]}


def test_what_others_change_between_mark_and_release_stays() -> None:
    """A taint that came later is kept byte for byte, in its place."""
    rig = Rig(cluster_with())
    rig.mark()
    late = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-02-02T00:00:00Z"}
    ours = rig.node["spec"]["taints"][1]
    rig.cluster.change(node("gpu-1"), {"spec": {"taints": [late, ours, FOREIGN]}})

    rig.release()

    assert rig.node["spec"]["taints"] == [late, FOREIGN]


def test_an_incident_that_is_not_the_last_takes_only_itself_off() -> None:
    """The node stays out for the other."""
    rig = Rig(cluster_with())
    rig.mark()
    rig.mark(SECOND)

    assert rig.release(last=False)[0] == ("annotate", "node/gpu-1", Outcome.DONE)

    note = json.loads(rig.node["metadata"]["annotations"][KEY])
    assert (note["key"], note["reasons"]) == ("prod/gpu-1/i-2", [])
    assert rig.node["spec"]["unschedulable"] is True
    assert "Xid 79" not in rig.node["status"]["conditions"][0]["message"]
    assert rig.release(SECOND)[0] == ("uncordon", "node/gpu-1", Outcome.DONE)
    assert "unschedulable" not in rig.node["spec"]


def test_a_person_who_uncordons_is_not_overruled() -> None:
    """The view shows it, marking again leaves it alone, and the release takes off the rest."""
    rig = Rig(cluster_with())
    rig.mark()
    rig.cluster.change(node("gpu-1"), {"spec": {"unschedulable": None}})

    seen = view(rig.cluster.api(), Nodes(), lambda: NOW).nodes["gpu-1"]
    assert (seen.mark, seen.held_out) == (Mark("prod/gpu-1/i-1", 1_700_000_000.0, was_cordoned=False), False)
    assert rig.mark(SECOND) == [("cordon", "node/gpu-1", Outcome.REFUSED)]
    assert rig.release()[0] == ("uncordon", "node/gpu-1", Outcome.DONE)
    assert rig.node["spec"] == {"providerID": "x", "taints": [FOREIGN]}
    assert rig.node["status"]["conditions"] == [READY]


def test_a_node_that_opted_out_meanwhile_is_left_alone() -> None:
    """Between the decision and the write a person may have put the label on it; a release is made all the same."""
    rig = Rig(cluster_with())
    rig.cluster.change(node("gpu-1"), {"metadata": {"labels": {"gpufleet.io/quarantine": "ignore"}}})

    assert rig.mark() == [("cordon", "node/gpu-1", Outcome.REFUSED)]

    other = Rig(cluster_with())
    other.mark()
    other.cluster.change(node("gpu-1"), {"metadata": {"labels": {"gpufleet.io/quarantine": "ignore"}}})
    assert other.release()[0] == ("uncordon", "node/gpu-1", Outcome.DONE)


def test_a_lone_taint_without_a_cordon_is_a_release_too() -> None:
    """Somebody has taken off the annotation and the cordon: the taint is what is left to take off."""
    ours = {"key": KEY, "value": "xid-79", "effect": "NoSchedule"}
    rig = Rig(cluster_with(taints=(FOREIGN, ours)))

    assert rig.mark() == [("cordon", "node/gpu-1", Outcome.REFUSED)]
    assert rig.release()[0] == ("uncordon", "node/gpu-1", Outcome.DONE)
    assert rig.node["spec"]["taints"] == [FOREIGN]


def test_the_only_reason_stays_while_the_node_is_held() -> None:
    """Another incident holds it whose reason is not written yet."""
    rig = Rig(cluster_with())
    rig.mark()
    before = rig.node

    assert rig.release(last=False)[0] == ("annotate", "node/gpu-1", Outcome.ALREADY)
    assert rig.node == before


def test_each_pod_that_held_the_gpu_is_told() -> None:
    """Two of one namespace share the GPU."""
    cluster = cluster_with()
    cluster.put(pod("research", "train-1"), {"spec": {"nodeName": "gpu-1"}})
    holders = tuple(Holder(namespace="research", pod=f"train-{number}") for number in range(2))

    steps = Rig(cluster).mark(record(incident(holders=holders)))

    assert [outcome for _, _, outcome in steps[3:]] == [Outcome.DONE, Outcome.DONE]
    assert {each["involvedObject"]["name"] for each in cluster.all("events")} == {"gpu-1", "train-0", "train-1"}


def test_a_stale_write_is_decided_anew() -> None:
    """Somebody cordons the node between our reading and our writing: it stays cordoned after the release."""
    cluster = cluster_with()
    others = iter([{"spec": {"unschedulable": True}}])

    def meet(call: Call) -> Fault:
        if call.verb == "patch":
            for change in others:
                cluster.change(node("gpu-1"), change)
        return Fault.NONE

    rig = Rig(cluster, meet)
    assert rig.mark() == MARKED
    assert json.loads(rig.node["metadata"]["annotations"][KEY])["was_cordoned"] is True
    assert [line["outcome"] for line in rig.lines() if line["event"] == "result"][:2] == ["blocked", "done"]


@pytest.mark.parametrize("lost", [4, 5])
def test_the_fifth_write_counts(lost: int) -> None:
    """Four may be lost to others; the one that is not is read back as any other."""
    cluster = cluster_with()
    turns = iter(range(lost))

    def meet(call: Call) -> Fault:
        if call.verb == "patch" and call.place == node("gpu-1") and next(turns, None) is not None:
            cluster.change(node("gpu-1"), {"metadata": {"labels": {"calls": str(len(cluster.calls))}}})
        return Fault.NONE

    assert Rig(cluster, meet).mark()[0] == ("cordon", "node/gpu-1", Outcome.DONE if lost == 4 else Outcome.FAILED)


def test_a_node_that_never_rests_is_left_for_the_next_round() -> None:
    """After five writes that came too late."""
    cluster = cluster_with()
    turn = 0

    def meet(call: Call) -> Fault:
        nonlocal turn
        if call.verb == "patch":
            turn += 1
            cluster.change(node("gpu-1"), {"metadata": {"labels": {"turn": str(turn)}}})
        return Fault.NONE

    (step,) = Rig(cluster, meet).marks.mark(record())

    assert (step.outcome, turn) == (Outcome.FAILED, 5)
    assert KEY not in cluster.at(node("gpu-1"))["metadata"]["annotations"]


def test_a_taint_that_somebody_wrote_over_is_written_again() -> None:
    """Who replaces the list of taints without a resourceVersion takes ours off: it is looked for after the write."""
    cluster = cluster_with()
    lost = iter([{"spec": {"taints": [FOREIGN]}}])

    def meet(call: Call) -> Fault:
        if call.verb == "get" and cluster.at(node("gpu-1"))["spec"].get("unschedulable"):
            for change in lost:
                cluster.change(node("gpu-1"), change)
        return Fault.NONE

    rig = Rig(cluster, meet)

    assert rig.mark() == MARKED
    assert [taint["key"] for taint in rig.node["spec"]["taints"]] == ["maintenance", KEY]
    assert json.loads(rig.node["metadata"]["annotations"][KEY])["was_cordoned"] is False


@pytest.mark.parametrize("spoiled", ["{", "[]", "1", '{"was_cordoned": 1}', '{"key": "k", "reasons": []}', "[" * 9_999])
def test_an_annotation_that_somebody_spoiled_is_ours_all_the_same(spoiled: str) -> None:
    """It says no more whether the cordon is ours, so that stays."""
    rig = Rig(cluster_with())
    rig.mark()
    rig.cluster.change(node("gpu-1"), {"metadata": {"annotations": {KEY: spoiled}}})

    seen = view(rig.cluster.api(), Nodes(), lambda: NOW).nodes["gpu-1"]
    assert seen.mark == Mark("", 0.0, was_cordoned=True)
    assert rig.release()[0] == ("uncordon", "node/gpu-1", Outcome.DONE)
    assert rig.node["spec"] == {"providerID": "x", "unschedulable": True, "taints": [FOREIGN]}
    assert KEY not in rig.node["metadata"]["annotations"]


def test_a_spoiled_annotation_is_written_anew_by_the_next_mark() -> None:
    """The reason is there again."""
    rig = Rig(cluster_with())
    rig.mark()
    rig.cluster.change(node("gpu-1"), {"metadata": {"annotations": {KEY: "{"}}})

    assert rig.mark()[0] == ("cordon", "node/gpu-1", Outcome.DONE)
    assert json.loads(rig.node["metadata"]["annotations"][KEY])["was_cordoned"] is True


def test_a_node_that_is_gone_needs_nothing() -> None:
    """Neither a mark nor a release."""
    rig = Rig(FakeCluster())

    assert rig.mark() == [("cordon", "node/gpu-1", Outcome.GONE)]
    assert rig.release() == [("uncordon", "node/gpu-1", Outcome.GONE)]


def test_a_condition_is_not_put_on_another_node_of_the_name() -> None:
    """The machine was replaced between our two writes."""
    cluster = cluster_with()

    def meet(call: Call) -> Fault:
        if call.place.subresource == "status":
            cluster.end(node("gpu-1"))
            cluster.put(node("gpu-1"), {"status": {"conditions": [READY]}})
        return Fault.NONE

    steps = Rig(cluster, meet).mark()

    assert steps[1] == ("condition", "node/gpu-1", Outcome.GONE)
    assert cluster.at(node("gpu-1"))["status"]["conditions"] == [READY]


def test_a_server_that_is_away_is_told_as_that() -> None:
    """What cannot be seen is not decided on."""
    rig = Rig(cluster_with(), lambda _: Fault.LOST_REQUEST)

    with pytest.raises(UnobservableError, match="node gpu-1 cannot be seen"):
        rig.mark()


def test_a_role_that_is_missing_is_named_in_the_step() -> None:
    """And in the audit."""
    rig = Rig(cluster_with(), grants=(Grant("", "nodes", ("get",)),))

    (step,) = rig.marks.mark(record())

    assert step.outcome is Outcome.FAILED
    assert "bind the ClusterRole gpufleet-quarantine of" in step.detail
    assert "ClusterRole" in rig.lines()[-1]["detail"]


def test_an_audit_that_cannot_be_written_stops_the_write() -> None:
    """What is not on record is not done."""
    rig = Rig(cluster_with())
    rig.audited.close()
    rig.audited.name = "audit.jsonl"

    (step,) = rig.marks.mark(record())

    assert (step.outcome, "cannot write the audit" in step.detail) == (Outcome.FAILED, True)
    assert "unschedulable" not in rig.node["spec"]


def test_a_pod_that_is_gone_or_another_one_gets_no_event() -> None:
    """A name that came back on another node is another pod."""
    cluster = cluster_with()
    holders = (Holder(namespace="research", pod="gone"), Holder(namespace="research", pod="train-0"), Holder("p", "r"))
    cluster.change(pod("research", "train-0"), {"spec": {"nodeName": "gpu-2"}})

    steps = Rig(cluster).mark(record(incident(holders=holders)))

    assert steps[3:] == [
        ("event", "pod/research/gone", Outcome.GONE),
        ("event", "pod/research/train-0", Outcome.GONE),
    ]


def test_a_hostile_name_of_a_pod_is_no_pod() -> None:
    """Labels of an alert are a tenant's text."""
    holders = (Holder(namespace="../nodes", pod="gpu-1"),)

    steps = Rig(cluster_with()).mark(record(incident(holders=holders)))

    assert steps[3] == ("event", "pod/../nodes/gpu-1", Outcome.GONE)


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_whatever_befalls_each_call_the_next_round_ends_it(fault: Fault) -> None:
    """Marking and releasing come to the same, wherever they were interrupted."""
    told = record(stage=Stage.RELEASING)
    whole = Rig(cluster_with())
    whole.mark()
    events = [each["metadata"]["name"] for each in whole.cluster.all("events")]
    count = len(whole.cluster.calls)
    for number in range(count):
        cluster = cluster_with()
        with contextlib.suppress(Crashed, UnobservableError):
            Rig(cluster, at(number, fault)).mark()
        rig = Rig(cluster)
        assert all(step.is_final for step in rig.marks.mark(told))
        assert rig.node["spec"] == whole.node["spec"]
        assert rig.node["status"] == whole.node["status"]
        assert rig.node["metadata"]["annotations"] == whole.node["metadata"]["annotations"]
        assert [each["metadata"]["name"] for each in cluster.all("events")] == events

        with contextlib.suppress(Crashed, UnobservableError):
            Rig(cluster, at(number, fault)).release(told)
        rig = Rig(cluster)
        assert all(step.is_final for step in rig.marks.release(told, last=True))
        assert rig.node["spec"] == {"providerID": "x", "taints": [FOREIGN]}
        assert rig.node["status"]["conditions"] == [READY]


@pytest.mark.parametrize(
    ("fault", "value"),
    [
        ("79", "xid-79"),
        ("sxid_20034", "sxid_20034"),
        ("gpu_lost", "gpu_lost"),
        ("", "fault"),
        ("-- a/b:é --", "a-b"),
        ("x" * 62 + "-y", "x" * 62),
    ],
)
def test_a_taint_names_the_fault_in_what_a_taint_may_hold(fault: str, value: str) -> None:
    """The exact fault is in the annotation."""
    rig = Rig(cluster_with(taints=()))
    rig.mark(record(incident(fault=fault)))

    assert rig.node["spec"]["taints"][0]["value"] == value
    assert json.loads(rig.node["metadata"]["annotations"][KEY])["fault"] == fault


def test_two_replicas_that_mark_at_once_make_one_mark() -> None:
    """The slower one finds it done."""
    cluster = cluster_with()
    other = Rig(cluster)
    turns = iter([None])

    def meet(call: Call) -> Fault:
        if call.verb == "patch":
            for _ in turns:
                other.mark()
        return Fault.NONE

    steps = Rig(cluster, meet).mark()

    assert [outcome for _, _, outcome in steps] == [Outcome.ALREADY] * 4
    assert len(cluster.all("events")) == 2


def test_every_change_of_a_node_has_a_condition() -> None:
    """A resourceVersion or a UID, for marking, joining and releasing alike."""
    rig = Rig(cluster_with())
    rig.mark()
    rig.mark(SECOND)
    rig.release(last=False)
    rig.release(replace(SECOND, stage=Stage.RELEASING))

    changes = [call for call in rig.cluster.calls if call.verb == "patch"]
    assert len(changes) == 8
    assert all({"resourceVersion", "uid"} & call.body["metadata"].keys() for call in changes)
    assert {call.place.granted for call in changes} == {"nodes", "nodes/status"}
    assert Place("nodes", "gpu-1") in {call.place for call in changes}
