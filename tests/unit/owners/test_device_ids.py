"""Every form of a device's id."""

from __future__ import annotations

import pytest

from gpufleet.model.gpu import GpuIdentity, SliceIdentity
from gpufleet.model.snapshot import GpuSnapshot, SliceSnapshot
from gpufleet.model.state import GpuState
from gpufleet.owners.device_ids import Target, find, slices_of
from tests.support.owners_evidence import gpu, gpu_uuid, mig_uuid, node

PERMUTED = node(gpu(0, minor=2), gpu(1, minor=0), gpu(2, minor=1))
"""Three GPUs whose minor numbers are not the driver's indexes."""
SLICED = node(gpu(0, "1g.10gb", "1g.10gb", "3g.40gb+me", minor=3), gpu(1, minor=0))
FIRST, SECOND, THIRD = (mig_uuid(0, part) for part in range(3))
WHOLE = Target(gpu_uuid(0))
DRA = "gpu.nvidia.com"


@pytest.mark.parametrize(
    ("device_id", "resource", "expected"),
    [
        (gpu_uuid(0), "nvidia.com/gpu", WHOLE),
        (gpu_uuid(0), "example.com/our-gpu", WHOLE),
        (f"{gpu_uuid(0)}::3", "nvidia.com/gpu.shared", Target(gpu_uuid(0), shared=True)),
        (f"{gpu_uuid(0)}::3", "nvidia.com/gpu", Target(gpu_uuid(0), shared=True)),
        ("0", "nvidia.com/gpu", WHOLE),
        ("2", "nvidia.com/gpu", Target(gpu_uuid(2))),
        ("1::0", "nvidia.com/gpu", Target(gpu_uuid(1), shared=True)),
        ("nvidia2", "nvidia.com/gpu", WHOLE),
        ("nvidia2/vgpu0", "nvidia.com/gpu", Target(gpu_uuid(0), shared=True)),
        ("gpu-2", DRA, WHOLE),
        ("gpu-0", DRA, Target(gpu_uuid(1))),
        ("minor:2", "", WHOLE),
        ("index:2", "", Target(gpu_uuid(2))),
        (gpu_uuid(0), "", WHOLE),
    ],
)
def test_whole_gpus(device_id: str, resource: str, expected: Target) -> None:
    """By UUID, by the driver's index or by minor number, whichever the one who names it counts by."""
    assert find(device_id, resource, PERMUTED) == expected


@pytest.mark.parametrize(
    ("device_id", "resource", "expected"),
    [
        (FIRST, "nvidia.com/mig-1g.10gb", Target(gpu_uuid(0), (FIRST,))),
        (FIRST, "nvidia.com/gpu", Target(gpu_uuid(0), (FIRST,))),
        (f"{SECOND}::7", "nvidia.com/gpu", Target(gpu_uuid(0), (SECOND,), shared=True)),
        (f"MIG-{gpu_uuid(0)}/8/0", "nvidia.com/mig-1g.10gb", Target(gpu_uuid(0), (SECOND,))),
        (f"MIG-{gpu_uuid(0)}/8/1", "nvidia.com/mig-1g.10gb", None),
        (f"MIG-{gpu_uuid(5)}/8/0", "nvidia.com/mig-1g.10gb", None),
        ("nvidia3/gi8", "nvidia.com/gpu", Target(gpu_uuid(0), (SECOND,))),
        ("nvidia3/gi8/vgpu1", "nvidia.com/gpu", Target(gpu_uuid(0), (SECOND,), shared=True)),
        ("nvidia3/gi1", "nvidia.com/gpu", None),
        ("gpu-3-mig-3g40gb-9-4", DRA, None),
        ("gpu-3-mig-1g10gb-19-0", DRA, Target(gpu_uuid(0), (FIRST, SECOND), any_of=True)),
        ("gpu-3-mig-2g20gb-14-0", DRA, None),
        ("0:1", "nvidia.com/gpu", Target(gpu_uuid(0), (FIRST, SECOND, THIRD), any_of=True)),
        ("index:0.9", "", Target(gpu_uuid(0), (THIRD,))),
        ("index:0.5", "", None),
        (FIRST, "", Target(gpu_uuid(0), (FIRST,))),
    ],
)
def test_slices(device_id: str, resource: str, expected: Target | None) -> None:
    """By UUID, GPU instance, or profile; where a profile fits several it is said that it does."""
    assert find(device_id, resource, SLICED) == expected


def test_profiles_with_attributes() -> None:
    """``+me`` is part of the profile, however names spell it."""
    for spelled in ("3g40gb+me", "3g40gb-me", "3g40gbme", "3g40gb.me"):
        assert find(f"gpu-3-mig-{spelled}-9-4", DRA, SLICED) == Target(gpu_uuid(0), (THIRD,))


@pytest.mark.parametrize(
    ("device_id", "resource"),
    [
        (gpu_uuid(0), "rdma/hca_shared_devices"),
        ("0", "vpc.amazonaws.com/efa"),
        ("0", "nvidia.com/sriov_net"),
        ("0", "cpu"),
        ("0000:03:00.1", "nvidia.com/mlnxnics"),
        ("0", "example.com/fpga"),
        ("0", ""),
        ("gpu-0", "gpu.amd.com"),
        ("gpu-0", "gpu.intel.com"),
        ("gpu-vfio-0", DRA),
        ("gpu-7", DRA),
        ("nvidia9", "nvidia.com/gpu"),
        ("9", "nvidia.com/gpu"),
        ("GPU-00000000-dead-beef-0000-000000000000", "nvidia.com/gpu"),
        ("MIG-00000000-dead-beef-0000-000000000000", "nvidia.com/gpu"),
        ("", "nvidia.com/gpu"),
        ("::1", "nvidia.com/gpu"),
        ("x" * 100_000, "nvidia.com/gpu"),
        ("\ud800\x00", "nvidia.com/gpu"),
        ("minor:2", "nvidia.com/gpu"),
    ],
)
def test_what_is_no_gpu_of_this_node(device_id: str, resource: str) -> None:
    """Adapters, processors, other makers' GPUs and devices of other nodes are none of ours."""
    assert find(device_id, resource, PERMUTED) is None


def test_a_gpu_instance_stands_for_its_compute_instances() -> None:
    """GKE and dcgm-exporter name the instance, which may hold several."""
    parts = tuple(SliceSnapshot(SliceIdentity(mig_uuid(0, part), "1c.2g.20gb", 3, part), ()) for part in range(2))
    device = GpuSnapshot(0, GpuIdentity(gpu_uuid(0), "H100", "0000:01:00.0", minor=0), GpuState.OK, 0.0, slices=parts)
    both = Target(gpu_uuid(0), (mig_uuid(0, 0), mig_uuid(0, 1)))

    assert find("nvidia0/gi3", "nvidia.com/gpu", node(device)) == both
    assert find("index:0.3", "", node(device)) == both
    assert slices_of(node(device).gpus[0], 3, None) == both
    assert slices_of(node(device).gpus[0], 3, 1) == Target(gpu_uuid(0), (mig_uuid(0, 1),))


def test_processes_are_on_a_slice_where_there_are_any() -> None:
    """The driver tells instances on the parent; where it does not, the process is on one of the slices."""
    sliced, whole = SLICED.gpus

    assert slices_of(whole, None, None) == Target(gpu_uuid(1))
    assert slices_of(sliced, 9, 0) == Target(gpu_uuid(0), (THIRD,))
    assert slices_of(sliced, 5, 0) is None
    assert slices_of(sliced, None, None) == Target(gpu_uuid(0), (FIRST, SECOND, THIRD), any_of=True)
