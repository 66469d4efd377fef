"""Every query of every panel, asked of a real Prometheus that has scraped the default scenario."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gpufleet.simulate.scenario_file import default_scenario
from tests.integration.recorded_fleet import RecordedFleet, all_of, recorded_fleet, scraping
from tests.mixin.rendering import groups, panels, rendered

MINUTES = 115
"""Nearly twice the hour after which the scenario starts again."""
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedFleet]:
    """Two hours of the default scenario."""
    with recorded_fleet(
        tmp_path_factory.mktemp("default"), scraping(default_scenario(), all_of), MINUTES, groups()
    ) as found:
        yield found


@pytest.mark.parametrize("name", sorted(rendered()["dashboards"]))
def test_every_query_has_an_answer(name: str, fleet: RecordedFleet) -> None:
    """And each label that a legend names is in it."""
    silent, unnamed = [], []
    for panel in panels(rendered()["dashboards"][name]):
        for target in panel.get("targets", []):
            found = fleet.answers(target["expr"])
            if not found:
                silent.append((panel["title"], target["expr"]))
            legend = set(_LEGEND.findall(target.get("legendFormat", "")))
            unnamed += [
                (panel["title"], label) for label in legend if found and not any(label in each for each in found)
            ]
    assert (silent, unnamed) == ([], [])


PLANTED = {
    ("GpuRunStragglerNode", "gpu-node-01"),
    ("GpuThermalThrottling", "gpu-node-01 5"),
    ("RdmaRetransmitsHigh", "gpu-node-04"),
    ("RdmaPortFlapping", "gpu-node-04"),
    ("GpuApplicationFault", "gpu-node-06 1"),
    ("GpuAllocatedIdle", "research-sandbox"),
    ("GpuAllocatedIdle", "review-notebook"),
    ("GpuHardwareIncident", "gpu-node-07 2"),
    ("GpuEccUncorrectable", "gpu-node-07 2"),
    ("GpuRecoveryActionRequired", "gpu-node-07 2"),
    ("GpuRowRemapPending", "gpu-node-07 2"),
    ("GpuNvlinkErrors", "gpu-node-07 4"),
    ("GpuHardwareIncident", "gpu-node-07 6"),
    ("GpuLost", "gpu-node-07 6"),
    ("GpusMissing", "gpu-node-07"),
    ("GpuHardwareIncident", "gpu-node-08 3"),
    ("GpuQuarantineBudgetExhausted", ""),
    ("InferenceLatencyBurn", "meta-llama/Llama-3.3-70B-Instruct"),
    ("GpuSimulatedData", "all"),
}


def test_what_is_planted_is_found_and_nothing_else(fleet: RecordedFleet) -> None:
    """Two hours in which a node is hot, a cable bad, a GPU lost, and most of all is well."""
    found = set()
    for firing in fleet.firings():
        labels = firing.labels
        where = " ".join([labels[label] for label in ("node", "gpu") if label in labels])
        where = "all" if firing.alert == "GpuSimulatedData" else where
        found.add((firing.alert, where or labels.get("run") or labels.get("model", "")))

    assert found == PLANTED
