"""The table's own arithmetic: a bench that marks its targets wrongly is worse than none."""

from __future__ import annotations

import pytest

from tests.bench.figures import GPUFLEET, NAIVE, ROWS, Figures, Limit, markdown_table, number, plain_table


@pytest.mark.parametrize(
    ("limit", "value", "met"),
    [
        (Limit("<", 3), 2.99, True),
        (Limit("<", 3), 3.0, False),
        (Limit("≤", 5), 5.0, True),
        (Limit("≤", 5), 5.01, False),
        (Limit("≥", 10), 10.0, True),
        (Limit("≥", 10), 9.99, False),
    ],
)
def test_a_limit_is_met_up_to_its_bound(limit: Limit, value: float, met: bool) -> None:
    """Each kind of limit treats its own bound as written."""
    assert limit.met(value) is met


def test_a_missed_target_is_shown_as_missed() -> None:
    """The verdict is gpufleet's alone; the others' values only stand beside it."""
    figures = Figures()
    figures.put("process.cpu", 0.7)
    figures.put("process.cpu", 0.1, NAIVE)
    figures.put("process.start", 0.5)

    assert [row.key for row in figures.missed()] == ["process.cpu"]
    table = plain_table(figures.lines())
    assert "missed" in table.splitlines()[1]
    assert table.splitlines()[2].endswith("met")


def test_the_others_are_shown_as_multiples() -> None:
    """The ratio is theirs over ours."""
    figures = Figures()
    figures.put("process.cpu", 0.2)
    figures.put("process.cpu", 3.0, NAIVE)

    assert "3 (15×)" in markdown_table(figures.lines())


def test_a_row_that_was_not_measured_is_neither_met_nor_missed() -> None:
    """A value that is not there has no verdict, and its reason is told."""
    figures = Figures()
    figures.say("fleet.failed", "no Prometheus here")

    (line,) = figures.lines()
    assert (line.cells[0], line.verdict, line.note) == ("–", "", "no Prometheus here")
    assert figures.missed() == []


def test_a_row_that_is_not_declared_is_refused() -> None:
    """A value under a mistyped key would vanish from the table."""
    with pytest.raises(KeyError):
        Figures().put("process.cup", 1.0)
    with pytest.raises(KeyError):
        Figures().put("process.cpu", 1.0, "nobody")


def test_keys_are_unique() -> None:
    """Two rows of one key would share their values."""
    assert len({row.key for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.123, "0.12"), (12.34, "12.3"), (1234.5, "1234"), (8.0, "8"), (99.96, "100.0")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    """More would pretend to a precision that no run repeats."""
    assert number(value) == text


def test_json_has_value_target_and_verdict() -> None:
    """The file says all that the table says."""
    figures = Figures()
    figures.put("poll.warm.bare", 4.0, GPUFLEET, "bare loop 20 µs")

    row = figures.as_json(machine="x")["rows"]["poll.warm.bare"]
    assert row["values"] == {"gpufleet": 4.0}
    assert (row["target"], row["verdict"], row["note"]) == ("≤ 5", "met", "bare loop 20 µs")
