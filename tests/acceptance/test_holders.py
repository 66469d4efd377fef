"""What users of other exporters found wrong about whose a GPU is, as behaviour: from witnesses to the exposition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpufleet.metrics.render import OPENMETRICS_END, Renderer
from gpufleet.model.claims import ContainerDevices, JobSource
from gpufleet.model.owner import OwnersView
from gpufleet.model.snapshot import GpuSnapshot, Snapshot
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.devices import devices_of
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.resolve import resolve
from tests.support.owners_evidence import cluster, given, gpu, gpu_uuid, job, mig_uuid, pod, pod_uid, process
from tests.unit.metrics.snapshots import FAST, node, readings

GPUS = tuple(replace(gpu(number), parts=(readings(FAST, gpu=number),)) for number in range(4))
Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Shown:
    """An exposition, parsed by Prometheus' own parser of OpenMetrics."""

    values: dict[Series, float]
    conflicts: int = 0

    def labels(self, family: str) -> list[dict[str, str]]:
        """Labels of a family's series."""
        return [dict(labels) for name, labels in self.values if name == family]

    def shares(self) -> dict[str, dict[str, float]]:
        """Share by UUID and by pod, or by project where there is no pod."""
        found: dict[str, dict[str, float]] = {}
        for (name, labels), share in self.values.items():
            if name == "gpu_owner_share":
                of = dict(labels)
                who = of.get("workload_pod") or of["project"]
                found.setdefault(of["uuid"], {}).setdefault(who, 0.0)
                found[of["uuid"]][who] += share
        return found

    def devices(self) -> set[Series]:
        """Every series of the GPUs that is not about holders."""
        return {series for series in self.values if not series[0].startswith("gpu_owner")}


def shown(evidence: Evidence, gpus: Sequence[GpuSnapshot] = GPUS, config: OwnersConfig | None = None) -> Shown:
    """What is exposed of a node when the witnesses say this."""
    resolution = resolve(devices_of(gpus), evidence, config or OwnersConfig())
    snapshot: Snapshot = replace(node(*gpus), owners=OwnersView(resolution.holdings))
    text = Renderer().openmetrics(snapshot) + OPENMETRICS_END
    values: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = (sample.name, tuple(sorted(sample.labels.items())))
            assert series not in values
            values[series] = sample.value
    for shares in Shown(values).shares().values():
        assert math.fsum(shares.values()) == pytest.approx(1.0, abs=1e-9)
    return Shown(values, len(resolution.conflicts))


def test_a_pod_that_has_completed_holds_nothing() -> None:
    """An older kubelet lists it beside the pod that has its GPU now: one holder, and no conflict."""
    both = cluster(
        given("done", gpu_uuid(0)),
        given("runs", gpu_uuid(0)),
        pods=[pod("done", 1, phase="Succeeded"), pod("runs", 2)],
    )
    found = shown(both)
    assert found.shares()[gpu_uuid(0)] == {"runs": 1.0}
    assert found.conflicts == 0


def test_two_that_both_run_and_claim_one_gpu_are_a_conflict() -> None:
    """Nobody can tell whose it is: it is split and counted, never given to each as a whole."""
    both = cluster(given("a", gpu_uuid(0)), given("b", gpu_uuid(0)), pods=[pod("a", 1), pod("b", 2)])
    found = shown(both)
    assert found.shares()[gpu_uuid(0)] == {"a": 0.5, "b": 0.5}
    assert found.conflicts == 1


def test_the_series_of_a_gpu_stay_whoever_holds_it() -> None:
    """Pod A, then pod B, then nobody, then a kubelet that does not answer: one and the same set of device series."""
    states = [
        shown(cluster(given("a", gpu_uuid(0)))),
        shown(cluster(given("b", gpu_uuid(0)))),
        shown(cluster()),
        shown(Evidence(allocations_expected=True, stale=True)),
        shown(Evidence()),
    ]
    assert len({frozenset(state.devices()) for state in states}) == 1
    names = {name for state in states for _, labels in state.values for name, _ in labels}
    assert names.isdisjoint({"pod", "namespace", "container", "job", "instance"})


def test_time_slicing_names_every_pod_and_splits_the_device() -> None:
    """Neither one pod only, nor the whole GPU's power for each."""
    watts = next(value for (name, labels), value in shown(cluster()).values.items() if name == "gpu_power_watts")
    found = shown(cluster(given("a", f"{gpu_uuid(0)}::0"), given("b", f"{gpu_uuid(0)}::1")))
    shares = found.shares()[gpu_uuid(0)]
    assert shares == {"a": 0.5, "b": 0.5}
    assert math.fsum(share * watts for share in shares.values()) == pytest.approx(watts)


def test_mps_is_mapped_by_uuid_and_many_slots_of_one_pod_are_one_holder() -> None:
    """On a node whose minor numbers are in another order, with 48 slots a GPU."""
    gpus = (gpu(0, minor=1), gpu(1, minor=0))
    slots = [f"{gpu_uuid(1)}::{number}" for number in range(48)]
    found = shown(cluster(given("a", *slots)), gpus)
    assert found.shares() == {gpu_uuid(0): {"(unallocated)": 1.0}, gpu_uuid(1): {"a": 1.0}}


def test_claims_name_one_gpu_of_four_and_a_slice_its_own() -> None:
    """DRA: the others are there all the same, and a slice is not its GPU."""
    claim = given("a", "gpu-2", resource="gpu.nvidia.com", is_claim=True)
    found = shown(cluster(claim))
    assert found.shares()[gpu_uuid(2)] == {"a": 1.0}
    assert len(found.labels("gpu_info")) == 4
    assert len(found.labels("gpu_owner_info")) == 1
    gpus = (gpu(0, "1g.10gb", "2g.20gb"),)
    part = given("b", "gpu-0-mig-2g20gb-14-2", resource="gpu.nvidia.com", is_claim=True)
    (labels,) = shown(cluster(part), gpus).labels("gpu_owner_info")
    assert labels["mig_uuid"] == mig_uuid(0, 1)


def test_sixteen_slices_on_eight_gpus_have_sixteen_holders() -> None:
    """With media and graphics profiles; cut anew, the old ones are gone and the new ones there."""
    gpus = tuple(gpu(number, "1g.10gb+me", "4g.40gb.gfx") for number in range(8))
    slices = [mig_uuid(number, part) for number in range(8) for part in range(2)]
    claims = [given(f"p{place}", each, resource="nvidia.com/mig-1g.10gb.me") for place, each in enumerate(slices)]
    found = shown(cluster(*claims), gpus)
    assert {labels["mig_uuid"] for labels in found.labels("gpu_owner_info")} == set(slices)
    anew = tuple(gpu(number, "7g.80gb") for number in range(8))
    later = shown(cluster(*claims), anew)
    assert {labels["mig_uuid"] for labels in later.labels("gpu_owner_info")} <= {mig_uuid(n, 0) for n in range(8)}


def test_a_gpu_that_nobody_holds_is_one_line_of_a_query() -> None:
    """An empty job file drops no GPU: its share is the unallocated one."""
    found = shown(Evidence(jobs=(), allocations_expected=True))
    assert [labels["project"] for labels in found.labels("gpu_owner_share")] == ["(unallocated)"] * 4
    assert found.labels("gpu_owner_info") == []
    assert len(found.labels("gpu_power_watts")) == 4


def test_jobs_of_slurm_are_mapped_by_minor_number() -> None:
    """Minor numbers are permuted against the driver's order; one job that names no device here costs no other."""
    gpus = tuple(gpu(number, minor=3 - number) for number in range(4))
    jobs = (job("minor:0", "1"), job("minor:9", "2"), job(mig_uuid(0, 0), "3"), job(gpu_uuid(1), "4"))
    found = shown(Evidence(jobs=jobs, allocations_expected=True), gpus)
    held = {labels["uuid"]: labels["workload_job"] for labels in found.labels("gpu_owner_info")}
    assert held == {gpu_uuid(3): "1", gpu_uuid(1): "4"}


def test_jobs_that_share_a_gpu_add_no_device_series() -> None:
    """A job is a label of the holder alone."""
    jobs = (job("index:0", "1", source=JobSource.DCGM), job("index:0", "2", source=JobSource.DCGM))
    found = shown(Evidence(jobs=jobs, allocations_expected=True))
    assert len(found.labels("gpu_power_watts")) == 4
    assert not any("workload_job" in dict(labels) for name, labels in found.values if name != "gpu_owner_info")
    assert len(found.shares()[gpu_uuid(0)]) <= 2


def test_the_node_is_a_label_of_holders_and_never_the_exporters_pod() -> None:
    """Its name is the node's, as it is told; no series has a host name."""
    found = shown(cluster(given("a", gpu_uuid(0))))
    assert {labels["node"] for labels in found.labels("gpu_owner_share")} == {"gpu-node-01"}
    names = {name for _, labels in found.values for name, _ in labels}
    assert names.isdisjoint({"hostname", "Hostname", "host"})


def test_labels_of_pods_that_would_collide_are_kept_apart() -> None:
    """And whatever is in a value, the text parses."""
    hostile = 'x"y\nz\\'
    labels = {"a.b": "1", "a_b": "2", "team": hostile}
    evidence = cluster(given("p", gpu_uuid(0)), pods=[pod("p", labels=labels)])
    (found,) = shown(evidence, config=OwnersConfig(labels=("a.b", "a_b", "team"))).labels("gpu_owner_info")
    assert sorted(value for name, value in found.items() if name.startswith("label_a_b")) == ["1", "2"]
    assert found["label_team"].replace("?", "\n") == hostile.replace("?", "\n") or found["label_team"] == hostile


def test_a_holder_by_processes_is_gone_with_them() -> None:
    """No series stays for a process that has ended."""
    running = Evidence(processes={gpu_uuid(0): (process(100, user="ada"),)})
    assert shown(running).shares()[gpu_uuid(0)] == {"ada": 1.0}
    assert shown(Evidence(processes={gpu_uuid(0): ()})).labels("gpu_owner_info") == []


def test_a_process_in_a_pod_is_that_pods() -> None:
    """Its control group names the pod, where nobody else does."""
    evidence = Evidence(
        pods={("team-a", "p"): pod("p", 7)},
        pods_known=True,
        processes={gpu_uuid(1): (process(100, uid=pod_uid(7)),)},
    )
    assert shown(evidence).shares()[gpu_uuid(1)] == {"p": 1.0}


def test_an_id_of_a_device_that_is_not_here_changes_nothing() -> None:
    """Nor does one of a resource that is no GPU."""
    odd: list[ContainerDevices] = [
        given("a", "GPU-ffffffff-0000-4000-8000-000000000000", "nvidia99", "::", ""),
        given("b", gpu_uuid(0), resource="vpc.amazonaws.com/efa"),
    ]
    assert shown(cluster(*odd)).values == shown(cluster()).values
