"""Each source gives the same picture, several together do not count a GPU twice, and published samples do no harm."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mixin import dcgm_fields
from tests.mixin.rendering import generator, groups
from tests.promtool import Promtool

CAPTURES = Path(__file__).parent / "captures"
FIELDS = {field.old.removeprefix("DCGM_FI_"): field for field in dcgm_fields.FIELDS}
SERIES = re.compile(r"^(?P<series>\w+(?:\{.*\})?) (?P<value>\S+)$")
# What each GPU of two nodes reads, in the vocabulary's units: constant, so that means are what is set.
READINGS = {
    "DEV_GPU_UTIL": 0.9,
    "PROF_SM_ACTIVE": 0.6,
    "PROF_PIPE_TENSOR_ACTIVE": 0.3,
    "DEV_SM_CLOCK": 1.5e9,
    "DEV_MAX_SM_CLOCK": 2e9,
    "DEV_GPU_TEMP": 66.0,
    "DEV_POWER_USAGE": 500.0,
}
GPUFLEET = {
    "gpu_sm_clock_hertz": 1.5e9,
    "gpu_sm_clock_max_hertz": 2e9,
    "gpu_temperature_celsius": 66.0,
    "gpu_power_watts": 500.0,
}
INTEGRALS = {"gpu_busy_seconds_total": 0.9, "gpu_sm_active_seconds_total": 0.6, "gpu_tensor_active_seconds_total": 0.3}
EXPECTED = {
    "cluster:gpus:count": 2,
    "cluster:gpu_busy:ratio_rate5m": 0.9,
    "cluster:gpu_sm_active:ratio_rate5m": 0.6,
    "cluster:gpu_tensor_active:ratio_rate5m": 0.3,
    "sum(run:gpu_share:sum)": 2,
    "sum(node_run:gpu_power_watts:sum)": 1000,
    "max(node_run:gpu_temperature_celsius:max)": 66,
    "avg(run_gpu:sm_clock:ratio_avg5m)": 0.75,
    "model:gpus:count": 2,
    'count(node:gpus:count{node=~"n[12]"})': 2,
}
SCRAPES = 60


def of_gpufleet() -> list[dict[str, str]]:
    """Both GPUs as gpufleet shows them."""
    made = []
    for index in (1, 2):
        gpu = f'gpu="0",uuid="GPU-{index}",instance="f{index}"'
        owner = f'node="n{index}",{gpu},project="ns",run="train",task="",workload_pod="train-{index}"'
        made += [
            (f'gpu_info{{node="n{index}",{gpu},name="H100"}}', f"1x{SCRAPES}"),
            (f"gpu_owner_share{{{owner}}}", f"1x{SCRAPES}"),
        ]
        made += [(f"{name}{{{gpu}}}", f"{value}x{SCRAPES}") for name, value in GPUFLEET.items()]
        made += [(f"{name}{{{gpu}}}", f"0+{15 * ratio}x{SCRAPES}") for name, ratio in INTEGRALS.items()]
    return [{"series": series, "values": values} for series, values in made]


def of_dcgm(*, new: bool) -> list[dict[str, str]]:
    """Both GPUs as a generation of dcgm-exporter shows them; a slice beside the first, which must not count."""
    made = []
    for index in (1, 2):
        labels = {
            "gpu": "0",
            "UUID": f"GPU-{index}",
            "modelName": "H100",
            "hostname": f"n{index}",
            "namespace": "ns",
            "pod": f"train-{index}",
            "instance": f"d{index}",
        }
        for name, value in READINGS.items():
            series, shown = dcgm_fields.series(FIELDS[name], value, new=new, labels=labels)
            made.append((series, shown))
            if index == 1 and name.startswith("PROF"):
                sliced = {**labels, "GPU_I_ID": "13", "GPU_I_PROFILE": "1g.10gb"}
                made.append(dcgm_fields.series(FIELDS[name], 1.0, new=new, labels=sliced))
    return [{"series": series, "values": f"{value}x{SCRAPES}"} for series, value in made]


SHOWN: dict[str, list[dict[str, str]]] = {
    "gpufleet": of_gpufleet(),
    "dcgm": of_dcgm(new=False),
    "dcgm49": of_dcgm(new=True),
}
COMBINATIONS = [chosen for count in (1, 2, 3) for chosen in itertools.combinations(SHOWN, count)]


def asked(
    promtool: Promtool,
    folder: Path,
    config: dict[str, object],
    series: list[dict[str, str]],
    expected: dict[str, list[dict[str, Any]]],
) -> str:
    """What promtool finds wrong with ``expected`` after 12 minutes of ``series`` under all rules of ``config``."""
    made = [group for group in groups(config) if any("record" in rule for rule in group["rules"])]
    (folder / "rules.yaml").write_text(generator.yaml({"groups": made}))
    case = {
        "interval": "15s",
        "input_series": series,
        "promql_expr_test": [
            {"expr": expression, "eval_time": "12m", "exp_samples": samples} for expression, samples in expected.items()
        ],
    }
    order = sorted(
        (group["name"] for group in made),
        key=lambda name: (name != "gpufleet-owners", name != "gpufleet-readings", name),
    )
    cases = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "group_eval_order": order,
        "tests": [case],
    }
    (folder / "cases.yaml").write_text(yaml.safe_dump(cases))
    return promtool.test_rules(folder / "cases.yaml")


@pytest.mark.parametrize("chosen", COMBINATIONS, ids="+".join)
def test_every_choice_of_sources_gives_the_same_picture(
    chosen: tuple[str, ...], promtool: Promtool, tmp_path: Path
) -> None:
    """Old names, new names and our own, one at a time or all on the same GPUs: each GPU counts once."""
    series = [each for name in chosen for each in SHOWN[name]]
    expected = {
        f"round(sum({expression}), 1e-6)": [{"labels": "{}", "value": value}] for expression, value in EXPECTED.items()
    }

    assert asked(promtool, tmp_path, {"sources": list(chosen)}, series, expected) == ""


@pytest.mark.parametrize("chosen", COMBINATIONS, ids="+".join)
def test_a_fleet_of_mixed_exporters_has_each_gpu_once(
    chosen: tuple[str, ...], promtool: Promtool, tmp_path: Path
) -> None:
    """Each node has another exporter: the first GPU shown by the first source, the second by the last."""
    first, last = chosen[0], chosen[-1]
    series = [each for each in SHOWN[first] if 'GPU-1"' in each["series"]]
    series += [each for each in SHOWN[last] if 'GPU-2"' in each["series"]]
    expected = {
        "round(sum(cluster:gpus:count), 1e-6)": [{"labels": "{}", "value": 2}],
        "round(sum(cluster:gpu_sm_active:ratio_rate5m), 1e-6)": [{"labels": "{}", "value": 0.6}],
        "round(run:gpu_share:sum, 1e-6)": [{"labels": '{project="ns",run="train"}', "value": 2}],
    }

    assert asked(promtool, tmp_path, {"sources": list(chosen)}, series, expected) == ""


def test_an_exporter_without_a_reading_leaves_its_rules_out() -> None:
    """What no chosen source reports has no rule: it is absent, not zero and not an error."""
    records = {rule.get("record") for group in groups({"sources": ["dcgm"]}) for rule in group["rules"]}

    assert "run_gpu:gpu_sm_active:ratio_rate5m" in records
    assert "run:gpu_slice_fit:ratio" not in records
    assert "run:train_steps:rate5m" not in records
    assert None not in [rule["expr"] for group in groups({"sources": ["dcgm"]}) for rule in group["rules"]]


@pytest.mark.parametrize(
    ("capture", "gpus", "busy"),
    [("dcgm-exporter-h100-1.prom", 8, 0.0), ("dcgm-exporter-a100-mig-1.prom", None, None)],
)
def test_published_samples_neither_fail_nor_count_twice(
    capture: str, gpus: int | None, busy: float | None, promtool: Promtool, tmp_path: Path
) -> None:
    """Eight GPUs of which one has a pod; a GPU and a slice of it side by side, without the readings that name them."""
    lines = [line for line in (CAPTURES / capture).read_text().splitlines() if line and not line.startswith("#")]
    series = [
        {"series": found["series"], "values": f"{found['value']}x{SCRAPES}"}
        for found in map(SERIES.match, lines)
        if found is not None
    ]
    assert len(series) == len(lines)
    expected: dict[str, list[dict[str, Any]]] = {
        "cluster:gpus:count": [] if gpus is None else [{"labels": "cluster:gpus:count", "value": gpus}],
        "cluster:gpu_busy:ratio_rate5m": []
        if busy is None
        else [{"labels": "cluster:gpu_busy:ratio_rate5m", "value": busy}],
    }
    if gpus is not None:
        expected["run:gpu_share:sum"] = [
            {"labels": 'run:gpu_share:sum{project="dynamo-workload",run="vllm-agg-0-vllmdecodeworker"}', "value": 1},
            {"labels": "run:gpu_share:sum", "value": 7},
        ]

    assert asked(promtool, tmp_path, {"sources": ["gpufleet", "dcgm", "dcgm49"]}, series, expected) == ""


def test_two_generations_differ_in_names_and_units_alone() -> None:
    """The lists of fields have each reading once, and each word of one generation is one of the other."""
    old = [field.old for field in dcgm_fields.FIELDS]
    new = [field.new for field in dcgm_fields.FIELDS]

    assert len(set(old)) == len(old)
    assert len(set(new)) == len(new)
    assert sum(field.old != field.new for field in dcgm_fields.FIELDS if field.default) == 22
    assert sum(field.factor != 1 for field in dcgm_fields.FIELDS if field.default) == 11
