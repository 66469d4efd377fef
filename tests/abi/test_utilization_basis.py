"""Which reading stands for utilization, by what the operator wants and what a part reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.collect.synchronous import SynchronousNode
from gpufleet.metrics.render import Renderer
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.gpu import GpuScript
from gpufleet.simulate.scripts import sliced, uniform
from gpufleet.sources.nvml.device import BASES
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, GB10, H100, SEVEN_SLICES, T4, Profile
from tests.support.poller_rig import EPOCH, OPTIONS, HandClock, Rig, keys, rig_on

Wanted = dict[str, str | None]
"""What there is, by what is wanted."""
WHOLE: dict[Profile, Wanted] = {
    H100: {"auto": "sm", "sm": "sm", "gpu": "gpu", "tensor": "tensor"},
    A100: {"auto": "gpu", "sm": None, "gpu": "gpu", "tensor": None},
    T4: {"auto": "gpu", "sm": None, "gpu": "gpu", "tensor": None},
}
CUT: dict[Profile, Wanted] = {
    H100: {"auto": "sm", "sm": "sm", "gpu": None, "tensor": "tensor"},
    A100: {"auto": None, "sm": None, "gpu": None, "tensor": None},
}
CHOICES = ("auto", *BASES)


def basis_after(rig: Rig, polls: int) -> str | None:
    """What stands for utilization of the first GPU so many polls later."""
    rig.poll(polls)
    return rig.latest.gpus[0].utilization_basis


@pytest.mark.parametrize("wanted", CHOICES)
def test_an_uncut_gpu_has_what_is_wanted_if_it_reports_it(fake_nvml: FakeNvml, wanted: str) -> None:
    """And nothing in its place: a share of another kind would be another number."""
    fake_nvml.set_gpus(3, list(WHOLE))

    with rig_on(fake_nvml, replace(OPTIONS, utilization=wanted)) as rig:
        rig.poll(3)
        gpus = rig.latest.gpus

    assert [gpu.utilization_basis for gpu in gpus] == [of_part[wanted] for of_part in WHOLE.values()]
    for gpu in gpus:
        if gpu.utilization_basis is not None:
            assert BASES[gpu.utilization_basis][0] in {key.name for key in keys(gpu)}


@pytest.mark.parametrize("wanted", CHOICES)
def test_a_cut_gpu_has_what_its_slices_report(fake_nvml: FakeNvml, wanted: str) -> None:
    """SM activity from Hopper on, nothing before; the driver's own figure is of the whole GPU only."""
    fake_nvml.set_gpus(2, list(CUT))
    for number in range(2):
        fake_nvml.set_mig(number, SEVEN_SLICES)

    with rig_on(fake_nvml, replace(OPTIONS, utilization=wanted)) as rig:
        rig.poll(3)
        gpus = rig.latest.gpus

    assert [gpu.utilization_basis for gpu in gpus] == [of_part[wanted] for of_part in CUT.values()]
    for gpu in gpus:
        if gpu.utilization_basis is not None:
            assert BASES[gpu.utilization_basis][1] in {key.name for key in keys(gpu)}


def test_the_basis_follows_what_the_driver_stops_to_report(fake_nvml: FakeNvml) -> None:
    """Activity that is refused from now on stands for nothing; the driver's own figure is next."""
    fake_nvml.set_gpus(1, [H100])
    with rig_on(fake_nvml) as rig:
        seen = [basis_after(rig, 2)]
        fake_nvml.set_return("nvmlGpmSampleGet", 0, 3)
        seen.append(basis_after(rig, 2))
        fake_nvml.set_return("nvmlDeviceGetUtilizationRates", 0, 3)
        seen.append(basis_after(rig, 2))

    assert seen == ["sm", "gpu", None]


def test_a_metric_that_a_part_lacks_is_no_basis(fake_nvml: FakeNvml) -> None:
    """GPM as a whole is there, the tensor cores are not."""
    fake_nvml.set_gpus(1, [H100])
    fake_nvml.set_gpm(0, 5, 0.0, code=3)

    with rig_on(fake_nvml, replace(OPTIONS, utilization="tensor")) as rig:
        assert basis_after(rig, 4) is None


def test_the_basis_follows_the_cut(fake_nvml: FakeNvml) -> None:
    """An A100 has the driver's own figure before and after, and none while it is cut."""
    fake_nvml.set_gpus(1, [A100])
    with rig_on(fake_nvml) as rig:
        seen = [basis_after(rig, 2)]
        fake_nvml.set_mig(0, SEVEN_SLICES, notify=False)
        seen.append(basis_after(rig, 12))
        fake_nvml.set_mig(0, None, notify=False)
        seen.append(basis_after(rig, 12))

    assert seen == ["gpu", None, "gpu"]


def test_a_part_with_unified_memory_has_one_too(fake_nvml: FakeNvml) -> None:
    """GB10 tells utilization, and activity it does not."""
    fake_nvml.set_gpus(1, [GB10])
    with rig_on(fake_nvml) as rig:
        assert basis_after(rig, 2) == "gpu"


SCRIPTS = {"whole": uniform("h100-80gb-hbm3", 1), "cut": sliced("h100-80gb-hbm3", ["1g.10gb"] * 7)}


@pytest.mark.parametrize("wanted", CHOICES)
@pytest.mark.parametrize("kind", SCRIPTS)
def test_gpu_info_says_which(kind: str, wanted: str) -> None:
    """Of a simulated node as of a real one."""
    scripts: list[GpuScript] = SCRIPTS[kind]
    clock = HandClock()
    options = replace(OPTIONS, utilization=wanted)
    node = SynchronousNode(ScriptedDriver(scripts, clock=clock, started_at=EPOCH), options, clock, clock.wall)

    text = Renderer().text(node.poll())

    (info,) = [line for line in text.splitlines() if line.startswith("gpu_info{")]
    basis = {"auto": "sm", "gpu": None if kind == "cut" else "gpu"}.get(wanted, wanted)
    assert ("utilization_basis=" in info) == (basis is not None)
    assert basis is None or f'utilization_basis="{basis}"' in info
