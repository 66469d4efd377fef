"""The rule GpuHardwareIncident: when it fires, and that what it makes is the alert that the exporter posts itself."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import _jsonnet
import pytest
import yaml

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.labels import pairs
from gpufleet.notify import alert
from gpufleet.options import FIXED_ALERT_LABELS
from tests.conftest import ROOT
from tests.support.incidents import HOSTILE, INCIDENT, OF_THE_NODE

if TYPE_CHECKING:
    from pathlib import Path

    from gpufleet.model.incident import Incident
    from tests.promtool import Promtool

RULES = ROOT / "alerts" / "gpufleet-hardware.yaml"
CASES = ROOT / "tests" / "mixin" / "cases" / "hardware_incident.test.yaml"

# Changes to the rule, each of which the cases must notice.
MUTATIONS = {
    "every incident": ('{isolate="true"}', ""),
    "those that do not isolate": ('isolate="true"', 'isolate="false"'),
    "without the owner": (", project, run,", ", project,"),
    "with the address of the exporter": ("cluster, node", "cluster, instance, node"),
    "not by cluster": ("cluster, node", "node"),
    "not at once": ("    labels:\n", "    for: 1m\n    labels:\n"),
    "held for a while": ("    labels:\n", "    keep_firing_for: 5m\n    labels:\n"),
    "without the mark of the quarantine": ('      quarantine: "node"\n', ""),
    "the driver's version in it": ("    labels:\n", "    labels:\n      driver: a\n"),
}


def rule() -> dict[str, Any]:
    """The one rule of the file."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    (found,) = group["rules"]
    return dict(found)


def test_promtool_has_nothing_against_the_rule(promtool: Promtool) -> None:
    """Debian's and the newest accept it, lint included."""
    assert promtool.check_rules(RULES) == ""


def test_the_rule_fires_when_it_should_and_only_then(promtool: Promtool) -> None:
    """The cases beside it: firing, near misses, restarts, two exporters, clusters."""
    assert promtool.test_rules(CASES) == ""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_cases_notice_a_change_of_the_rule(mutation: str, promtool: Promtool, tmp_path: Path) -> None:
    """Each part of the rule is there for a case that fails without it."""
    old, new = MUTATIONS[mutation]
    text = RULES.read_text()
    assert text.count(old) == 1
    (tmp_path / "rules.yaml").write_text(text.replace(old, new))
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES.read_text().replace("../../../alerts/gpufleet-hardware.yaml", "rules.yaml"))

    assert promtool.test_rules(cases)


def test_the_rule_keeps_exactly_the_labels_of_the_series() -> None:
    """A label too few would merge two incidents, one too many would keep Alertmanager from merging both paths."""
    (kept,) = re.findall(r"^max by \(([^)]*)\)", rule()["expr"])

    assert re.findall(r"\w+", kept) == ["cluster", *FAMILIES["gpu_fault_active"].labels]


def test_the_file_is_what_jsonnet_writes() -> None:
    """Written by hand or generated, the bytes are the same."""
    content = json.dumps(yaml.safe_load(RULES.read_text()))
    snippet = f"std.manifestYamlDoc({content}, indent_array_in_object=false, quote_keys=false) + '\\n'"

    assert json.loads(_jsonnet.evaluate_snippet("rules", snippet)) == RULES.read_text()


@pytest.mark.parametrize("incident", [INCIDENT, OF_THE_NODE, HOSTILE], ids=["gpu", "node", "hostile"])
def test_rule_and_exporter_make_the_same_alert(incident: Incident, promtool: Promtool, tmp_path: Path) -> None:
    """From the series that is served the rule makes the labels and the sentences that the exporter posts."""
    told = incident.labels()
    served = pairs([(name, getattr(told, f"{name}_" if name == "class" else name)) for name in alert.SERIES.labels])
    served = served.replace("\N{REPLACEMENT CHARACTER}", "\\ufffd")  # PromQL's reader takes it for broken UTF-8
    posted = alert.hardware_incident(incident)
    labels = dict(posted.labels)
    assert labels.pop("alertname") == rule()["alert"] == alert.NAME
    expected = {"exp_labels": labels, "exp_annotations": dict(posted.annotations)}
    cases = tmp_path / "cases.yaml"
    cases.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(RULES)],
                "tests": [
                    {
                        "interval": "15s",
                        "input_series": [{"series": f'gpu_fault_active{{{served},job="j"}}', "values": "1"}],
                        "alert_rule_test": [{"alertname": alert.NAME, "eval_time": "0s", "exp_alerts": [expected]}],
                    }
                ],
            }
        )
    )

    assert promtool.test_rules(cases) == ""


def test_the_runbook_of_the_alert_is_there() -> None:
    """Whoever is woken by it finds what to do."""
    url = rule()["annotations"]["runbook_url"]
    page = ROOT / "docs" / "runbooks" / url.rsplit("/", 1)[1]

    assert page.read_text().startswith(f"# {alert.NAME}\n")


def test_labels_that_no_external_label_can_have_are_those_of_every_alert() -> None:
    """An option for one of them would be without effect, as in Prometheus, and is refused."""
    labels = dict(alert.hardware_incident(OF_THE_NODE).labels)

    assert labels.keys() - {"severity", "team"} == FIXED_ALERT_LABELS
