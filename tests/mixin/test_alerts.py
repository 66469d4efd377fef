"""Each alert fires when it must, and keeps quiet on the near miss and in each trap; asked of both promtools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.mixin import alert_cases_health, alert_cases_phases, alert_cases_rest, alert_cases_runs, alert_cases_traps
from tests.mixin.alert_case import Case
from tests.mixin.rendering import generator, groups
from tests.promtool import Promtool

EVERY: dict[str, object] = {
    "monthlyBudget": 1000.0,
    "optionalAlerts": {"lossDivergence": True, "efficiencyDrop": True, "unusedSpend": True},
}
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "": EVERY,
    "dcgm": {**EVERY, "sources": ["dcgm"]},
    "both": {**EVERY, "sources": ["gpufleet", "dcgm"]},
    "no budget": {**EVERY, "monthlyBudget": 0},
}
CASES: list[Case] = [
    *alert_cases_health.CASES,
    *alert_cases_traps.CASES,
    *alert_cases_runs.CASES,
    *alert_cases_phases.CASES,
    *alert_cases_rest.CASES,
]
# Groups that the rules of each group read, themselves in the order in which they need each other.
ORDER = [
    "gpufleet-owners",
    "gpufleet-readings",
    "gpufleet-utilization",
    "gpufleet-models",
    "gpufleet-stragglers",
    "gpufleet-training",
    "gpufleet-inference",
    "gpufleet-network",
    "gpufleet-exporters",
    "gpufleet-cost",
    "gpufleet-capacity",
    "gpufleet-rollups",
    "gpufleet-links",
    "gpufleet-risk",
    "gpufleet-problems",
]
# Recording rules that an alert needs, by the words in their names.
_NAME = re.compile(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+")


def file_of(alert: str, config: str) -> tuple[str, list[str], str]:
    """The rules that an alert needs, as a rule file, the order of their groups, and how often its own is evaluated."""
    every = {group["name"]: group for group in groups(CONFIGURATIONS[config])}
    wanted = [rule for group in every.values() for rule in group["rules"] if rule.get("alert") == alert]
    needed: set[str] = set()
    unseen = {name for rule in wanted for name in _NAME.findall(rule["expr"])}
    while unseen:
        needed |= unseen
        read = {
            name
            for group in every.values()
            for rule in group["rules"]
            if rule.get("record") in unseen
            for name in _NAME.findall(rule["expr"])
        }
        unseen = read - needed
    made = []
    for name in [*ORDER, *[each for each in every if each not in ORDER]]:
        if name not in every:
            continue
        kept = [rule for rule in every[name]["rules"] if rule.get("record") in needed or rule in wanted]
        if kept:
            made.append({**every[name], "rules": kept})
    interval = next(group.get("interval", "1m") for group in made if wanted[0] in group["rules"])
    return generator.yaml({"groups": made}), [group["name"] for group in made], interval


def in_promtools_form(cases: list[Case]) -> list[Mapping[str, object]]:
    """promtool's form. Which labels matter is the same for all alerts of a case: it counts by them."""
    made: list[Mapping[str, object]] = []
    for case in cases:
        labels = ", ".join(sorted({label for each in case.fires for label in each}))
        made.append(
            {
                "name": case.story,
                "interval": "1m",
                "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count by ({labels}) (ALERTS{{alertname="{case.alert}",alertstate="firing"}})',
                        "eval_time": case.at,
                        "exp_samples": [
                            {
                                "labels": "{" + ", ".join([f'{key}="{value}"' for key, value in each.items()]) + "}",
                                "value": 1,
                            }
                            for each in case.fires
                        ],
                    }
                ],
            }
        )
    return made


STORIES = sorted({(case.alert, case.config) for case in CASES})


@pytest.mark.parametrize(("alert", "config"), STORIES)
def test_it_fires_when_it_must_and_only_then(alert: str, config: str, promtool: Promtool, tmp_path: Path) -> None:
    """Its cases tell what is planted and who is named."""
    rules, order, interval = file_of(alert, config)
    (tmp_path / "rules.yaml").write_text(rules)
    cases = {
        "rule_files": ["rules.yaml"],
        # promtool evaluates all groups alike: sums of what is recorded each five minutes would be five times as large.
        "evaluation_interval": interval,
        "group_eval_order": order,
        "tests": in_promtools_form([case for case in CASES if (case.alert, case.config) == (alert, config)]),
    }
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))

    assert promtool.test_rules(tmp_path / "cases.yaml") == ""


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    """The near miss is what tells an alert from an alarm that is always on. The incident has a file of its own."""
    names = {
        rule["alert"]
        for config in CONFIGURATIONS.values()
        for group in groups(config)
        for rule in group["rules"]
        if rule.get("alert", "GpuHardwareIncident") != "GpuHardwareIncident"
    }
    assert {case.alert for case in CASES if case.fires} == names
    assert {case.alert for case in CASES if not case.fires} == names
