"""The API server of the property tests answers as a real one did, and keeps what it promises."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpufleet.quarantine.actuators.kubernetes.api import Json, Patch
from gpufleet.quarantine.actuators.kubernetes.places import NODES, Place, config_map, events, node, pod, pods
from gpufleet.quarantine.actuators.kubernetes.refusals import (
    ApiError,
    ForbiddenError,
    InvalidError,
    TooManyRequestsError,
    UnavailableError,
)
from tests.support.fake_kubernetes import Call, Crashed, FakeApi, FakeCluster, Fault
from tests.support.kubernetes_answers import Answer, answers

RECORDED = answers()
NOT_ASKED = {
    "unauthorized_401",  # the fake knows everybody
    "wrong_content_type_415",  # no such patch can be asked for
    "lease_create",  # none is made
    "forbidden_403",  # its own test
    "event_create_node",  # with a generated name, which ours never have
}


def place_of(path: str) -> Place:
    """A place by its URL."""
    parts = urlsplit(path).path.split("/")[1:]
    api = "v1" if parts[0] == "api" else "/".join(parts[1:3])
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    return Place(resource, name, namespace, api, subresource)


def ask(api: FakeApi, recorded: Answer) -> Any:  # noqa: ANN401 - JSON
    """Ask again what was asked of the real server."""
    place = place_of(recorded.path)
    query = {key: value[0] for key, value in parse_qs(urlsplit(recorded.path).query).items()}
    match recorded.method:
        case "GET" if place.name:
            return api.get(place)
        case "GET":
            found = api.each(place, dict, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))
            return {"items": list(found)}
        case "POST":
            return api.create(place, recorded.sent)
        case "PUT":
            return api.replace(place, recorded.sent)
        case _:
            return api.patch(place, Patch(recorded.content_type), recorded.sent)


def as_it_was() -> FakeCluster:
    """The cluster that the recorded requests met."""
    cluster = FakeCluster()
    found = RECORDED["node_get"].body
    cluster._version = 201
    cluster.put(node("n1"), found)
    cluster._version = 220
    ledger = RECORDED["configmap_create"].body
    place = config_map("default", "ledger")
    cluster.put(place, ledger)
    web = {"metadata": {"labels": {"app": "web"}}, "status": {"phase": "Running"}, "spec": {"nodeName": "n2"}}
    for name in ("web0", "web1"):
        cluster.put(pod("default", name), web)
    budget = {"spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}}
    cluster.put(Place("poddisruptionbudgets", "web", "default", "policy/v1"), budget)
    for recorded in RECORDED["pods_on_node"].body["items"]:
        content = {**recorded, "metadata": {k: v for k, v in recorded["metadata"].items() if "deletion" not in k}}
        content["status"] = {"phase": "Running"}
        cluster.put(pod("default", recorded["metadata"]["name"]), content)
    return cluster


@pytest.mark.parametrize("name", sorted(RECORDED.keys() - NOT_ASKED))
def test_it_answers_as_a_real_one_did(name: str) -> None:
    """Status, reason and words of refusals, and the parts that matter of what was read or written."""
    recorded = RECORDED[name]
    cluster = as_it_was()
    api = cluster.api(grants=None)
    if name == "pod_status_patch_failed_pod":
        cluster.put(pod("default", "f"), {**recorded.body, "status": {"phase": "Failed"}})
    if name == "configmap_create":
        cluster.end(config_map("default", "ledger"))
    if name == "configmap_put_stale_409":
        ask(api, RECORDED["configmap_put_ok"])
    if name == "node_patch_conflict_409":
        ask(api, RECORDED["node_cordon_ok"])

    if recorded.status < 400:
        found = ask(api, recorded)
        for part in ("spec", "data", "code"):
            assert found.get(part) == recorded.body.get(part)
        if name == "pod_status_patch_failed_pod":
            assert found["status"]["conditions"][0].items() >= recorded.sent["status"]["conditions"][0].items()
        if "items" in recorded.body:
            wanted = [each["metadata"]["name"] for each in recorded.body["items"]]
            assert [each["metadata"]["name"] for each in found["items"]][: len(wanted)] == wanted
        return
    with pytest.raises(ApiError) as caught:
        ask(api, recorded)
    assert caught.value.status == recorded.status
    assert caught.value.reason == recorded.body.get("reason", "")
    assert recorded.body["message"] in str(caught.value)
    if isinstance(caught.value, TooManyRequestsError):
        assert caught.value.disruption_budget


def test_every_answer_that_was_recorded_is_compared_or_has_its_reason() -> None:
    """No recording is left out by mistake."""
    assert RECORDED.keys() >= NOT_ASKED
    assert len(RECORDED.keys() - NOT_ASKED) == 17


def test_a_role_that_is_not_bound_is_missed() -> None:
    """The words are those of the real authorizer, and ours name the role."""
    recorded = RECORDED["forbidden_403"]
    api = FakeCluster().api("gpu-bot", grants=())

    with pytest.raises(ForbiddenError) as caught:
        list(api.each(NODES, dict))

    assert recorded.body["message"] in str(caught.value)
    assert "ClusterRole gpufleet-quarantine" in str(caught.value)


def test_a_write_that_changes_nothing_makes_no_new_version() -> None:
    """As etcd has it: whoever waits for a version would wait for ever otherwise."""
    cluster = FakeCluster()
    first = cluster.put(node("n"), {"spec": {"unschedulable": True}})

    again = cluster.api().patch(node("n"), Patch.MERGE, {"spec": {"unschedulable": True}})

    assert again == first


def test_status_and_spec_are_written_apart() -> None:
    """A patch of the object leaves its status alone, and one of the status everything else."""
    cluster = FakeCluster()
    cluster.put(node("n"), {"spec": {"a": 1}, "status": {"b": 1}})
    api = cluster.api()

    api.patch(node("n"), Patch.MERGE, {"spec": {"a": 2}, "status": {"b": 2}})
    assert (cluster.at(node("n"))["spec"], cluster.at(node("n"))["status"]) == ({"a": 2}, {"b": 1})
    api.patch(node("n").of("status"), Patch.MERGE, {"spec": {"a": 3}, "status": {"b": 3}})
    assert (cluster.at(node("n"))["spec"], cluster.at(node("n"))["status"]) == ({"a": 2}, {"b": 3})


def test_a_strategic_patch_merges_conditions_and_replaces_taints() -> None:
    """Which is why a condition needs no resourceVersion and a taint does."""
    cluster = FakeCluster()
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Mine", "status": "True"}]
    cluster.put(node("n"), {"spec": {"taints": [{"key": "a"}]}, "status": {"conditions": conditions}})
    api = cluster.api()

    api.patch(node("n"), Patch.STRATEGIC, {"spec": {"taints": [{"key": "b"}]}})
    change: Json = {"status": {"conditions": [{"type": "Mine", "$patch": "delete"}, {"type": "New", "status": "True"}]}}
    api.patch(node("n").of("status"), Patch.STRATEGIC, change)

    assert cluster.at(node("n"))["spec"]["taints"] == [{"key": "b"}]
    assert [each["type"] for each in cluster.at(node("n"))["status"]["conditions"]] == ["New", "Ready"]


def test_a_uid_of_another_time_is_refused() -> None:
    """A node that was deleted and made anew is not the one that was read."""
    cluster = FakeCluster()
    cluster.put(node("n"))

    with pytest.raises(InvalidError, match=r"metadata\.uid"):
        cluster.api().patch(node("n").of("status"), Patch.STRATEGIC, {"metadata": {"uid": "other"}, "status": {}})


def test_a_dry_run_changes_nothing() -> None:
    """It is checked all the same."""
    cluster = as_it_was()
    before = {name: cluster.all(name) for name in ("nodes", "pods", "events")}
    api = cluster.api()

    api.patch(node("n1"), Patch.MERGE, {"spec": {"unschedulable": True}}, dry_run=True)
    api.create(pod("default", "free").of("eviction"), {"metadata": {"name": "free"}}, dry_run=True)
    api.create(events("default"), {"metadata": {"name": "e"}}, dry_run=True)
    with pytest.raises(TooManyRequestsError):
        api.create(pod("default", "web0").of("eviction"), {"metadata": {"name": "web0"}}, dry_run=True)

    assert {name: cluster.all(name) for name in before} == before


def test_an_evicted_pod_is_going_and_says_why() -> None:
    """Evicting it again is no error, and a budget is not asked any more."""
    cluster = as_it_was()
    cluster.end(Place("poddisruptionbudgets", "web", "default", "policy/v1"))
    api = cluster.api()
    for _ in range(2):
        api.create(pod("default", "web0").of("eviction"), {"metadata": {"name": "web0"}})

    found = cluster.at(pod("default", "web0"))
    assert "deletionTimestamp" in found["metadata"]
    assert found["status"]["conditions"][0]["reason"] == "EvictionByEvictionAPI"


def test_a_config_map_may_not_be_too_big() -> None:
    """The limit is on the sum of all values."""
    body = {"metadata": {"name": "c"}, "data": {"a": "x" * (1 << 20), "b": "y"}}

    with pytest.raises(InvalidError):
        FakeCluster().api().create(config_map("ns"), body)


@pytest.mark.parametrize(
    ("fault", "error", "done"),
    [
        (Fault.LOST_REQUEST, UnavailableError, False),
        (Fault.LOST_ANSWER, UnavailableError, True),
        (Fault.CRASH_BEFORE, Crashed, False),
        (Fault.CRASH_AFTER, Crashed, True),
    ],
)
def test_faults_befall_before_and_after(fault: Fault, error: type[BaseException], done: bool) -> None:
    """What a test plants happens at exactly that place."""
    cluster = FakeCluster()
    cluster.put(node("n"))

    def meet(call: Call) -> Fault:
        return fault if call.writes else Fault.NONE

    with pytest.raises(error):
        cluster.api(meet=meet).patch(node("n"), Patch.MERGE, {"spec": {"unschedulable": True}})

    assert (cluster.at(node("n")).get("spec") == {"unschedulable": True}) is done
    assert len(cluster.calls) == done


def test_selectors_select() -> None:
    """By label, by field, by namespace."""
    cluster = as_it_was()
    api = cluster.api()

    assert [each["metadata"]["name"] for each in api.each(pods("default"), dict, labels="app=web")] == ["web0", "web1"]
    assert list(api.each(pods("elsewhere"), dict)) == []
    assert list(api.each(NODES, dict, labels="app")) == []
