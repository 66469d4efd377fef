"""Series of training processes and of adapters, from snapshots made by hand."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.metrics.catalog import FAMILIES
from gpufleet.metrics.family import Kind
from gpufleet.metrics.render import OPENMETRICS_END, Renderer
from gpufleet.model.nic import NicIdentity, NicPort
from gpufleet.model.training import Observations, TrainingProcess, TrainingRow
from tests.conftest import Golden
from tests.promtool import Promtool
from tests.unit.metrics.snapshots import node

BUCKETS = FAMILIES["train_step_duration_seconds"].buckets
WHO = TrainingProcess("foundation", "llama3", "pretrain", "1", "0", "torchtitan", "2")
TOLD = TrainingRow(
    who=WHO,
    steps=120,
    last_step_at=1_764_500_480.5,
    step_durations=Observations((*[0] * 10, *[100] * 2, *[120] * (len(BUCKETS) - 11)), 487.5),
    tokens=62_914_560,
    loss=2.125,
    grad_norm=0.75,
    learning_rate=0.0003,
    nonfinite_steps=0,
    checkpoints=(("ok", 2), ("failed", 1)),
    last_checkpoint_at=1_764_500_400.0,
    checkpoint_seconds=50.0,
    restarts=1,
)
SHORT = TrainingRow(who=replace(WHO, rank="1", framework="", world_size=""), steps=119)
PORTS = (
    NicPort(
        NicIdentity("mlx5_0", "1", "ib0", "InfiniBand", "0000:18:00.0", "0", "0"),
        link_up=True,
        rate=5e10,
        received=10**12,
        transmitted=10**12 + 8,
        retransmits=(("local_ack_timeout", 3), ("packet_sequence", 12)),
    ),
    NicPort(NicIdentity("mlx5_1", "1"), link_up=False),
)
EVERYTHING = replace(node(), training=(TOLD, SHORT), nics=PORTS)
SHOWN = ("train_", "nic_")


def lines(text: str) -> list[str]:
    """The lines of the two subjects."""
    return [
        line for line in text.splitlines() if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(SHOWN)
    ]


def test_processes_and_adapters_are_written_as_the_golden_file_says(golden: Golden, promtool: Promtool) -> None:
    """Histograms with all buckets, sum and count; what was not told is not there; promtool is content."""
    text = Renderer().text(EVERYTHING)

    golden("training-and-adapters.prom", ("\n".join(lines(text)) + "\n").encode())
    assert promtool.check_metrics(text.encode()) == ""


def test_both_formats_are_read_back_alike() -> None:
    """The histogram is one in either format, and its parts have the same values."""
    renderer = Renderer()
    text = list(parse_text(renderer.text(EVERYTHING)))
    openmetrics = list(parse_openmetrics(renderer.openmetrics(EVERYTHING) + OPENMETRICS_END))

    def samples(families: list[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())), sample.value)
            for family in families
            for sample in family.samples
        }

    assert samples(text) == samples(openmetrics)
    (steps,) = [family for family in openmetrics if family.name == "train_step_duration_seconds"]
    assert (steps.type, steps.unit) == ("histogram", "seconds")
    of_the_first = [sample for sample in steps.samples if sample.labels["rank"] == "0"]
    assert len(of_the_first) == len(BUCKETS) + 3
    assert len(steps.samples) == len(of_the_first), "the second process told nothing of durations"


def test_every_simulated_family_of_the_exporter_is_shown() -> None:
    """What the catalogue calls simulated can be rendered from a snapshot, except what is another program's."""
    names = {family.name for family in parse_text(Renderer().text(EVERYTHING))}
    simulated = {family for family in FAMILIES.values() if family.simulated and "quarantine" not in family.name}

    assert {f.openmetrics_name if f.kind is Kind.COUNTER else f.name for f in simulated} <= names
    assert not any(family.served for family in simulated)


def test_series_follow_who_reports() -> None:
    """A process that ended takes its series with it, and so does a snapshot that is too old to tell of now."""
    renderer = Renderer()
    assert any('rank="1"' in line for line in lines(renderer.text(EVERYTHING)))
    assert not any('rank="1"' in line for line in lines(renderer.text(replace(EVERYTHING, training=(TOLD,)))))
    assert lines(renderer.text(EVERYTHING, stale=True)) == []
    assert lines(renderer.text(replace(EVERYTHING, quiesced=True))) != []


def test_counts_that_are_not_the_familys_are_not_shown() -> None:
    """Bounds never change: counts of another length belong to other bounds."""
    odd = replace(TOLD, step_durations=Observations((1, 2, 3), 4.0))

    assert not any("train_step_duration" in line for line in lines(Renderer().text(replace(node(), training=(odd,)))))
