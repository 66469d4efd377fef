"""What a snapshot says of the node as a whole."""

from __future__ import annotations

import pytest

from gpufleet.collect.lanes import Lane
from gpufleet.collect.publish import health_of
from gpufleet.collect.watched import Watched
from gpufleet.model.gpu import GpuIdentity
from gpufleet.simulate.scripts import uniform
from tests.support.poller_rig import ScriptedRig, rig_on_script, states


def gpu(number: int, gaps: int = 0, **errors: int) -> Watched:
    """A GPU that was never opened, with what is counted of it."""
    watched = Watched(number, GpuIdentity(f"GPU-{number}", "", ""), Lane("test"), 1.0)
    watched.gaps = gaps
    watched.past.errors |= errors
    return watched


def node(count: int = 3) -> ScriptedRig:
    """GPUs without activity."""
    return rig_on_script(uniform("t4", count))


def test_counts_of_all_gpus_add_up() -> None:
    """By name, in a fixed order."""
    health = health_of([gpu(0, 2, unknown=1, timeout=2), gpu(1, 1, timeout=5)], 0.25, 7)

    assert (health.duration_seconds, health.polls, health.gaps) == (0.25, 7, 3)
    assert health.nvml_errors == (("timeout", 7), ("unknown", 1))
    assert health.invalid_readings == ()


def test_counts_do_not_go_down_when_a_gpu_goes() -> None:
    """Of a device that was closed, of a GPU that is gone, and over a restart of the driver."""
    with node() as rig:
        rig.poll()
        rig.driver_is.set_return("nvmlDeviceGetMemoryInfo_v2", 999, gpu=1)
        rig.poll(2)
        before = dict(rig.latest.poll.nvml_errors)
        assert before["unknown"] == 2
        rig.driver_is.lose(1)
        rig.poll(2)
        rig.driver_is.restart()
        rig.poll(2)
        after = dict(rig.latest.poll.nvml_errors)
        assert all(after[name] >= count for name, count in before.items())
        assert after["gpu_is_lost"] >= 1


def test_a_reload_keeps_what_is_expected() -> None:
    """A GPU that was seen in this boot is expected until the next one, whoever lists it."""
    with node() as rig:
        rig.poll()
        assert (rig.latest.gpus_expected, rig.latest.gpus_visible) == (3, 3)
        rig.driver_is.remove(2)
        rig.driver_is.restart()
        rig.poll(2)
        assert states(rig.latest) == ["ok", "ok", "gone"]
        assert (rig.latest.gpus_expected, rig.latest.gpus_visible) == (3, 2)


def test_the_library_is_hung_when_no_gpu_that_is_open_answers() -> None:
    """One that was lost before does not speak against it."""
    with node(4) as rig:
        rig.poll()
        rig.driver_is.lose(3)
        rig.poll()
        hang = rig.driver_is.hang(0)
        others = [rig.driver_is.hang(number) for number in (1, 2)]
        rig.poll()
        assert states(rig.latest) == ["driver_blocked"] * 3 + ["lost"]
        assert rig.latest.nvml_state == "hung"
        source = rig.latest.sources[0]
        assert (source.source, source.up) == ("nvml", False)
        assert source.reason == rig.latest.reason
        for one in (hang, *others):
            rig.driver_is.unhang(one)
        rig.poll(2)
        assert rig.latest.nvml_state == "ok"


@pytest.mark.parametrize("count", [1, 2])
def test_one_gpu_that_hangs_does_not_hang_the_library(count: int) -> None:
    """On a node with a single GPU nobody can tell whose lock it is: the GPU is named."""
    with node(count) as rig:
        rig.poll()
        hang = rig.driver_is.hang(0, "nvmlDeviceGetFieldValues")
        rig.poll()
        assert (states(rig.latest)[0], rig.latest.nvml_state) == ("hung", "ok")
        rig.driver_is.unhang(hang)
