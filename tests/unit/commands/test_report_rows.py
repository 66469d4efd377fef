"""What the answers of Prometheus come to, and how it is shown; pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from gpufleet.commands.report_forms import csv_text, json_text, text
from gpufleet.commands.report_rows import LEVELS, NOBODYS, Question, Report, Sample, queries, report_of
from tests.conftest import ROOT
from tests.promtool import Promtool

HOUR = 3600.0


def report(by: str = "project", **answers: Sequence[tuple[str, float]]) -> Report:
    """A report of answers by the questions' names; labels as ``project/run/task/currency/reason``, ends left out."""
    names = {
        Question.COST: ("currency",),
        Question.UNUSED: ("currency", "reason"),
        Question.MEASURED_COST: ("currency",),
        Question.UNMEASURED_UNUSED: ("currency",),
    }
    found = {}
    for question in Question:
        labels = (*LEVELS[by], *names.get(question, ()))
        found[question] = [
            Sample(dict(zip(labels, key.split("/"), strict=True)), value)
            for key, value in answers.get(question.name.lower(), ())
        ]
    return report_of(by, found)


MIXED = report(
    cost=[("a/USD", 1000), ("b/USD", 500), ("b/EUR", 40), ("c/EUR", 80), ("(unallocated)/USD", 300)],
    unused=[("a/USD/idle", 100), ("a/USD/down", 20), ("b/EUR/idle", 10)],
    measured_cost=[("a/USD", 1000), ("b/EUR", 40)],
    allocated=[("a", 100 * HOUR), ("b", 50 * HOUR), ("c", 8 * HOUR), ("(unallocated)", 30 * HOUR)],
    measured=[("a", 100 * HOUR), ("b", 10 * HOUR)],
    productive=[("a", 88 * HOUR), ("b", 7.5 * HOUR)],
)
"""One project is measured, one partly, one not at all; two currencies, one project in both."""


def test_currencies_are_never_added_up() -> None:
    """Each has lines and totals of its own; time is told once."""
    assert text(MIXED).splitlines() == [
        "project        currency   cost      unused  unused  GPU hours  utilization",
        "a              USD       1,000         120    12 %        100         88 %",
        "b              USD         500  unmeasured              50.00         75 %  *",
        "b              EUR       40.00       10.00    25 %",
        "c              EUR       80.00  unmeasured               8.00   unmeasured  *",
        "",
        "total          USD       1,500         120    12 %        158         87 %  *",
        "total          EUR         120       10.00    25 %                          *",
        "(unallocated)  USD         300                          30.00",
        "everything     USD       1,800                            188",
        "everything     EUR         120",
        "",
        "USD 1,800 = 880 used + 120 unused + 500 unmeasured + 300 (unallocated)",
        "EUR 120 = 30.00 used + 10.00 unused + 80.00 unmeasured",
        "* in part or wholly without a reading of utilization: unmeasured",
    ]


def test_each_cost_is_used_unused_or_unmeasured() -> None:
    """In every row and currency, and for what was down but never measured, too."""
    found = report(
        cost=[("a/USD", 10.0), ("b/USD", 10.0)],
        unused=[("a/USD/idle", 4.0), ("a/USD/down", 1.0), ("b/USD/down", 3.0)],
        measured_cost=[("a/USD", 8.0)],
        unmeasured_unused=[("b/USD", 3.0)],
        allocated=[("a", HOUR), ("b", HOUR)],
    )
    a, b = (row.money["USD"] for row in found.held)
    assert (a.used, a.unused, a.unmeasured) == (3.0, 5.0, 2.0)
    assert (b.used, b.unused, b.unmeasured) == (0.0, 3.0, 7.0)
    for money in (a, b):
        assert money.used + money.unused + money.unmeasured == money.cost
    assert a.unused_ratio == 5 / 8
    assert b.unused_ratio == 1.0


def test_rounding_makes_nothing_negative() -> None:
    """A month has thousands of increments, whose sums differ in the last digits."""
    found = report(
        cost=[("a/USD", 100.0)],
        unused=[("a/USD/idle", 100.00000000000003)],
        measured_cost=[("a/USD", 100.00000000000001)],
        allocated=[("a", HOUR)],
        measured=[("a", HOUR)],
        productive=[("a", HOUR * (1 + 1e-12))],
    )
    (row,) = found.held
    assert (row.money["USD"].used, row.money["USD"].unmeasured, row.utilization) == (0.0, 0.0, 1.0)


def test_without_prices_there_is_time() -> None:
    """No column of money, and no identity of it."""
    found = report(allocated=[("a", 10 * HOUR)], measured=[("a", 10 * HOUR)], productive=[("a", 5 * HOUR)])
    assert text(found) == (
        "project  GPU hours  utilization\na            10.00         50 %\n\ntotal        10.00         50 %\n"
    )


def test_what_has_no_price_beside_what_has_one_says_so() -> None:
    """Its cost is not nothing: it is not known."""
    found = report(cost=[("a/USD", 5.0)], allocated=[("a", HOUR), ("b", HOUR)])
    assert "no price" in next(line for line in text(found).splitlines() if line.startswith("b "))


def test_the_dearest_is_first_and_what_is_nobodys_last() -> None:
    """(unallocated), (unsliced), (unknown) in that order; (others) are holders."""
    found = report(
        cost=[(f"{name}/USD", cost) for name, cost in (("a", 1), ("(others)", 3), ("b", 2))],
        allocated=[(name, HOUR) for name in ("(unknown)", "b", "(unsliced)", "a", "(unallocated)", "(others)")],
    )
    assert [row.key[0] for row in found.held] == ["(others)", "b", "a"]
    assert tuple(row.key[0] for row in found.nobodys) == NOBODYS == ("(unallocated)", "(unsliced)", "(unknown)")


def test_csv_is_read_back_and_starts_no_formula() -> None:
    """A name may have anything in it; what a spreadsheet would run is text."""
    names = ['=HYPERLINK("http://x")', "+1", "-1", "@a", "\ta", 'a,"b"\nc', "plain"]
    found = report(cost=[(f"{name}/USD", 1.5) for name in names if "/" not in name], allocated=[("plain", HOUR)])
    lines = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert {line["project"] for line in lines} == {"'+1", "'-1", "'@a", "'\ta", 'a,"b"\nc', "plain"}
    assert all(float(line["cost"]) == 1.5 for line in lines)
    risky = report_of(
        "project", {**dict.fromkeys(Question, ()), Question.ALLOCATED: [Sample({"project": names[0]}, HOUR)]}
    )
    (line,) = csv.DictReader(io.StringIO(csv_text(risky)))
    assert line["project"] == f"'{names[0]}"


def test_csv_tells_time_once() -> None:
    """So that a column can be added up."""
    lines = list(csv.DictReader(io.StringIO(csv_text(MIXED))))
    assert sum(float(line["gpu_hours"] or 0) for line in lines) == 188
    assert sum(float(line["cost"]) for line in lines if line["currency"] == "USD") == 1800
    assert [line["unmeasured"] for line in lines if line["project"] == "c"] == ["80.0"]


def test_json_has_nothing_where_nothing_is_known() -> None:
    """null, not 0; and the time that it is about."""
    told = json.loads(json_text(MIXED, 0.0, 86_400.0))
    rows = {row["project"]: row for row in (*told["rows"], *told["nobodys"])}
    assert (told["by"], told["from"], told["to"]) == ("project", "1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z")
    assert rows["c"]["productive_gpu_hours"] is None
    assert rows["c"]["utilization"] is None
    assert rows["(unallocated)"]["money"]["USD"]["unused"] is None
    assert rows["a"]["money"]["USD"] == {
        "cost": 1000,
        "used": 880,
        "unused": 120,
        "unused_idle": 100,
        "unused_down": 20,
        "unmeasured": 0,
    }
    assert told["total"]["money"].keys() == {"USD", "EUR"}


def test_a_hostile_name_moves_no_cursor() -> None:
    """Control characters are shown, not sent to the terminal."""
    found = report(cost=[("a\x1b[2J\nb\u202e/USD", 1.0)], allocated=[("a\x1b[2J\nb\u202e", HOUR)])
    assert "a\\x1b[2J\\nb\\u202e" in text(found)
    assert "\x1b" not in text(found)


@pytest.mark.parametrize("by", LEVELS)
def test_every_query_is_promql(by: str, promtool: Promtool, tmp_path: Path) -> None:
    """For any name of a cluster; asked as the rule that promtool checks."""
    rules = [
        {"record": f"report:{question.name.lower()}:sum", "expr": query}
        for question, query in queries(by, 2_592_000.0, 'we"st\\\n').items()
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "report", "rules": rules}]}))
    assert promtool.check_rules(file) == ""


def test_only_recorded_series_are_asked_for() -> None:
    """Those of the shipped rules, in a window that meets the one before it in no sample."""
    (group,) = yaml.safe_load((ROOT / "alerts" / "gpufleet-cost.yaml").read_text())["groups"]
    recorded = {rule["record"] for rule in group["rules"]}
    asked = " ".join(queries("task", 300.0, None).values())
    assert {f"run:{rest.partition('[')[0]}" for rest in asked.split("run:")[1:]} == recorded
    assert asked.count("[299999ms]") == asked.count("run:")
