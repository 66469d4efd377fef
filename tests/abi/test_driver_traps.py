"""What drivers are known to do to their readers, each met on the real ctypes path."""

from __future__ import annotations

import math

import pytest

from gpufleet.model.readings import Key
from gpufleet.sources.nvml.fields import fast_fields
from gpufleet.sources.nvml.plan import Pace
from tests.abi.opened import Values, device, values
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_layout import ABSENT64
from tests.support.fake_nvml_profiles import (
    A100,
    ALL,
    B200,
    DIRTY_HIGH,
    F64,
    GB10,
    H100,
    SEVEN_SLICES,
    SINGLE_CALL,
    T4,
    U32,
    U64,
    UNTOUCHED,
    ZEROED,
    Profile,
)

NEVER = 1e9
SW_THERMAL = Key("clock_event_seconds", ("sw_thermal_slowdown",))
HW_THERMAL = Key("clock_event_seconds", ("hw_thermal_slowdown",))
POWER_BRAKE = Key("clock_event_seconds", ("hw_power_brake_slowdown",))


def names(found: Values) -> set[str]:
    """The names of what was reported."""
    return {key.name for key in found}


@pytest.mark.parametrize("profile", [H100, B200], ids=lambda profile: profile.name)
@pytest.mark.parametrize(
    ("version", "has_three"),
    [
        ("535.247.01", False),
        ("570.86.10", False),
        ("575.51.03", True),
        ("575.64.03", True),
        ("580.65.06", True),
        ("580.82.07", True),
        ("580.126.09", True),
        ("590.48.01", True),
        ("595.45.04", True),
        ("610.57.04", True),
    ],
)
def test_slowdown_counters_follow_the_drivers_numbering(
    fake_nvml: FakeNvml, version: str, has_three: bool, profile: Profile
) -> None:
    """575 and early 580 gave the three counters ids that all others give to power smoothing, without any error."""
    fake_nvml.set_driver_version(version)
    fake_nvml.set_gpus(1, profile)

    with device(fake_nvml) as watched:
        found = watched.values()

    assert found[SW_THERMAL] == 20.0
    assert found.get(HW_THERMAL) == (15.0 if has_three else None)
    assert found.get(POWER_BRAKE) == (10.0 if has_three else None)


@pytest.mark.parametrize("how", [UNTOUCHED, ZEROED])
def test_ecc_entries_that_the_driver_does_not_write_are_no_zero_errors(fake_nvml: FakeNvml, how: int) -> None:
    """With ECC off there are no error counts, neither 0 nor what the buffer held before."""
    fake_nvml.set_gpus(1)
    fake_nvml.disable_ecc(0, how=how)

    with device(fake_nvml) as watched:
        found = watched.values()

    assert found[Key("ecc_enabled")] == 0
    assert names(found) & {"ecc_errors", "ecc_aggregate_errors", "ecc_sram_threshold_exceeded"} == set()


def test_an_entry_that_stays_unwritten_later_keeps_no_old_value(fake_nvml: FakeNvml) -> None:
    """What the last poll read is not in the buffer any more when the driver writes nothing."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        assert Key("pcie_replays") in watched.values()
        fake_nvml.set_field(0, 94, 0, flags=UNTOUCHED)
        found = watched.values()
        assert Key("pcie_replays") not in found
        assert Key("power_watts") in found
        assert watched.device.tally.errors == {"unwritten": 1}


@pytest.mark.parametrize("kind", [F64, U32, U64, 99])
def test_the_value_type_is_not_believed(fake_nvml: FakeNvml, kind: int) -> None:
    """Drivers call a 64-bit count or a temperature a double: the field's own type counts."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_field(0, 11, (1 << 30) + 5, type=kind)
    fake_nvml.set_field(0, 83, (1 << 40) + 5, type=kind)
    fake_nvml.set_field(0, 82, 66, type=kind)

    with device(fake_nvml) as watched:
        found = watched.values()

    assert found[Key("ecc_errors", ("correctable", "dram"))] == (1 << 30) + 5
    assert found[Key("energy_joules")] == ((1 << 40) + 5) / 1000
    assert found[Key("memory_temperature_celsius")] == 66


@pytest.mark.parametrize("field_id", [1, 82, 94, 142, 143, 144, 145, 185, 190, 230])
def test_a_dirty_upper_half_is_masked_away(fake_nvml: FakeNvml, field_id: int) -> None:
    """A driver that writes 32 bits into the union leaves the other 32 as they were."""
    fake_nvml.set_gpus(1)
    with device(fake_nvml) as watched:
        clean = watched.values()
        value = next(int(cell.value) for cell in fake_nvml.gpus[0].field if cell.key == (field_id << 8) + 1)
        fake_nvml.set_field(0, field_id, value, flags=DIRTY_HIGH)

        assert watched.after(70) == clean
        assert watched.device.tally.invalid == {}


def test_a_dirty_upper_half_of_a_signed_threshold_is_masked_away(fake_nvml: FakeNvml) -> None:
    """T.Limit offsets are signed 32-bit numbers inside 64 bits."""
    fake_nvml.set_gpus(1)
    for field_id, offset in ((193, -8), (194, -2), (195, 0), (196, 5)):
        fake_nvml.set_field(0, field_id, offset & 0xFFFFFFFF, flags=DIRTY_HIGH)

    with device(fake_nvml) as watched:
        found = watched.values()

    wanted = {"shutdown": -8, "slowdown": -2, "memory_max": 0, "gpu_max": 5}
    assert {k.members[0]: v for k, v in found.items() if k.name == "temperature_margin_threshold_celsius"} == wanted


@pytest.mark.parametrize("margin", [-3, 0, 41])
def test_margins_are_signed(fake_nvml: FakeNvml, margin: int) -> None:
    """Below zero the part is past its limit: that is when the reading matters."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].margin = margin

    with device(fake_nvml) as watched:
        assert watched.values()[Key("temperature_margin_celsius")] == margin


@pytest.mark.parametrize(
    ("field_id", "value", "key"),
    [
        (82, 644245923, Key("memory_temperature_celsius")),
        (185, 0xFFFFFFFF, Key("power_watts")),
        (190, 0xFFFFFFFF, Key("power_limit_watts", ("enforced",))),
        (83, 0x7FFFFFFFFFFFFFFF, Key("energy_joules")),
        (74, 0xFFFFFFFFFFFFFFFF, Key("clock_event_seconds", ("sw_power_cap",))),
        (142, 0xFFFFFFFF, Key("remapped_rows", ("correctable",))),
        (144, 2, Key("row_remap_pending")),
        (94, 0xFFFFFFFF, Key("pcie_replays")),
    ],
)
def test_an_impossible_field_is_dropped_and_counted(fake_nvml: FakeNvml, field_id: int, value: int, key: Key) -> None:
    """Sentinels and garbage become no reading, and the self-metric says whose."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        before = watched.values()
        fake_nvml.set_field(0, field_id, value, type=U64)

        after = watched.values()

        assert set(before) - set(after) == {key}
        assert watched.device.tally.invalid == {key.name: 1}


BLANKS = (0xFFFF_FFFF, 0x7FFF_FFF0, 0x7FFF_FFF3, 0xFFFF_FFFF_FFFF_FFFF, 0x7FFF_FFFF_FFFF_FFF0)
"""What stands for "no value", in 32 bits and in 64."""
COUNTS = {
    11: Key("ecc_errors", ("correctable", "dram")),
    12: Key("ecc_errors", ("uncorrectable", "dram")),
    142: Key("remapped_rows", ("correctable",)),
    143: Key("remapped_rows", ("uncorrectable",)),
    94: Key("pcie_replays"),
}


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize("field_id", COUNTS)
def test_a_blank_is_no_count(fake_nvml: FakeNvml, field_id: int, blank: int) -> None:
    """Whatever its width and the count's."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        before = watched.values()
        fake_nvml.set_field(0, field_id, blank, type=U64)

        after = watched.values()

        assert set(before) - set(after) == {COUNTS[field_id]}
        assert watched.device.tally.invalid == {COUNTS[field_id].name: 1}


@pytest.mark.parametrize("blank", [blank for blank in BLANKS if blank != ABSENT64])
def test_a_blank_is_no_state_and_no_reason(fake_nvml: FakeNvml, blank: int) -> None:
    """Neither an unknown recovery action nor every reason at once that holds a clock."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        before = watched.values()
        fake_nvml.set_field(0, 230, blank, type=U64)
        fake_nvml.gpus[0].reasons = blank

        after = watched.values()

        assert names(before) - names(after) == {"recovery_action", "clock_event_active"}
        assert watched.device.tally.invalid == {"recovery_action": 1, "clock_event_active": 1}


@pytest.mark.parametrize("blank", BLANKS)
def test_a_blank_of_one_link_is_no_total(fake_nvml: FakeNvml, blank: int) -> None:
    """Nor is it the worst link."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml, pace=Pace(1.0, 1.0, NEVER)) as watched:
        before = watched.after(5)
        fake_nvml.set_field(0, 161, blank, scope=3, type=U64)
        after = watched.after(5)

        gone = {Key("nvlink_errors", ("replay",)), Key("nvlink_worst_link_errors", ("replay",))}
        assert set(before) - set(after) == gone
        assert set(watched.device.tally.invalid) == {"nvlink_errors"}


@pytest.mark.parametrize("blank", [0xFFFF_FFFF, 0x7FFF_FFF0])
def test_a_blank_is_no_bank_and_no_sram_error(fake_nvml: FakeNvml, blank: int) -> None:
    """Counts that come in structs."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].histogram[2] = blank
    fake_nvml.gpus[0].sram[5] = blank

    with device(fake_nvml) as watched:
        found = watched.values()

        missing = {Key("row_remap_banks", ("partial",)), Key("ecc_errors", ("correctable", "sram"))}
        assert not missing & set(found)
        assert {Key("row_remap_banks", ("high",)), Key("ecc_errors", ("uncorrectable", "sram"))} <= set(found)
        assert watched.device.tally.invalid == {"row_remap_banks": 1, "ecc_errors": 1}


@pytest.mark.parametrize("blank", [0xFFFF_FFFF, 0x7FFF_FFF0, 133])
def test_a_slice_is_no_larger_than_its_gpu(fake_nvml: FakeNvml, blank: int) -> None:
    """What is counted and paid goes by its share: a share over 1 is none."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)
    fake_nvml.gpus[0].mig[1].multiprocessors = blank

    with device(fake_nvml) as watched:
        shares = [identity.compute_fraction for identity, _ in watched.poll().slices]

    assert [share is None for share in shares] == [place == 1 for place in range(7)]


def test_impossible_scalars_are_dropped_and_counted(fake_nvml: FakeNvml) -> None:
    """Utilization over 100 %, clocks and temperatures from elsewhere."""
    fake_nvml.set_gpus(1)
    with device(fake_nvml) as watched:
        before = watched.values()
        gpu = fake_nvml.gpus[0]
        gpu.utilization_gpu = 808334905
        gpu.temperature = 644245923
        gpu.clock[1] = 0xFFFFFFFE
        gpu.performance_state = 77

        after = watched.values()

        gone = {"utilization_ratio", "temperature_celsius", "sm_clock_hertz", "performance_state"}
        assert names(before) - names(after) == gone
        assert watched.device.tally.invalid == dict.fromkeys(gone, 1)


def test_an_unknown_performance_state_is_no_reading(fake_nvml: FakeNvml) -> None:
    """32 is the driver's word for "I do not know", not a state and not an error."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].performance_state = 32

    with device(fake_nvml) as watched:
        assert Key("performance_state") not in watched.values()
        assert watched.device.tally.invalid == {}


def test_version_words_are_written_anew_for_each_call(fake_nvml: FakeNvml) -> None:
    """A driver may leave anything in a struct's version word: the second call is as good as the first."""
    fake_nvml.set_gpus(1)
    fake_nvml.control.scribble_versions = 1

    with device(fake_nvml) as watched:
        first = watched.values()
        assert watched.after(70) == first
        assert watched.device.tally.errors == {}
    assert fake_nvml.wrong_versions() == 0


@pytest.mark.parametrize(("newest", "refused"), [(3, 0), (2, 1), (1, 2)])
def test_fabric_steps_down_to_the_struct_that_the_driver_knows(fake_nvml: FakeNvml, newest: int, refused: int) -> None:
    """Version 3 before 580 is refused with 25, version 2 before 550 as well; the state is in all of them."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].fabric_version = newest

    with device(fake_nvml) as watched:
        found = watched.values()
        watched.after(70)

    assert found[Key("fabric_state", ("completed",))] == 1
    assert (Key("fabric_health", ("route_unhealthy",)) in found) == (newest > 1)
    # Asked once at the opening, not with each slow turn.
    assert fake_nvml.wrong_versions() == refused


@pytest.mark.parametrize(
    ("mask", "issue", "value"),
    [
        (1, "degraded_bandwidth", 1),
        (2, "degraded_bandwidth", 0),
        (0, "degraded_bandwidth", None),
        (1 << 4, "route_unhealthy", 1),
        (4 << 8, "incorrect_configuration", 1),
        (1 << 8, "incorrect_configuration", 0),
        (0, "incorrect_configuration", None),
    ],
)
def test_fabric_health_says_only_what_the_driver_says(
    fake_nvml: FakeNvml, mask: int, issue: str, value: int | None
) -> None:
    """0 is "not supported", 1 is true, 2 is false: an issue that is not reported is absent."""
    fake_nvml.set_gpus(1)
    fake_nvml.gpus[0].fabric_health_mask = mask

    with device(fake_nvml) as watched:
        assert watched.values().get(Key("fabric_health", (issue,))) == value


def test_an_older_sram_struct_leaves_the_counters_by_location(fake_nvml: FakeNvml) -> None:
    """Where the newer call is refused the older one still counts SRAM errors."""
    fake_nvml.set_gpus(1)
    fake_nvml.control.sram_version = 0x02000070

    with device(fake_nvml) as watched:
        found = watched.values()

    counts = fake_nvml.gpus[0].ecc_count
    assert found[Key("ecc_errors", ("correctable", "sram"))] == counts[0][0][7]
    assert found[Key("ecc_errors", ("uncorrectable", "sram"))] == counts[1][0][7]
    assert found[Key("ecc_aggregate_errors", ("uncorrectable", "sram"))] == counts[1][1][7]
    assert Key("ecc_sram_threshold_exceeded") not in found


@pytest.mark.usefixtures("nvml_build")
def test_an_old_driver_without_the_newer_symbols_is_read_as_far_as_it_goes() -> None:
    """A 470-series library: the older functions stand in, what they cannot say is absent, nothing fails."""
    with FakeNvml(old=True, driver_version="470.256.02") as old:
        old.set_gpus(1, A100)
        for field_id in (185, 186, 187, 188, 189, 190, 192, 230):
            old.fail_field(0, field_id, 3)

        with device(old) as watched:
            found = watched.values()
            assert watched.device.tally.errors == {}
            assert watched.device.tally.dropped[Key("temperature_margin_celsius")] == "function_not_found"

        gpu = old.gpus[0]
        assert found[Key("temperature_celsius")] == gpu.temperature
        assert found[Key("memory_used_bytes")] == gpu.memory_used + gpu.memory_reserved
        assert Key("memory_reserved_bytes") not in found
        assert found[Key("clock_event_active", ("sw_power_cap",))] == 1
        assert found[Key("ecc_errors", ("uncorrectable", "sram"))] == gpu.ecc_count[1][0][7]
        assert names(found) & {"jpeg_utilization_ratio", "ofa_utilization_ratio", "fabric_state", "processes"} == set()


@pytest.mark.usefixtures("nvml_build")
def test_power_comes_from_the_single_call_where_there_is_no_field() -> None:
    """Before 535 power has no field id."""
    with FakeNvml(driver_version="525.147.05") as old:
        old.set_gpus(1, T4)
        old.set_field(0, 186, 44_000, flags=SINGLE_CALL)

        with device(old) as watched:
            assert watched.values()[Key("power_watts")] == 44.0
        assert ("nvmlDeviceGetPowerUsage", 0) in old.counts()


def test_gpm_that_is_not_a_number_is_dropped(fake_nvml: FakeNvml) -> None:
    """No sample in the window, or an engine that is not there, is no reading and no error."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_gpm(0, 2, math.nan)

    with device(fake_nvml) as watched:
        found = watched.activity()
        assert Key("sm_active_ratio") not in found
        assert Key("tensor_active_ratio") in found
        assert (watched.device.tally.errors, watched.device.tally.invalid) == ({}, {})


@pytest.mark.parametrize("value", [-0.5, 101.5, 4096.0, math.inf])
def test_gpm_that_cannot_be_true_is_dropped_and_counted(fake_nvml: FakeNvml, value: float) -> None:
    """More than all, or less than nothing."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_gpm(0, 2, value)

    with device(fake_nvml) as watched:
        assert Key("sm_active_ratio") not in watched.activity()
        assert watched.device.tally.invalid == {"sm_active_ratio": 1}


def test_gpm_a_hair_over_full_is_full(fake_nvml: FakeNvml) -> None:
    """Rounding in the driver is not an impossible value."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_gpm(0, 2, 100.0001)

    with device(fake_nvml) as watched:
        assert watched.activity()[Key("sm_active_ratio")] == 1.0


def test_a_gpm_metric_that_the_driver_does_not_know_costs_itself_only(fake_nvml: FakeNvml) -> None:
    """It is asked once."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_gpm(0, 6, 0.0, code=3)

    with device(fake_nvml) as watched:
        first, second = watched.activity(), watched.activity()

    assert Key("pipe_active_ratio", ("tensor_fp64",)) not in first
    assert second == first
    assert len(first) == 12


def test_gpm_samples_that_are_too_close_give_no_reading(fake_nvml: FakeNvml) -> None:
    """Under 100 ms the driver computes nonsense: the exporter does not ask."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        watched.device.sample(watched.now)
        fake_nvml.reset_counts()
        assert watched.device.sample(watched.now + 0.05).own is None
        assert fake_nvml.counts() == {}


def test_gpm_without_permission_is_given_up(fake_nvml: FakeNvml) -> None:
    """A refusal costs activity alone, and is not repeated each second."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_return("nvmlGpmSampleGet", 0, 4)

    with device(fake_nvml) as watched:
        assert watched.activity() == {}
        fake_nvml.reset_counts()
        assert watched.activity() == {}
        assert fake_nvml.counts() == {}
        assert Key("power_watts") in watched.values()
        assert watched.device.tally.dropped[Key("sm_active_ratio")] == "no_permission"


def test_the_nvlink_total_is_not_link_0(fake_nvml: FakeNvml) -> None:
    """The sum over links has a scope of its own; scope 0 would be a plausible eighteenth of it."""
    fake_nvml.set_gpus(1, B200)
    fake_nvml.set_field(0, 202, 1 << 41, scope=ALL, type=U64)
    fake_nvml.set_field(0, 202, 1 << 30, scope=0, type=U64)

    with device(fake_nvml) as watched:
        assert watched.values()[Key("nvlink_transmit_bytes")] == 1 << 41


def test_wrapping_counters_are_not_asked() -> None:
    """PCIe byte counters of 32 bits wrap every 0.2 s at full speed: no rate can be made of them."""
    assert {field.id for field in fast_fields("595.45.04")} & {197, 198} == set()


def test_unified_memory_has_no_memory_series(fake_nvml: FakeNvml) -> None:
    """GB10 answers "not supported" to both memory calls: absent, not zero, and not asked again."""
    fake_nvml.set_gpus(1, GB10)

    with device(fake_nvml) as watched:
        fake_nvml.reset_counts()
        found = watched.values()

    assert {name for name in names(found) if name.startswith("memory_") and name.endswith("_bytes")} == set()
    assert {name for name, _ in fake_nvml.counts()} & {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"} == set()


def test_early_535_process_entries_cannot_be_misread(fake_nvml: FakeNvml) -> None:
    """Entries of 32 bytes behind the same symbol shuffle what reads them as 24."""
    fake_nvml.set_gpus(1)
    gpu = fake_nvml.gpus[0]
    gpu.process_count, gpu.process_stride = 5, 32
    for number, process in enumerate(gpu.process[:5]):
        process.pid = 10 + number

    with device(fake_nvml) as watched:
        reading = watched.poll()

    assert values(*reading.parts)[Key("processes")] == 5
    assert [process.pid for process in reading.processes or ()] == [10, 11, 12, 13, 14]


def test_a_code_newer_than_the_exporter_is_shown_as_unknown(fake_nvml: FakeNvml) -> None:
    """A recovery action that is not known yet is still one."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_field(0, 230, 42)

    with device(fake_nvml) as watched:
        found = watched.values()

    assert {k.members[0] for k, v in found.items() if k.name == "recovery_action" and v == 1} == {"unknown"}


def test_the_slow_calls_are_never_made(fake_nvml: FakeNvml) -> None:
    """PCIe throughput sleeps 20 ms in the driver; process names and utilization cost milliseconds."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        for _ in range(150):
            watched.poll()

    made = {name for name, _ in fake_nvml.counts()}
    assert (
        made
        & {
            "nvmlDeviceGetPcieThroughput",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetProcessUtilization",
            "nvmlDeviceGetRunningProcessDetailList",
        }
        == set()
    )
