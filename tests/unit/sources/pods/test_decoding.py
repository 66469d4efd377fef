"""What is taken from the API server's JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.claims import Pod
from gpufleet.sources.pods.decoding import (
    Change,
    DecodingError,
    decode_event,
    decode_failure,
    decode_labels,
    decode_list,
)

FULL = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "ml",
        "uid": "7F3A",
        "resourceVersion": "17",
        "labels": {"b": "2", "a": "1"},
        "annotations": {"gpufleet.io/run": "r", "kubectl.kubernetes.io/last-applied-configuration": "x" * 5000},
        "ownerReferences": [
            {"kind": "Queue", "name": "q", "controller": False},
            {"kind": "Job", "name": "train", "controller": True, "uid": "1"},
        ],
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {"nodeName": "node-1"},
    "status": {"phase": "Running", "podIP": "10.0.0.1"},
}
POD = Pod(
    uid="7f3a",
    namespace="ml",
    name="train-0",
    labels=(("a", "1"), ("b", "2")),
    annotations=(("gpufleet.io/run", "r"),),
    owner_kind="Job",
    owner_name="train",
    phase="Running",
)


def test_a_list_gives_pods_and_the_version_to_go_on_from() -> None:
    """Documents in annotations are left out; the owner is the controller; unknown fields do nothing."""
    body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "42"}, "items": [FULL, {"metadata": {}}]})
    assert decode_list(body.encode()) == ((POD,), "42")
    assert decode_list(b'{"metadata":{"resourceVersion":"1"},"items":null}') == ((), "1")


def test_annotations_that_nobody_reads_are_not_kept() -> None:
    """A node's pods have megabytes of them."""
    body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": [FULL]}).encode()
    assert decode_list(body, {"other"})[0][0].annotations == ()
    assert decode_list(body, {"gpufleet.io/run"})[0][0].annotations == (("gpufleet.io/run", "r"),)
    event = json.dumps({"type": "ADDED", "object": FULL}).encode()
    assert decode_event(event, set()).pod == replace(POD, annotations=())


@pytest.mark.parametrize(
    ("kind", "change"),
    [("ADDED", Change.PUT), ("MODIFIED", Change.PUT), ("DELETED", Change.REMOVED), ("NEWER", Change.NONE)],
)
def test_an_event_says_what_became_of_a_pod(kind: str, change: Change) -> None:
    """And from which version on a watch can go on; a type of a newer server changes nothing."""
    event = decode_event(json.dumps({"type": kind, "object": FULL}).encode())
    assert (event.change, event.version) == (change, "17")
    assert event.pod == (None if change is Change.NONE else POD)


def test_bookmarks_and_errors() -> None:
    """A bookmark has a version and nothing else; an error has a code and a reason."""
    bookmark = decode_event(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"99"}}}')
    assert (bookmark.change, bookmark.pod, bookmark.version) == (Change.NONE, None, "99")
    error = decode_event(
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}'
    )
    assert (error.change, error.code, error.reason) == (Change.FAILED, 410, "too old")
    assert decode_failure(b'{"kind":"Status","message":"pods is forbidden"}') == "pods is forbidden"
    assert decode_failure(b"<html>") == ""


def test_labels_of_a_node() -> None:
    """Those of any one object."""
    assert decode_labels(b'{"metadata":{"labels":{"a":"b"}}}') == {"a": "b"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"type":7,"object":{}}',
        b'{"object":{}}',
        b"\xff\xfe",
        b'{"type":"ADDED","object":{]}',
    ],
)
def test_what_is_no_event_is_refused(text: bytes) -> None:
    """With one kind of error, whatever it is."""
    with pytest.raises(DecodingError):
        decode_event(text)


@pytest.mark.parametrize(
    "bad", ['{"metadata":null}', '{"metadata":{"name":null}}', '{"metadata":{"labels":{"a":1}}}', "[]", "7"]
)
def test_one_object_that_is_none_costs_no_other(bad: str) -> None:
    """In a list and in a watch."""
    good = json.dumps(FULL)
    assert decode_list(f'{{"metadata":{{"resourceVersion":"1"}},"items":[{bad},{good}]}}'.encode()) == ((POD,), "1")
    assert decode_event(f'{{"type":"ADDED","object":{bad}}}'.encode()).change is Change.NONE


def test_everything_is_bounded() -> None:
    """Many pods, many labels, long names and long values cost what the bound says."""
    meta = {"name": "n", "namespace": "s", "labels": {f"k{number:05}": "v" for number in range(5000)}}
    many = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": meta}, {"metadata": {"name": "x" * 300}}]}
    ((pod,), _) = decode_list(json.dumps(many).encode())
    assert len(pod.labels) == 128
    crowd = {"items": [{"metadata": {"name": f"p{number}"}} for number in range(5000)]}
    assert len(decode_list(json.dumps(crowd).encode())[0]) == 2048


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_decode_or_are_refused(text: bytes) -> None:
    """Never anything else."""
    for decode in (decode_list, decode_event, decode_labels):
        try:
            decode(text)
        except DecodingError:
            continue


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_decodes_or_is_refused(tree: object) -> None:
    """Also as the object of an event."""
    for text in (json.dumps(tree), json.dumps({"type": "ADDED", "object": tree}), json.dumps({"items": [tree]})):
        for decode in (decode_list, decode_event):
            try:
                decode(text.encode())
            except DecodingError:
                continue
