"""The admission webhook: which failed pods it marks, with what patch, and that it lets everything through."""

from __future__ import annotations

import base64
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.quarantine.actuators.kubernetes.jobs import HARDWARE_FAULT
from gpufleet.quarantine.actuators.kubernetes.pods import STRIPPED, TRACKING, Pod
from gpufleet.quarantine.admission import ADMIT_PATH, Admission, Rules, reason, review
from gpufleet.quarantine.book import Book
from gpufleet.quarantine.incident import Holder, Scope
from gpufleet.quarantine.record import Record, Stage
from gpufleet.web.message import Request
from tests.support.quarantine_records import incident, record

SINCE = 1_700_000_000.0
"""2023-11-14T22:13:20Z."""
NOW = SINCE + 3
RULES = Rules()
STRIP = Rules(strip_finalizer=True)


def pod(name: str = "train-0", namespace: str = "research", node: str = "gpu-1", **meta: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever metadata a pod has
    """A pod that has just failed."""
    terminated = {"exitCode": 1, "finishedAt": "2023-11-14T22:13:22Z"}
    main = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": "u-1",
            "creationTimestamp": "2023-11-14T20:00:00Z",
            **meta,
        },
        "spec": {"nodeName": node, "containers": [main]},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}]},
    }


def of_job(name: str, job: str, **meta: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """A pod that a Job has made."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "j-1", "controller": True}
    return pod(name, ownerReferences=[owner], finalizers=["other/one", TRACKING], **meta)


def asked(new: dict[str, Any], was: str = "Running", **changes: Any) -> bytes:  # noqa: ANN401 - as above
    """The API server's question about a write."""
    old = copy.deepcopy(new)
    old["status"] = {"phase": was}
    request = {"uid": "r-1", "operation": "UPDATE", "subResource": "status", "object": new, "oldObject": old, **changes}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def book(*records: Record) -> Book:
    """A ledger."""
    found = Book()
    for each in records:
        found = found.with_record(each)
    return found


OUT = record(stage=Stage.MARKED, marked_at=SINCE + 1)


def answer(body: bytes) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Whom it is for, the patch and the warnings; it is always allowed."""
    told = json.loads(body)
    response = told["response"]
    assert (told["apiVersion"], told["kind"], response["allowed"]) == ("admission.k8s.io/v1", "AdmissionReview", True)
    changes = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    assert bool(changes) is (response.get("patchType") == "JSONPatch")
    return response["uid"], changes, response.get("warnings", [])


def changes(new: dict[str, Any], *records: Record, rules: Rules = RULES) -> list[dict[str, Any]]:
    """The patch for a pod that has just failed."""
    uid, found, warnings = answer(review(asked(new), book(*records), rules, NOW))
    assert (uid, warnings) == ("r-1", [])
    return found


def patched(new: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod with the patch made, as RFC 6902 has it."""
    made = copy.deepcopy(new)
    for change in found:
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")[1:]]
        at: Any = made
        for part in above:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key: Any = int(last) if isinstance(at, list) and last != "-" else last
        if change["op"] == "test":
            assert at[key] == change["value"]
        elif change["op"] == "remove":
            del at[key]
        elif last == "-":
            at.append(change["value"])
        else:
            at[key] = change["value"]
    return made


def test_the_pod_that_held_the_gpu_gets_the_condition() -> None:
    """In the write that says that it has failed, with fault and GPU for people."""
    (change,) = changes(pod(), OUT)

    assert change == {
        "op": "add",
        "path": "/status/conditions",
        "value": [
            {
                "type": "gpufleet.io/GPUHardwareFault",
                "status": "True",
                "reason": "Xid79",
                "message": f"GPU 3 {OUT.incident.uuid} of node gpu-1: 79 (incident prod/gpu-1/i-1)",
                "lastTransitionTime": "2023-11-14T22:13:23Z",
            }
        ],
    }


def test_conditions_that_are_there_stay() -> None:
    """Ours is added to them, or takes the place of one that says no."""
    ready = {"type": "Ready", "status": "False"}
    first, second = pod(), pod()
    first["status"]["conditions"] = [ready]
    second["status"]["conditions"] = [ready, {"type": HARDWARE_FAULT, "status": "False"}]

    for each in (first, second):
        there = patched(each, changes(each, OUT))["status"]["conditions"]
        assert [(one["type"], one["status"]) for one in there] == [("Ready", "False"), (HARDWARE_FAULT, "True")]


def test_a_pod_that_is_marked_is_left() -> None:
    """A kubelet repeats what it has said."""
    new = pod()
    new["status"]["conditions"] = [{"type": HARDWARE_FAULT, "status": "True"}]

    assert changes(new, OUT) == []


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (replace(OUT, incident=incident(refund=False)), "it pays nothing back"),
        (replace(OUT, stage=Stage.NONE), "it was not acted on: a dry run, a refusal, a budget"),
        (replace(OUT, stage=Stage.RELEASED), "the node is back"),
        (replace(OUT, node="gpu-2"), "another node"),
        (replace(OUT, incident=incident(holders=())), "nobody is known to have held it"),
        (replace(OUT, incident=incident(holders=(Holder(namespace="other", pod="train-0"),))), "another namespace"),
        (replace(OUT, incident=incident(since=SINCE + 60)), "it ended before"),
        (replace(OUT, incident=incident(since=SINCE - 7 * 86400)), "it is a later pod of that name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_faults_end_no_pod(told: Record, why: str) -> None:
    """Whatever is not certain costs what it always did."""
    assert changes(pod(), told) == [], why


def test_other_writes_are_let_through() -> None:
    """One that says nothing new, and a pod that runs."""
    running = pod()
    running["status"]["phase"] = "Running"

    assert answer(review(asked(pod(), was="Failed"), book(OUT), RULES, NOW)) == ("r-1", [], [])
    assert changes(running, OUT) == []
    assert answer(review(asked(pod()), book(OUT), RULES, NOW, opted_out={"research"})) == ("r-1", [], [])


def test_a_fault_of_the_node_ends_every_pod_with_a_gpu() -> None:
    """And none without."""
    told = replace(OUT, scope=Scope.NODE, incident=incident(holders=()))
    idle = pod("web")
    idle["spec"]["containers"] = [{"name": "main"}]

    assert changes(pod("any"), told) != []
    assert changes(idle, told) == []


def test_it_may_take_minutes_to_die_of_it() -> None:
    """A collective waits long before it gives up; who held the GPU has lost it all the same."""
    later = pod()
    later["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "2023-11-14T23:00:00Z"

    assert changes(later, OUT) != []


@pytest.mark.parametrize(
    ("name", "job", "meta", "held", "is_peer"),
    [
        ("train-b4xyz", "train", {}, "train-a1bcd", True),
        (
            "train-1-b4xyz",
            "train",
            {"annotations": {"batch.kubernetes.io/job-completion-index": "1"}},
            "train-0-a1bcd",
            True,
        ),
        ("train-b4xyz", "train", {}, "train-2-a1bcd", False),
        ("train-2-b4xyz", "train-2", {}, "train-a1bcd", False),
        ("train-b4xyz", "train", {}, "other-a1bcd", False),
    ],
)
def test_peers_in_its_job_fall_with_it(name: str, job: str, meta: dict[str, Any], held: str, is_peer: bool) -> None:
    """On whatever node they are, for as long as the rules say."""
    told = replace(OUT, incident=incident(holders=(Holder(namespace="research", pod=held),)))
    peer = of_job(name, job, **meta)
    peer["spec"]["nodeName"] = "gpu-7"
    late = copy.deepcopy(peer)
    late["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "2023-11-14T22:14:30Z"

    assert bool(changes(peer, told)) is is_peer
    assert changes(late, told) == []


def test_the_finalizer_goes_where_that_is_allowed() -> None:
    """With the note that keeps the refund from paying twice; others' finalizers and annotations stay."""
    noted = of_job("train-0", "train", annotations={"a": "b"})
    plain = of_job("train-0", "train")

    for each in (noted, plain):
        made = patched(each, changes(each, OUT, rules=STRIP))
        assert made["metadata"]["finalizers"] == ["other/one"]
        assert made["metadata"]["annotations"] == {
            **each["metadata"].get("annotations", {}),
            STRIPPED: "prod/gpu-1/i-1",
        }
    assert [each["path"] for each in changes(plain, OUT)] == ["/status/conditions"]
    assert [each["path"] for each in changes(pod(finalizers=[TRACKING]), OUT, rules=STRIP)] == ["/status/conditions"]


@pytest.mark.parametrize(
    ("fault", "expected"), [("79", "Xid79"), ("sxid_20034", "Sxid20034"), ("gpu_lost", "GpuLost"), ("", "Unknown")]
)
def test_a_fault_as_a_reason(fault: str, expected: str) -> None:
    """A word as Kubernetes has them."""
    assert reason(incident(fault=fault)) == expected


@pytest.mark.parametrize(
    ("body", "uid"),
    [
        (b"", ""),
        (b"{", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (b"[]", ""),
        (b'{"request": 7}', ""),
        (b'{"request": {"uid": "r-1"}}', "r-1"),
        (b'{"request": {"uid": 7}}', ""),
        (asked(pod()).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v2"), "r-1"),
        (asked(pod(), operation="DELETE"), "r-1"),
        (asked(pod(), subResource=""), "r-1"),
        (asked(pod(), object=None), "r-1"),
        (asked(pod(), object={"metadata": {"name": 7}}), "r-1"),
        (asked(pod(), oldObject={"status": []}), "r-1"),
    ],
)
def test_what_is_no_review_is_let_through_with_a_warning(body: bytes, uid: str) -> None:
    """It repeats the request's number where it can be read."""
    told, found, warnings = answer(review(body, book(OUT), RULES, NOW))

    assert (told, found) == (uid, [])
    assert warnings[0].startswith("gpufleet leaves this pod as it is: the review ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    where=st.sampled_from(
        ["metadata", "spec", "status", "status.conditions", "metadata.finalizers", "metadata.ownerReferences"]
    ),
    value=JSON,
)
def test_no_pod_breaks_it(where: str, value: Any) -> None:  # noqa: ANN401 - any JSON
    """Whatever stands there, the write goes through."""
    new = of_job("train-0", "train")
    *above, last = where.split(".")
    (new[above[0]] if above else new)[last] = value

    answer(review(asked(new), book(OUT), STRIP, NOW))


class Waiting:
    """Time that passes by being slept away, and a ledger that learns of the fault meanwhile."""

    def __init__(self, heard_at: float | None) -> None:
        self.now = 0.0
        self.heard_at = heard_at

    def book(self) -> Book | None:
        return book(OUT) if self.heard_at is not None and self.now >= self.heard_at else Book()

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def served(waiting: Waiting, new: dict[str, Any], marked: Any = lambda *_: None) -> tuple[list[dict[str, Any]], float]:  # noqa: ANN401 - a callable
    """The patch that the web server answers with, and after how many seconds."""
    admission = Admission(
        waiting.book, RULES, clock=lambda: NOW, marked=marked, monotonic=lambda: waiting.now, sleep=waiting.sleep
    )
    response = admission.routes()["POST", ADMIT_PATH](Request("POST", ADMIT_PATH, "", {}, asked(new), "::1"))
    assert (response.status, response.content_type) == (200, "application/json")
    return answer(response.body)[1], waiting.now


def test_the_write_waits_for_the_fault_to_be_told() -> None:
    """Less than a second, and only that of a pod which could have held a GPU."""
    idle = pod()
    idle["spec"]["containers"] = [{"name": "main"}]

    assert served(Waiting(0.0), pod())[1] == 0.0
    found, after = served(Waiting(0.4), pod())
    assert found != []
    assert 0.4 <= after < 0.5
    found, after = served(Waiting(None), pod())
    assert found == []
    assert 0.8 <= after < 1.0
    assert served(Waiting(0.4), idle) == ([], 0.0)


def test_what_is_not_on_record_is_not_done() -> None:
    """The audit comes before the patch."""
    noted: list[tuple[Pod, Record]] = []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    assert served(Waiting(0.0), pod(), lambda *facts: noted.append(facts))[0] != []
    assert [(each.metadata.name, told.key) for each, told in noted] == [("train-0", OUT.key)]
    assert served(Waiting(0.0), pod(), full)[0] == []


def test_a_service_that_has_read_no_ledger_marks_nobody() -> None:
    """It starts, or its ledger is gone."""
    admission = Admission(lambda: None, RULES, monotonic=iter([0.0, 1.0]).__next__, sleep=lambda _: None)

    response = admission.admit(Request("POST", ADMIT_PATH, "", {}, asked(pod()), "::1"))

    assert answer(response.body) == ("r-1", [], [])


def test_a_body_that_is_no_review_is_answered() -> None:
    """With 200: anything else would be the API server's error."""
    admission = Admission(lambda: book(OUT), RULES)

    response = admission.admit(Request("POST", ADMIT_PATH, "", {}, b"nothing", "::1"))

    assert response.status == 200
    assert answer(response.body)[2]
