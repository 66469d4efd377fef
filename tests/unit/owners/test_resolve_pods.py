"""Who holds what on nodes of Kubernetes."""

from __future__ import annotations

import pytest

from gpufleet.model.owner import NOBODY, Hold, Holding
from gpufleet.owners.evidence import Evidence
from gpufleet.owners.resolve import Identities, resolve
from tests.support.owners_evidence import (
    NO_CONFIG,
    cluster,
    given,
    gpu,
    gpu_uuid,
    job,
    mig_uuid,
    node,
    only,
    pod,
    pod_uid,
    process,
    resolved,
    shares,
)

A, B, C = pod("a", 1), pod("b", 2), pod("c", 3)
ONE = node(gpu(0))
GPU = gpu_uuid(0)
SEVENTH = pytest.approx(1 / 7)
DRA = "gpu.nvidia.com"


def test_a_pod_holds_its_gpu_and_the_others_are_nobodys() -> None:
    """Every GPU is there, held or not."""
    found = resolved(node(*map(gpu, range(4))), cluster(given("a", gpu_uuid(2)), pods=[A]))

    assert [(each.uuid, each.hold, each.workload.workload_pod) for each in found.holdings] == [
        (gpu_uuid(0), Hold.UNALLOCATED, ""),
        (gpu_uuid(1), Hold.UNALLOCATED, ""),
        (gpu_uuid(2), Hold.HELD, "a"),
        (gpu_uuid(3), Hold.UNALLOCATED, ""),
    ]
    assert found.holdings[0] == Holding(gpu_uuid(0), 1.0, NOBODY, "", Hold.UNALLOCATED)


def test_time_slicing_shares_a_gpu_among_containers() -> None:
    """Each replica's holder has its part, and the parts are the whole GPU."""
    found = resolved(ONE, cluster(given("a", f"{GPU}::0"), given("b", f"{GPU}::1"), pods=[A, B]))

    assert shares(found) == {(GPU, "a"): 0.5, (GPU, "b"): 0.5}
    assert found.conflicts == ()


def test_several_ids_of_one_gpu_count_once() -> None:
    """Plugins for MPS give dozens of logical slots of one GPU."""
    slots = [f"{GPU}::{number}" for number in range(48)]
    found = resolved(ONE, cluster(given("a", *slots[:40]), given("a", slots[40]), given("b", slots[41]), pods=[A, B]))

    assert shares(found) == {(GPU, "a"): 0.5, (GPU, "b"): 0.5}


def test_containers_of_one_pod_are_holders_each() -> None:
    """They can be different tasks."""
    rows = [given("a", f"{GPU}::{number}", container=f"c{number}") for number in range(2)]

    found = resolved(ONE, cluster(*rows, pods=[A]))

    assert [(each.share, each.workload.workload_container) for each in found.holdings] == [(0.5, "c0"), (0.5, "c1")]


def test_mps_ids_find_their_gpu_by_uuid() -> None:
    """Not by the place in a list."""
    found = resolved(node(gpu(0), gpu(1)), cluster(given("a", f"{gpu_uuid(1)}::0"), pods=[A]))

    assert shares(found) == {(GPU, "(unallocated)"): 1.0, (gpu_uuid(1), "a"): 1.0}


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"])
def test_slices_are_held_one_by_one(resource: str) -> None:
    """With the single and with the mixed strategy; what no slice covers is told as such."""
    devices = node(gpu(0, "1g.10gb", "1g.10gb", "3g.40gb"))
    first, second, third = (mig_uuid(0, part) for part in range(3))

    found = resolved(devices, cluster(given("a", first, resource=resource), pods=[A]))

    assert shares(found) == {
        (GPU, "(unsliced)"): pytest.approx(2 / 7),
        (first, "a"): SEVENTH,
        (second, "(unallocated)"): SEVENTH,
        (third, "(unallocated)"): pytest.approx(3 / 7),
    }


def test_slices_can_be_shared_in_time() -> None:
    """The slice's part is divided by its holders."""
    devices, first = node(gpu(0, "2g.20gb")), mig_uuid(0, 0)
    found = resolved(devices, cluster(given("a", f"{first}::0"), given("b", f"{first}::1"), pods=[A, B]))

    assert shares(found) == {(GPU, "(unsliced)"): pytest.approx(5 / 7), (first, "a"): SEVENTH, (first, "b"): SEVENTH}


def test_a_whole_gpu_that_is_sliced_is_all_its_holders() -> None:
    """Its slices and what they don't cover, except for slices that somebody else has."""
    devices = node(gpu(0, "1g.10gb", "1g.10gb"))
    found = resolved(devices, cluster(given("a", GPU), given("b", mig_uuid(0, 1)), pods=[A, B]))

    assert shares(found) == {
        (GPU, "a"): pytest.approx(5 / 7),
        (mig_uuid(0, 0), "a"): SEVENTH,
        (mig_uuid(0, 1), "b"): SEVENTH,
    }


def test_a_claim_is_found_by_minor_number() -> None:
    """One of four GPUs is claimed; the others are shown as nobody's."""
    devices = node(*(gpu(number, minor=3 - number) for number in range(4)))
    found = resolved(devices, cluster(given("a", "gpu-0", resource=DRA, is_claim=True), pods=[A]))

    assert shares(found)[(gpu_uuid(3), "a")] == 1.0
    assert sum(each.hold is Hold.UNALLOCATED for each in found.holdings) == 3


def test_pods_can_share_a_claim() -> None:
    """That is what claims are for: no conflict."""
    rows = [given(name, "gpu-0", resource=DRA, is_claim=True) for name in ("a", "b")]
    found = resolved(ONE, cluster(*rows, pods=[A, B]))

    assert shares(found) == {(GPU, "a"): 0.5, (GPU, "b"): 0.5}
    assert found.conflicts == ()


def test_a_claimed_slice_is_the_one_of_its_profile() -> None:
    """The instance, not the GPU that it is part of."""
    devices = node(gpu(0, "1g.10gb", "3g.40gb"))
    row = given("a", "gpu-0-mig-3g40gb-9-4", resource=DRA, is_claim=True)

    assert shares(resolved(devices, cluster(row, pods=[A])))[(mig_uuid(0, 1), "a")] == pytest.approx(3 / 7)


def test_a_claim_that_fits_several_slices_is_spread_over_them() -> None:
    """Which one it is can't be known: each of them is held in part, and no more than a slice in all."""
    devices = node(gpu(0, "1g.10gb", "1g.10gb"))
    row = given("a", "gpu-0-mig-1g10gb-19-0", resource=DRA, is_claim=True)

    found = shares(resolved(devices, cluster(row, pods=[A])))

    for part in range(2):
        assert found[(mig_uuid(0, part), "a")] == pytest.approx(1 / 14)
        assert found[(mig_uuid(0, part), "(unallocated)")] == pytest.approx(1 / 14)


def test_a_process_tells_which_of_several_slices_it_is() -> None:
    """The driver gives its GPU instance, the control group its pod."""
    devices = node(gpu(0, "1g.10gb", "1g.10gb"))
    rows = [given(name, f"gpu-0-mig-1g10gb-19-{start}", resource=DRA, is_claim=True) for start, name in enumerate("ab")]
    running = {GPU: (process(uid=A.uid, gi=8, ci=0),)}

    found = shares(resolved(devices, cluster(*rows, pods=[A, B], processes=running)))

    assert found[(mig_uuid(0, 1), "a")] == SEVENTH
    assert found[(mig_uuid(0, 0), "b")] == SEVENTH


def test_two_slices_of_one_profile_are_two() -> None:
    """A container with both has both."""
    devices = node(gpu(0, "1g.10gb", "1g.10gb"))
    ids = [f"gpu-0-mig-1g10gb-19-{start}" for start in range(2)]

    found = shares(resolved(devices, cluster(given("a", *ids, resource=DRA, is_claim=True), pods=[A])))

    assert found[(mig_uuid(0, 0), "a")] == found[(mig_uuid(0, 1), "a")] == SEVENTH


def test_a_completed_pod_holds_nothing() -> None:
    """Older kubelets list its devices still, beside the pod that has them now."""
    over = pod("a", 1, phase="Succeeded")
    found = resolved(ONE, cluster(given("a", GPU), given("b", GPU), pods=[over, B]))

    assert (only(found).run, found.conflicts) == ("b", ())
    assert resolved(ONE, cluster(given("a", GPU), pods=[over])).holdings[0].hold is Hold.UNALLOCATED


def test_a_pod_that_is_gone_gives_way() -> None:
    """One that the API server doesn't know any more, and the kubelet lists still."""
    assert only(resolved(ONE, cluster(given("a", GPU), given("b", GPU), pods=[B]))).run == "b"
    assert only(resolved(ONE, cluster(given("a", GPU), pods=[B]))).run == "a"


def test_a_process_tells_which_of_two_pods_is_alive() -> None:
    """Both claim one GPU that can't be shared."""
    running = {GPU: (process(uid=B.uid),)}
    found = resolved(ONE, cluster(given("a", GPU), given("b", GPU), pods=[A, B], known=False, processes=running))

    assert (only(found).run, found.conflicts) == ("b", ())


def test_rival_claims_are_split_and_told() -> None:
    """Nothing says which is true."""
    found = resolved(ONE, cluster(given("a", GPU), given("b", GPU), known=False))

    assert shares(found) == {(GPU, "a"): 0.5, (GPU, "b"): 0.5}
    (conflict,) = found.conflicts
    assert (conflict.uuid, conflict.mig_uuid, [each.run for each in conflict.workloads]) == (GPU, "", ["a", "b"])


def test_other_devices_and_other_nodes_are_left_out() -> None:
    """Adapters are not counted; GPUs that are not here are."""
    rows = [
        given("a", "0000:03:00.1", resource="nvidia.com/sriov_net"),
        given("a", "0", resource="vpc.amazonaws.com/efa"),
        given("a", gpu_uuid(9)),
        given("a", "gpu-9", resource=DRA, is_claim=True),
    ]
    found = resolved(ONE, cluster(*rows, pods=[A]))

    assert (found.holdings[0].hold, found.unknown_devices) == (Hold.UNALLOCATED, 2)


def test_without_the_api_server_pods_are_named() -> None:
    """Namespace and name are all that is known."""
    workload = only(resolved(ONE, cluster(given("a", GPU), known=False)))

    assert (workload.project, workload.run, workload.workload_container) == ("team-a", "a", "main")


def test_a_process_takes_nothing_from_an_allocation() -> None:
    """Whoever was given a GPU holds it, whoever runs there."""
    running = {GPU: (process(uid=B.uid), process(slurm="1"), process())}

    assert only(resolved(ONE, cluster(given("a", GPU), pods=[A, B], processes=running))).run == "a"


def test_a_pod_that_runs_on_a_gpu_of_nobody_holds_it() -> None:
    """Init containers and privileged pods are in no list; host processes are no tenants."""
    running = {GPU: (process(uid=B.uid), process(user="root", unit="dcgm.service"))}

    assert only(resolved(ONE, cluster(pods=[A, B], processes=running))).run == "b"
    host = {GPU: (process(user="root", unit="dcgm.service"), process(uid=pod_uid(9)))}
    assert resolved(ONE, cluster(pods=[A], processes=host)).holdings[0].hold is Hold.UNALLOCATED


def test_when_the_kubelet_is_silent_nothing_is_known() -> None:
    """Not nobody's, and a process is no proof that it is."""
    running = {GPU: (process(uid=A.uid),)}
    evidence = Evidence(
        pods={("team-a", "a"): A}, pods_known=True, processes=running, allocations_expected=True, stale=True
    )

    assert [each.hold for each in resolved(node(gpu(0, "7g.80gb")), evidence).holdings] == [Hold.UNKNOWN]
    assert [each.hold for each in resolved(node(gpu(0, "3g.40gb")), evidence).holdings] == [Hold.UNSLICED, Hold.UNKNOWN]


RESERVATION = pod("gpu-reservation-x", 9, namespace="kai-resource-reservation", labels={"runai-gpu-group": "g1"})
RESERVED = given("gpu-reservation-x", GPU, namespace="kai-resource-reservation")


def test_a_reservation_is_its_pods_by_process() -> None:
    """The kubelet names the reservation, which is nobody's work."""
    running = {GPU: (process(uid=A.uid), process(uid=B.uid))}
    found = resolved(ONE, cluster(RESERVED, pods=[RESERVATION, A, B, C], processes=running))

    assert shares(found) == {(GPU, "a"): 0.5, (GPU, "b"): 0.5}


def test_a_reservation_is_its_group() -> None:
    """Pods that are idle have no process."""
    members = [pod(name, number, labels={"runai-gpu-group": "g1"}) for number, name in enumerate("ab", 1)]
    multi = pod("c", 3, labels={"runai-gpu-group/g1": "g1"})
    over = pod("d", 4, labels={"runai-gpu-group": "g1"}, phase="Failed")

    assert shares(resolved(ONE, cluster(RESERVED, pods=[RESERVATION, *members, over]))) == {
        (GPU, "a"): 0.5,
        (GPU, "b"): 0.5,
    }
    several = pod(RESERVATION.name, 9, namespace=RESERVATION.namespace, labels={"runai-gpu-group/g1": "g1"})
    assert only(resolved(ONE, cluster(RESERVED, pods=[several, multi]))).run == "c"


def test_a_reservation_without_pods_is_itself() -> None:
    """It holds the GPU all the same."""
    assert only(resolved(ONE, cluster(RESERVED, pods=[RESERVATION]))).workload_pod == "gpu-reservation-x"


SLURMD = pod("slurmd-0", 7, namespace="slurm", labels={"nodeset.slinky.slurm.net/pod-name": "slurmd-0"})
TO_SLURMD = given("slurmd-0", gpu_uuid(0), gpu_uuid(1), namespace="slurm", container="slurmd")
TWO = node(gpu(0), gpu(1))


@pytest.mark.parametrize("pods", [[SLURMD], []])
def test_a_pod_of_slurmd_is_the_job_inside(pods: list[object]) -> None:
    """By a file of its prolog; in its pod, so that faults find it."""
    jobs = (job(GPU, "12", account="physics", name="sim"),)
    evidence = cluster(TO_SLURMD, pods=pods, known=bool(pods), jobs=jobs)  # type: ignore[arg-type]

    first, second = resolved(TWO, evidence).holdings

    assert (first.workload.project, first.workload.run, first.workload.workload_pod) == ("physics", "12", "slurmd-0")
    assert (second.workload.project, second.workload.run) == ("slurm", "slurmd-0")


def test_a_pod_of_slurmd_is_the_job_seen_inside() -> None:
    """By a process, where there is no file; whatever the pod's labels are."""
    running = {GPU: (process(uid="x", slurm="99"), process(uid=SLURMD.uid, slurm="12", user="bob"))}
    for labels in ({"nodeset.slinky.slurm.net/pod-name": "slurmd-0"}, {"app": "worker"}):
        slurmd = pod("slurmd-0", 7, namespace="slurm", labels=labels)
        first, _ = resolved(TWO, cluster(TO_SLURMD, pods=[slurmd], processes=running)).holdings

        assert (first.workload.project, first.workload.run, first.share) == ("bob", "12", 1.0)


def test_a_job_on_a_pods_gpu_is_a_conflict() -> None:
    """Two systems gave the same GPU away."""
    found = resolved(ONE, cluster(given("a", GPU), pods=[A], jobs=(job(GPU, "12", user="bob"),)))

    assert shares(found) == {(GPU, "a"): 0.5, (GPU, "12"): 0.5}
    assert len(found.conflicts) == 1


def test_a_pod_that_slurm_placed_is_its_job() -> None:
    """slurm-bridge: one claim, not two."""
    bridged = pod("a", 1, labels={"scheduler.slinky.slurm.net/slurm-jobid": "12"})
    found = resolved(ONE, cluster(given("a", GPU), pods=[bridged], jobs=(job(GPU, "12"),)))

    assert (only(found).run, only(found).workload_pod, found.conflicts) == ("12", "a", ())


def test_the_order_of_what_is_said_changes_nothing() -> None:
    """Nor does asking again."""
    rows = [given("a", f"{GPU}::0"), given("b", f"{GPU}::1"), given("c", gpu_uuid(1))]
    names = Identities()
    forward = resolve(TWO, cluster(*rows, pods=[A, B, C]), NO_CONFIG, names)
    again = resolve(TWO, cluster(*rows, pods=[A, B, C]), NO_CONFIG, names)

    assert forward == again == resolved(TWO, cluster(*reversed(rows), pods=[C, B, A]))
