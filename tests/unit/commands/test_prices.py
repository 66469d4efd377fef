"""``gpufleet prices``: which rule prices which GPU, on scripted drivers and by name."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gpufleet.commands import prices, prices_gpus
from gpufleet.commands.driver import DriverLibrary
from gpufleet.commands.prices_gpus import NoGpusError, gpus_here
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.scripts import sliced, uniform
from gpufleet.sources.nvml.calls import Driver

BOOK = """\
currency: USD
rules:
- {name: p5, gpu: "*H100*", instance_type: "p5.*", instance_per_hour: 98.32, gpus: 8}
- {name: old, gpu: "*H100*", until: 2025-01-01, per_hour: 9}
- {name: any, gpu: "*H100*", per_hour: 4.80}
"""
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def book(tmp_path: Path) -> str:
    """The flag that names a price book."""
    (tmp_path / "prices.yml").write_text(BOOK)
    return f"--prices.file={tmp_path / 'prices.yml'}"


class Scripted(DriverLibrary):
    """A library that is a scripted driver."""

    def __init__(self, driver: ScriptedDriver) -> None:
        super().__init__("scripted", Path("/nowhere"))
        self.driver = driver

    def open(self) -> Driver:
        return self.driver


def test_the_rule_that_prices_a_model_is_told_and_why_not_those_before(
    book: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the price, its line, and how it was worked out."""
    assert prices.main(["explain", book, f"--gpu={H100}", "--node.name=n"]) == 0

    told = capsys.readouterr().out
    assert "not p5 (line 3): instance_type: it is not known here, and would have to be p5.*" in told
    assert "not old (line 4): until: it counted until 2025-01-01" in told
    assert "4.8 USD an hour by any (line 5)" in told


def test_labels_of_the_node_and_the_day_count(book: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As they do for the exporter; in JSON a price is the canonical text of gpu_info."""
    label = "--node.label=node.kubernetes.io/instance-type=p5.48xlarge"

    assert prices.main(["explain", book, f"--gpu={H100}", label, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert prices.main(["explain", book, f"--gpu={H100}", "--at=2024-12-31", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)

    assert first["instance_type"] == "p5.48xlarge"
    assert (first["gpus"][0]["cost_per_hour"], first["gpus"][0]["rule"]) == ("12.29", "p5")
    assert first["gpus"][0]["passed_over"] == []
    assert (second["gpus"][0]["cost_per_hour"], second["gpus"][0]["rule"]) == ("9", "old")


def test_a_model_without_a_rule_is_told_and_fails(book: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, with what to do."""
    assert prices.main(["explain", book, f"--gpu={H100}", "--gpu=NVIDIA L4"]) == 1

    assert "no rule is for it: no cost; write a rule" in capsys.readouterr().out


def test_the_gpus_of_the_node_are_asked_for(
    book: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one model are told together."""
    library = Scripted(ScriptedDriver(uniform("h100-80gb-hbm3", 2, seed=1)))
    monkeypatch.setattr(prices, "DriverLibrary", lambda *_: library)

    assert prices.main(["explain", book]) == 0

    told = capsys.readouterr().out
    assert told.count(H100) == 2
    assert told.count("4.8 USD an hour by any") == 1


def test_slices_are_told_by_their_profiles() -> None:
    """Rules may ask for them."""
    asked = gpus_here(Scripted(ScriptedDriver(sliced("h100-80gb-hbm3", ["3g.40gb", "3g.40gb"]))))

    assert asked.gpus[0].profiles == ("3g.40gb", "3g.40gb")
    assert not asked.is_stuck


def test_without_a_driver_a_model_can_be_named(book: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Status 2, with the library's own reason."""
    assert prices.main(["explain", book, f"--nvml.library={tmp_path}/none.so"]) == 2

    told = capsys.readouterr().err
    assert "none.so" in told
    assert "name a model with --gpu=" in told


def test_a_node_without_gpus_says_so() -> None:
    """The driver is there, and lists none."""
    with pytest.raises(NoGpusError, match="lists no GPU"):
        gpus_here(Scripted(ScriptedDriver([])))


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process then has to end without it."""
    release = threading.Event()

    class Hanging(Scripted):
        def open(self) -> Driver:
            release.wait(30.0)
            return super().open()

    monkeypatch.setattr(prices_gpus, "_SECONDS", 0.05)
    with pytest.raises(NoGpusError, match="does not return") as caught:
        gpus_here(Hanging(ScriptedDriver([])))
    release.set()

    assert caught.value.is_stuck


def test_a_good_book_passes_the_check(book: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rules whose time is over are told and are no failure: they say what was."""
    assert prices.main(["check", book]) == 0

    told = capsys.readouterr().out
    assert "prices.yml:4: old: its time is over since 2025-01-01" in told
    assert "3 rules, accepted" in told


def test_a_rule_that_is_never_reached_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is accepted by the exporter, but cannot be meant."""
    (tmp_path / "prices.yml").write_text(f"{BOOK}- {{name: late, gpu: {H100}, per_hour: 1}}\n")

    assert prices.main(["check", f"--prices.file={tmp_path / 'prices.yml'}", "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    assert found["rules"] == 4
    assert len(found["warnings"]) == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "write explain or check after it"),
        (["list"], "list is not known here: explain and check are"),
        (["check"], "no price book is given; name it with --prices.file"),
        (["explain", "--gpu=x"], "no price book is given"),
        (["check", "--prices.file=/nowhere/prices.yml"], "/nowhere/prices.yml: can't be read"),
        (["explain", "--prices.file=BOOK", "--gpu=x", "--at=yesterday"], "'yesterday' is no day"),
        (["check", "--price.file=x"], "did you mean --prices.file?"),
    ],
)
def test_what_is_refused_ends_with_status_2(
    argv: list[str], words: str, book: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason and the remedy on standard error."""
    argv = [book if each == "--prices.file=BOOK" else each for each in argv]
    try:
        status: object = prices.main(argv)
    except SystemExit as ended:
        status = ended.code

    assert status == 2
    assert words in capsys.readouterr().err
