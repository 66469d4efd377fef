"""Calls that the poller makes, counted by the library that answers them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.collect.options import PollerOptions
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, B200, GB10, H100, L4, RTX4090, T4
from tests.support.poller_rig import OPTIONS, rig_on

NEVER = 1e9
NODE = [H100, A100, B200, T4, L4, GB10, RTX4090, H100]


def calls_of_each_poll(fake: FakeNvml, options: PollerOptions, polls: int) -> list[list[int]]:
    """Calls on each GPU in each poll, those of the first two left out: they open, register and reseed."""
    made = []
    with rig_on(fake, options) as rig:
        rig.poll(2)
        for _ in range(polls):
            rig.rest()
            fake.reset_counts()
            rig.poll()
            made.append([fake.calls_of(gpu) for gpu in range(len(NODE))])
    return made


def test_a_poll_makes_ten_calls_with_activity_and_eight_without(fake_nvml: FakeNvml) -> None:
    """Between two turns of the slower tiers."""
    fake_nvml.set_gpus(len(NODE), NODE)

    made = calls_of_each_poll(fake_nvml, replace(OPTIONS, medium_seconds=NEVER, slow_seconds=NEVER), 5)

    most = [max(of_gpu) for of_gpu in zip(*made, strict=True)]
    assert all(calls <= (10 if profile.gpm else 8) for calls, profile in zip(most, NODE, strict=True)), most
    assert most[0] == 10
    assert most[1] == 8


@pytest.mark.parametrize(("interval", "polls"), [(1.0, 130), (10.0, 15), (60.0, 8)])
def test_no_poll_makes_more_than_twenty_calls(fake_nvml: FakeNvml, interval: float, polls: int) -> None:
    """Polled rarely, more is due at once: it is spread over the polls that there are, and each has its turn."""
    fake_nvml.set_gpus(len(NODE), NODE)

    made = calls_of_each_poll(fake_nvml, replace(OPTIONS, interval=interval), polls)

    assert max(max(of_poll) for of_poll in made) <= 20


def test_a_second_of_polls_ten_times_as_quick_costs_ten_times_the_fast_calls_only(fake_nvml: FakeNvml) -> None:
    """The slower tiers keep to their seconds."""
    fake_nvml.set_gpus(1, [H100])
    with rig_on(fake_nvml, replace(OPTIONS, interval=0.1, deadline=0.1)) as rig:
        rig.poll(2)
        rig.rest()
        fake_nvml.reset_counts()
        rig.poll(600)
        made = fake_nvml.counts()

    assert made["nvmlDeviceGetMemoryInfo_v2", 0] == 600
    assert 5 <= made["nvmlDeviceGetEncoderUtilization", 0] <= 7
    assert made["nvmlDeviceGetBAR1MemoryInfo", 0] <= 2


def test_what_a_part_does_not_support_is_not_asked_again(fake_nvml: FakeNvml) -> None:
    """Not in a minute of polls of any tier."""
    fake_nvml.set_gpus(1, [T4])
    refused = (
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMarginTemperature",
        "nvmlGpmSampleGet",
        "nvmlGpmQueryDeviceSupport",
    )
    with rig_on(fake_nvml) as rig:
        rig.poll()
        fake_nvml.reset_counts()
        rig.poll(70)
        made = fake_nvml.counts()

    assert [name for name in refused if (name, 0) in made] == []
