"""The process as a whole: CPU as it is usually scraped, CPU per sample, start-up, and memory of the others."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.bench.conftest import GPUS
from tests.bench.figures import GPUFLEET, NAIVE, NVITOP, SUBJECTS, Figures
from tests.bench.programs import Program, start, why_missing
from tests.bench.scraping import Scraper, each
from tests.support.fake_nvml import FakeNvml
from tests.waiting import until

SCRAPE_PERIOD = 15.0
STARTS = 5


def complete(program: Program) -> None:
    """Wait until gpufleet shows every GPU, activity included."""

    def shows_all() -> bool:
        program.check()
        with Scraper(program.port) as scraper:
            return scraper.scrape().text.count("gpu_sm_active_ratio{") == GPUS

    until(shows_all, "all GPUs with their activity", seconds=20)


def test_cpu_as_usually_scraped(fake_nvml: FakeNvml, figures: Figures, seconds: float, tmp_path: Path) -> None:
    """Polls each second, a scrape each fifteen: the CPU share of the whole process. Values move from poll to poll."""
    fake_nvml.move()
    for subject in (GPUFLEET, NAIVE, NVITOP):
        if why_missing(subject):
            continue
        length = seconds if subject == GPUFLEET else max(SCRAPE_PERIOD, seconds / 4)
        with start(subject, fake_nvml, tmp_path) as program:
            if subject == GPUFLEET:
                complete(program)
            each(program.port, 1.0, 2.0)
            used, begin = program.cpu_seconds(), time.monotonic()
            each(program.port, SCRAPE_PERIOD, length)
            time.sleep(max(0.0, begin + length - time.monotonic()))
            share = 100 * (program.cpu_seconds() - used) / (time.monotonic() - begin)
            figures.put("process.cpu", share, subject)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_cpu_per_sample(fake_nvml: FakeNvml, figures: Figures, seconds: float, tmp_path: Path, subject: str) -> None:
    """Poll and scrape both each second on a kept-alive connection."""
    if reason := why_missing(subject):
        figures.say("sample.cpu", reason)
        pytest.skip(reason)
    fake_nvml.move()
    length = seconds / 3
    with start(subject, fake_nvml, tmp_path) as program:
        if subject == GPUFLEET:
            complete(program)
        each(program.port, 1.0, 5.0)
        if subject == NVITOP:
            used = program.cpu_seconds()
            time.sleep(length / 2)
            figures.put("poll.second", 1e6 * (program.cpu_seconds() - used) / (length / 2) / GPUS, subject)
        used, begin = program.cpu_seconds(), time.monotonic()
        scrapes = each(program.port, 1.0, length)
        time.sleep(max(0.0, begin + length - time.monotonic()))
        cost = program.cpu_seconds() - used
        memory = program.rss_mib()
    samples = sum(scrape.samples for scrape in scrapes)
    assert all(scrape.status == 200 for scrape in scrapes)
    figures.put("sample.cpu", 1e6 * cost / samples, subject)
    figures.put("sample.count", samples / len(scrapes), subject)
    figures.put("sample.scrape.cpu", 1e3 * cost / length, subject)
    if subject == NAIVE:
        note = "the naive exporter's scrape is its poll, nvitop-exporter's is all that it does while nobody scrapes"
        figures.put("poll.second", 1e6 * cost / length / GPUS, subject, note)
    if subject != GPUFLEET:
        figures.put("memory.polls", memory, subject)
        own = figures.values["sample.cpu"].get(GPUFLEET)
        if own is not None:  # it was deselected otherwise
            figures.put("sample.naive" if subject == NAIVE else "sample.nvitop", 1e6 * cost / samples / own)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_start(fake_nvml: FakeNvml, figures: Figures, tmp_path: Path, subject: str) -> None:
    """From exec to the first scrape that has everything: for gpufleet all GPUs with activity between two samples."""
    if reason := why_missing(subject):
        pytest.skip(reason)
    took = []
    for _ in range(STARTS):
        with start(subject, fake_nvml, tmp_path) as program:
            if subject == GPUFLEET:
                complete(program)
            else:
                each(program.port, 1.0, 1.0)
            took.append(time.perf_counter() - program.started)
    figures.put("process.start", statistics.median(took), subject, f"{subject} at most {max(took):.2f}")
