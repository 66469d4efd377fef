"""Control group paths as real systems write them, and as a process might name its own."""

from __future__ import annotations

import pytest

from gpufleet.model.claims import Cgroup
from gpufleet.sources.cgroups import parse_cgroup

ID = "17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a"
OTHER = "9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0"
UID = "d0511cd2-29d2-4215-be0f-f77bc0609d99"
UNDERSCORED = UID.replace("-", "_")
STATIC = "9729a196c4723b60ab401eaff722982d"
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"
POD = Cgroup(pod_uid=UID, container_id=ID)


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        pytest.param(f"11:devices:/kubepods/burstable/pod{UID}/{ID}", POD, id="v1-cgroupfs"),
        pytest.param(f"11:devices:/kubepods/pod{UID}/{ID}", POD, id="v1-guaranteed-has-no-qos-directory"),
        pytest.param(f"4:memory:/kubepods/pod{UID}/crio-{ID}", POD, id="v1-crio-cgroupfs"),
        pytest.param(f"1:name=systemd:{SLICE}/crio-{ID}.scope", POD, id="v1-crio-systemd"),
        pytest.param(f"0::{SLICE}/cri-containerd-{ID}.scope", POD, id="v2-containerd"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope", POD, id="v2-crio-guaranteed"
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope/container", POD, id="v2-crio-nested"
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/docker-{ID}.scope",
            POD,
            id="v2-cri-dockerd",
        ),
        pytest.param(f"0::/system.slice/docker-{ID}.scope", Cgroup(container_id=ID), id="plain-docker"),
        pytest.param(f"9:cpu:/docker/{ID}", Cgroup(container_id=ID), id="plain-docker-v1"),
        pytest.param(
            f"0::/system.slice/docker-{OTHER}.scope/kubelet.slice/kubelet-kubepods.slice/"
            "kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            POD,
            id="kind",
        ),
        pytest.param(
            f"5:pids:/docker/{OTHER}/kubelet/kubepods/besteffort/pod{UID}/{ID}", POD, id="kind-with-cgroup-v1"
        ),
        pytest.param(
            "1:name=systemd:/system.slice/containerd.service/"
            f"kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
            POD,
            id="runtime-and-kubelet-disagree-about-the-driver",
        ),
        pytest.param(
            f"0::/../../../../system.slice/docker-{ID}.scope", Cgroup(container_id=ID), id="from-a-private-namespace"
        ),
        pytest.param(
            f"0::/../../kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            POD,
            id="another-pod-from-a-private-namespace",
        ),
        pytest.param(f"0::/../../pod{UID}/{ID}", POD, id="another-pod-with-cgroupfs-from-a-private-namespace"),
        pytest.param(
            f"0::/../cri-containerd-{ID}.scope", Cgroup(container_id=ID), id="same-pod-from-a-private-namespace"
        ),
        pytest.param("0::/", Cgroup(), id="oneself-in-a-private-namespace"),
        pytest.param(
            f"6:cpuset:/kubepods/burstable/pod{STATIC}/{ID}", Cgroup(pod_uid=STATIC, container_id=ID), id="static-pod"
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{ID}.scope",
            Cgroup(pod_uid=STATIC, container_id=ID),
            id="static-pod-systemd",
        ),
        pytest.param(f"0::/kubepods/pod{UID}", Cgroup(pod_uid=UID), id="pod-without-a-container"),
        pytest.param(f"0::{SLICE}/cri-containerd-{ID}.scope (deleted)", POD, id="group-removed-under-the-process"),
    ],
)
def test_a_pods_path_gives_its_uid_and_its_container(text: str, cgroup: Cgroup) -> None:
    """Each driver, runtime and version of cgroups, in each form that has been seen."""
    assert parse_cgroup(text + "\n") == cgroup


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        pytest.param("8:devices:/slurm/uid_1000/job_42/step_0/task_3", Cgroup(slurm_job="42", slurm_step="0"), id="v1"),
        pytest.param(
            "8:freezer:/slurm/uid_1000/job_42/step_batch/task_0",
            Cgroup(slurm_job="42", slurm_step="batch"),
            id="v1-batch",
        ),
        pytest.param(
            "8:cpuset:/slurm_gn1/uid_1000/job_42/step_extern/task_0",
            Cgroup(slurm_job="42", slurm_step="extern", slurm_node="gn1"),
            id="v1-several-slurmd",
        ),
        pytest.param("8:memory:/slurm/uid_1000/job_42", Cgroup(slurm_job="42"), id="v1-job-only"),
        pytest.param("8:memory:/slurm/uid_1000", Cgroup(), id="v1-no-job"),
        pytest.param(
            "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_1",
            Cgroup(slurm_job="42", slurm_step="0"),
            id="v2",
        ),
        pytest.param(
            "0::/system.slice/slurmstepd.scope/job_42/step_interactive/slurm",
            Cgroup(slurm_job="42", slurm_step="interactive"),
            id="v2-interactive",
        ),
        pytest.param(
            "0::/system.slice/gpu_node_1_slurmstepd.scope/job_42/step_7/user/task_special",
            Cgroup(slurm_job="42", slurm_step="7", slurm_node="gpu_node_1"),
            id="v2-several-slurmd",
        ),
        pytest.param("0::/system.slice/slurmstepd.scope/system", Cgroup(unit="slurmstepd.scope"), id="v2-no-job"),
        pytest.param(
            f"0::{SLICE}/cri-containerd-{ID}.scope/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
            Cgroup(pod_uid=UID, container_id=ID, slurm_job="42", slurm_step="0"),
            id="slurmd-in-a-pod",
        ),
        pytest.param(
            f"8:devices:/kubepods/pod{UID}/{ID}/slurm/uid_5/job_42/step_0/task_0",
            Cgroup(pod_uid=UID, container_id=ID, slurm_job="42", slurm_step="0"),
            id="slurmd-in-a-pod-v1",
        ),
        pytest.param(
            "0::/system.slice/slurmstepd.scope/job_42/step_unheard_of/x", Cgroup(slurm_job="42"), id="unknown-step"
        ),
    ],
)
def test_a_jobs_path_gives_its_number_step_and_node(text: str, cgroup: Cgroup) -> None:
    """Both of Slurm's plugins, several slurmd on a machine, and slurmd in a pod."""
    assert parse_cgroup(text) == cgroup


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/jupyter.service", "jupyter.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/train.service", "user@1000.service"),
        ("/system.slice/system-jupyter.slice/jupyter@ann.service/inner.service", "jupyter@ann.service"),
        ("/init.scope", "init.scope"),
        ("/", None),
        ("/system.slice", None),
    ],
)
def test_another_processs_path_gives_its_unit(path: str, unit: str | None) -> None:
    """The outermost service or scope, which systemd named; those inside are named by it."""
    assert parse_cgroup(f"0::{path}\n") == Cgroup(unit=unit)


def test_hierarchies_that_control_resources_are_asked_first() -> None:
    """With v1 systemd's own hierarchy is handed to users, and v2's is empty in a hybrid."""
    text = (
        f"12:pids:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{STATIC}/{OTHER}\n"
        f"0::/system.slice/docker-{OTHER}.scope\n"
    )

    assert parse_cgroup(text) == POD
    assert parse_cgroup("\n".join(reversed(text.splitlines()))) == POD


def test_a_job_may_be_named_in_one_hierarchy_only() -> None:
    """Slurm's v1 plugin makes groups in the hierarchies that it constrains; elsewhere the step is in slurmd's unit."""
    text = (
        "7:memory:/system.slice/slurmd.service\n4:freezer:/slurm/uid_7/job_42/step_1\n0::/system.slice/slurmd.service"
    )

    assert parse_cgroup(text) == Cgroup(slurm_job="42", slurm_step="1")


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        pytest.param(
            f"0::{SLICE}/cri-containerd-{ID}.scope/kubepods/pod{STATIC}/{OTHER}", POD, id="pod-in-its-own-container"
        ),
        pytest.param(
            f"0::/user.slice/user-7.slice/user@7.service/kubepods.slice/pod{UID}/{ID}",
            Cgroup(unit="user@7.service"),
            id="pod-in-a-users-manager",
        ),
        pytest.param(
            "0::/user.slice/user-7.slice/user@7.service/slurmstepd.scope/job_42",
            Cgroup(unit="user@7.service"),
            id="job-in-a-users-manager",
        ),
        pytest.param(
            f"0::/system.slice/slurmstepd.scope/job_42/step_0/user/kubepods/pod{UID}/{ID}/slurm/job_1/step_1",
            Cgroup(slurm_job="42", slurm_step="0"),
            id="pod-and-job-in-a-job",
        ),
        pytest.param(
            f"0::/system.slice/docker-{ID}.scope/\r1:devices:/kubepods/pod{UID}/{OTHER}",
            Cgroup(pod_uid=UID, container_id=OTHER),
            id="a-container-of-the-machine-is-roots",
        ),
        pytest.param(
            f"0::/user.slice/x\x0b9:devices:/kubepods/pod{UID}/{ID}\u20289:cpu:/kubepods/pod{UID}/{ID}",
            Cgroup(),
            id="line-ends-of-pythons-in-a-name",
        ),
    ],
)
def test_a_name_that_a_process_gives_its_own_group_moves_it_nowhere(text: str, cgroup: Cgroup) -> None:
    """What is further in was named by whoever is further out; only the outer part is somebody's word."""
    assert parse_cgroup(text) == cgroup


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "\x00" * 100,
        "no colons at all",
        "::",
        "0::relative/kubepods/pod" + UID,
        "0::/kubepods/pod1234/" + "f" * 63,
        f"0::/kubepods/pod{UID}0/{ID}f",
        f"0::/kubepods/xpod{UID.upper()}",
        "0::/system.slice/slurmstepd.scope/job_",
        "0::/slurm/uid_x/job_42x",
        "0::/slurm/job_" + "9" * 400,
        "1:name=systemd:" + "/a" * 100_000,
        "\udcff:\udcff:/\udcff",
    ],
)
def test_text_that_says_nothing_gives_nothing(text: str) -> None:
    """Near misses, cut texts and noise are no pod, no container and no job."""
    found = parse_cgroup(text)

    assert (found.pod_uid, found.container_id, found.slurm_job, found.slurm_step) == (None, None, None, None)


def test_a_huge_text_is_read_in_part() -> None:
    """What lies behind the first 64 KiB is not looked at, and a match in front of it counts."""
    huge = "\n" * 60 + "x" * 10_000_000 + f"\n0::{SLICE}/cri-containerd-{ID}.scope"

    assert parse_cgroup(huge) == Cgroup()
    assert parse_cgroup(f"0::{SLICE}/cri-containerd-{ID}.scope\n" + huge) == POD
