"""The same dashboards from dcgm-exporter alone, in both generations, asked of a real Prometheus.

The pages are made from dcgm-exporter's lists of fields, none was captured. All fields are on, and everything that can
happen does, so that what a panel leaves out is what its source does not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import pytest

from tests.conftest import ROOT
from tests.integration.recorded_fleet import BEGIN, CLUSTER, RecordedFleet, Scrape, recorded_fleet
from tests.mixin import dcgm_fields
from tests.mixin.rendering import groups, panels, rendered
from tests.support.recorded import Labels

MINUTES = 100
"""Heat counts as recurring after an hour of it."""
NODES, GPUS = 3, 4
HOT = 0
"""The node that is slower than the others."""
GENERATIONS = ("dcgm", "dcgm49")
FREE = (NODES - 1, GPUS - 1)
"""The GPU that no pod has."""
VALUES = {
    "HERTZ": 1.4e9,
    "CELSIUS": 60.0,
    "WATTS": 400.0,
    "RATIO": 0.6,
    "BYTES": 20e9,
    "CAPACITY_BYTES": 80e9,
    "MAX_CLOCK_HERTZ": 1.98e9,
    "BYTES_PER_SECOND": 1e9,
}
_COUNTER = re.compile(r"_TOTAL$|_TOTAL_|EXP_")


def reading(field: dcgm_fields.Field, at: int, node: int, number: int) -> float:
    """A plausible value in the new generation's unit: counters rise by 0.3 a second, gauges go up and down."""
    if "SM_CLOCK_HERTZ" in field.new and node == HOT:
        return 1.0e9
    if _COUNTER.search(field.new) and "REMAP" not in field.new:
        return 1000.0 * number + 0.3 * (at - BEGIN)
    fitting = [value for suffix, value in VALUES.items() if field.new.endswith(suffix)]
    if not fitting:
        return 8.0
    return fitting[-1] if "MAX" in field.new else fitting[-1] * (1 + 0.05 * math.sin(at / 300 + number))


def scrape_of(*, new: bool) -> Scrape:
    """A few nodes whose GPUs but one have a pod of one run; the first GPU has a slice that is shown beside it."""

    def page(node: int, at: int) -> bytes:
        lines = []
        for number in range(GPUS):
            labels = {
                "gpu": str(number),
                "UUID": f"GPU-{node}-{number}",
                "modelName": "NVIDIA H100 80GB HBM3",
                "hostname": f"node-{node}",
            }
            if (node, number) != FREE:
                labels |= {"namespace": "foundation", "pod": f"pretrain-{node}"}
            for field in dcgm_fields.FIELDS:
                more = {"xid": "79"} if "EXP_XID" in field.old else {}
                series, value = dcgm_fields.series(
                    field, reading(field, at, node, number), new=new, labels=labels | more
                )
                lines.append(f"{series} {value!r}")
                if number == 0 and field.old.startswith("DCGM_FI_PROF") and "BYTES" not in field.old:
                    sliced = labels | {"GPU_I_ID": "13", "GPU_I_PROFILE": "1g.10gb"}
                    series, value = dcgm_fields.series(field, 1.0, new=new, labels=sliced)
                    lines.append(f"{series} {value!r}")
        return "\n".join(lines).encode()

    def scrape(at: int) -> Mapping[Labels, bytes]:
        return {
            (("cluster", CLUSTER), ("job", "dcgm-exporter"), ("instance", f"10.0.0.{node}:9400")): page(node, at)
            for node in range(NODES)
        }

    return scrape


@pytest.fixture(scope="module", params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    """The name of the source."""
    return str(request.param)


@pytest.fixture(scope="module")
def fleet(generation: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedFleet]:
    """A fleet that is watched by dcgm-exporter alone."""
    made = groups({"sources": [generation]})
    scrape = scrape_of(new=generation == "dcgm49")
    with recorded_fleet(tmp_path_factory.mktemp(generation), scrape, MINUTES, made) as found:
        yield found


def promised(generation: str) -> dict[str, str]:
    """What mixin/feeds.md says of each panel: yes, part or no."""
    lines = [line.split(" | ") for line in (ROOT / "mixin" / "feeds.md").read_text().splitlines()]
    column = 2 + GENERATIONS.index(generation)
    return {line[0].removeprefix("| "): line[column] for line in lines if len(line) > 4 and not line[4].strip(" |")}


def test_the_table_of_feeds_is_true(generation: str, fleet: RecordedFleet) -> None:
    """What it says to be fed by this source answers, and nothing else is asked of it."""
    said = promised(generation)
    assert {"yes", "no"} <= set(said.values())
    silent = []
    for name, dashboard in rendered({"sources": [generation]})["dashboards"].items():
        for panel in panels(dashboard):
            about = f"{name.removesuffix('.json')}: {panel['title']}".replace("|", "/")
            found = [bool(fleet.answers(target["expr"])) for target in panel.get("targets", [])]
            if (said.get(about) == "yes" and not all(found)) or (said.get(about) == "part" and not any(found)):
                silent.append(about)
    assert sorted(silent) == [], "\n".join(silent)


def test_no_gpu_counts_twice(fleet: RecordedFleet) -> None:
    """As many as there are, all held, with the activity that each has."""
    at = fleet.span.end - 60
    expected = {
        "sum(cluster:gpus:count)": NODES * GPUS,
        'sum(run:gpu_share:sum{project="foundation"})': NODES * GPUS - 1,
        "sum(node:gpus:count)": NODES * GPUS,
    }
    for expr, value in expected.items():
        ((_, text),) = fleet.range(expr, at, at, 60)[0]["values"]
        assert float(text) == pytest.approx(value)
    ((_, text),) = fleet.range("avg(cluster:gpu_sm_active:ratio_rate5m)", at, at, 60)[0]["values"]
    assert float(text) == pytest.approx(VALUES["RATIO"], rel=0.06)
