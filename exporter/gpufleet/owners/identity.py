"""What a pod, a job of Slurm and a process are called: project, run, task, rank and attempt.

Every text is bounded and printable: names come from whoever may start a pod or a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from gpufleet.model.claims import JobDevice, Pod, ProcessFacts
from gpufleet.model.owner import NOBODY, Workload
from gpufleet.owners.config import OwnersConfig
from gpufleet.owners.presets import PRESETS, QUEUES, Key, Preset, Where

MOST_LABELS = 16
MOST_BYTES = 128
"""Of a value, in UTF-8."""
OVERRIDES = ("project", "run", "task")
_PREFIX = "gpufleet.io/"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_HASH = re.compile(r"-[a-z0-9]{5,10}")
_RETRY = re.compile(r".*-n[0-9]+-([0-9]{1,4})")
_NO_ACCOUNT = "slurm"
_SHORT_ID = 12
"""Digits of a container id, as container tools print them."""


def bounded(text: str, most: int = MOST_BYTES) -> str:
    """``text`` without unprintable characters, cut to ``most`` bytes of UTF-8 on a whole character."""
    if text.isascii() and text.isprintable():
        return text[:most]
    # Four bytes are the longest character: what lies beyond can't be shown, and is not worth looking at.
    clean = _UNPRINTABLE.sub("?", text[:most])
    return clean.encode()[:most].decode(errors="ignore")


def annotations_read(config: OwnersConfig) -> frozenset[str]:
    """Names of the annotations that ``identify`` looks at; pods have many others, which need not be kept."""
    presets = (*config.before, *PRESETS, *config.after)
    fields = ("project", "run", "task", "rank", "attempt", "user", "job")
    keys = [key for preset in presets for field in fields for key in getattr(preset, field)]
    named = {key.name for key in (*keys, *QUEUES) if key.where is Where.ANNOTATION}
    return frozenset(named | {f"{_PREFIX}{field}" for field in OVERRIDES})


def identify(pod: Pod | None, container: str, config: OwnersConfig, *, namespace: str = "", name: str = "") -> Workload:
    """The workload of a container. A pod of which nothing but ``namespace`` and ``name`` is known is its own run."""
    if pod is None:
        space, called = bounded(namespace), bounded(name)
        return Workload(
            project=space,
            run=called,
            workload_namespace=space,
            workload_pod=called,
            workload_container=bounded(container),
        )
    labels, annotations = dict(pod.labels), dict(pod.annotations)

    def first(keys: Iterable[Key]) -> str:
        for key in keys:
            found = _value(key, pod, labels, annotations)
            if found:
                return bounded(found)
        return ""

    preset = _preset((*config.before, *PRESETS, *config.after), labels, first)
    fields = {"project": "", "run": "", "task": "", "rank": "", "attempt": "", "user": "", "job": ""}
    if preset is not None:
        fields = {field: first(getattr(preset, field)) for field in fields}
    else:
        fields["run"] = bounded(_owner(pod, labels) or pod.name)
        fields["task"] = bounded(container)
        fields["rank"] = bounded(labels.get("apps.kubernetes.io/pod-index", ""))
    for field in OVERRIDES:
        fields[field] = bounded(annotations.get(_PREFIX + field, "")) or fields[field]
    return Workload(
        project=fields["project"] or first(QUEUES) or bounded(pod.namespace),
        run=fields["run"],
        task=fields["task"],
        rank=fields["rank"],
        attempt=fields["attempt"],
        workload_user=fields["user"],
        workload_job=fields["job"],
        workload_namespace=bounded(pod.namespace),
        workload_pod=bounded(pod.name),
        workload_container=bounded(container),
        labels=shown_labels(labels, config.labels) if config.labels else (),
    )


def _preset(presets: Iterable[Preset], labels: dict[str, str], first: Callable[[Iterable[Key]], str]) -> Preset | None:
    for preset in presets:
        if all(marker.on(labels) for marker in preset.markers) and first(preset.run):
            return preset
    return None


def _value(key: Key, pod: Pod, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    match key.where:
        case Where.LABEL:
            return labels.get(key.name, "")
        case Where.ANNOTATION:
            return annotations.get(key.name, "")
        case Where.NAMESPACE:
            return pod.namespace
        case Where.RETRY:
            found = _RETRY.fullmatch(pod.name[-64:])
            return found[1] if found else ""


def _owner(pod: Pod, labels: Mapping[str, str]) -> str:
    """Name of what made the pod, without the hash that a Deployment puts behind its ReplicaSet's name."""
    # A static pod is owned by its node, which is no name for what it does.
    if pod.owner_kind == "Node":
        return ""
    if pod.owner_kind != "ReplicaSet":
        return pod.owner_name
    hashed = labels.get("pod-template-hash")
    if hashed and pod.owner_name.endswith(f"-{hashed}"):
        return pod.owner_name.removesuffix(f"-{hashed}")
    head, dash, tail = pod.owner_name.rpartition("-")
    return head if head and _HASH.fullmatch(dash + tail) else pod.owner_name


def shown_labels(labels: Mapping[str, str], allowed: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(shown name, value) of the labels that ``allowed`` names, ``MOST_LABELS`` at most, sorted by the pod's own names.

    Two names that come out the same are told apart as ``label_a_b`` and ``label_a_b_conflict1``, by their order, so
    that pods with the same names always show the same.
    """
    exact = {each for each in allowed if not each.endswith("*")}
    beginnings = tuple(each[:-1] for each in allowed if each.endswith("*"))
    names = sorted(name for name in labels if name in exact or (beginnings and name.startswith(beginnings)))
    shown: dict[str, str] = {}
    for name in names[:MOST_LABELS]:
        wanted = "label_" + _NOT_IN_NAMES.sub("_", name[:MOST_BYTES])
        unique, count = wanted, 0
        while unique in shown:
            count += 1
            unique = f"{wanted}_conflict{count}"
        shown[unique] = bounded(labels[name])
    return tuple(shown.items())


def of_job(job: JobDevice, *, inside: Workload = NOBODY) -> Workload:
    """The workload of a job of Slurm; ``inside``: of the pod that slurmd runs in.

    The run is the number, not the name: many jobs have one name, and a job has one number on all of its nodes. Tasks of
    an array have numbers that don't show that they belong together, so they are ``<array>_<task>``, as Slurm prints it.
    Every run has a project, so that sums by project are complete: dcgm-exporter's files name the job and nothing else.
    """
    is_task = bool(job.array_job_id and job.array_task_id)
    return Workload(
        project=bounded(job.account or job.user or inside.project or job.partition or _NO_ACCOUNT),
        run=bounded(f"{job.array_job_id}_{job.array_task_id}" if is_task else job.job_id),
        task=bounded(job.name),
        attempt=bounded(job.restart_count),
        workload_user=bounded(job.user),
        workload_job=bounded(job.job_id),
        workload_namespace=inside.workload_namespace,
        workload_pod=inside.workload_pod,
        workload_container=inside.workload_container,
    )


def of_process(facts: ProcessFacts) -> Workload:
    """The workload of a process that neither a pod nor a job started: its user's, by container or systemd's unit."""
    container, unit = facts.cgroup.container_id, facts.cgroup.unit
    user = bounded(facts.user)
    return Workload(project=user, run=container[:_SHORT_ID] if container else bounded(unit or ""), workload_user=user)


class Identities:
    """What containers are called, remembered as long as their pods stay the same and are asked about."""

    def __init__(self) -> None:
        self._config = OwnersConfig()
        self._kept: dict[tuple[str, str, str], tuple[Pod | None, Workload]] = {}
        self._used: dict[tuple[str, str, str], tuple[Pod | None, Workload]] = {}

    def begin(self, config: OwnersConfig) -> None:
        """Begin a refresh: what was not asked about in the last one is forgotten."""
        self._kept = self._used if config == self._config else {}
        self._used = {}
        self._config = config

    def container(self, namespace: str, name: str, container: str, pod: Pod | None) -> Workload:
        """As ``identify``."""
        place = (namespace, name, container)
        kept = self._used.get(place) or self._kept.get(place)
        if kept is None or (kept[0] is not pod and kept[0] != pod):
            kept = (pod, identify(pod, container, self._config, namespace=namespace, name=name))
        self._used[place] = kept
        return kept[1]
