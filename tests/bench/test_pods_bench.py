"""What the API server's list of a full node costs."""

from __future__ import annotations

import json

from pytest_benchmark.fixture import BenchmarkFixture

from gpufleet.sources.pods.decoding import decode_list

PODS = 250


def listed() -> bytes:
    """As an API server writes it: most of a pod is what nobody here reads."""
    container = {
        "name": "main",
        "image": "registry.invalid/image:1",
        "env": [{"name": f"E{i}", "value": "v" * 40} for i in range(30)],
    }
    items = [
        {
            "metadata": {
                "name": f"train-{number}-worker-{number % 8}",
                "namespace": f"team-{number % 17}",
                "uid": f"{number:08x}-ba47-41ea-b2a7-0cc47ac5979e",
                "labels": {"flyte.org/project": "llm", "flyte.org/run": f"r{number}", "app": "train"},
                "annotations": {f"example.com/a{i}": "x" * 100 for i in range(10)},
                "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:k{i}": {} for i in range(60)}}],
                "ownerReferences": [{"kind": "Job", "name": f"train-{number}", "controller": True}],
            },
            "spec": {"nodeName": "node-1", "containers": [container, container]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}] * 4},
        }
        for number in range(PODS)
    ]
    return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()


def test_a_list_of_a_full_node(benchmark: BenchmarkFixture) -> None:
    """250 pods of eight kilobytes, once at each start and after each version that was forgotten."""
    body = listed()
    pods, _ = benchmark(decode_list, body, frozenset({"gpufleet.io/run"}))
    benchmark.extra_info["bytes"] = len(body)
    assert len(pods) == PODS
