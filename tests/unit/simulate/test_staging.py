from __future__ import annotations

import pytest

from gpufleet.simulate.generate import extend, first_nodes
from gpufleet.simulate.profiles import load_profile, profile_names
from gpufleet.simulate.scenario import Heat, Scenario, Xid
from gpufleet.simulate.scenario_checks import problems
from gpufleet.simulate.scenario_file import default_scenario, parse_scenario
from gpufleet.simulate.staging import Stage
from gpufleet.simulate.telling import what_happens

SECOND, MINUTE = 1000, 60_000


def stage(text: str) -> Stage:
    """The stage of a scenario in YAML."""
    return Stage(parse_scenario(text.encode(), "s.yaml"))


def doing(staged: Stage, node: str, gpu: int, *times: int) -> list[str]:
    """What a GPU does at moments of the script, by the names of its regimes."""
    timeline = staged.node(node).gpus[gpu].timeline
    return [timeline.at(time).name for time in times]


TWO_NODES = """
nodes: [{name: a, profile: h100-80gb-hbm3, gpus: 2}, {name: b, profile: h100-80gb-hbm3, gpus: 2}]
runs:
  - {name: r, pattern: train, nodes: [a, b], phase: 0s, checkpoint_takes: 0s}
"""


def test_a_lost_gpu_stops_its_training_run() -> None:
    """The other ranks wait in the collective, then the run is ended, and it goes on when the GPU is back."""
    staged = stage(TWO_NODES + "events: [{kind: xid, node: a, gpu: 1, at: 10m, for: 10m, code: 79, lost: true}]")
    times = (9 * MINUTE, 11 * MINUTE, 13 * MINUTE, 21 * MINUTE)

    assert doing(staged, "b", 0, *times) == ["compute", "wait", "idle", "compute"]
    assert doing(staged, "a", 0, *times) == ["compute", "wait", "idle", "compute"]
    assert doing(staged, "a", 1, *times) == ["compute", "idle", "idle", "compute"]


def test_other_runs_do_not_care() -> None:
    """A GPU that is lost takes only its own replica of a serving run with it."""
    text = TWO_NODES.replace("pattern: train", "pattern: inference")
    staged = stage(text + "events: [{kind: loss, node: a, gpu: 1, at: 10m, for: 10m}]")

    assert doing(staged, "a", 1, 15 * MINUTE) == ["idle"]
    assert doing(staged, "b", 0, 15 * MINUTE) == doing(staged, "a", 0, 15 * MINUTE) == ["serve"]


def test_a_run_on_some_gpus_leaves_the_others_idle() -> None:
    """GPUs without a run do nothing, and what happens to them is not the run's business."""
    text = TWO_NODES.replace("nodes: [a, b]", "nodes: [a, b], gpus: [0]")
    staged = stage(text + "events: [{kind: heat, node: a, gpu: 1, at: 1m, for: 30m}]")

    assert doing(staged, "a", 1, 5 * MINUTE) == ["idle"]
    shared = staged.node("b").gpus[0].timeline
    assert shared is staged.node("a").gpus[0].timeline


def test_gpus_that_do_the_same_share_their_timeline() -> None:
    """Sixteen thousand GPUs fit into one process because they share what they have in common."""
    staged = Stage(default_scenario())
    timelines = {id(gpu.timeline) for name in ("gpu-node-02", "gpu-node-04") for gpu in staged.node(name).gpus}

    assert len(timelines) == 1


def test_the_story_starts_again() -> None:
    """With ``repeat`` each round is as the first, and counters go on."""
    staged = stage(TWO_NODES + "repeat: 30m\nevents: [{kind: loss, node: a, gpu: 1, at: 10m, for: 5m}]")
    timeline = staged.node("b").gpus[0].timeline

    for time in (0, 9 * MINUTE, 11 * MINUTE, 13 * MINUTE, 20 * MINUTE):
        assert timeline.at(time).name == timeline.at(time + 30 * MINUTE).name == timeline.at(time + 900 * MINUTE).name
        assert timeline.energy(time + 30 * MINUTE) == timeline.energy(time) + timeline.energy(30 * MINUTE)


def test_every_slice_of_a_mig_gpu_has_work_of_its_own() -> None:
    """Seven evaluation jobs run side by side, not seven times the same one."""
    (gpu, *_) = Stage(default_scenario()).node("gpu-node-05").gpus

    assert len(gpu.instances) == 7
    assert len({id(instance.timeline) for instance in gpu.instances}) == 7


def test_what_happens_is_told_in_order() -> None:
    """Whoever opens the demo reads what to look for, also where the others' trouble is theirs."""
    scenario = default_scenario()
    own = list(what_happens(scenario, "gpu-node-01"))
    peer = list(what_happens(scenario, "gpu-node-04"))

    assert own[0] == "at 1m30s for 25m: GPU 5 gets to 86 °C and down to 62% of its clock"
    assert peer[0] == f"{own[0].replace('GPU 5', 'gpu-node-01, GPU 5')}; this node's GPUs wait for it"
    assert own[-1] == "after 1h it starts again"
    told = [line for node in scenario.nodes for line in what_happens(scenario, node.name)]
    for words in ("Xid 79 and is lost", "memory errors", "on NVLink 7", "hang", "unloaded", "power brake", "Xid 31"):
        assert any(words in line for line in told)


@pytest.mark.parametrize("profile", profile_names())
def test_a_made_up_fleet_can_be_staged(profile: str) -> None:
    """Whatever the kind of GPU, nothing is made up that the part can't have, and names are unique."""
    scenario = extend(None, 120, gpus=4, profile=profile, seed=3)

    assert list(problems(scenario)) == []
    assert len({node.name for node in scenario.nodes}) == 120
    assert {node.gpus for node in scenario.nodes} == {4}
    staged = Stage(scenario, 3)
    uuids = {gpu.uuid for name in staged.names for gpu in staged.node(name).gpus}
    assert len(uuids) == 480


def test_a_made_up_fleet_is_the_same_for_a_seed_and_has_stories() -> None:
    """Most of it trains, some runs wait for a hot GPU, a few GPUs are lost."""
    fleet = extend(None, 600, gpus=8, profile="h100-80gb-hbm3", seed=0)

    assert extend(None, 600, gpus=8, profile="h100-80gb-hbm3", seed=0) == fleet
    assert extend(None, 600, gpus=8, profile="h100-80gb-hbm3", seed=1) != fleet
    training = {node for run in fleet.runs if run.pattern == "train" for node in run.nodes}
    assert 0.6 < len(training) / 600 < 0.98
    assert {run.pattern for run in fleet.runs} == {"train", "inference", "data_bound", "evals", "sandbox"}
    assert any(isinstance(event, Heat) for event in fleet.events)
    assert any(isinstance(event, Xid) and event.lost for event in fleet.events)


def test_a_scenario_is_filled_up_or_cut_short() -> None:
    """More nodes than it has are made up behind its own; fewer leave out what concerns the rest."""
    scenario = default_scenario()
    filled = extend(scenario, 20, gpus=8, profile="h200", seed=0)
    short = extend(scenario, 2, gpus=8, profile="h200", seed=0)

    assert filled.nodes[:8] == scenario.nodes
    assert {node.profile for node in filled.nodes[8:]} == {"h200"}
    assert list(problems(filled)) == []
    assert [node.name for node in short.nodes] == ["gpu-node-01", "gpu-node-02"]
    assert [run.name for run in short.runs] == ["llama3-pretrain"]
    assert {event.node for event in short.events} == {"gpu-node-01"}
    assert list(problems(short)) == []
    assert first_nodes(scenario, 8) == scenario


def test_profiles_are_complete() -> None:
    """Each profile is loaded once, names itself, and has thresholds of one kind only."""
    assert profile_names() == ("a100-80gb", "b200", "gb10", "h100-80gb-hbm3", "h200", "l4", "t4")
    for name in profile_names():
        profile = load_profile(name)
        assert profile is load_profile(name)
        assert profile.key == name
        cool = profile.temperature
        assert (cool.thresholds is None) != (cool.limit_offsets is None)
    with pytest.raises(KeyError):
        load_profile("v100")


def test_unknown_nodes_are_no_nodes() -> None:
    """The stage has the scenario's nodes only."""
    staged = Stage(Scenario(nodes=default_scenario().nodes))

    assert staged.names[0] == "gpu-node-01"
    with pytest.raises(KeyError):
        staged.node("gpu-node-99")
