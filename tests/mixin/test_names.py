"""Every name that the mixin uses is one that something reports, and every selector can be narrowed by configuration."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import _gojsonnet
import pytest

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.family import Kind
from tests.mixin import dcgm_fields
from tests.mixin.promql import uses
from tests.mixin.rendering import MIXIN, expressions, groups, panels, rendered, rule_expressions

SOURCES = ("gpufleet", "dcgm", "dcgm49")
CONFIGURATIONS: list[dict[str, object]] = [
    {"sources": list(chosen), "inferenceSystems": ["vllm", "sglang", "tgi", "triton", "trtllm", "nim"]}
    for count in (1, 2, 3)
    for chosen in itertools.permutations(SOURCES, count)
    if list(chosen) == sorted(chosen, key=SOURCES.index)
]
# What Prometheus and its external labels add.
ALWAYS = {"cluster", "job", "instance", "__name__"}
# Labels that recording rules give themselves.
OWN = {"model", "system", "slice", "state", "kind", "problem", "part"}
# Of node_exporter (docs of its infiniband collector; the hardware counters since 1.11) and kube-state-metrics.
OTHERS = {
    "node_infiniband_port_data_received_bytes_total": {"device", "port"},
    "node_infiniband_port_data_transmitted_bytes_total": {"device", "port"},
    "node_infiniband_rate_bytes_per_second": {"device", "port"},
    "node_infiniband_state_id": {"device", "port"},
    "node_infiniband_link_downed_total": {"device", "port"},
    "node_infiniband_local_ack_timeout_errors_total": {"device", "port"},
    "node_infiniband_packet_sequence_errors_total": {"device", "port"},
    "node_infiniband_out_of_sequence_packets_received_total": {"device", "port"},
    "node_infiniband_roce_adp_retransmits_total": {"device", "port"},
    "kube_node_spec_unschedulable": {"node"},
    "up": set(),
    "ALERTS": {"alertname", "alertstate", "severity", "team", "quarantine"},
    "prometheus_rule_group_iterations_missed_total": {"rule_group"},
    "prometheus_rule_evaluation_failures_total": {"rule_group"},
}
INFERENCE_LABELS = {
    "model_name",
    "model",
    "le",
    "finished_reason",
    "dp_rank",
    "engine",
    "err",
    "reason",
    "pod",
    "namespace",
}


def inference_names() -> set[str]:
    """All names of series of the inference table."""
    table: dict[str, dict[str, Any]] = json.loads(
        _gojsonnet.evaluate_snippet(str(MIXIN / "x.jsonnet"), "import 'sources/inference.libsonnet'")
    )
    names = set()
    for system in table.values():
        for value in system.values():
            parts = (
                value if isinstance(value, list) else [value["sum"], value["count"]] if isinstance(value, dict) else []
            )
            for part in parts:
                plain = system["prefix"] + (part if isinstance(part, str) else part["name"])
                names |= {plain, f"{plain}_bucket", f"{plain}_sum", f"{plain}_count"}
    return names


def known() -> dict[str, set[str]]:
    """Labels of every series by name; of dcgm-exporter and of inference the same for all."""
    found = {name: set(family.labels) for name, family in FAMILIES.items()}
    for name, family in FAMILIES.items():
        if family.kind is Kind.HISTOGRAM:
            found |= {
                f"{name}_bucket": {*family.labels, "le"},
                f"{name}_sum": set(family.labels),
                f"{name}_count": set(family.labels),
            }
    for reading in dcgm_fields.FIELDS:
        found |= {reading.old: set(dcgm_fields.LABELS), reading.new: set(dcgm_fields.LABELS)}
    return found | dict.fromkeys(inference_names(), INFERENCE_LABELS) | OTHERS


def recorded(config: dict[str, object] | None = None) -> set[str]:
    """Names of recorded series."""
    return {rule["record"] for group in groups(config) for rule in group["rules"] if "record" in rule}


@pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: "+".join(config["sources"]))
def test_every_series_is_one_that_something_reports(config: dict[str, object]) -> None:
    """gpufleet's catalogue, the lists of dcgm-exporter, the inference table, node_exporter, or a rule of ours."""
    names = set(known()) | recorded(config)
    foreign = {
        f"{place}: {name}"
        for place, expression in expressions(config).items()
        for name in uses(expression).series
        if name not in names
    }

    assert foreign == set()


def test_every_label_matched_is_one_that_the_series_has() -> None:
    """A matcher on a label that a series does not have selects nothing, or everything."""
    labels = known()
    every = set().union(*labels.values()) | OWN | ALWAYS
    wrong = set()
    for config in CONFIGURATIONS:
        for place, expression in expressions(config).items():
            for name, matched in uses(expression).matched.items():
                allowed = labels.get(name, every) | ALWAYS
                if FAMILIES.get(name) is not None and "nvlink" in name:
                    allowed |= {"link"}
                wrong |= {f"{place}: {name}{{{label}}}" for label in matched - allowed}

    assert wrong == set()


def test_every_label_kept_is_one_that_some_series_has() -> None:
    """A misspelt label in by (…) is empty, and silently adds up what should be apart."""
    every = set().union(*known().values()) | OWN | ALWAYS
    wrong = {
        f"{place}: {label}"
        for config in CONFIGURATIONS
        for place, expression in expressions(config).items()
        for label in uses(expression).labels - every
    }

    assert wrong == set()


def test_every_word_of_a_source_is_in_the_vocabulary_and_in_its_exporter() -> None:
    """Sources and words say the same, and each source names only what its exporter has."""
    fields = dcgm_fields.FIELDS
    names = {
        "gpufleet": set(FAMILIES),
        "dcgm": {each.old for each in fields},
        "dcgm49": {each.new for each in fields},
    }
    for source, allowed in names.items():
        program = f"(import 'sources/{source}.libsonnet')((import 'config.libsonnet')._config)"
        made = json.loads(_gojsonnet.evaluate_snippet(str(MIXIN / "x.jsonnet"), program))
        words = json.loads(_gojsonnet.evaluate_snippet(str(MIXIN / "x.jsonnet"), "import 'lib/words.libsonnet'"))
        for kind in ("gpu", "slice"):
            assert set(made[kind]) <= set(words[kind])
            for entry in made[kind].values():
                for each in entry if isinstance(entry, list) else [entry]:
                    used = {each["gauge"], each["counter"], each.get("plus", {}).get("counter")} - {None}
                    assert used <= allowed
                    assert used


def test_a_counter_of_a_source_is_a_counter_and_a_gauge_a_gauge() -> None:
    """A rate of a gauge, or an average of a counter, is a number without a meaning."""
    program = "(import 'sources/gpufleet.libsonnet')((import 'config.libsonnet')._config)"
    made = json.loads(_gojsonnet.evaluate_snippet(str(MIXIN / "x.jsonnet"), program))
    for entry in [*made["gpu"].values(), *made["slice"].values()]:
        if entry["counter"] is not None:
            assert FAMILIES[entry["counter"]].kind is Kind.COUNTER
        if entry["gauge"] is not None:
            assert FAMILIES[entry["gauge"]].kind is Kind.GAUGE


def test_every_selector_of_a_source_takes_the_configured_one() -> None:
    """Overriding a selector reaches every expression: none is written out by hand."""
    chosen: dict[str, object] = {
        "gpufleetSelector": 'job="a1"',
        "dcgmSelector": 'job="a2"',
        "nodeExporterSelector": 'job="a3"',
        "kubeStateMetricsSelector": 'job="a4"',
        "trainingSelector": 'job="a5"',
        "inferenceSelector": 'job="a6"',
        "nimSelector": 'job="a7"',
        "sources": list(SOURCES),
        "inferenceSystems": ["vllm", "nim"],
    }
    ours = recorded(chosen) | {"ALERTS", "up"}
    bare = {
        f"{place}: {name}"
        for place, expression in expressions(chosen).items()
        for name, braces in uses(expression).selectors
        if name not in ours and not name.startswith("prometheus_") and not re.search(r'job="a\d"', braces)
    }

    assert bare == set()


def test_another_cluster_label_reaches_every_rule_and_panel() -> None:
    """Where it is called otherwise, no `cluster` is left in a list of labels or a matcher."""
    found = {
        place
        for place, expression in expressions({"clusterLabel": "k8s_cluster"}).items()
        if "cluster" in uses(expression).labels | set().union(*uses(expression).matched.values())
    }

    assert found == set()


def test_every_aggregation_keeps_clusters_apart() -> None:
    """Two clusters in one Prometheus are never added up by a rule."""
    merged = {
        place
        for place, expression in rule_expressions().items()
        for labels in re.findall(
            r"(?<!:)\b(?:sum|max|min|avg|count|quantile|group)(?: by \(\s*([^)]*)\))? \(", expression
        )
        if not re.match(r"cluster\b", labels)
    }

    assert merged == set()


def test_recorded_names_follow_the_convention() -> None:
    """level:metric:operations, and no raw name of gpufleet's is recorded."""
    for name in recorded():
        assert re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", name)
        assert name not in FAMILIES


def test_at_most_six_series_are_recorded_of_each_gpu() -> None:
    """At 16,384 GPUs each of them is 16,384 series; what is said of GPUs in trouble (`gpu:…`) is of few."""
    assert len([name for name in recorded() if "gpu" in name.partition(":")[0].split("_")[1:]]) <= 6


def test_every_table_column_and_legend_is_a_label_that_its_query_keeps() -> None:
    """A legend {{x}} of a label that is gone is an empty legend."""
    for name, dashboard in rendered()["dashboards"].items():
        for panel in panels(dashboard):
            for target in panel.get("targets", []):
                used = uses(target["expr"])
                kept = used.labels | set().union(*[known().get(series, set()) for series in used.series]) | OWN | ALWAYS
                if not used.labels:
                    continue
                for label in re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"]):
                    assert label in kept, f"{name}: {panel['title']}: {label}"
