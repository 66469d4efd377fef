"""What users of other exporters want of SM and tensor activity: no privileges, no lock, no node that has none of it."""

from __future__ import annotations

import re

from tests.acceptance.scraped import scraped
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, H100, L4, T4
from tests.support.nvml_client import Client

ACTIVITY = ("gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio", "gpu_sm_active_seconds_total")


def test_a_profiler_needs_nothing_paused_and_disturbs_no_window(fake_nvml: FakeNvml) -> None:
    """Samples are our own: nothing is locked, switched or set for them, and another reader takes no window."""
    fake_nvml.set_gpus(1)
    with scraped(fake_nvml) as node:
        before = node.value("gpu_sm_active_ratio")
        other = Client(fake_nvml)
        assert other.init() == 0
        handle = other.handle(0)
        samples = [other.new_sample(), other.new_sample()]
        for turn in range(4):
            assert other.sample(handle, samples[turn % 2]) == 0
            node.poll()
            assert other.sample(handle, samples[1 - turn % 2]) == 0
            code, (metric,) = other.metrics(samples[turn % 2], samples[1 - turn % 2], 2)
            assert (code, metric[0]) == (0, 0)
            assert node.value("gpu_sm_active_ratio") == before
        for sample in samples:
            assert other.calls["nvmlGpmSampleFree"](sample) == 0
        # Both are in one process here: the other one ends while no wait of ours is out.
        node.rig.quiesce()
        assert other.shutdown() == 0
        made = {name for name, _ in fake_nvml.counts()}
        assert {name for name in made if re.search("Set(?!Create|Wait|Free)|Stream|Profil", name)} == set()


def test_activity_needs_no_privilege_where_the_part_has_it_and_is_absent_elsewhere(fake_nvml: FakeNvml) -> None:
    """A part without it, and a GPU whose driver refuses it: no series, everything else."""
    fake_nvml.set_gpus(4, [H100, H100, A100, L4])
    fake_nvml.set_return("nvmlGpmSampleGet", 1, 4)
    with scraped(fake_nvml) as node:
        for gpu, has in enumerate((True, False, False, False)):
            uuid = fake_nvml.uuid(gpu)
            assert all((node.value(name, uuid=uuid) is not None) == has for name in ACTIVITY)
            assert node.value("gpu_up", uuid=uuid) == 1
            assert node.value("gpu_utilization_ratio", uuid=uuid) is not None


def test_mixed_parts_have_activity_where_they_can_and_keep_it_over_errors(fake_nvml: FakeNvml) -> None:
    """A T4 beside an H100 costs the H100 nothing; after an error the samples are filled anew and activity is back."""
    fake_nvml.set_gpus(2, [T4, H100])
    with scraped(fake_nvml) as node:
        old, new = fake_nvml.uuid(0), fake_nvml.uuid(1)
        assert node.value("gpu_sm_active_ratio", uuid=old) is None
        assert node.value("gpu_sm_active_ratio", uuid=new) is not None
        assert node.values("gpufleet_nvml_errors_total") == []

        seconds = node.value("gpu_sm_active_seconds_total", uuid=new) or 0
        fake_nvml.set_return("nvmlGpmSampleGet", 1, 999)
        node.poll(5)
        assert node.value("gpu_sm_active_ratio", uuid=new) is None
        assert node.value("gpu_up", uuid=new) == 1
        assert node.value("gpufleet_nvml_errors_total", **{"return": "unknown"}) == 5

        fake_nvml.set_return("nvmlGpmSampleGet", 1, 0)
        node.poll(2)
        assert node.value("gpu_sm_active_ratio", uuid=new) is not None
        assert (node.value("gpu_sm_active_seconds_total", uuid=new) or 0) > seconds
