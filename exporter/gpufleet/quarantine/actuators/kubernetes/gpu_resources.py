"""Names of the resources that NVIDIA's device plugin offers. Pure."""

from __future__ import annotations

_WHOLE, _SHARED, _SLICE = "nvidia.com/gpu", "nvidia.com/gpu.", "nvidia.com/mig-"


def is_gpu(resource: str) -> bool:
    """Whether it is a GPU, a share of one (``nvidia.com/gpu.shared``, where the plugin renames them) or a slice."""
    return resource == _WHOLE or resource.startswith((_SHARED, _SLICE))
