"""Reading nvidia-smi, on texts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.smi import SmiGpu, parse_log, parse_query, quantity, refused_field

HAND_MADE = Path(__file__).resolve().parent / "hand_made.xml"

SLICES = """<nvidia_smi_log><driver_version>590.48.01</driver_version><gpu id="0"><uuid>GPU-1</uuid>
<power_readings><power_draw>N/A</power_draw><power_limit>250.00 W</power_limit></power_readings>
<remapped_rows>N/A</remapped_rows><gpu_recovery_action>Drain and Reset</gpu_recovery_action>
<mig_devices>
<mig_device><index>0</index><gpu_instance_id>7</gpu_instance_id><compute_instance_id>0</compute_instance_id>
<fb_memory_usage><total>9984 MiB</total><used>13 MiB</used></fb_memory_usage></mig_device>
<mig_device><index>1</index><gpu_instance_id>2</gpu_instance_id><compute_instance_id>1</compute_instance_id></mig_device>
</mig_devices>
<processes><process_info><type>G</type></process_info><process_info><type>C+G</type></process_info>
<process_info><type>M+C</type></process_info></processes>
</gpu></nvidia_smi_log>"""


def only_gpu(text: str) -> SmiGpu:
    """The one GPU of a log."""
    (gpu,) = parse_log(text).gpus.values()
    return gpu


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("81559 MiB", 81559 * 2**20),
        ("499.50 W", 499.5),
        ("-8 C", -8.0),
        ("80 %", 0.8),
        ("1755 MHz", 1.755e9),
        ("100000000 us", 100.0),
        ("16x", 16.0),
        ("640 bank(s)", 640.0),
        ("P2", 2.0),
        ("Active", 1.0),
        ("Not Active", 0.0),
        ("Enabled", 1.0),
        ("Yes (Reset required)", 1.0),
        ("0x0000000000000004", 4.0),
        ("2", 2.0),
    ],
)
def test_quantities_are_read_in_si_units(text: str, value: float) -> None:
    """Each unit that nvidia-smi writes has its factor."""
    assert quantity(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["N/A", "[N/A]", "[Not Supported]", "Requested functionality has been deprecated", "", "Default", "5 parsecs"],
)
def test_nothing_is_not_zero(text: str) -> None:
    """What nvidia-smi does not report, or what is no number, has no value."""
    assert quantity(text) is None


def test_the_first_path_that_is_there_counts() -> None:
    """Releases name elements differently; parts that are reported apart are added."""
    gpu = only_gpu(HAND_MADE.read_text())

    assert gpu.value("power_readings/power_draw", "gpu_power_readings/average_power_draw") == 499.5
    assert gpu.value("ecc_errors/volatile/sram_uncorrectable_parity+ecc_errors/volatile/sram_uncorrectable_secded") == 7
    assert gpu.value("fan_speed") is None
    assert gpu.value("no/such/element") is None
    assert only_gpu(SLICES).value("remapped_rows/remapped_row_corr") is None


def test_a_log_names_its_gpus_and_driver() -> None:
    """By UUID; the words of states are comparable."""
    log = parse_log(HAND_MADE.read_text())

    assert log.driver_version == "595.45.04"
    assert list(log.gpus) == ["GPU-cefb55f9-7c30-5d8e-b162-491f41e36526"]
    assert only_gpu(HAND_MADE.read_text()).word("fabric/state") == "completed"
    assert only_gpu(SLICES).word("gpu_recovery_action") == "drain_and_reset"


def test_slices_are_known_by_their_instances() -> None:
    """GPU instance and compute instance; only processes with a compute context are counted."""
    gpu = only_gpu(SLICES)

    assert sorted(gpu.slices()) == [(2, 1), (7, 0)]
    assert gpu.slices()[7, 0].value("fb_memory_usage/used") == 13 * 2**20
    assert gpu.processes() == 2
    assert only_gpu(HAND_MADE.read_text()).slices() == {}


def test_no_xml_is_refused() -> None:
    """An error message in place of a log is quoted."""
    with pytest.raises(ValueError, match="couldn't communicate"):
        parse_log("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_a_query_is_read_by_column() -> None:
    """What is not reported is left out; a line of another shape is refused."""
    text = "GPU-1, 80, 499.50, [N/A]\nGPU-2, 0, 70.01, 45\n"

    found = parse_query(text, ["utilization.gpu", "power.draw", "temperature.memory"])
    assert found["GPU-1"] == {"utilization.gpu": 80.0, "power.draw": 499.5}
    assert found["GPU-2"]["temperature.memory"] == 45.0
    with pytest.raises(ValueError, match="columns"):
        parse_query(text, ["utilization.gpu"])


def test_a_field_that_is_unknown_is_named() -> None:
    """An older nvidia-smi refuses the whole query for one field."""
    assert refused_field('Field "power.draw.average" is not a valid field to query.\n') == "power.draw.average"
    assert refused_field("No devices were found") is None
