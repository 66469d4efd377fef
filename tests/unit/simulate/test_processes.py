"""The processes of scripted runs."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.collect.synchronous import SynchronousNode
from gpufleet.model.claims import GpuProcess
from gpufleet.model.snapshot import Snapshot
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.gpu import GpuScript
from gpufleet.simulate.processes import pid_of
from gpufleet.simulate.scenario_file import parse_scenario
from gpufleet.simulate.scripts import sliced, uniform
from gpufleet.simulate.staging import Stage
from tests.support.poller_rig import EPOCH, OPTIONS, HandClock

PID_MAX = 4_194_304
"""Of a 64-bit kernel."""


def polled(scripts: list[GpuScript], *moments: float) -> list[Snapshot]:
    """What a node of such GPUs shows at moments of its script."""
    clock = HandClock()
    node = SynchronousNode(ScriptedDriver(scripts, clock=clock, started_at=EPOCH), OPTIONS, clock, clock.wall)
    found = []
    for moment in moments:
        while clock.now < moment - 1.0:
            clock.now += 1.0
            node.poll()
        clock.now = moment
        found.append(node.poll())
    return found


def test_each_gpu_has_a_process_of_its_own_that_stays() -> None:
    """As one object: whoever looks for changes sees none."""
    scripts = uniform("h100-80gb-hbm3", 8)

    first, later = polled(scripts, 1.0, 180.0)

    assert [gpu.processes for gpu in first.gpus] == [(GpuProcess(pid_of(script)),) for script in scripts]
    assert len({gpu.processes for gpu in first.gpus}) == 8
    for before, after in zip(first.gpus, later.gpus, strict=True):
        assert after.processes is before.processes


def test_a_gpu_without_a_run_has_no_process() -> None:
    """The driver says so: nobody."""
    (snapshot,) = polled(uniform("t4", 1, pattern="idle"), 1.0)

    assert snapshot.gpus[0].processes == ()


def test_each_slice_has_a_process_of_its_own() -> None:
    """In the list of its GPU, with the slice's instances."""
    (script,) = sliced("h100-80gb-hbm3", ["3g.40gb", "2g.20gb", "1g.10gb"], pattern="sandbox")

    (snapshot,) = polled([script], 1.0)

    gpu = snapshot.gpus[0]
    places = [(one.identity.gpu_instance, one.identity.compute_instance) for one in gpu.slices]
    assert len(places) == 3
    assert gpu.processes == tuple(
        GpuProcess(pid_of(script, *place), *place) for place in sorted(places, key=lambda place: pid_of(script, *place))
    )


def test_processes_end_with_their_run_and_are_the_same_when_it_goes_on() -> None:
    """While it is down there are none, a turn of the slow tier later."""
    staged = Stage(
        parse_scenario(
            b"""
nodes: [{name: a, profile: h100-80gb-hbm3, gpus: 2}]
runs: [{name: r, pattern: train, nodes: [a], phase: 0s, checkpoint_takes: 0s}]
events: [{kind: loss, node: a, gpu: 1, at: 5m, for: 10m}]
""",
            "s.yaml",
        )
    )
    scripts = list(staged.node("a").gpus)

    running, over, again = (found.gpus[0].processes for found in polled(scripts, 60.0, 600.0, 1080.0))

    assert running == again == (GpuProcess(pid_of(scripts[0])),)
    assert over == ()


def test_another_run_has_another_pid() -> None:
    """Each GPU of a scenario knows whose it is; a pid is the same for the same seed."""
    text = """
nodes: [{name: a, profile: t4, gpus: 3}]
runs: [{name: RUN, pattern: train, nodes: [a], gpus: [0, 1]}]
"""

    def scripts(run: str) -> tuple[GpuScript, ...]:
        return Stage(parse_scenario(text.replace("RUN", run).encode(), "s.yaml")).node("a").gpus

    assert [script.run for script in scripts("one")] == ["one", "one", ""]
    assert [pid_of(script) for script in scripts("one")] == [pid_of(script) for script in scripts("one")]
    assert pid_of(scripts("one")[0]) != pid_of(scripts("two")[0])


def test_pids_are_unique_on_a_node_and_possible_everywhere() -> None:
    """Whatever the seed: 32 GPUs with all instances that a GPU can have."""
    script = uniform("b200", 1)[0]
    for seed in range(50):
        node = [replace(one, seed=seed * 1000 + number) for number, one in enumerate(uniform("b200", 32))]
        found = [pid_of(one, *place) for one in node for place in ((), *[(g, c) for g in range(16) for c in range(8)])]
        assert len(set(found)) == len(found)
        assert all(1000 < pid < PID_MAX for pid in found)
    assert pid_of(replace(script, bus=255), 15, 15) < PID_MAX
