"""How long a scrape takes: warm, first, many at once, and while a GPU hangs."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.bench.conftest import GPUS, cut
from tests.bench.figures import GPUFLEET, NAIVE, NVITOP, SUBJECTS, Figures
from tests.bench.programs import start, why_missing
from tests.bench.scraping import Scraper, at_once, percentile
from tests.bench.test_process_bench import complete
from tests.support.fake_nvml import FakeNvml
from tests.waiting import until

SCRAPES = 400
PAUSE = 0.05
"""Seconds at most between two scrapes: they meet the polls at every phase."""
STARTS = 5
PARALLEL = 200

HANGING = ("nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo_v2", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
HUNG_GPU = 3


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("latency", ["zero", "model"])
@pytest.mark.parametrize("node", ["gpus", "slices"])
def test_warm_scrape(
    benchmark: BenchmarkFixture,
    fake_nvml: FakeNvml,
    figures: Figures,
    tmp_path: Path,
    node: str,
    latency: str,
    subject: str,
) -> None:
    """On a kept-alive connection, with Prometheus' own headers, while the exporter polls each second."""
    if reason := why_missing(subject):
        figures.say(f"scrape.{node}.{latency}.p50", reason)
        pytest.skip(reason)
    if node == "slices":
        if subject == NAIVE:
            pytest.skip("a naive exporter knows no slices")
        cut(fake_nvml)
    fake_nvml.move()
    phases = random.Random(1)
    rounds = SCRAPES if subject == GPUFLEET else 60 if latency == "zero" else 20
    with start(subject, fake_nvml, tmp_path) as program, Scraper(program.port) as scraper:
        if subject == GPUFLEET and node == "gpus":
            complete(program)
        elif subject == GPUFLEET:
            until(lambda: scraper.scrape().text.count("gpu_mig_sm_active_ratio{") == 7 * GPUS, "all slices")
        fake_nvml.set_latency(model=latency == "model")
        for _ in range(3):
            scraper.scrape()
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            scraper.raw, setup=lambda: time.sleep(phases.uniform(PAUSE / 5, PAUSE)), rounds=rounds, iterations=1
        )
        benchmark.extra_info["samples"] = scraper.scrape().samples
    assert benchmark.stats is not None, "run without --benchmark-disable"
    data = [1e3 * value for value in benchmark.stats.stats.data]
    figures.put(f"scrape.{node}.{latency}.p50", percentile(data, 0.5), subject)
    figures.put(f"scrape.{node}.{latency}.p99", percentile(data, 0.99), subject)


@pytest.mark.parametrize("node", ["gpus", "slices"])
def test_first_scrape(fake_nvml: FakeNvml, figures: Figures, tmp_path: Path, node: str) -> None:
    """Nothing was rendered before it: the request's own time, once a snapshot with every GPU is there."""
    if node == "slices":
        cut(fake_nvml)
    took = []
    for _ in range(STARTS):
        fake_nvml.reset_counts()
        with start(GPUFLEET, fake_nvml, tmp_path) as program:
            # Not by asking the exporter, which would warm it: the second sample's means are the last thing of a start.
            until(lambda: _computed(fake_nvml) >= GPUS, "activity of every GPU was computed", every=0.01)
            time.sleep(0.1)
            with Scraper(program.port) as scraper:
                scrape = scraper.scrape()
            assert scrape.text.count("gpu_up{") == GPUS
            took.append(1e3 * scrape.seconds)
    figures.put(f"scrape.first.{node}", max(took), note=f"best {min(took):.1f}")


def _computed(fake: FakeNvml) -> int:
    return sum(count for (function, _), count in fake.counts().items() if function == "nvmlGpmMetricsGet")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_many_at_once(fake_nvml: FakeNvml, figures: Figures, tmp_path: Path, subject: str) -> None:
    """All of them are answered."""
    if reason := why_missing(subject):
        pytest.skip(reason)
    with start(subject, fake_nvml, tmp_path) as program:
        if subject == GPUFLEET:
            complete(program)
        took, statuses = at_once(program.port, PARALLEL)
    failed = sum(status != 200 for status in statuses)
    figures.put("scrape.parallel", 1e3 * took, subject, f"{subject}: {failed} of them failed" if failed else "")
    if subject == GPUFLEET:
        assert not failed


def test_a_hang(fake_nvml: FakeNvml, figures: Figures, tmp_path: Path) -> None:
    """A call on one GPU does not return: scrapes answer as ever, and the other GPUs are current."""
    slowest, shown = {}, []
    for function in HANGING:
        with start(GPUFLEET, fake_nvml, tmp_path) as program, Scraper(program.port) as scraper:
            complete(program)
            fake_nvml.hang(function, HUNG_GPU)
            took = []
            begin = time.monotonic()
            while (now := time.monotonic()) - begin < 4.0:
                scrape = scraper.scrape()
                took.append(1e3 * scrape.seconds)
                if now - begin > 2.5:
                    shown.append(scrape.text.count("gpu_utilization_ratio{"))
                time.sleep(0.01)
            slowest[function] = max(took)
            fake_nvml.release()
    worst = max(slowest, key=slowest.__getitem__)
    figures.put("hang.worst", slowest[worst], note=f"{worst}; each of {len(HANGING)} functions for 4 s")
    figures.put("hang.complete", min(shown))


def _of_gpu(text: str, fake: FakeNvml, gpu: int) -> list[str]:
    """Everything that is said of one GPU, whose readings move."""
    uuid = fake.uuid(gpu)
    return [line for line in text.splitlines() if uuid in line]


@pytest.mark.parametrize("subject", [NAIVE, NVITOP])
def test_a_hang_of_the_others(fake_nvml: FakeNvml, figures: Figures, tmp_path: Path, subject: str) -> None:
    """What becomes of the others' scrapes while a call of theirs hangs on GPU 3."""
    if reason := why_missing(subject):
        pytest.skip(reason)
    fake_nvml.move()
    with start(subject, fake_nvml, tmp_path) as program, Scraper(program.port) as scraper:
        scraper.scrape()
        fake_nvml.hang("nvmlDeviceGetUtilizationRates", HUNG_GPU)
        time.sleep(2.5)
        scraper.connect().settimeout(5.0)
        try:
            before = scraper.scrape()
            time.sleep(2.5)
            after = scraper.scrape()
        except TimeoutError:
            figures.say("hang.worst", f"{subject}: no answer in 5 s")
            figures.put("hang.complete", 0, subject)
        else:
            figures.put("hang.worst", 1e3 * max(before.seconds, after.seconds), subject)
            current = [
                gpu
                for gpu in range(GPUS)
                if _of_gpu(before.text, fake_nvml, gpu) != _of_gpu(after.text, fake_nvml, gpu)
            ]
            figures.put("hang.complete", len(current), subject)
        fake_nvml.release()
