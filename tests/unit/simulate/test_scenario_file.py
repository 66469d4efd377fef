from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gpufleet.simulate.scenario import Event, Heat, Mig, Pattern, Scenario, ScenarioError, Xid
from gpufleet.simulate.scenario_file import default_scenario, parse_scenario, read_scenario

NODE = "nodes: [{name: a, profile: h100-80gb-hbm3}]"


def refusal(text: str) -> str:
    """Why a scenario is refused."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text.encode(), "s.yaml")
    return str(caught.value)


def test_the_default_scenario_is_the_story_that_is_promised() -> None:
    """A run of four nodes with one hot GPU, evaluations on 7 x 1g.10gb, an idle sandbox, errors, a lost GPU."""
    scenario = default_scenario()
    runs = {run.name: run for run in scenario.runs}

    assert runs["llama3-pretrain"].nodes == tuple(f"gpu-node-0{i}" for i in range(1, 5))
    assert runs["research-sandbox"].pattern == "sandbox"
    (evals,) = [node for node in scenario.nodes if node.mig]
    assert evals.mig == (Mig(layout={"1g.10gb": 7}),)
    assert runs["checkpoint-evals"].nodes == (evals.name,)
    assert [event.celsius for event in scenario.events if isinstance(event, Heat)] == [86]
    assert [event.code for event in scenario.events if isinstance(event, Xid) and event.lost] == [79]
    assert {type(event).__name__ for event in scenario.events} >= {
        "Ecc",
        "Nvlink",
        "Hang",
        "DriverRestart",
        "PowerBrake",
    }
    assert {node.gpus for node in scenario.nodes} == {8}


def test_a_short_scenario_is_enough() -> None:
    """Nodes alone make one: everything else has a default."""
    scenario = parse_scenario(NODE.encode(), "s.yaml")

    assert scenario == Scenario(nodes=scenario.nodes)
    assert scenario.nodes[0].gpus == 8


def test_a_file_is_read(tmp_path: Path) -> None:
    """The file's name leads each message, so that a person knows where to look."""
    file = tmp_path / "mine.yaml"
    file.write_text(NODE)
    assert read_scenario(file).nodes[0].name == "a"
    file.write_text("nodes: []")

    with pytest.raises(ScenarioError, match=r"mine\.yaml: nodes: "):
        read_scenario(file)
    with pytest.raises(ScenarioError, match=r"none\.yaml: can't be read: No such file .* leave --scenario.file out"):
        read_scenario(tmp_path / "none.yaml")


RUN = "{name: r, pattern: train"
HEAT = "kind: heat, node: a, gpu: 1, at: 1m, for: 5m"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml: is no mapping; begin with `nodes:`"),
        ("- a", "is no mapping"),
        ("nodes: [", "s.yaml:1: is no YAML"),
        ("\x00", "is no YAML"),
        ("nodes: &a [*a]", "s.yaml:1: *a is an alias"),
        (f"{NODE}\n{NODE}", "s.yaml:2: nodes: is there twice"),
        ("nodes: !!python/object:os.system {}", "is no YAML"),
        ("nodes: [{name: a, profile: h100-80gb-hbm3, gpu: 4}]", "nodes[0].gpu: is no key of a scenario here; did you"),
        ("nodes: [{name: a, prfile: t4}]", "nodes[0].prfile: is no key of a scenario here; did you mean 'profile'?"),
        ("nodes: [{profile: t4}]", "nodes[0].name: is missing; add it"),
        ("nodes: [{name: a}]", "nodes[0].profile: is missing; it is one of a100-80gb"),
        ("nodes: [{name: a, profile: v100}]", "nodes[0].profile: there is no profile 'v100'; it is one of a100-80gb"),
        ("nodes: [{name: a, profile: t4, gpus: 0}]", "nodes[0].gpus: expected `int` >= 1"),
        ("nodes: [{name: a, profile: t4, gpus: {t4: 1}}]", "nodes[0].profile: the kinds are in gpus already"),
        ("nodes: [{name: a, gpus: {t9: 1}}]", "nodes[0].gpus: there is no profile 't9'"),
        ("nodes: [{name: a, gpus: {t4: 60, l4: 60}}]", "nodes[0].gpus: 120 GPUs; a node has 1 to 64"),
        ("nodes: [{name: a/b, profile: t4}]", "nodes[0].name: 'a/b' is no host name"),
        ("nodes: [{name: a, profile: t4}, {name: a, profile: t4}]", "nodes[1].name: 'a' is there twice"),
        ("nodes: [{name: a, profile: t4, driver_version: new}]", "nodes[0].driver_version: 'new' is no driver version"),
        (f"{NODE}\ndriver_version: x", "driver_version: 'x' is no driver version"),
        (f"{NODE}\nrepeat: 60", "repeat: 60 is no duration; write it with a unit"),
        (f"{NODE}\nrepeat: 0s", "repeat: is zero"),
        (f"{NODE}\nrepeat: 1 hour", "repeat: '1 hour' is no duration; write it like 90s or 1h30m"),
        (
            "nodes: [{name: a, profile: t4, mig: [{layout: {1g.10gb: 7}}]}]",
            "nodes[0].mig[0].layout: t4 has no MIG profile '1g.10gb'; it has none: it has no MIG",
        ),
        (
            "nodes: [{name: a, profile: h100-80gb-hbm3, mig: [{layout: {3g.40gb: 3}}]}]",
            "nodes[0].mig[0].layout: 3g.40gb + 3g.40gb + 3g.40gb needs 9 of 7 compute slices",
        ),
        (
            f"{NODE[:-2]}, mig: [{{layout: {{1g.10gb: 1}}}}, {{layout: {{1g.10gb: 1}}, gpus: [3]}}]}}]",
            "nodes[0].mig[1].gpus: GPU 3 is cut already",
        ),
        (
            "nodes: [{name: a, profile: h100-80gb-hbm3, gpus: 2, mig: [{layout: {1g.10gb: 1}, gpus: [2]}]}]",
            "nodes[0].mig[0].gpus: there is no GPU 2; the node's are 0 to 1",
        ),
        (
            f"{NODE}\nruns: [{{name: r, pattern: trian, nodes: [a]}}]",
            "runs[0].pattern: invalid enum value 'trian'; it is",
        ),
        (f"{NODE}\nruns: [{{name: r, pattern: train, nodes: [b]}}]", "runs[0].nodes[0]: there is no node 'b'"),
        (f"{NODE}\nruns: [{{name: r, pattern: train, nodes: [a], gpus: [8]}}]", "runs[0].gpus: there is no GPU 8"),
        (f"{NODE}\nruns: [{{name: r, pattern: train, nodes: [a], step: 0s}}]", "runs[0].step: is zero"),
        (
            f"{NODE}\nruns: [{RUN}, nodes: [a]}}, {{name: s, pattern: evals, nodes: [a], gpus: [1]}}]",
            "runs[1].gpus: GPU 1 of a has the run 'r' already",
        ),
        (
            f"{NODE}\nruns: [{RUN}, nodes: [a], gpus: [0]}}, {RUN}, nodes: [a], gpus: [1]}}]",
            "runs[1].name: 'r' is there twice",
        ),
        (f"{NODE}\nevents: [{{node: a, gpu: 1, at: 1m}}]", "events[0].kind: is missing"),
        (
            f"{NODE}\nevents: [{{kind: heatt, node: a}}]",
            "events[0].kind: invalid value 'heatt'; it is one of driver_restart",
        ),
        (
            f"{NODE}\nevents: [{{{HEAT}, celcius: 90}}]",
            "events[0].celcius: is no key of a scenario here; did you mean 'ce",
        ),
        (f"{NODE}\nevents: [{{{HEAT}, celsius: 500}}]", "events[0].celsius: expected `int` <= 110"),
        (f"{NODE}\nevents: [{{{HEAT}, speed: 0}}]", "events[0].speed: expected `float` > 0"),
        (f"{NODE}\nevents: [{{kind: heat, node: b, gpu: 1, at: 1m, for: 5m}}]", "events[0].node: there is no node 'b'"),
        (
            f"{NODE}\nevents: [{{kind: heat, node: a, gpu: 9, at: 1m, for: 5m}}]",
            "events[0].gpu: there is no GPU 9; the node's are 0",
        ),
        (f"{NODE}\nevents: [{{kind: heat, node: a, gpu: 1, at: 1m, for: 0s}}]", "events[0].for: is zero"),
        (f"{NODE}\nevents: [{{kind: heat, node: a, gpu: 1, at: 1m}}]", "events[0].for: is missing"),
        (
            f"{NODE}\nrepeat: 3m\nevents: [{{{HEAT}}}]",
            "events[0].at: ends after everything has started again (repeat)",
        ),
        (
            f"{NODE}\nevents: [{{kind: hang, node: a, gpu: 1, at: 1m, for: 1m, function: nvmlNone}}]",
            "events[0].function: gpufleet calls no function 'nvmlNone'",
        ),
        (
            f"{NODE}\nevents: [{{kind: xid, node: a, gpu: 1, at: 1m, code: 79, lost: true, recovery: gpu_reset}}]",
            "events[0].recovery: a GPU that is lost can't ask for it",
        ),
        (
            f"{NODE}\nevents: [{{kind: nvlink, node: a, gpu: 1, at: 1m, error: symbol, once: 1}}]",
            "events[0].error: h100-80gb-hbm3 counts no 'symbol'; it is one of crc",
        ),
        (
            f"{NODE}\nevents: [{{kind: nvlink, node: a, gpu: 1, at: 1m, link: 18, once: 1}}]",
            "events[0].link: there is no link 18; they are 0 to 17",
        ),
        (
            f"{NODE}\nevents: [{{kind: nvlink, node: a, gpu: 1, at: 1m, links_down: 19}}]",
            "events[0].links_down: there are 18 links only",
        ),
        (
            "nodes: [{name: a, profile: gb10}]\nevents: [{kind: nvlink, node: a, gpu: 0, at: 1m, once: 1}]",
            "events[0].gpu: gb10 has no NVLink",
        ),
        (
            "nodes: [{name: a, profile: gb10}]\nevents: [{kind: ecc, node: a, gpu: 0, at: 1m, uncorrectable: 1}]",
            "events[0].gpu: gb10 has no ECC",
        ),
        (
            f"{NODE}\nevents: [{{kind: power_brake, node: a, at: 1m, for: 1m, gpus: [12]}}]",
            "events[0].gpus: there is no GPU 12",
        ),
    ],
)
def test_a_refusal_names_the_key_and_the_remedy(text: str, message: str) -> None:
    """Whatever is wrong, the message leads with file and path of the key."""
    assert message in refusal(text)
    assert refusal(text).startswith("s.yaml")


def test_all_problems_are_told_at_once() -> None:
    """Whoever corrects a file sees everything that is wrong with it, not one thing a try."""
    text = "nodes: [{name: a, profile: v100}, {name: b/, profile: t4}]\nruns: [{name: r, pattern: train, nodes: [c]}]"

    assert len(refusal(text).splitlines()) == 3


def test_deep_nesting_is_refused() -> None:
    """A thousand brackets do not end the process."""
    assert "s.yaml" in refusal("nodes: " + "[" * 100_000)


def test_a_node_may_have_several_kinds() -> None:
    """Mixed nodes exist; their GPUs are numbered in the order of the file."""
    from gpufleet.simulate.staging import Stage

    text = "nodes: [{name: a, gpus: {h100-80gb-hbm3: 2, t4: 1}}]"
    script = Stage(parse_scenario(text.encode(), "s.yaml")).node("a")

    assert [gpu.profile.key for gpu in script.gpus] == ["h100-80gb-hbm3", "h100-80gb-hbm3", "t4"]


def test_the_example_of_the_guide_is_a_scenario() -> None:
    """docs/simulation.md shows a file that works, and names every pattern and event."""
    guide = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()
    (example,) = [block for block in guide.split("```yaml\n")[1:] if block.startswith("# scenario")]
    scenario = parse_scenario(example.partition("```")[0].encode(), "guide.yaml")

    assert len(scenario.nodes) == 4
    for word in (*get_args(Pattern), *(event.__struct_config__.tag for event in get_args(Event))):
        assert f"| `{word}` |" in guide
