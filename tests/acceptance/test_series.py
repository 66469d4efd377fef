"""What breaks queries of users of other exporters: types, labels, duplicates, text that does not parse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpufleet.sources.nvml.calls import UNKNOWN
from tests.acceptance.scraped import Series, scraped
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import PROFILES, SEVEN_SLICES
from tests.support.poller_rig import OPTIONS

INFO = {"gpu_info", "gpu_mig_info", "gpufleet_node_info", "gpufleet_build_info"}
ALL_PARTS = list(PROFILES.values())


def every_part(fake: FakeNvml) -> None:
    """One GPU of each model, the first of which is cut."""
    fake.set_gpus(len(ALL_PARTS), ALL_PARTS)
    fake.set_mig(0, SEVEN_SLICES)


def test_counters_count_and_rates_are_gauges(fake_nvml: FakeNvml) -> None:
    """Each ``_total`` is typed counter and only rises; a rate has no ``_total``."""
    every_part(fake_nvml)
    fake_nvml.move()
    with scraped(fake_nvml, replace(OPTIONS, medium_seconds=1.0, slow_seconds=1.0)) as node:
        before: Series = {}
        for _ in range(6):
            node.poll()
            for family in node.families():
                for sample in family.samples:
                    assert (family.type == "counter") == sample.name.endswith("_total"), sample
                    series = (sample.name, tuple(sorted(sample.labels.items())))
                    if family.type == "counter":
                        assert sample.value >= before.get(series, 0), sample
                        before[series] = sample.value
        names = {name for name, _ in node.scrape()}
        assert {"gpu_pcie_transmit_bytes_per_second", "gpu_pcie_receive_bytes_per_second"} <= names
        assert {name for name in names if "per_second" in name and name.endswith("_total")} == set()
        assert {"gpu_nvlink_transmit_bytes_total", "gpu_energy_joules_total", "gpu_pcie_replays_total"} <= names


@pytest.mark.parametrize("each_link", [False, True])
def test_no_series_comes_twice_on_any_part(fake_nvml: FakeNvml, each_link: bool) -> None:
    """One duplicate costs the whole scrape. NVLink is shown as totals or link by link, so that no sum counts twice."""
    every_part(fake_nvml)
    with scraped(fake_nvml, replace(OPTIONS, each_link=each_link)) as node:
        assert len(node.scrape()) > 100 * len(ALL_PARTS) / 2
        of_hopper = [
            dict(labels)
            for (name, labels) in node.scrape()
            if name == "gpu_nvlink_errors_total" and ("uuid", fake_nvml.uuid(1)) in labels
        ]
        assert {"link" in labels for labels in of_hopper} == {each_link}
        assert node.openmetrics()


def test_a_collector_that_fails_or_repeats_itself_costs_its_own_series(fake_nvml: FakeNvml) -> None:
    """Everything else is answered, and the failure is counted."""

    class Failing(Collector):
        def __init__(self) -> None:
            self.registered = False

        def collect(self) -> Iterator[Metric]:
            if self.registered:
                raise RuntimeError("no")
            self.registered = True
            return iter(())

    class Twice(Collector):
        def __init__(self) -> None:
            self.registered = False

        def collect(self) -> Iterator[Metric]:
            if self.registered:
                yield GaugeMetricFamily("repeated", "Said twice.", value=1)
                yield GaugeMetricFamily("repeated", "Said twice.", value=2)
            self.registered = True

    fake_nvml.set_gpus(2)
    with scraped(fake_nvml) as node:
        node.self_metrics.register("failing", Failing())
        node.self_metrics.register("twice", Twice())
        node.rig.advance(10.0)
        node.rig.rest()
        assert node.values("gpu_up") == [1, 1]
        assert node.values("repeated") == []
        assert node.value("process_resident_memory_bytes") is not None


def test_value_series_have_few_labels_and_no_names_of_the_scraper_s(fake_nvml: FakeNvml) -> None:
    """Who a GPU is stands on info series; no label is named like one that Prometheus or Kubernetes sets."""
    every_part(fake_nvml)
    with scraped(fake_nvml) as node:
        for name, labels in node.scrape():
            present = {label for label, _ in labels}
            assert present.isdisjoint({"job", "instance", "pod", "namespace", "container", "hostname", "Hostname"})
            if name not in INFO:
                assert len(present) <= 5, (name, present)
        assert node.value("gpufleet_node_info", node="node-1") == 1


def test_any_text_from_outside_parses(fake_nvml: FakeNvml) -> None:
    """Quotes, backslashes, line feeds and bytes that are no text, in a name that the driver or an operator gave."""
    fake_nvml.set_gpus(2)
    fake_nvml.gpus[0].name = b'H100 "quoted" back\\slash \n line \xff end'
    fake_nvml.gpus[1].serial = b"\x01\x02 \xe2\x80\xa8"
    with scraped(fake_nvml, replace(OPTIONS, node='x"y\nz\\')) as node:
        infos = [labels for (name, labels) in node.scrape() if name == "gpu_info"]
        names = {dict(labels)["name"] for labels in infos}
        assert 'H100 "quoted" back\\slash \n line \N{REPLACEMENT CHARACTER} end' in names
        assert {dict(labels)["node"] for labels in infos} == {'x"y\nz\\'}
        assert node.openmetrics()


def test_processes_are_counted_and_not_remembered(fake_nvml: FakeNvml) -> None:
    """One number a GPU, no series a process: one that ended is gone with the next reading."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].process_count = 5
    with scraped(fake_nvml, replace(OPTIONS, medium_seconds=1.0)) as node:
        node.poll(3)
        assert node.value("gpu_processes") == 5
        fake_nvml.gpus[0].process_count = 0
        node.poll(3)
        assert node.value("gpu_processes") == 0


def test_what_a_newer_driver_says_is_shown_as_unknown_or_left_out(fake_nvml: FakeNvml) -> None:
    """A code, an enumeration or a return that is not known yet costs itself; one slow call costs no reading."""
    fake_nvml.set_gpus(2)
    with scraped(fake_nvml, replace(OPTIONS, medium_seconds=1.0, slow_seconds=1.0)) as node:
        node.poll(4)
        whole = node.names_of(1)
        fake_nvml.set_field(0, 230, 42)
        fake_nvml.fail_field(0, 94, 4711)
        fake_nvml.gpus[0].fabric_state = 9
        fake_nvml.set_return("nvmlDeviceGetBAR1MemoryInfo", 0, UNKNOWN)
        fake_nvml.delay("nvmlDeviceGetSramEccErrorStatus", 0, 20_000)
        node.poll(8)
        uuid = fake_nvml.uuid(0)
        assert node.value("gpu_recovery_action", uuid=uuid, action="unknown") == 1
        assert node.value("gpu_fabric_state", uuid=uuid, state="unknown") == 1
        assert {name for name, _ in whole} - {name for name, _ in node.names_of(0)} == {
            "gpu_pcie_replays_total",
            "gpu_bar1_total_bytes",
            "gpu_bar1_used_bytes",
        }
        assert (node.value("gpufleet_nvml_errors_total", **{"return": "code_4711"}) or 0) >= 8
        assert node.values("gpu_up") == [1, 1]
        assert node.names_of(1) == whole
