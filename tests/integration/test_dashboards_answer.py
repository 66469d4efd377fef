"""Every query of every panel, asked of a real Prometheus that has scraped the default scenario."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gpufleet.simulate.scenario_file import default_scenario
from tests.integration.recorded_fleet import RecordedFleet, recorded_fleet, scraping
from tests.mixin.rendering import groups, panels, rendered

MINUTES = 115
"""Nearly twice the hour after which the scenario starts again."""
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedFleet]:
    """Two hours of the default scenario."""
    with recorded_fleet(tmp_path_factory.mktemp("default"), scraping(default_scenario()), MINUTES, groups()) as found:
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
