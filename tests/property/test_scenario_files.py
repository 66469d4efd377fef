"""Whatever is in a scenario file, it is either a scenario or refused with a reason."""

from __future__ import annotations

import contextlib

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.simulate.scenario import ScenarioError
from gpufleet.simulate.scenario_checks import problems
from gpufleet.simulate.scenario_file import parse_scenario
from gpufleet.simulate.staging import Stage

WORDS = st.sampled_from(
    ("name", "nodes", "runs", "events", "profile", "gpus", "mig", "layout", "kind", "heat", "xid", "node", "gpu", "at")
)
VALUES: st.SearchStrategy[object] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(WORDS, st.text()), inner, max_size=5)
    ),
    max_leaves=25,
)
DURATION = st.integers(0, 10_000).map(lambda seconds: f"{seconds}s")
NODE = st.fixed_dictionaries(
    {"name": st.sampled_from(("a", "b", "c")), "profile": st.sampled_from(("h100-80gb-hbm3", "l4", "gb10", "v100"))},
    optional={"gpus": st.integers(0, 9), "mig": st.just([{"layout": {"1g.10gb": 7}}])},
)
EVENT = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(
            ("heat", "power_brake", "xid", "loss", "hang", "driver_restart", "ecc", "nvlink", "nic", "overload")
        ),
        "node": st.sampled_from(("a", "b", "d")),
        "at": DURATION,
    },
    optional={
        "gpu": st.integers(0, 9),
        "for": DURATION,
        "code": st.integers(0, 200),
        "lost": st.booleans(),
        "once": st.integers(0, 10),
        "uncorrectable": st.integers(0, 5),
        "nic": st.integers(0, 9),
        "flaps": st.integers(0, 3),
        "retransmits_per_hour": st.integers(0, 10**9),
        "down": DURATION,
        "factor": st.floats(1.1, 9),
    },
)
RUN = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("r", "s")),
        "pattern": st.sampled_from(("train", "inference", "evals", "sandbox", "data_bound")),
        "nodes": st.lists(st.sampled_from(("a", "b", "d")), max_size=3),
    },
    optional={
        "gpus": st.lists(st.integers(0, 9), max_size=3),
        "phase": DURATION,
        "checkpoint_every": DURATION,
        "step": DURATION,
        "server": st.sampled_from(("vllm", "sglang")),
    },
)
NEARLY = st.fixed_dictionaries(
    {"nodes": st.lists(NODE, max_size=3)},
    optional={
        "runs": st.lists(RUN, max_size=3),
        "events": st.lists(EVENT, max_size=4),
        "repeat": DURATION,
        "quarantine": st.booleans(),
    },
)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_refused_with_a_reason(content: bytes) -> None:
    """Garbage never ends the process by another error."""
    with contextlib.suppress(ScenarioError):
        parse_scenario(content, "s.yaml")


@given(VALUES)
def test_any_yaml_is_refused_with_the_file_in_front(tree: object) -> None:
    """Well-formed YAML of any shape is a scenario or says why not, and the message begins with the file."""
    refusal = "s.yaml"
    try:
        parse_scenario(yaml.safe_dump(tree).encode(), "s.yaml")
    except ScenarioError as error:
        refusal = str(error)
    assert refusal.startswith("s.yaml")


@given(NEARLY, st.integers(0, 10**8))
def test_what_is_accepted_can_be_staged(tree: dict[str, object], time: int) -> None:
    """A scenario that passes its checks gives every GPU something to do at every moment."""
    try:
        scenario = parse_scenario(yaml.safe_dump(tree).encode(), "s.yaml")
    except ScenarioError:
        return
    assert list(problems(scenario)) == []
    stage = Stage(scenario)
    for name in stage.names:
        for gpu in stage.node(name).gpus:
            assert gpu.timeline.at(time).rates[0] > 0
            assert gpu.timeline.totals(time)[0] >= gpu.profile.power.idle * 1000 * time * 0.99
