"""When two readings agree, and what a report says of those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.metrics.catalog import READINGS
from gpufleet.model.readings import Key
from tests.gpu.comparisons import COMPARISONS, SLICE_COMPARISONS, WORDS, Comparison, Report
from tests.gpu.smi import parse_log

HAND_MADE = Path(__file__).resolve().parent / "hand_made.xml"
POWER = Comparison(Key("power_watts"), ("x",), absolute=5.0, relative=0.1, share=0.7)


@pytest.mark.parametrize(
    ("before", "theirs", "after", "agrees"),
    [
        (100.0, 150.0, 200.0, True),  # between ours
        (200.0, 150.0, 100.0, True),  # ... in either order
        (100.0, 111.0, 100.0, True),  # 11 off: 5, and a tenth of 111
        (100.0, 130.0, 100.0, False),
        (None, 105.0, 100.0, True),  # one of ours is enough
        (100.0, 50.0, 100.0, False),
    ],
)
def test_their_value_lies_between_ours(before: float | None, theirs: float, after: float | None, agrees: bool) -> None:
    """Give or take the tolerance."""
    assert POWER.agrees(before, theirs, after) is agrees


def test_a_reading_that_moves_may_miss_some_rounds() -> None:
    """And one that does not move may miss none."""
    report = Report()
    steady = Comparison(Key("ecc_enabled"), ("x",))
    for theirs in (100.0, 100.0, 100.0, 300.0):
        report.compare("gpu0", POWER, {POWER.key: 100.0}, theirs, {POWER.key: 100.0})
    for value in (1.0, 1.0, 1.0, 0.0):
        report.compare("gpu0", steady, {steady.key: 1.0}, value, {steady.key: 1.0})

    assert report.outcomes["gpu0", "power_watts"].verdict == "agrees"
    assert report.outcomes["gpu0", "power_watts"].furthest == 200.0
    assert report.outcomes["gpu0", "ecc_enabled"].verdict == "differs"
    assert list(report.differing()) == [("gpu0", "ecc_enabled")]
    assert report.outcomes["gpu0", "ecc_enabled"].example == "ours 1 then 1, nvidia-smi 0"


def test_what_one_side_lacks_is_told_apart() -> None:
    """Neither is a difference: an older nvidia-smi knows less, and a GPU may refuse us what root may ask."""
    report = Report()
    report.compare("gpu0", POWER, {}, 100.0, {})
    report.same("gpu0", "serial", "123", None)
    report.compare("gpu1", POWER, {}, None, {})

    assert {name: outcome.verdict for name, outcome in report.outcomes.items()} == {
        ("gpu0", "power_watts"): "only nvidia-smi",
        ("gpu0", "serial"): "only gpufleet",
    }
    assert report.differing() == {}


def test_words_of_states_are_compared() -> None:
    """The member that is 1 against nvidia-smi's word, in our vocabulary."""
    (gpu,) = parse_log(HAND_MADE.read_text()).gpus.values()
    values = {Key("fabric_state", ("completed",)): 1.0, Key("recovery_action", ("gpu_reset",)): 1.0}
    report = Report()
    report.of_gpu(gpu, "gpu0", values, values)

    assert report.outcomes["gpu0", "fabric_state"].verdict == "agrees"
    assert report.outcomes["gpu0", "recovery_action"].example == "ours gpu_reset, nvidia-smi none"
    assert report.outcomes["gpu0", "recovery_action"].verdict == "differs"


def test_every_compared_key_is_one_of_the_exporter() -> None:
    """A mistyped name would never be compared, and nobody would notice."""
    names = {comparison.key.name for comparison in (*COMPARISONS, *SLICE_COMPARISONS)} | set(WORDS)

    assert names <= set(READINGS)
    keys = [comparison.key for comparison in COMPARISONS]
    assert len(set(keys)) == len(keys)
