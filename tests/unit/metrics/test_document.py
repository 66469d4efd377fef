from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.metrics.catalog import CATALOG, FAMILIES
from gpufleet.metrics.document import PLACE, document, main

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]


def test_the_committed_document_is_that_of_the_catalogue() -> None:
    """docs/metrics.md is up to date; if not, run make generate and commit it with the catalogue."""
    assert (ROOT / PLACE).read_text(encoding="utf-8") == document(), "stale: run make generate"


def test_every_family_has_one_row() -> None:
    """Each metric stands in exactly one table row, under its group."""
    rows = [line.split("`")[1] for line in document().splitlines() if line.startswith("| `")]
    assert rows == list(FAMILIES)
    assert [line.removeprefix("## ") for line in document().splitlines() if line.startswith("## ")] == [
        group.title for group in CATALOG
    ]


def test_rows_say_what_is_not_there_yet_and_what_core_shows() -> None:
    """A promised name is marked, and level core's selection is spelled out."""
    rows = {line.split("`")[1]: line for line in document().splitlines() if line.startswith("| `")}
    assert "*not yet, but simulated*" in rows["train_loss"]
    assert "*not yet" not in rows["gpu_power_watts"]
    assert "`le` (0.05, 0.1," in rows["train_step_duration_seconds"]
    assert rows["gpu_power_limit_watts"].endswith("| core: enforced |")
    assert rows["gpu_graphics_clock_hertz"].endswith("| standard |")
    assert rows["gpu_energy_joules_total"].startswith(
        "| `gpu_energy_joules_total` | counter | joules | `gpu`, `uuid` |"
    )


def test_it_writes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path is written, folders included; a dash means standard output."""
    assert main([str(tmp_path / "new" / "metrics.md")]) == 0
    assert (tmp_path / "new" / "metrics.md").read_text(encoding="utf-8") == document()
    assert main(["-"]) == 0
    assert capsys.readouterr().out == document()
