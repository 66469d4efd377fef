"""Which functions a driver of a given branch has (from the first header that declares each)."""

from __future__ import annotations

SINCE: dict[str, int] = {
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 510,
    "nvmlGpmQueryDeviceSupport": 520,
    "nvmlGpmSampleAlloc": 520,
    "nvmlGpmSampleFree": 520,
    "nvmlGpmSampleGet": 520,
    "nvmlGpmMetricsGet": 520,
    "nvmlGpmMigSampleGet": 525,
    "nvmlDeviceGetGpuFabricInfo": 525,
    "nvmlDeviceGetCurrentClocksEventReasons": 535,
    "nvmlDeviceGetSupportedClocksEventReasons": 535,
    "nvmlDeviceGetJpgUtilization": 535,
    "nvmlDeviceGetOfaUtilization": 535,
    "nvmlDeviceGetGpuFabricInfoV": 550,
    "nvmlDeviceGetSramEccErrorStatus": 550,
    "nvmlDeviceGetTemperatureV": 570,
    "nvmlDeviceGetMarginTemperature": 570,
}


def parse_driver_version(version: str) -> tuple[int, int]:
    """Branch and minor number of ``580.95.05``; ValueError when it is none."""
    branch, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return int(branch), int(minor or 0)


def has_function(name: str, branch: int) -> bool:
    """Whether a driver of that branch has the function."""
    return branch >= SINCE.get(name, 0)
