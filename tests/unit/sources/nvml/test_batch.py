"""Many readings for the price of one call."""

from __future__ import annotations

import pytest

from gpufleet.model.readings import Key
from gpufleet.sources.nvml.batch import BELIEVED_AFTER, ENERGY, FieldBatch, probe, state_set_keys, state_set_values
from gpufleet.sources.nvml.calls import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, TIMEOUT, UNKNOWN, NvmlError
from gpufleet.sources.nvml.fields import Field
from gpufleet.sources.nvml.tally import Tally, Tier
from gpufleet.sources.nvml.units import CELSIUS, COUNT, MILLIJOULE, MILLIWATT
from tests.unit.sources.nvml.answers import HANDLE, Answers, FieldTable

POWER = Key("power_watts")
HEAT = Key("memory_temperature_celsius")
AVERAGE, INSTANT, HOT = Field(185, POWER, MILLIWATT), Field(186, POWER, MILLIWATT), Field(82, HEAT, CELSIUS)


def driver(table: FieldTable) -> Answers:
    """A driver that knows fields only."""
    return Answers({"nvmlDeviceGetFieldValues": table})


def probed(table: FieldTable, *fields: Field, tally: Tally | None = None) -> FieldBatch:
    """What a probe keeps."""
    batch = probe(driver(table).calls(), HANDLE, Tier.FAST, fields, tally or Tally())
    assert batch is not None
    return batch


def test_the_first_field_of_a_reading_that_is_supported_is_kept() -> None:
    """The others are not asked again."""
    table = FieldTable({(185, 0): (NOT_SUPPORTED, 0), (186, 0): (0, 123_456), (82, 0): (0, 66)})
    tally = Tally()

    batch = probed(table, AVERAGE, INSTANT, HOT, tally=tally)

    assert (batch.keys, batch.values) == ((POWER, HEAT), [123.456, 66])
    assert table.asked[-1] == [(186, 0), (82, 0)]
    assert tally.dropped == {}


def test_what_is_not_supported_is_dropped_with_the_driver_s_word() -> None:
    """And where nothing is, there is no batch at all."""
    tally = Tally()
    table = FieldTable({(82, 0): (NO_PERMISSION, 0)})

    assert probe(driver(table).calls(), HANDLE, Tier.FAST, (AVERAGE, HOT), tally) is None

    assert tally.dropped == {POWER: "not_supported", HEAT: "no_permission"}
    assert probe(driver(table).calls(), HANDLE, Tier.SLOW, (), tally) is None


def test_a_field_that_fails_for_a_passing_reason_stays_in_the_plan() -> None:
    """It may be there with the next poll."""
    table = FieldTable({(185, 0): (TIMEOUT, 0), (82, 0): (0, 66)})
    tally = Tally()
    batch = probed(table, AVERAGE, HOT, tally=tally)
    assert batch.values == [None, 66]

    table.entries[185, 0] = (0, 5000)
    batch.run(tally)

    assert batch.values == [5.0, 66]
    assert tally.errors == {"timeout": 1}


@pytest.mark.parametrize("code", [GPU_IS_LOST, TIMEOUT, UNKNOWN])
def test_a_probe_that_fails_as_a_whole_opens_no_device(code: int) -> None:
    """Without its fields a device would be next to empty until it is opened again."""
    table = FieldTable({(82, 0): (0, 66)})
    table.code = code

    with pytest.raises(NvmlError) as raised:
        probe(driver(table).calls(), HANDLE, Tier.FAST, (HOT,), Tally())

    assert raised.value.code == code


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_driver_without_field_values_leaves_the_other_calls(code: int) -> None:
    """All fields are dropped, the device is opened."""
    table = FieldTable()
    table.code = code
    tally = Tally()

    assert probe(driver(table).calls(), HANDLE, Tier.FAST, (AVERAGE, HOT), tally) is None
    assert set(tally.dropped) == {POWER, HEAT}


def test_a_batch_that_fails_as_a_whole_keeps_no_value() -> None:
    """The code is the caller's to judge."""
    table = FieldTable({(82, 0): (0, 66)})
    batch = probed(table, HOT)

    table.code = TIMEOUT

    assert batch.run(Tally()) == TIMEOUT
    assert batch.values == [None]


def test_an_entry_that_the_driver_leaves_alone_is_no_value() -> None:
    """The template's mark is in the buffer again before each call."""
    table = FieldTable({(82, 0): (0, 66), (94, 0): (0, 7)})
    batch = probed(table, HOT, Field(94, Key("pcie_replays"), COUNT))
    tally = Tally()

    def leave_alone(*_: object) -> int:
        return 0

    batch._request._call = leave_alone

    assert batch.run(tally) == 0
    assert batch.values == [None, None]
    assert tally.errors == {"unwritten": 2}


def energy(*joules: int) -> tuple[list[float | int | None], Tally]:
    """What is shown of a counter that the driver gives so, poll by poll."""
    table = FieldTable({(83, 0): (0, 0)})
    batch = probed(table, Field(83, ENERGY, MILLIJOULE))
    tally, shown = Tally(), []
    for value in joules:
        table.entries[83, 0] = (0, 1000 * value)
        batch.run(tally)
        shown.append(batch.values[0])
    return shown, tally


def test_energy_that_steps_back_is_dropped_and_counted() -> None:
    """A counter that goes down is taken for a reset: its rate would be all since the driver was loaded."""
    shown, tally = energy(100, 110, 90, 105, 120)

    assert shown == [100, 110, None, None, 120]
    assert tally.invalid == {"energy_joules": 2}


def test_energy_that_stays_lower_is_believed() -> None:
    """Whatever the reason was, it is the counter now."""
    lower = range(1, BELIEVED_AFTER + 3)
    shown, tally = energy(1000, *lower)

    assert shown == [1000, *[None] * BELIEVED_AFTER, *list(lower)[BELIEVED_AFTER:]]
    assert tally.invalid == {"energy_joules": BELIEVED_AFTER}


def test_a_state_set_has_a_place_for_what_is_not_known_yet() -> None:
    """A newer driver's code is shown as unknown, not dropped."""
    assert [key.members for key in state_set_keys("recovery_action", ("none", "reset"))] == [
        ("none",),
        ("reset",),
        ("unknown",),
    ]
    assert state_set_values(1, 2) == [0, 1, 0]
    assert state_set_values(2, 2) == [0, 0, 1]
    assert state_set_values(99, 2) == [0, 0, 1]
