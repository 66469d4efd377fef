"""What users of other exporters miss when a GPU is cut, lost or talks nonsense."""

from __future__ import annotations

import math

import pytest

from tests.acceptance.scraped import scraped
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, F64, H100, SEVEN_SLICES, U64

GPUS = 8


def test_slices_have_memory_always_and_activity_where_the_part_measures_it(fake_nvml: FakeNvml) -> None:
    """On Ampere the activity of a slice can't be known: the series is absent, never 0."""
    fake_nvml.set_gpus(2, [H100, A100])
    for gpu in range(2):
        fake_nvml.set_mig(gpu, SEVEN_SLICES)
    with scraped(fake_nvml) as node:
        for gpu in range(2):
            uuid = fake_nvml.uuid(gpu)
            assert len(node.values("gpu_mig_info", uuid=uuid)) == 7
            assert node.values("gpu_mig_memory_used_bytes", uuid=uuid) == [13 << 20] * 7
            assert node.values("gpu_mig_memory_total_bytes", uuid=uuid) == [9984 << 20] * 7
        hopper, ampere = fake_nvml.uuid(0), fake_nvml.uuid(1)
        assert all(0 < value < 1 for value in node.values("gpu_mig_sm_active_ratio", uuid=hopper))
        assert len(node.values("gpu_mig_sm_active_seconds_total", uuid=hopper)) == 7
        assert node.values("gpu_mig_sm_active_ratio", uuid=ampere) == []
        assert node.values("gpu_mig_sm_active_seconds_total", uuid=ampere) == []
        assert node.value("gpu_utilization_ratio", uuid=ampere) is None
        assert node.value("gpu_utilization_ratio", uuid=hopper) is not None


@pytest.mark.parametrize("how", ["lost", "hung"])
def test_a_gpu_that_fell_off_the_bus_is_named_and_costs_nobody_else_a_reading(fake_nvml: FakeNvml, how: str) -> None:
    """The seven others are whole within the deadline; the eighth is there with its name, as down, and expected."""
    fake_nvml.set_gpus(GPUS)
    with scraped(fake_nvml) as node:
        before = {gpu: node.names_of(gpu) for gpu in range(GPUS)}
        uuid = fake_nvml.uuid(3)
        if how == "lost":
            fake_nvml.lose(3)
        else:
            fake_nvml.hang("nvmlDeviceGetFieldValues", 3)
        node.poll(2)

        assert node.value("gpu_up", uuid=uuid) == 0
        assert node.state("gpu_state", uuid=uuid) == how
        assert node.values("gpu_info", uuid=uuid) == [1]
        assert node.value("gpu_power_watts", uuid=uuid) is None
        assert (node.value("gpu_count_expected"), node.value("gpu_count_visible")) == (8, 7)
        for gpu in set(range(GPUS)) - {3}:
            assert node.names_of(gpu) == before[gpu]
            assert node.value("gpu_up", uuid=fake_nvml.uuid(gpu)) == 1


def test_values_that_can_not_be_true_are_dropped_and_counted(fake_nvml: FakeNvml) -> None:
    """All ones, 2^63-1, 255 %, a temperature of 644245923 degrees: none of them is ever exported."""
    fake_nvml.set_gpus(2)
    with scraped(fake_nvml) as node:
        well = node.names_of(1)
        gpu = fake_nvml.gpus[0]
        gpu.utilization_gpu, gpu.utilization_memory = 255, 808334905
        gpu.temperature, gpu.performance_state = 644245923, 1234
        gpu.clock[1] = gpu.clock[2] = 0xFFFF_FFFE
        gpu.memory_used = 0x7FFF_FFFF_FFFF_FFFF
        for field_id, sentinel in ((185, 0x7FFF_FFFF), (82, 0xFFFF_FFFF), (83, 0x7FFF_FFFF_FFFF_FFFF), (145, 99)):
            fake_nvml.set_field(0, field_id, sentinel, type=U64)
        fake_nvml.set_field(0, 11, 9_223_372_036_854_775_794, type=F64)
        fake_nvml.set_field(0, 74, 0xFFFF_FFFF_FFFF_FFFF, type=U64)
        fake_nvml.set_gpm(0, 2, 4096.0)
        fake_nvml.set_gpm(0, 5, math.inf)
        node.poll(4)

        scrape = node.scrape()
        uuid = fake_nvml.uuid(0)
        gone = {name for name, _ in well} - {name for name, _ in node.names_of(0)}
        assert gone >= {
            "gpu_utilization_ratio",
            "gpu_memory_utilization_ratio",
            "gpu_temperature_celsius",
            "gpu_performance_state",
            "gpu_sm_clock_hertz",
            "gpu_memory_clock_hertz",
            "gpu_memory_used_bytes",
            "gpu_power_watts",
            "gpu_memory_temperature_celsius",
            "gpu_energy_joules_total",
            "gpu_row_remap_failure",
            "gpu_sm_active_ratio",
            "gpu_tensor_active_ratio",
        }
        counted = {
            dict(labels)["reading"]: value
            for (name, labels), value in scrape.items()
            if name == "gpufleet_invalid_readings_total"
        }
        assert {f"gpu_{reading}" for reading in counted} >= {name.removesuffix("_total") for name in gone}
        assert min(counted[reading] for reading in ("utilization_ratio", "energy_joules", "ecc_errors")) >= 4
        for (name, labels), value in scrape.items():
            if ("uuid", uuid) in labels:
                assert abs(value) < 1e18, (name, value)
                if name.endswith("_ratio"):
                    assert 0 <= value <= 1, (name, value)
        assert node.names_of(1) == well
