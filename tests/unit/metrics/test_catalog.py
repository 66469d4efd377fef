from __future__ import annotations

import re

import pytest

from gpufleet.metrics.catalog import CATALOG, FAMILIES, ORDER, READINGS
from gpufleet.metrics.family import GPU, SLICE, UNITS, Family, Kind, Level

ALL = tuple(FAMILIES.values())
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
# A target label of the same name would be renamed on scrape, in one shop and not in the next.
TARGET_LABELS = {"job", "instance", "pod", "namespace", "container"}
OTHER_UNITS = {
    *("percent", "milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days", "ms", "us", "ns"),
    *("kilobytes", "megabytes", "gigabytes", "kib", "mib", "gib", "mb", "gb", "bits", "kelvin", "fahrenheit"),
    *("mhz", "ghz", "megahertz", "gigahertz", "milliwatts", "kilowatts", "millijoules", "kwh", "rpm", "sec"),
}
# What queries, rules and dashboards may rely on. A name goes in when it is released, and never out.
CONTRACT = """
gpu_info gpu_up gpu_state gpu_utilization_ratio gpu_memory_utilization_ratio gpu_encoder_utilization_ratio
gpu_decoder_utilization_ratio gpu_jpeg_utilization_ratio gpu_ofa_utilization_ratio gpu_sm_active_ratio
gpu_sm_occupancy_ratio gpu_tensor_active_ratio gpu_pipe_active_ratio gpu_dram_active_ratio gpu_busy_seconds_total
gpu_sm_active_seconds_total gpu_tensor_active_seconds_total gpu_sm_clock_hertz gpu_graphics_clock_hertz
gpu_memory_clock_hertz gpu_video_clock_hertz gpu_sm_clock_max_hertz gpu_memory_clock_max_hertz gpu_clock_event_active
gpu_clock_event_seconds_total gpu_performance_state gpu_temperature_celsius gpu_memory_temperature_celsius
gpu_temperature_threshold_celsius gpu_temperature_margin_celsius gpu_temperature_margin_threshold_celsius
gpu_power_watts gpu_power_limit_watts gpu_energy_joules_total gpu_fan_speed_ratio gpu_memory_used_bytes
gpu_memory_free_bytes gpu_memory_reserved_bytes gpu_memory_total_bytes gpu_bar1_used_bytes gpu_bar1_total_bytes
gpu_ecc_enabled gpu_ecc_errors_total gpu_ecc_aggregate_errors gpu_ecc_sram_threshold_exceeded gpu_remapped_rows
gpu_row_remap_pending gpu_row_remap_failure gpu_row_remap_banks gpu_retired_pages gpu_pcie_link_generation
gpu_pcie_link_width gpu_pcie_replays_total gpu_pcie_transmit_bytes_per_second gpu_pcie_receive_bytes_per_second
gpu_nvlink_links gpu_nvlink_transmit_bytes_total gpu_nvlink_receive_bytes_total gpu_nvlink_errors_total
gpu_nvlink_worst_link_errors_total gpu_fabric_state gpu_fabric_health gpu_recovery_action gpu_xid_errors_total
gpu_fault_active gpu_last_fault_timestamp_seconds gpu_processes gpu_mig_enabled gpu_price_per_hour gpu_mig_info
gpu_mig_graphics_active_ratio gpu_mig_sm_active_ratio gpu_mig_sm_occupancy_ratio gpu_mig_tensor_active_ratio
gpu_mig_dram_active_ratio gpu_mig_pipe_active_ratio gpu_mig_memory_used_bytes gpu_mig_memory_free_bytes
gpu_mig_memory_total_bytes gpu_mig_compute_fraction gpu_mig_sm_active_seconds_total
gpu_mig_tensor_active_seconds_total gpu_owner_info gpu_owner_share gpu_allocated_seconds_total
gpu_productive_seconds_total gpu_cost_total gpu_unused_cost_total gpu_count_expected gpu_count_visible nic_info
nic_receive_bytes_total nic_transmit_bytes_total nic_retransmits_total nic_link_up gpufleet_build_info
gpufleet_node_info gpufleet_nvml_up gpufleet_nvml_state gpufleet_poll_duration_seconds
gpufleet_last_poll_timestamp_seconds gpufleet_source_up gpufleet_nvml_errors_total gpufleet_invalid_readings_total
gpufleet_quiesced gpufleet_simulated train_steps_total train_last_step_timestamp_seconds train_step_duration_seconds
train_tokens_total train_loss train_grad_norm train_learning_rate train_checkpoints_total
train_last_checkpoint_timestamp_seconds train_checkpoint_duration_seconds_total train_nonfinite_steps_total
train_restarts_total train_info gpufleet_quarantine_nodes gpufleet_quarantine_budget
gpufleet_quarantine_decisions_total gpufleet_quarantine_actions_total gpufleet_quarantine_breaker_open
"""


def named(family: Family) -> str:
    """Name a parametrised case by its family."""
    return family.name


def test_each_family_is_declared_once() -> None:
    """No name stands in two places of the catalogue, in either format."""
    declared = [family for group in CATALOG for family in group.families]
    assert len({family.name for family in declared}) == len(declared)
    assert len({family.openmetrics_name for family in declared}) == len(declared)
    assert list(ORDER) == [family.name for family in declared]


def test_the_contract_is_kept() -> None:
    """Every name that others may rely on is there."""
    assert [name for name in CONTRACT.split() if name not in FAMILIES] == []


@pytest.mark.parametrize("family", ALL, ids=named)
def test_names_and_labels_are_legal(family: Family) -> None:
    """Names are snake case, labels distinct, and none is a label that Prometheus gives to targets."""
    assert NAME.match(family.name)
    assert len(set(family.labels)) == len(family.labels)
    for label in family.labels:
        assert NAME.match(label)
        assert label not in TARGET_LABELS


@pytest.mark.parametrize("family", ALL, ids=named)
def test_the_name_says_type_and_unit(family: Family) -> None:
    """Only counters end in _total, info gauges in _info, and units are base units."""
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
    assert not family.name.endswith(("_count", "_sum", "_bucket", "_created"))
    assert OTHER_UNITS.isdisjoint(family.name.split("_"))
    if family.unit is not None:
        assert family.unit in UNITS
        assert family.openmetrics_name.endswith(f"_{family.unit}")


@pytest.mark.parametrize("family", ALL, ids=named)
def test_help_is_a_sentence_that_needs_no_escaping(family: Family) -> None:
    """The text formats escape help differently, so there is nothing to escape."""
    assert family.help.endswith(".")
    assert not set('"\\\n').intersection(family.help)
    assert family.help.isascii()


@pytest.mark.parametrize("family", ALL, ids=named)
def test_label_values_of_level_core_exist(family: Family) -> None:
    """What level core selects by is declared, and only of families that it shows."""
    assert family.core or not family.core_members
    assert set(family.core_members) <= set(family.members)


@pytest.mark.parametrize(("reading", "family"), READINGS.items(), ids=lambda case: getattr(case, "name", None))
def test_readings_belong_to_a_gpu_or_a_slice(reading: str, family: Family) -> None:
    """A family filled from a reading has its subject's labels first and the reading's name within its own."""
    subject = SLICE if reading.startswith("mig_") and reading != "mig_enabled" else GPU
    assert family.labels[: len(subject)] == subject
    assert family.name in {f"gpu_{reading}", f"gpu_{reading}_total"}
    assert ("mig_uuid" in family.labels) == (subject is SLICE)


def test_level_core_can_show_some_values_of_a_label_only() -> None:
    """A family with core members shows those at level core, and all at level standard."""
    family = FAMILIES["gpu_power_limit_watts"]
    assert family.shown_at(Level.CORE, "enforced")
    assert not family.shown_at(Level.CORE, "max")
    assert family.shown_at(Level.STANDARD, "max")
    assert not FAMILIES["gpu_graphics_clock_hertz"].shown_at(Level.CORE)
