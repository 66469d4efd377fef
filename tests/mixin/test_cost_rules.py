"""The recorded GPU time and money of each run: every second and cent once, whatever restarts, and whatever is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import _jsonnet
import pytest
import yaml

from gpufleet.metrics.catalog import FAMILIES
from tests.conftest import ROOT
from tests.promtool import Promtool

RULES = ROOT / "alerts" / "gpufleet-cost.yaml"
CASES = ROOT / "tests" / "mixin" / "cases" / "cost.test.yaml"
RECORDED = {
    "run:gpu_allocated_seconds:increase5m": "gpu_allocated_seconds_total",
    "run:gpu_productive_seconds:increase5m": "gpu_productive_seconds_total",
    "run:gpu_cost:increase5m": "gpu_cost_total",
    "run:gpu_unused_cost:increase5m": "gpu_unused_cost_total",
}

# Changes to the rules, each of which the cases must notice.
MUTATIONS = {
    "increase": (r"last_over_time\((\w+)\[5m\] offset 1m\)", r"increase(\1[5m] offset 1m)"),
    "nothing further back": (r"\[15m\] offset 6m", "[5m] offset 6m"),
    "the highest of what was before": (r"last_over_time\((\w+)\[15m\] offset 6m", r"max_over_time(\1[1h] offset 6m"),
    "windows that overlap": ("offset 6m", "offset 5m"),
    "windows with something between": ("offset 6m", "offset 7m"),
    "any lower value is a reset": (r"2 \* max", "max"),
    "no value is a reset": (r"2 \* max", "1e9 * max"),
    "every account is young": ("1300", "39000000"),
    "no account is young": ("1300", "0"),
    "by address": (r"max by \(cluster, node, uuid", "max by (cluster, node, instance, uuid"),
    "by number": (r"max by \(cluster, node, uuid", "max by (cluster, node, gpu, uuid"),
    "added up over scrape jobs": (r"max by \(", "sum by ("),
    "not by cluster": (r"sum by \(cluster, ", "sum by ("),
    "one GPU of a run": (r"sum by \(", "max by ("),
    "one currency": (", currency", ""),
    "one reason": (r'reason=\\?"down', 'reason=\\"idle'),
}


def rules() -> dict[str, str]:
    """Expression of each recorded series."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["record"]: rule["expr"] for rule in group["rules"]}


def test_promtool_has_nothing_against_the_rules(promtool: Promtool) -> None:
    """Debian's and the newest accept them, lint included."""
    assert promtool.check_rules(RULES) == ""


def test_time_and_money_are_counted_once(promtool: Promtool) -> None:
    """The cases beside it: short runs, lost scrapes, absences, resets, moves, several of everything."""
    assert promtool.test_rules(CASES) == ""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_cases_notice_a_change_of_the_rules(mutation: str, promtool: Promtool, tmp_path: Path) -> None:
    """Each part of the rules is there for a case that fails without it."""
    old, new = MUTATIONS[mutation]
    text, count = re.subn(old, new, RULES.read_text())
    assert count
    (tmp_path / "rules.yaml").write_text(text)
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES.read_text().replace("../../../alerts/gpufleet-cost.yaml", "rules.yaml"))

    assert promtool.test_rules(cases)


def test_there_is_one_rule_for_each_total_of_the_meter() -> None:
    """In one group, whose interval is the window: what is recorded can be added up."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]

    assert (group["name"], group["interval"]) == ("gpufleet-cost", "5m")
    assert list(rules()) == list(RECORDED)
    for record, metric in RECORDED.items():
        assert set(re.findall(r"gpu_\w+", rules()[record])) <= {metric, "gpu_allocated_seconds_total"}


@pytest.mark.parametrize("record", RECORDED)
def test_the_labels_are_those_of_the_catalogue(record: str) -> None:
    """An account is told apart by what the exporter tells it apart by, but for the number that a boot may change."""
    expression = rules()[record]
    family = FAMILIES[RECORDED[record]]
    (recorded,) = re.findall(r"^sum by \(([^)]*)\)", expression)
    accounts = {
        by for by, metric in re.findall(r"max by \(([^)]*)\) \(\w+\((\w+)", expression) if metric == family.name
    }

    assert accounts == {", ".join(["cluster", *[label for label in family.labels if label != "gpu"]])}
    assert recorded == ", ".join(
        ["cluster", *[label for label in family.labels if label not in {"node", "gpu", "uuid"}]]
    )


def test_the_file_is_what_jsonnet_writes() -> None:
    """Written by hand or generated, the bytes are the same."""
    content: Any = json.dumps(yaml.safe_load(RULES.read_text()))
    snippet = f"std.manifestYamlDoc({content}, indent_array_in_object=false, quote_keys=false) + '\\n'"

    assert json.loads(_jsonnet.evaluate_snippet("rules", snippet)) == RULES.read_text()
