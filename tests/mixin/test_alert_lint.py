"""The offline rules of mixtool's and pint's linters, and our own, on the alerts as they are rendered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.mixin.promql import uses
from tests.mixin.rendering import groups, rendered
from tests.mixin.test_names import known, recorded
from tests.promtool import Promtool

EVERY: dict[str, object] = {
    "monthlyBudget": 1.0,
    "optionalAlerts": {"lossDivergence": True, "efficiencyDrop": True, "unusedSpend": True},
}
CONFIGURATIONS: list[dict[str, object]] = [
    EVERY,
    {**EVERY, "sources": ["dcgm"]},
    {**EVERY, "sources": ["gpufleet", "dcgm49"]},
]
Rule = Mapping[str, Any]
RULES: list[Rule] = [
    rule for config in CONFIGURATIONS for group in rendered(config)["alerts"] for rule in group["rules"]
]
BY_NAME = {f"{rule['alert']} {rule['labels']['severity']} {place}": rule for place, rule in enumerate(RULES)}
TEAMS = {"infra", "ml", "serving", "finops", "monitoring"}
SECTIONS = [
    "## What it means",
    "## How to see it",
    "## What to do",
    "## When to ignore it",
    "## What gpufleet already did",
    "## Sources",
]
_LABEL = re.compile(r"\$labels\.(\w+)")
_QUERY = re.compile(r"printf `([^`]*)`[^|}]*\| query")
_DURATION = re.compile(r"\d+[smhd]")
NAMES = sorted({rule["alert"] for rule in RULES})
each_rule = pytest.mark.parametrize("name", sorted(BY_NAME))


@each_rule
def test_an_alert_is_named_and_labelled_by_the_rules(name: str) -> None:
    """mixtool: CamelCase of at most 40 letters, a severity that routes know; and our first words and teams."""
    rule = BY_NAME[name]
    assert re.fullmatch(r"(Gpu|Gpus|Inference|Rdma)([A-Z][a-z]+)+", rule["alert"])
    assert len(rule["alert"]) <= 40
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["labels"]["team"] in TEAMS
    assert set(rule["labels"]) <= {"severity", "team", "quarantine"}
    assert "$value" not in str(rule["labels"])
    assert ("quarantine" in rule["labels"]) == (rule["alert"] == "GpuHardwareIncident")


@each_rule
def test_its_texts_are_for_people(name: str) -> None:
    """mixtool: a fixed summary that is a sentence, a description with what it is about; and the page to read."""
    rule = BY_NAME[name]
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert re.fullmatch(r"[A-Z][^{}]*\.", summary)
    assert "{{" in description
    assert description.count("{{") == description.count("}}")
    assert rule["annotations"]["runbook_url"].endswith(f"/docs/runbooks/{rule['alert']}.md")
    figures = re.findall(r"{{[^}]*\$value[^}]*}}", description)
    for figure in figures:
        # A count is whole; a part, a time and a mean have a form of their own.
        assert "humanize" in figure or "printf" in figure or re.fullmatch(r"{{ \$value }}", figure) or "if gt" in figure


@each_rule
def test_its_expression_compares_and_waits(name: str) -> None:
    """pint: a comparison, no topk, no needless `for`, and no division of nothing by nothing within a sum."""
    rule = BY_NAME[name]
    assert re.search(r"[<>]|==|!=", rule["expr"])
    assert not {"topk", "bottomk", "absent", "absent_over_time"} & uses(rule["expr"]).functions
    for key in ("for", "keep_firing_for"):
        if key in rule:
            assert _DURATION.fullmatch(rule[key])
            assert not rule[key].startswith("0")


@each_rule
def test_the_labels_that_its_texts_name_are_in_its_result(name: str) -> None:
    """pint's alerts/template: a label that an aggregation drops is empty in every mail."""
    rule = BY_NAME[name]
    kept = labels_of(rule["expr"])
    assert set(_LABEL.findall(rule["annotations"]["description"])) <= kept


def test_what_a_text_asks_prometheus_is_a_query_of_series_that_there_are(promtool: Promtool, tmp_path: Path) -> None:
    """pint's alerts/template: a query that is wrong shows only when the alert fires, as an error in its text."""
    asked = {query for rule in RULES for query in _QUERY.findall(rule["annotations"]["description"])}
    assert asked
    names = {*known(), *(name for config in CONFIGURATIONS for name in recorded(config))}
    plain = [query.replace("%q", '"x"') for query in sorted(asked)]
    rules = [{"record": f"query:text:{place}", "expr": query} for place, query in enumerate(plain)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "texts", "rules": rules}]}))

    assert promtool.check_rules(tmp_path / "rules.yaml") == ""
    assert {name for query in plain for name in uses(query).series} <= names


def labels_of(expr: str) -> set[str]:
    """Labels that an alert's expression can have: those of its first aggregation, or of the first recorded series."""
    first = re.search(r"\b(?:max|min|sum|avg|count|quantile) by \(([^)]*)\)|[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", expr)
    assert first, expr
    if first[1] is not None:
        return {label.strip() for label in first[1].split(",")}
    level = first[0].partition(":")[0]
    known = {
        "gpu": {"node", "gpu", "uuid", "driver_version"},
        "node": {"node"},
        "instance": {"job", "instance"},
        "run": {"project", "run", "task"},
        "port": {"nic", "port"},
        "model": {"model", "system"},
        "le": {"le"},
        "project": {"project"},
        "cluster": set(),
    }
    return {"cluster"}.union(*[known[part] for part in level.split("_")])


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_groups_are_small_and_often_enough(config: dict[str, object]) -> None:
    """mixtool: at most 20 rules and 40 letters; pint: at most five minutes, or samples are gone in between."""
    names = [group["name"] for group in groups(config)]
    assert len(names) == len(set(names))
    for group in groups(config):
        assert group["name"].startswith("gpufleet-")
        assert len(group["name"]) <= 40
        assert 0 < len(group["rules"]) <= 20
        assert group.get("interval", "1m") in {"15s", "30s", "1m", "2m", "5m"}
        keys = [(rule.get("alert") or rule["record"], str(rule.get("labels"))) for rule in group["rules"]]
        assert len(keys) == len(set(keys)), "pint: rule/duplicate"


def test_an_expression_has_no_needless_regular_expression() -> None:
    """pint's promql/regexp: `=~` is for patterns, and they are anchored as they are."""
    for rule in RULES:
        for _, braces in uses(rule["expr"]).selectors:
            for operator, value in re.findall(r'(=~|!~)"((?:[^"\\]|\\.)*)"', braces):
                assert re.search(r"[.*+?|(\[]", value), (operator, value, rule["alert"])
                assert not re.search(r"^\^|\$$|^\.\*$", value), value


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_a_page(name: str) -> None:
    """What it means, how to see it, what to do, when to ignore it, what was done already, and who feeds it."""
    page = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()

    assert page.startswith(f"# {name}\n")
    assert [line for line in page.splitlines() if line.startswith("## ")] == SECTIONS
    for section in page.split("\n## ")[1:]:
        assert section.partition("\n")[2].strip()


def test_each_page_has_an_alert() -> None:
    """A page of an alert that is gone misleads."""
    assert {file.stem for file in (ROOT / "docs" / "runbooks").glob("*.md")} == set(NAMES)


def test_keep_firing_for_can_be_switched_off() -> None:
    """For rulers that are older than it."""
    without = rendered({"keepFiringFor": False})["alerts"]
    assert any("keep_firing_for" in rule for rule in RULES)
    assert not any("keep_firing_for" in rule for group in without for rule in group["rules"])
