"""What the recording rules make of series: cases for promtool beside this file, each of which a change must break."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.promtool import Promtool

CASES = ROOT / "tests" / "mixin" / "cases"
SUBJECTS = ("owners", "stragglers", "capacity", "slices", "inference", "network", "training", "health", "risk", "texts")

# Subject, group whose file is changed, what, and into what: the cases must notice each.
MUTATIONS = {
    "owners not told apart": ("owners", "owners", r"max by \([^)]*\) \(gpu_owner_share\)", "gpu_owner_share"),
    "owners by number of the scrape": (
        "owners",
        "owners",
        r"max by \(cluster, node",
        "max by (cluster, instance, node",
    ),
    "shares are not used": ("owners", "readings", r"run_gpu:gpu_share:max \*", "0 * run_gpu:gpu_share:max +"),
    "slices have what the GPU does": ("owners", "readings", r'\{mig_uuid="",project!="\(unsliced\)"\}', ""),
    "what is not sliced counts": ("owners", "readings", r',project!="\(unsliced\)"', ""),
    "GPUs without a reading count": ("owners", "readings", r"run_gpu:gpu_share:max and \S+", "run_gpu:gpu_share:max)"),
    "the power cap holds back": ("owners", "stragglers", "hw_slowdown\\|", "hw_slowdown|sw_power_cap|"),
    "reasons are added up": (
        "owners",
        "stragglers",
        r"max by \(cluster, uuid\) \(rate\(gpu_cl",
        "sum by (cluster, uuid) (rate(gpu_cl",
    ),
    "no node without owners": ("owners", "owners", r"or on \(cluster, uuid\)\n\s*max by[^\n]*gpu_info\)", ""),
    "mean instead of median": ("stragglers", "stragglers", r"quantile by (\([^)]*\)) \(0.5, ", r"avg by \1 ("),
    "no floor": ("stragglers", "stragglers", r"0\.07 \*", "0 *"),
    "no spread": ("stragglers", "stragglers", r"3 \* 1\.48", "0"),
    "two are peers enough": ("stragglers", "stragglers", ">= 3", ">= 2"),
    "the fastest GPU speaks for its node": ("stragglers", "readings", r"gpu_sm_clock_max_hertz", "gpu_sm_clock_hertz"),
    "idle GPUs wait": ("stragglers", "stragglers", "> 0.9", ">= 0"),
    "computing GPUs wait": ("stragglers", "stragglers", "< 0.3", "< 3"),
    "capacity is what answers": ("capacity", "capacity", r"max_over_time\((\S+)\[1d\]\)", r"\1"),
    "slices' remainder is not counted": ("capacity", "capacity", r'project=\\?"\(unsliced\)\\?"', 'project=\\"x\\"'),
    "unmeasured is unused": ("capacity", "capacity", r"unless on \([^)]*\)\n\s*run:gpu_productive\S+", "and vector(0)"),
    "free counts as free where no work is taken": ("capacity", "capacity", "unschedulable == 1", "unschedulable == 3"),
    "only free nodes are cordoned": ("capacity", "capacity", r'\{project=\\?"\(unallocated\)\\?"\} and', " and"),
    "unavailable costs nothing": (
        "capacity",
        "capacity",
        r'increase5m\{state="unavailable"\}',
        'increase5m{state="x"}',
    ),
    "the mean of use": ("slices", "slices", "max_over_time", "avg_over_time"),
    "memory does not count": ("slices", "slices", r"ratio_max7d <= \d / 8", "ratio_max7d <= 1"),
    "pods of many GPUs": ("slices", "slices", "max == 1", "max >= 1"),
    "any GPU can be sliced": ("slices", "slices", r"and on \(cluster, uuid\) max[^\n\"]*mig_enabled\)", ""),
    "ranks are added up": (
        "inference",
        "inference",
        r"max by \(cluster, job, instance, dp_rank, model_name\)",
        "sum by (cluster, tp_rank, model_name)",
    ),
    "stops are failures": ("inference", "inference", r'finished_reason=\\?"error\\?"', 'finished_reason=\\"stop\\"'),
    "microseconds are seconds": ("inference", "inference", " / 1e6", ""),
    "old names are not read": ("inference", "inference", "vllm:gpu_cache_usage_perc", "vllm:gone"),
    "two exporters are two": (
        "network",
        "network",
        r"max by \(cluster, node, nic, port\) \(max",
        "sum by (cluster, node, nic, port) (max",
    ),
    "both sources count": ("network", "network", r"or on \(cluster, node\)", "or"),
    "any state is up": ("network", "network", "== bool 4", ">= bool 1"),
    "a rank is a run": ("training", "training", r"max by \(cluster, project", "sum by (cluster, project"),
    "its holders are not named": ("health", "health", r'run_gpu:gpu_share:max\{uuid=%q,run!=\\?"\\?"\}', "up{uuid=%q}"),
    "a run of two pods is named twice": ("health", "health", r"count by \(run\) ", "sum by (run, workload_pod) "),
    "lanes are not compared": ("health", "links", r'kind="max"\}\)\n', 'kind="x"})\n'),
    "any recovery action is a reboot": ("health", "problems", r"node_reboot\|", "node_reboot|drain_and_reset|"),
    "parts of a risk are not told": ("health", "fleet", r"gpu:risk_part:score\{uuid=%q\}", "up{uuid=%q}"),
    "a counter that began anew is a loss": ("risk", "risk", r" offset 1d\) > 0\)", " offset 1d))"),
    "what was counted before it was seen is new": ("risk", "risk", r" offset 1d\)", " offset 1d) * 0"),
    "incidents of nodes are a GPU's": ("risk", "risk", r',uuid!=\\"\\"', ""),
    "few spare rows do not count": ("health", "risk", r'availability=\\"low\\"', 'availability=\\"x\\"'),
    "a well GPU is a suspect": ("health", "problems", r"and on \(cluster, uuid\)\n\s*\(last_over", "or (last_over"),
    "the mean for the median": ("training", "training", r"histogram_quantile\(0\.5", "histogram_quantile(0.1"),
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_rules_make_what_the_cases_say(subject: str, promtool: Promtool) -> None:
    """Joins under two owners, slices, moved and doubled exporters; sums, medians, means and counts."""
    assert promtool.test_rules(CASES / f"{subject}.test.yaml") == ""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_cases_notice_a_change_of_the_rules(mutation: str, promtool: Promtool, tmp_path: Path) -> None:
    """Each part of a rule is there for a case that fails without it."""
    subject, group, old, new = MUTATIONS[mutation]
    cases = (CASES / f"{subject}.test.yaml").read_text()
    for name in re.findall(r"alerts/(gpufleet-\w+)\.yaml", cases):
        text = (ROOT / "alerts" / f"{name}.yaml").read_text()
        if name == f"gpufleet-{group}":
            text, count = re.subn(old, new, text)
            assert count
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "cases.yaml").write_text(cases.replace("../../../alerts/", ""))

    assert promtool.test_rules(tmp_path / "cases.yaml")
