"""There is one join and one increment: nowhere in the mixin is another."""

from __future__ import annotations

import re

import pytest

from tests.mixin.promql import uses
from tests.mixin.rendering import MIXIN, expressions, rule_expressions

CONFIGURATIONS: list[dict[str, object]] = [
    {},
    {"sources": ["gpufleet", "dcgm", "dcgm49"]},
    {"sources": ["dcgm49"]},
    {"inferenceSystems": ["nim"]},
]
# The many side as it stands, looked up on the cluster and some labels, in what is reduced to exactly those labels.
JOIN = re.compile(
    r"\n(?:[-+*/]|[=!<>]=?|>|<) on \(([^)]*)\) group_left \(\)\n\(?(?:max|min|sum|avg|count) by \(([^)]*)\) \("
)
# Of these, seconds and money are counted: their growth is for the increment alone.
COUNTED = re.compile(r"_(?:seconds|cost|joules)_total$|_ENERGY|_SECONDS_TOTAL|VIOLATION")


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_every_join_is_the_librarys(config: dict[str, object]) -> None:
    """One side is reduced to the labels it is looked up by: no data can make it many-to-many."""
    for place, expression in expressions(config).items():
        joins = JOIN.findall(expression)

        assert len(joins) == len(re.findall(r"group_left|group_right", expression)), place
        for on, by in joins:
            assert on == by, place
            assert on.startswith("cluster"), place


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_matching_on_labels_happens_in_joins_and_set_operations_only(config: dict[str, object]) -> None:
    """`a * on (x) b` fails as soon as b has two series; and, or, unless do not, and neither do equal aggregates."""
    one_to_one = {"cluster:gpu_capacity_cost:increase5m{'state': 'busy'}"}
    for place, expression in expressions(config).items():
        flat = re.sub(r"\s+", " ", expression)
        others = re.findall(r"(\S+) (?:on|ignoring) \([^)]*\)(?! group_left)", flat)
        if place not in one_to_one:
            assert {word for word in others if word not in {"and", "or", "unless"}} == set(), place


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_time_and_money_never_go_through_increase(config: dict[str, object]) -> None:
    """increase() of an account of a run of minutes is wrong by half; of counters of errors it is good enough."""
    for place, expression in expressions(config).items():
        wrong = [name for function, name in uses(expression).called if function == "increase" and COUNTED.search(name)]
        assert wrong == [], place


def test_the_increment_is_written_in_one_place() -> None:
    """Windows of accounts, shifted by a minute, are made by the library, for the rules of cost, and by nobody else."""
    shifted = {
        place
        for place, expression in rule_expressions().items()
        if any(COUNTED.search(name) for name in uses(expression).series) and re.search(r"\boffset\b", expression)
    }
    written = {path.name for path in MIXIN.rglob("*.libsonnet") if re.search(r"\boffset\b", path.read_text())}

    assert shifted == {
        "run:gpu_allocated_seconds:increase5m",
        "run:gpu_productive_seconds:increase5m",
        "run:gpu_cost:increase5m",
        "run:gpu_unused_cost:increase5m{'reason': 'idle'}",
        "run:gpu_unused_cost:increase5m{'reason': 'down'}",
    }
    assert written == {"promql.libsonnet"}


def test_the_join_is_written_in_one_place() -> None:
    """group_left is in the library's file and in no other."""
    written = {path.name for path in MIXIN.rglob("*.libsonnet") if "group_left" in path.read_text()}

    assert written == {"promql.libsonnet"}


def test_owners_are_told_apart_once() -> None:
    """What several exporters say of one holder is one series before anything is joined to it."""
    places = {place for place, expression in rule_expressions().items() if "gpu_owner_share" in expression}

    assert places == {"run_gpu:gpu_share:max"}
    assert rule_expressions()["run_gpu:gpu_share:max"].startswith(
        "max by (cluster, node, gpu, uuid, mig_uuid, project, run, task, workload_namespace, workload_pod) "
        "(gpu_owner_share)\n"
    )
