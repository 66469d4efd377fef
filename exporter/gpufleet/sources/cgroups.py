"""The control group of a process, from the text of ``/proc/<pid>/cgroup``: which pod, container, job or unit it is in.

A path goes from the outside in, and who made a part of it is who vouches for it: the outer parts are the kubelet's, the
container runtime's, Slurm's or systemd's, while whatever lies inside a part that was handed to a workload (a cgroup
namespace of its own, ``Delegate=``, systemd's manager of a user) may have been named by that workload. So the outermost
pod, container, job and unit count, and what a process calls its own groups further in can't move it to someone else's:

- nothing inside a user's session or user manager is believed, because that user names it;
- inside a job of Slurm nothing is a pod;
- inside a pod there can be a job: slurmd itself runs in a pod then, and the job is the nearer truth;
- the container is the first one inside the pod (a node of kind is itself a container, outside of it).

Layouts: Kubernetes with the cgroupfs and the systemd driver (pkg/kubelet/cm), containerd, CRI-O and cri-dockerd, and
Slurm's cgroup/v1 and cgroup/v2 plugins (https://slurm.schedmd.com/cgroup_v2.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.model.claims import Cgroup

_LONGEST_TEXT = 65_536
"""A path is at most PATH_MAX (4,096) and v1 has about a dozen hierarchies: a longer text is none of the kernel's."""
_MOST_LINES = 64
_DEEPEST = 64
_POD = re.compile(r"(?:^|[-_])pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""systemd's names can't have dashes inside (they mean nesting), so its driver writes the uid with underscores."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_SLURM_V1 = re.compile(r"slurm(?:_(.{1,253}))?")
_SLURM_V2 = re.compile(r"(?:(.{1,253})_)?slurmstepd\.scope")
_UID = re.compile(r"uid_[0-9]{1,10}")
_JOB = re.compile(r"job_([0-9]{1,10})")
_STEP = re.compile(r"step_([0-9]{1,10}|batch|extern|interactive)")
_UNIT = re.compile(r".+\.(?:service|scope)")
_MADE_BY_USER = re.compile(r"user\.slice|user-[0-9]+\.slice|user@[0-9]+\.service|session-.+\.scope")


@dataclass(frozen=True, slots=True)
class _Job:
    number: str
    step: str | None
    node: str | None


def parse_cgroup(text: str) -> Cgroup:
    """What the whole content of ``/proc/<pid>/cgroup`` says; of anything else, and of the root group, nothing.

    With several hierarchies (v1, hybrid) the ones that control resources are asked before ``name=systemd`` and v2's,
    which systemd hands to users; the pod is the first that is found, so is the job. Never raises.
    """
    pod = container = unit = None
    job: _Job | None = None
    for segments in _paths(text[:_LONGEST_TEXT]):
        found_pod, found_container, found_job, found_unit = _read(segments)
        if pod is None and found_pod is not None:
            pod, container = found_pod, found_container
        elif pod is None and container is None:
            container = found_container
        job = job or found_job
        unit = unit or found_unit
    if pod is not None or job is not None or container is not None:
        unit = None  # the runtime's own scope, or slurmd.service
    return Cgroup(
        pod_uid=pod,
        container_id=container,
        slurm_job=job.number if job else None,
        slurm_step=job.step if job else None,
        slurm_node=job.node if job else None,
        unit=unit,
    )


def _paths(text: str) -> list[list[str]]:
    """The parts of each line's path, the hierarchies that control resources first."""
    controlling: list[list[str]] = []
    others: list[list[str]] = []
    # Not splitlines(): a name may contain what Python takes for a line's end (\r, \x0b, U+2028), never \n itself.
    for line in text.split("\n", _MOST_LINES)[:_MOST_LINES]:
        fields = line.split(":", 2)  # runc's names with the wrong driver have colons of their own
        if len(fields) != 3 or not fields[2].startswith("/"):
            continue
        # The kernel marks the group of a process that outlives it.
        path = fields[2].removesuffix(" (deleted)")
        controls = fields[1] != "" and not fields[1].startswith("name=")
        (controlling if controls else others).append([each for each in path.split("/") if each][:_DEEPEST])
    return controlling + others


def _read(segments: list[str]) -> tuple[str | None, str | None, _Job | None, str | None]:
    """(pod, container, job, unit) of one path."""
    pod = container = outer = unit = None
    # Seen from a cgroup namespace of one's own, the path begins at one's own group: what is above is not written.
    in_kubepods = bool(segments) and segments[0] == ".."
    for depth, segment in enumerate(segments):
        if unit is None and _UNIT.fullmatch(segment):
            unit = segment
        if pod is None and _MADE_BY_USER.fullmatch(segment):
            return None, None, None, _unit(segments[depth:]) or unit
        job = _job(segments, depth)
        if job is not None:
            return pod, container, job, unit
        in_kubepods = in_kubepods or "kubepods" in segment
        start = 0
        if pod is None and in_kubepods and (found := _POD.search(segment)):
            pod, start, container = found[1].replace("_", "-"), found.end(), None
        if match := _CONTAINER.search(segment, start):
            if pod is not None:
                container = container or match[0]
            else:
                outer = outer or match[0]
    return pod, container if pod is not None else outer, None, unit


def _job(segments: list[str], depth: int) -> _Job | None:
    """The job whose groups begin at this depth: Slurm's own group, v1's group of the user, the job, the step."""
    rest = segments[depth : depth + 4]
    if match := _SLURM_V2.fullmatch(rest[0]):
        rest = rest[1:]
    elif match := _SLURM_V1.fullmatch(rest[0]):
        rest = rest[2:] if len(rest) > 1 and _UID.fullmatch(rest[1]) else rest[1:]
    if match is None or not rest or (job := _JOB.fullmatch(rest[0])) is None:
        return None
    step = _STEP.fullmatch(rest[1]) if len(rest) > 1 else None
    return _Job(job[1], step[1] if step else None, match[1])


def _unit(segments: list[str]) -> str | None:
    return next((each for each in segments if _UNIT.fullmatch(each)), None)
