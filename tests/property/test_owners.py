"""Whatever witnesses say: nothing raises, each GPU is held exactly once, and order and repetition change nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.model.claims import Cgroup, ContainerDevices, GpuProcess, JobDevice, JobSource, Pod, ProcessFacts
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.device_ids import find
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.identity import MOST_BYTES
from gpufleet.owners.resolve import Identities, resolve
from tests.support.owners_evidence import gpu, gpu_uuid, mig_uuid, node, pod_uid

if TYPE_CHECKING:
    from random import Random

    from gpufleet.model.owner import Workload
    from gpufleet.owners.devices import Devices
    from gpufleet.owners.resolve import Resolution

PROFILES = st.lists(
    st.sampled_from(["1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb", "1c.3g.40gb", "", "7g.80gb"]), max_size=4
)
FRACTIONS = st.sampled_from([None, 0.12, 0.5, float("nan")])
NODES = st.lists(st.tuples(PROFILES, FRACTIONS, st.integers(0, 3)), max_size=4).map(
    lambda rows: node(
        *(gpu(number, *row[0], fraction=row[1], minor=row[2]) for number, row in enumerate(rows)),
    )
)
UUIDS = [
    *(gpu_uuid(number) for number in range(5)),
    *(mig_uuid(number, part) for number in range(3) for part in range(3)),
]
IDS = st.one_of(
    st.sampled_from(UUIDS),
    st.builds("{}::{}".format, st.sampled_from(UUIDS), st.integers(0, 3)),
    st.sampled_from(
        [
            "0",
            "1",
            "0:1",
            "nvidia0",
            "nvidia1/gi8",
            "nvidia0/vgpu1",
            "gpu-0",
            "gpu-1",
            "gpu-0-mig-1g10gb-19-0",
            "gpu-0-mig-1g10gb-19-1",
            "gpu-1-mig-2g20gb-14-0",
        ]
    ),
    st.text(max_size=12),
)
NAMES = st.one_of(st.sampled_from(["a", "b", "c", "d"]), st.text(max_size=5))
SPACES = st.sampled_from(["team-a", "kai-resource-reservation"])
KEYS = st.sampled_from(
    [
        "job-name",
        "run",
        "project",
        "domain",
        "runai-gpu-group",
        "nodeset.slinky.slurm.net/pod-name",
        "gpufleet.io/run",
        "kueue.x-k8s.io/queue-name",
        "scheduler.slinky.slurm.net/slurm-jobid",
        "a.b",
        "a_b",
    ]
)
PAIRS = st.dictionaries(KEYS, st.one_of(st.sampled_from(["1", "x"]), st.text(max_size=300)), max_size=4).map(
    lambda found: tuple(found.items())
)
UIDS = st.integers(1, 5).map(pod_uid)
PODS = st.builds(
    Pod,
    UIDS,
    SPACES,
    NAMES,
    PAIRS,
    PAIRS,
    st.sampled_from(["", "ReplicaSet", "Job", "Node"]),
    NAMES,
    st.sampled_from(["Running", "Pending", "Succeeded", "Failed", "Unknown", ""]),
)
RESOURCES = st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpu.shared", "gpu.nvidia.com", "rdma/hca", "", "x"])
CONTAINERS = st.builds(
    ContainerDevices, SPACES, NAMES, NAMES, RESOURCES, st.lists(IDS, max_size=3).map(tuple), st.booleans()
)
JOBS = st.builds(
    JobDevice,
    st.sampled_from(JobSource),
    st.one_of(IDS, st.sampled_from(["minor:0", "minor:1", "index:0", "index:1.8"])),
    st.sampled_from(["1", "2", "3"]),
    user=NAMES,
    account=NAMES,
    name=st.text(max_size=200),
    shards=st.one_of(st.none(), st.integers(0, 8)),
)
CGROUPS = st.builds(
    Cgroup,
    pod_uid=st.one_of(st.none(), UIDS),
    container_id=st.one_of(st.none(), st.just("ab" * 32)),
    slurm_job=st.one_of(st.none(), st.sampled_from(["1", "2"])),
    unit=st.one_of(st.none(), st.just("x.service")),
)
PROCESSES = st.tuples(
    st.builds(GpuProcess, st.integers(1, 9), st.one_of(st.none(), st.integers(6, 10)), st.sampled_from([None, 0, 1])),
    st.builds(ProcessFacts, st.integers(1, 9), NAMES, CGROUPS),
)
EVIDENCE = st.builds(
    Evidence,
    containers=st.one_of(st.none(), st.lists(CONTAINERS, max_size=8).map(tuple)),
    pods=st.lists(PODS, max_size=6).map(lambda pods: {(pod.namespace, pod.name): pod for pod in pods}),
    pods_known=st.booleans(),
    jobs=st.one_of(st.none(), st.lists(JOBS, max_size=6).map(tuple)),
    processes=st.dictionaries(st.sampled_from(UUIDS[:5]), st.lists(PROCESSES, max_size=4).map(tuple), max_size=4),
    allocations_expected=st.booleans(),
    stale=st.booleans(),
)
CONFIG = OwnersConfig(labels=("a*", "job-name"))
MANY = settings(max_examples=250, deadline=None)


def texts(workload: Workload) -> list[str]:
    """Everything that a workload is called."""
    return [
        workload.project,
        workload.run,
        workload.task,
        workload.rank,
        workload.attempt,
        workload.workload_user,
        workload.workload_job,
        workload.workload_namespace,
        workload.workload_pod,
        workload.workload_container,
        *(text for label in workload.labels for text in label),
    ]


def answer(resolution: Resolution) -> Resolution:
    """The same with shares that differ by less than arithmetic does."""
    return replace(
        resolution, holdings=tuple(replace(each, share=round(each.share, 9)) for each in resolution.holdings)
    )


@MANY
@given(NODES, EVIDENCE)
def test_each_gpu_is_held_exactly_once(devices: Devices, evidence: Evidence) -> None:
    """The shares of each sum to one, what nobody holds included, and no part has two rows for one holder."""
    found = resolve(devices, evidence, CONFIG)
    sums: dict[str, list[float]] = defaultdict(list)
    for holding in found.holdings:
        assert 0.0 < holding.share <= 1.0 + 1e-9
        sums[holding.uuid].append(holding.share)

    assert set(sums) == {device.uuid for device in devices.gpus}
    assert all(math.isclose(math.fsum(shares), 1.0, abs_tol=1e-9) for shares in sums.values())
    rows = [(each.uuid, each.mig_uuid, each.hold, each.workload) for each in found.holdings]
    assert len(rows) == len(set(rows))
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)


@MANY
@given(NODES, EVIDENCE)
def test_names_are_bounded_and_printable(devices: Devices, evidence: Evidence) -> None:
    """Whatever pods, jobs and users are called."""
    for holding in resolve(devices, evidence, CONFIG).holdings:
        for text in texts(holding.workload):
            assert len(text.encode()) <= MOST_BYTES + len("label__conflict9")
            assert not any(character < " " for character in text)


@MANY
@given(NODES, EVIDENCE, st.randoms(use_true_random=False))
def test_order_and_memory_change_nothing(devices: Devices, evidence: Evidence, chance: Random) -> None:
    """Witnesses list things in any order, and names are remembered between refreshes."""
    names = Identities()
    first = resolve(devices, evidence, CONFIG, names)

    shuffled = replace(
        evidence,
        containers=None
        if evidence.containers is None
        else tuple(chance.sample(evidence.containers, len(evidence.containers))),
        processes={uuid: tuple(chance.sample(rows, len(rows))) for uuid, rows in evidence.processes.items()},
    )

    assert resolve(devices, evidence, CONFIG, names) == first
    assert answer(resolve(devices, shuffled, CONFIG, names)).holdings == answer(first).holdings


@MANY
@given(NODES, EVIDENCE, st.lists(IDS, max_size=3).map(tuple))
def test_a_completed_pod_changes_nothing(devices: Devices, evidence: Evidence, ids: tuple[str, ...]) -> None:
    """It holds nothing, whatever the kubelet still lists for it."""
    over = Pod("over", "team-z", "over", phase="Succeeded")
    more = replace(
        evidence,
        containers=(*(evidence.containers or ()), ContainerDevices("team-z", "over", "c", "nvidia.com/gpu", ids)),
        pods={**evidence.pods, ("team-z", "over"): over},
    )

    assert resolve(devices, more, CONFIG).holdings == resolve(devices, evidence, CONFIG).holdings


@MANY
@given(st.text(max_size=40), st.text(max_size=20), NODES)
def test_any_id_is_found_or_not(device_id: str, resource: str, devices: Devices) -> None:
    """And what is found is on the node."""
    target = find(device_id, resource, devices)

    assert target is None or target.uuid in devices.by_uuid
