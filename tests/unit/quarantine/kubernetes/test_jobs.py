"""Which failures cost a Job a retry, and which of them a fault is to blame for."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gpufleet.quarantine.actuators.kubernetes.jobs import Fault, Job, due, refund_patch
from gpufleet.quarantine.actuators.kubernetes.pods import Pod
from gpufleet.quarantine.actuators.kubernetes.telling import timestamp

SINCE = 1_796_000_000.0
FAULT = Fault("bad", SINCE, SINCE + 20, 60)
KEY = "c/bad/1"
MOST = (8, 24)


def pod(name: str, ended: float = 0.0, **changes: Any) -> Pod:  # noqa: ANN401 - fields of any type
    """A pod of the Job that failed so many seconds after the fault, on the bad node if nothing else is said."""
    state = {"terminated": {"exitCode": changes.get("code", 1), "finishedAt": timestamp(SINCE + ended)}}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": f"uid-{name}",
                "creationTimestamp": timestamp(SINCE + changes.get("created", -3600)),
                "annotations": changes.get("annotations"),
                "ownerReferences": [
                    {
                        "kind": "Job",
                        "apiVersion": "batch/v1",
                        "name": "job",
                        "uid": changes.get("owner", "uid-job"),
                        "controller": True,
                    }
                ],
            },
            "spec": {"nodeName": changes.get("node", "bad")},
            "status": {
                "phase": changes.get("phase", "Failed"),
                "conditions": [{"type": each, "status": "True"} for each in changes.get("conditions", ())],
                "containerStatuses": [{"name": "main", "state": state}],
            },
        },
        Pod,
    )


def job(*rules: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> Job:  # noqa: ANN401
    """A Job with these rules for failed pods."""
    policy = {"podFailurePolicy": {"rules": list(rules)}} if rules else {}
    metadata = {"name": "job", "namespace": "ns", "uid": "uid-job", "resourceVersion": "7", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": {"backoffLimit": 2, **policy, **spec}}, Job)


def names(found: tuple[Pod, ...]) -> list[str]:
    """Names of pods."""
    return [each.metadata.name for each in found]


@pytest.mark.parametrize(
    ("died", "its"),
    [
        (True, pod("p", 0)),
        (True, pod("p", -4)),  # the program sees it before the driver has said so
        (False, pod("p", -6)),
        (True, pod("p", 79)),  # a replacement that met the same GPU before the node was out
        (True, pod("p", 79, created=30)),
        (False, pod("p", 81)),
        (True, pod("p", 59, node="good")),
        (False, pod("p", 61, node="good")),
        (False, pod("p", 30, node="good", created=10)),  # it began after the fault: what ended it is its own
        (False, pod("p", 0, phase="Succeeded")),
        (False, pod("p", 0, phase="Running")),
    ],
)
def test_who_died_of_a_fault(died: bool, its: Pod) -> None:
    """On the node until it was out; elsewhere the run's peers, soon after it."""
    assert FAULT.took(its) is died


CODE = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [250]}}
CONDITION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
FAIL = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [250]}}


@pytest.mark.parametrize(
    ("counts", "rules", "its"),
    [
        (True, (), pod("p")),
        (False, (CODE,), pod("p", code=250)),
        (True, (CODE,), pod("p", code=1)),
        (False, (CONDITION,), pod("p", conditions=("DisruptionTarget",))),
        (True, (CONDITION,), pod("p")),
        (True, (FAIL, CONDITION), pod("p", conditions=("DisruptionTarget",))),  # the first that matches decides
        (False, (CODE, FAIL), pod("p", code=250)),
    ],
)
def test_what_a_job_counts(counts: bool, rules: tuple[dict[str, Any], ...], its: Pod) -> None:
    """As its controller does."""
    assert job(*rules).counts(its) is counts


def test_only_what_was_lost_is_given_back_and_once() -> None:
    """Not to other Jobs' pods, not for those that their Job forgave, nor those that were taken out of its count."""
    found = due(
        job(CODE, annotations={"gpufleet.io/refunded": '{"uid-old": "c/bad/0"}'}),
        [
            pod("lost"),
            pod("old"),
            pod("forgiven", code=250),
            pod("other", owner="uid-other"),
            pod("stripped", annotations={"gpufleet.io/finalizer-stripped": KEY}),
        ],
        FAULT,
        KEY,
        MOST,
    )

    assert (names(found.pods), names(found.already), names(found.over)) == (["lost"], ["old"], [])


@pytest.mark.parametrize(("most", "given"), [((8, 24), 4), ((3, 24), 3), ((8, 2), 2), ((0, 24), 0)])
def test_caps_bound_what_is_given(most: tuple[int, int], given: int) -> None:
    """For one incident, and for one Job."""
    pods = [pod(f"p{number}") for number in range(4)]
    found = due(job(), pods, FAULT, KEY, most)

    assert (len(found.pods), len(found.over)) == (given, 4 - given)


def test_the_caps_count_what_was_given_before() -> None:
    """Also by another replica: it stands on the Job."""
    told = json.dumps({"a": KEY, "b": KEY, "c": "other"})
    found = due(job(annotations={"gpufleet.io/refunded": told}), [pod("p1"), pod("p2")], FAULT, KEY, (3, 24))

    assert (names(found.pods), names(found.over)) == (["p1"], ["p2"])


def test_the_patch_is_guarded_and_names_the_pods() -> None:
    """One write: the retries, and for whom they are."""
    patch = refund_patch(job(), [pod("p1"), pod("p2")], KEY)

    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["spec"] == {"backoffLimit": 4}
    assert msgspec.json.decode(patch["metadata"]["annotations"]["gpufleet.io/refunded"]) == {
        "uid-p1": KEY,
        "uid-p2": KEY,
    }


@pytest.mark.parametrize(
    ("rules", "ignores"),
    [
        ((), False),
        ((CODE,), False),
        ((CONDITION,), True),
        ((FAIL, CONDITION), True),
        (({**CONDITION, "action": "Count"},), False),
    ],
)
def test_whether_a_job_forgives_evictions(rules: tuple[dict[str, Any], ...], ignores: bool) -> None:
    """Then its pods are evicted as they are."""
    assert job(*rules).ignores_disruptions() is ignores


@pytest.mark.parametrize("text", ["", "[]", "{", "7"])
def test_an_annotation_that_somebody_spoiled_is_an_empty_one(text: str) -> None:
    """The caps begin anew; the ledger still knows the pods."""
    assert job(annotations={"gpufleet.io/refunded": text}).refunded == {}
