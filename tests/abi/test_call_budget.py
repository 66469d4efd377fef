"""Calls that the exporter makes, counted by the library that answers them."""

from __future__ import annotations

import pytest

from gpufleet.sources.nvml.plan import Pace
from tests.abi.opened import device
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import PROFILES, SEVEN_SLICES, Profile

FAST = {True: 10, False: 8}
"""Calls of a fast poll on Hopper and newer, and before."""
MOST = 20
SECONDS = 130
"""Two turns of the slowest tier."""
EACH_SECOND = Pace(1.0)


NEVER = 1e9


def calls_of_each_poll(fake: FakeNvml, *, each_link: bool = False, pace: Pace = EACH_SECOND) -> list[int]:
    """Calls on GPU 0 in each poll, its GPM sample included; those on slices beside the GPU's own are not."""
    made = []
    with device(fake, each_link=each_link, pace=pace) as watched:
        watched.device.sample(watched.now)
        for _ in range(int(SECONDS / pace.interval)):
            fake.reset_counts()
            watched.poll()
            watched.device.sample(watched.now)
            made.append(fake.calls_of(0))
    return made


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_fast_poll_makes_few_calls(fake_nvml: FakeNvml, profile: Profile) -> None:
    """Ten with GPM, eight without."""
    fake_nvml.set_gpus(1, profile)

    assert max(calls_of_each_poll(fake_nvml, pace=Pace(1.0, NEVER, NEVER))) <= FAST[profile.gpm]


@pytest.mark.parametrize("each_link", [False, True])
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_the_slower_tiers_are_spread(fake_nvml: FakeNvml, profile: Profile, each_link: bool) -> None:
    """No poll makes more than 20 calls, and on the average a slower tier adds little more than one."""
    fake_nvml.set_gpus(1, profile)

    made = calls_of_each_poll(fake_nvml, each_link=each_link)

    assert max(made) <= MOST
    assert sum(made) / len(made) <= FAST[profile.gpm] + 1.5


@pytest.mark.parametrize("interval", [0.1, 1.0, 5.0])
def test_the_budget_holds_at_any_interval(fake_nvml: FakeNvml, interval: float) -> None:
    """Polled rarely, more is due at once: it is spread over the polls that there are."""
    fake_nvml.set_gpus(1)

    assert max(calls_of_each_poll(fake_nvml, pace=Pace(interval))) <= MOST


def test_a_cut_gpu_keeps_to_its_own_budget(fake_nvml: FakeNvml) -> None:
    """Three calls a slice come on top, no more; looking for changed slices is within the GPU's own 20."""
    fake_nvml.set_gpus(1)
    fake_nvml.set_mig(0, SEVEN_SLICES)

    assert max(calls_of_each_poll(fake_nvml)) <= MOST + 3 * 7


def test_one_field_call_asks_for_everything_fast(fake_nvml: FakeNvml) -> None:
    """The batch is one call, however many entries it has."""
    fake_nvml.set_gpus(1)

    with device(fake_nvml) as watched:
        fake_nvml.reset_counts()
        watched.poll()
        assert fake_nvml.counts()["nvmlDeviceGetFieldValues", 0] == 1
        assert fake_nvml.control.field_entries >= 20


def test_what_is_not_supported_is_asked_once(fake_nvml: FakeNvml) -> None:
    """Every refusal of the opening is remembered: no later call is refused."""
    fake_nvml.set_gpus(1, PROFILES["NVIDIA GB10"])

    with device(fake_nvml) as watched:
        opened = dict(fake_nvml.counts())
        fake_nvml.reset_counts()
        for _ in range(SECONDS):
            watched.poll()
        polled = fake_nvml.counts()
        assert watched.device.tally.errors == {}

    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetSramEccErrorStatus"):
        assert opened[function, 0] == 1
        assert (function, 0) not in polled
