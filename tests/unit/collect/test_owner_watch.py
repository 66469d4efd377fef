"""The thread that works holders out, with witnesses made by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from gpufleet.collect.owner_watch import FIRST_ANSWER_SECONDS, OwnerWatch, Witnesses
from gpufleet.collect.witness import Answer, Witness
from gpufleet.model.claims import Cgroup, ContainerDevices, GpuProcess, Pod, ProcessFacts
from gpufleet.model.incident import NOBODY, Owner
from gpufleet.model.owner import Hold
from gpufleet.model.snapshot import SourceHealth
from gpufleet.model.state import GpuState
from gpufleet.owners.config import OwnersConfig
from tests.unit.metrics.snapshots import down, gpu, hopper_node, identity, node
from tests.waiting import until

FIRST, SECOND = identity(0).uuid, identity(1).uuid
GIVEN = (ContainerDevices("ml", "pod-1", "main", "nvidia.com/gpu", (FIRST,)),)
POD = Pod("uid-1", "ml", "pod-1", labels=(("flyte.org/project", "llm"), ("flyte.org/run", "r1")), phase="Running")


class Kubelet:
    """A witness whose answer the test gives."""

    def __init__(self, *given: ContainerDevices, answers: bool = True) -> None:
        self.witness = Witness[tuple[ContainerDevices, ...]](
            "podresources",
            lambda: given,
            errors=lambda: OSError,
            interval=1.0,
            answered=lambda: None,
            monotonic=time.monotonic,
            wall=time.time,
        )
        if answers:
            self.say(*given)

    def say(self, *given: ContainerDevices, age: float = 0.0) -> None:
        """Have it answered so, so many seconds ago."""
        self.witness.answer = Answer(given, time.monotonic() - age, 1000.0 - age)
        self.witness.health = SourceHealth("podresources", up=True)


class Pods:
    """The API server's word, as the test wants it."""

    health = SourceHealth("pods", up=True)

    def __init__(self, *pods: Pod) -> None:
        self.pods: Mapping[tuple[str, str], Pod] = {(pod.namespace, pod.name): pod for pod in pods}

    @property
    def synced_at(self) -> float | None:
        """Just now."""
        return time.monotonic()


@contextmanager
def watching(witnesses: Witnesses, *, max_age: float = 300.0) -> Iterator[OwnerWatch]:
    """A running watch."""
    watch = OwnerWatch(OwnersConfig(), max_age=max_age, interval=0.02, monotonic=time.monotonic)
    watch.use(witnesses)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def projects(watch: OwnerWatch) -> dict[str, str]:
    """Project by uuid."""
    return {holding.uuid: holding.project for holding in watch.view.holdings}


def test_it_names_holders_once_there_are_devices_and_answers() -> None:
    """What nobody has is nobody's; both sum to one for each GPU."""
    kubelet = Kubelet(*GIVEN)
    with watching(Witnesses(kubelet=kubelet.witness, pods=Pods(POD))) as watch:
        assert not watch.ready
        watch.observe(hopper_node(2))
        until(lambda: watch.ready, "holders are known")
        assert projects(watch) == {FIRST: "llm", SECOND: Hold.UNALLOCATED.value}
        assert watch.view.refreshed_at == (("podresources", 1000.0),)
        assert watch.owner_of(FIRST) == Owner("llm", "r1", "", "ml", "pod-1", "main")
        assert watch.owner_of(SECOND) == NOBODY


def test_a_new_answer_changes_holders_and_an_equal_one_nothing() -> None:
    """Holdings stay the same object, so that nobody derives the same from them again."""
    kubelet = Kubelet(*GIVEN)
    with watching(Witnesses(kubelet=kubelet.witness)) as watch:
        watch.observe(hopper_node(2))
        until(lambda: watch.ready, "holders are known")
        before = watch.view.holdings
        kubelet.say(*GIVEN, age=-5.0)
        watch.changed()
        until(lambda: watch.view.refreshed_at == (("podresources", 1005.0),), "the answer was taken in")
        assert watch.view.holdings is before
        kubelet.say(replace(GIVEN[0], namespace="other"))
        watch.changed()
        until(lambda: projects(watch)[FIRST] == "other", "the new holder is known")


def test_an_answer_that_is_too_old_names_nobody() -> None:
    """Device series do not depend on it; whoever may hold the GPU is unknown, not absent."""
    kubelet = Kubelet(*GIVEN)
    with watching(Witnesses(kubelet=kubelet.witness), max_age=60.0) as watch:
        watch.observe(hopper_node(1))
        until(lambda: watch.ready, "holders are known")
        assert projects(watch) == {FIRST: "ml"}
        kubelet.say(*GIVEN, age=61.0)
        watch.changed()
        until(lambda: projects(watch) == {FIRST: Hold.UNKNOWN.value}, "it is not believed any more")
        kubelet.say(*GIVEN)
        watch.changed()
        until(lambda: projects(watch) == {FIRST: "ml"}, "it is believed again")


def test_a_source_that_has_never_answered_is_waited_for_a_while_only() -> None:
    """Until then nobody is billed; afterwards the time goes to whom nobody can name."""
    clock = [1000.0]
    kubelet = Kubelet(*GIVEN, answers=False)
    watch = OwnerWatch(OwnersConfig(), max_age=300.0, interval=0.02, monotonic=lambda: clock[0])
    watch.use(Witnesses(kubelet=kubelet.witness))
    watch.observe(hopper_node(1))
    watch._refresh()
    states = [watch.ready]
    clock[0] += FIRST_ANSWER_SECONDS + 1
    watch._refresh()
    assert [*states, watch.ready] == [False, True]
    assert projects(watch) == {FIRST: Hold.UNKNOWN.value}


def test_a_gpu_that_is_down_keeps_its_slices_and_their_holders() -> None:
    """The driver does not report slices of a GPU that it has lost; whoever held them holds them still."""
    snapshot = hopper_node(1, slices=2)
    slices = [part.identity.mig_uuid for part in snapshot.gpus[0].slices]
    given = [ContainerDevices("ml", f"pod-{each}", "main", "nvidia.com/mig-1g.10gb", (each,)) for each in slices]
    kubelet = Kubelet(*given)
    with watching(Witnesses(kubelet=kubelet.witness)) as watch:
        watch.observe(snapshot)
        until(lambda: watch.ready, "holders are known")
        before = watch.view.holdings
        assert {holding.mig_uuid for holding in before} == {*slices, ""}
        watch.observe(node(down(0, GpuState.LOST, "fell off the bus")))
        kubelet.say(*given, age=-5.0)
        watch.changed()
        until(lambda: watch.view.refreshed_at == (("podresources", 1005.0),), "holders were worked out again")
        assert watch.view.holdings == before


def test_processes_decide_where_nobody_hands_gpus_out() -> None:
    """Each is looked up once; one that is gone holds nothing."""
    asked: list[int] = []

    def facts(pid: int) -> ProcessFacts | None:
        asked.append(pid)
        return ProcessFacts(pid, "ada", Cgroup(unit="jupyter.service")) if pid == 7 else None

    snapshot = node(replace(gpu(0), processes=(GpuProcess(7), GpuProcess(8))), replace(gpu(1), processes=()))
    with watching(Witnesses(process=facts)) as watch:
        watch.observe(snapshot)
        until(lambda: watch.ready, "holders are known")
        assert projects(watch)[FIRST] == "ada"
        assert watch.owner_of(FIRST).run == "jupyter.service"
        assert {7, 8} <= set(asked)


def test_what_holders_of_one_gpu_have_in_common_is_the_owner_of_its_fault() -> None:
    """Two pods of one project share it: the project is known, the pod is not."""
    ids = tuple(f"{FIRST}::{number}" for number in range(2))
    given = [ContainerDevices("ml", f"pod-{each}", "main", "nvidia.com/gpu", (each,)) for each in ids]
    with watching(Witnesses(kubelet=Kubelet(*given).witness)) as watch:
        watch.observe(hopper_node(1))
        until(lambda: watch.ready, "holders are known")
        assert watch.owner_of(FIRST) == Owner(project="ml", workload_namespace="ml", workload_container="main")


def test_its_sources_say_how_they_are() -> None:
    """The kubelet and the API server, each by name."""
    kubelet = Kubelet(*GIVEN)
    with watching(Witnesses(kubelet=kubelet.witness, pods=Pods(POD))) as watch:
        assert [health.source for health in watch.health()] == ["podresources", "pods"]
        kubelet.witness._asked_at = time.monotonic() - 301
        assert watch.health()[0] == SourceHealth("podresources", up=False, reason="has not answered the last question")
