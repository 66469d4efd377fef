"""A month of a metered fleet, recorded, put into a real Prometheus, and read back by ``gpufleet report``."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli import main
from tests.conftest import ROOT, program
from tests.integration.conftest import StartPrometheus
from tests.integration.prometheus_server import PrometheusServer
from tests.support.report_month import END, EXPECTED, metered, openmetrics

AT = "2026-07-01"
COMMAND = "gpufleet report --prometheus.url=http://prometheus:9090 --by=project --last=30d"
PER_CENT = 0.005
NAMES = set(EXPECTED)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The month as blocks of a Prometheus's storage."""
    promtool = program("promtool")
    directory = tmp_path_factory.mktemp("month")
    text = directory / "month.txt"
    with text.open("w") as file:
        file.writelines(openmetrics(metered()))
    # By default there would be a block for two hours each, and the text would be read once for every one of them.
    command: list[str | Path] = [promtool, "tsdb", "create-blocks-from", "--max-block-duration=744h"]
    subprocess.run([*command, "openmetrics", text, directory / "blocks"], check=True, capture_output=True, timeout=120)
    text.unlink()
    return directory / "blocks"


@pytest.fixture
def month(prometheus: StartPrometheus, blocks: Path, tmp_path: Path) -> PrometheusServer:
    """A Prometheus that has recorded the month."""
    shutil.copytree(blocks, tmp_path / "prometheus-0" / "data")
    return prometheus([], flags=["--storage.tsdb.retention.time=100y"])


def report(server: PrometheusServer, capsys: pytest.CaptureFixture[str], *flags: str, at: str = AT) -> str:
    """What the command prints."""
    status = main(["report", f"--prometheus.url={server.url}", f"--at={at}", *flags])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


def shown(readme: str) -> str:
    """What the README says that the command prints."""
    _, _, rest = readme.partition(f"$ {COMMAND}\n")
    assert rest
    return rest.partition("```")[0]


def test_the_month_comes_back_to_the_dollar(month: PrometheusServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Cost, unused cost, GPU hours and utilization of each project, in each form, are those of the plan."""
    told = json.loads(report(month, capsys, "--format=json"))
    lines = {line["project"]: line for line in csv.DictReader(io.StringIO(report(month, capsys, "--format=csv")))}
    words = [line.rsplit(maxsplit=7) for line in report(month, capsys).splitlines()]
    printed = {line[0]: line for line in words if line and line[0] in NAMES}

    assert [row["project"] for row in told["rows"]] == ["llm-pretrain", "fine-tuning", "evals", "research-sandbox"]
    assert (told["from"], told["to"]) == ("2026-06-01T00:00:00Z", "2026-07-01T00:00:00Z")
    for row in told["rows"]:
        expected, money = EXPECTED[row["project"]], row["money"]["USD"]
        line = lines[row["project"]]
        for found in (money, line):
            assert round(float(found["cost"])) == expected.cost
            assert round(float(found["unused"])) == expected.unused
            assert float(found["used"]) == pytest.approx(expected.cost - expected.unused, abs=1)
            assert float(found["unmeasured"]) == float(found["unused_down"]) == 0
        for times in (row, line):
            assert float(times["gpu_hours"]) == pytest.approx(expected.hours, abs=1e-3)
            assert float(times["utilization"]) == pytest.approx(expected.utilization, abs=1e-6)
        assert printed[row["project"]] == [
            row["project"],
            f"{expected.cost:,.0f}",
            f"{expected.unused:,.0f}",
            f"{100 * (1 - expected.utilization):.0f}",
            "%",
            f"{expected.hours:,.0f}",
            f"{100 * expected.utilization:.0f}",
            "%",
        ]
    assert lines["(unallocated)"]["unused"] == lines["(unallocated)"]["utilization"] == ""


def test_the_readme_shows_what_is_printed(month: PrometheusServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte."""
    assert shown((ROOT / "README.md").read_text()) == report(month, capsys)


@pytest.mark.parametrize("by", ["run", "task"])
def test_runs_and_tasks_add_up_to_their_project(
    by: str, month: PrometheusServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each level tells the same sums."""
    told = json.loads(report(month, capsys, f"--by={by}", "--format=json"))
    assert len(told["rows"]) == len({(row["project"], row["run"], row.get("task")) for row in told["rows"]}) > 40
    for project, expected in EXPECTED.items():
        rows = [row for row in told["rows"] if row["project"] == project]
        assert sum(row["money"]["USD"]["cost"] for row in rows) == pytest.approx(expected.cost, rel=1e-6)
        assert sum(row["gpu_hours"] for row in rows) == pytest.approx(expected.hours, rel=1e-6)


def test_plain_promql_has_the_same_sums(month: PrometheusServer) -> None:
    """What a dashboard asks for: thirty days from the recorded series."""

    def asked(record: str) -> dict[str, float]:
        found: list[dict[str, Any]] = month.query(f"sum by (project) (sum_over_time({record}[30d] @ {END}))")
        return {each["metric"]["project"]: float(each["value"][1]) for each in found}

    cost, unused = asked("run:gpu_cost:increase5m"), asked("run:gpu_unused_cost:increase5m")
    for project, expected in EXPECTED.items():
        assert cost[project] == pytest.approx(expected.cost, rel=PER_CENT)
        assert unused[project] == pytest.approx(expected.unused, rel=PER_CENT)


def test_two_halves_are_the_month(month: PrometheusServer, capsys: pytest.CaptureFixture[str]) -> None:
    """No window is in both of two periods that meet, or in neither, in any version of Prometheus."""
    halves = [
        json.loads(report(month, capsys, "--last=15d", "--format=json", at=at))["total"] for at in ("2026-06-16", AT)
    ]
    assert sum(half["gpu_hours"] for half in halves) == pytest.approx(sum(each.hours for each in EXPECTED.values()))
    assert sum(half["money"]["USD"]["cost"] for half in halves) == pytest.approx(
        sum(each.cost for each in EXPECTED.values()), rel=1e-9
    )


def test_what_is_not_there_is_said(month: PrometheusServer, capsys: pytest.CaptureFixture[str]) -> None:
    """No other cluster was recorded, and nothing in other years."""
    for flags in (["--cluster=east"], ["--at=2026-01-01"]):
        assert main(["report", f"--prometheus.url={month.url}", f"--at={AT}", *flags]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "nothing was recorded" in err


def test_an_error_of_prometheus_is_quoted(month: PrometheusServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A query that it refuses to finish is not an empty report."""
    assert main(["report", f"--prometheus.url={month.url}/api", f"--at={AT}"]) == 2
    assert "404" in capsys.readouterr().err
