"""Every dashboard by the rules of dashboard-linter, and by what makes a page good to read and its links lead somewhere.

Left out of the linter's rules are four, which ask for variables `job` and `instance` and for a matcher on both in
every selector (template-job-rule, template-instance-rule, target-job-rule, target-instance-rule): what is recorded has
neither label, and a GPU is found by its run, its node or its UUID, whoever scrapes it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.conftest import ROOT
from tests.mixin.promql import uses
from tests.mixin.rendering import panels

DASHBOARDS: dict[str, dict[str, Any]] = {
    path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "dashboards").glob("*.json"))
}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {
    "Bps",
    "bytes",
    "celsius",
    "cps",
    "currencyUSD",
    "d",
    "dateTimeAsIso",
    "dateTimeFromNow",
    "decbytes",
    "dthms",
    "h",
    "hertz",
    "joule",
    "none",
    "percentunit",
    "reqps",
    "s",
    "short",
    "si:tok/s",
    "watt",
}
"""Of Grafana's list; an unknown unit is shown as a word behind each number."""
BUILT_IN = {
    "__data",
    "__field",
    "__value",
    "__url_time_range",
    "__all",
    "__range",
    "__range_s",
    "__interval",
    "__rate_interval",
}
"""What Grafana knows by itself."""
_VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}|\$(\w+)")
_RATE = re.compile(r"\b(?:rate|irate)\(")

pytestmark = pytest.mark.parametrize("name", sorted(DASHBOARDS))


def shown(name: str) -> list[dict[str, Any]]:
    """All panels but rows and texts."""
    return [panel for panel in panels(DASHBOARDS[name]) if panel["type"] != "text"]


def variables(name: str) -> dict[str, dict[str, Any]]:
    """Variables by name."""
    return {each["name"]: each for each in DASHBOARDS[name]["templating"]["list"]}


def urls(part: object) -> Iterator[str]:
    """Address of each link anywhere in a part of a dashboard."""
    if isinstance(part, list):
        for each in part:
            yield from urls(each)
    elif isinstance(part, dict):
        if isinstance(part.get("url"), str) and part["url"]:
            yield part["url"]
        for each in part.values():
            yield from urls(each)


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    """Cells of the grid that a panel covers."""
    grid = panel["gridPos"]
    return set(itertools.product(range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])))


def test_the_dashboard_is_provisioned_as_it_is(name: str) -> None:
    """uneditable-dashboard; and the schema is the one that classic dashboards end with."""
    dashboard = DASHBOARDS[name]

    assert dashboard["editable"] is False
    assert dashboard["schemaVersion"] == 42
    assert dashboard["graphTooltip"] == 1
    assert dashboard["title"]
    assert dashboard["description"].endswith(".")
    assert "id" not in dashboard


def test_its_address_is_its_own(name: str) -> None:
    """Two dashboards of one uid overwrite each other, and a server cuts off what is longer than 40 characters."""
    uids = [each["uid"] for each in DASHBOARDS.values()]

    assert uids.count(DASHBOARDS[name]["uid"]) == 1
    assert re.fullmatch(r"[a-z0-9-]{1,40}", DASHBOARDS[name]["uid"])


def test_the_data_source_is_chosen_first(name: str) -> None:
    """template-datasource-rule."""
    first = DASHBOARDS[name]["templating"]["list"][0]

    assert (first["type"], first["query"]) == ("datasource", "prometheus")
    assert (first["name"], first["label"]) == ("datasource", "Data source")


def test_variables_follow_the_shown_time_and_come_from_small_series(name: str) -> None:
    """template-on-time-change-reload-rule, template-label-promql-rule; labels of raw series are those of every GPU."""
    for variable in variables(name).values():
        if variable["type"] != "query":
            continue
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])

        assert variable["refresh"] == 2
        assert variable["datasource"] == SOURCE
        assert asked is not None
        assert all(":" in series for series in uses(asked[1]).series), variable["name"]
        earlier = list(variables(name))[: list(variables(name)).index(variable["name"])]
        assert {found[0] or found[1] for found in _VARIABLE.findall(asked[1])} <= set(earlier)


def test_every_panel_says_what_it_shows_and_what_it_means_that_it_is_empty(name: str) -> None:
    """panel-title-description-rule; a number and its course may have one title, but no two panels of a type."""
    titles = [(panel["type"], panel["title"]) for panel in shown(name)]

    assert len(titles) == len(set(titles))
    for panel in shown(name):
        assert 0 < len(panel["title"]) <= 60
        assert re.fullmatch(r"[A-Z0-9].+\.", panel["description"], re.DOTALL), panel["title"]
        assert len(panel["fieldConfig"]["defaults"]["noValue"]) > 5, panel["title"]


def test_every_panel_asks_the_chosen_data_source(name: str) -> None:
    """panel-datasource-rule, and the same of each query."""
    for panel in shown(name):
        assert panel["datasource"] == SOURCE
        assert all(target["datasource"] == SOURCE for target in panel["targets"])


def test_every_number_has_a_unit_that_grafana_knows(name: str) -> None:
    """panel-units-rule, for the columns of tables too."""
    for panel in shown(name):
        used = {panel["fieldConfig"]["defaults"]["unit"]} | {
            each["value"]
            for override in panel["fieldConfig"]["overrides"]
            for each in override["properties"]
            if each["id"] == "unit"
        }
        assert used <= UNITS, panel["title"]


def test_every_panel_asks_something(name: str) -> None:
    """panel-no-targets-rule; that each query parses is seen where all of them are asked."""
    for panel in shown(name):
        references = [target["refId"] for target in panel["targets"]]

        assert references
        assert len(references) == len(set(references)), panel["title"]
        assert all(target["expr"].strip() for target in panel["targets"]), panel["title"]


def test_rates_follow_the_step(name: str) -> None:
    """target-rate-interval-rule: a fixed window skips samples where the step is longer; one number has no step."""
    for panel in shown(name):
        for target in panel["targets"]:
            if target["instant"]:
                continue
            for call in _RATE.finditer(target["expr"]):
                window = re.search(r"\[([^\]]+)\]", target["expr"][call.end() :])
                assert window is not None
                assert window[1] == "$__rate_interval", panel["title"]


def test_counters_are_shown_as_rates(name: str) -> None:
    """target-counter-agg-rule: since when a process counts is nobody's question. What is new may stand."""
    for panel in shown(name):
        for target in panel["targets"]:
            if "offset" in target["expr"]:
                continue
            bare = {series for series in uses(target["expr"]).series if series.endswith("_total")} - {
                series for function, series in uses(target["expr"]).called if function in {"rate", "irate", "increase"}
            }
            assert bare == set(), panel["title"]


def test_every_variable_that_is_used_is_there(name: str) -> None:
    """An unknown variable is sent to Prometheus as it stands."""
    known = set(variables(name)) | BUILT_IN
    for panel in shown(name):
        texts = [text for target in panel["targets"] for text in (target["expr"], target["legendFormat"])]
        texts += urls(panel)
        used = {found[0] or found[1] for text in texts for found in _VARIABLE.findall(text)} - {"1"}
        assert used <= known, panel["title"]


def test_panels_have_numbers_of_their_own(name: str) -> None:
    """Rows included: links to a panel are by number."""
    numbers = [panel["id"] for row in DASHBOARDS[name]["panels"] for panel in [row, *row.get("panels", [])]]

    assert len(numbers) == len(set(numbers))


def test_no_two_panels_lie_on_each_other(name: str) -> None:
    """What overlaps is moved by Grafana, to where nobody wanted it."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert not taken & cells(panel), panel["title"]
        taken |= cells(panel)
        inside: set[tuple[int, int]] = set()
        for each in panel.get("panels", []):
            assert not inside & cells(each), each["title"]
            inside |= cells(each)


def test_links_lead_to_dashboards_and_set_what_these_have(name: str) -> None:
    """A variable that the other dashboard does not have is lost without a word, and so is where one came from."""
    by_uid = {dashboard["uid"]: name_of for name_of, dashboard in DASHBOARDS.items()}
    for url in urls(DASHBOARDS[name]["panels"]):
        if not url.startswith("/d/"):
            continue
        target = by_uid[urlsplit(url).path.removeprefix("/d/")]
        given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        set_here = [key.removeprefix("var-") for key, _ in given if key.startswith("var-")]
        carried = [found[1] for found in re.finditer(r"\$\{(\w+):queryparam\}", url)]

        assert len(set_here + carried) == len(set(set_here + carried)), url
        assert set(set_here + carried) <= set(variables(target)), url
        assert "datasource" in carried, url
        assert "${__url_time_range}" in url


def test_every_dashboard_leads_to_all_others(name: str) -> None:
    """By its first tag, with the time and what is chosen."""
    menu = DASHBOARDS[name]["links"][0]

    assert menu["type"] == "dashboards"
    assert set(menu["tags"]) <= set(DASHBOARDS[name]["tags"])
    assert (menu["includeVars"], menu["keepTime"]) == (True, True)
