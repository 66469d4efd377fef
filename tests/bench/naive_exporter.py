"""The exporter that one writes in an afternoon: prometheus_client, and pynvml calls at each scrape.

Usage: naive_exporter.py PORT
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pynvml as nvml
from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import GaugeMetricFamily

Read = Callable[[Any], float]

METRICS: dict[str, Read] = {
    "gpu_utilization_percent": lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu,
    "gpu_memory_utilization_percent": lambda h: nvml.nvmlDeviceGetUtilizationRates(h).memory,
    "gpu_memory_total_bytes": lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total,
    "gpu_memory_used_bytes": lambda h: nvml.nvmlDeviceGetMemoryInfo(h).used,
    "gpu_memory_free_bytes": lambda h: nvml.nvmlDeviceGetMemoryInfo(h).free,
    "gpu_temperature_celsius": lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU),
    "gpu_power_watts": lambda h: nvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "gpu_power_limit_watts": lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "gpu_energy_joules": lambda h: nvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
    "gpu_sm_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM),
    "gpu_memory_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM),
    "gpu_graphics_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_GRAPHICS),
    "gpu_video_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_VIDEO),
    "gpu_performance_state": nvml.nvmlDeviceGetPerformanceState,
    "gpu_throttle_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
    "gpu_encoder_utilization_percent": lambda h: nvml.nvmlDeviceGetEncoderUtilization(h)[0],
    "gpu_decoder_utilization_percent": lambda h: nvml.nvmlDeviceGetDecoderUtilization(h)[0],
    "gpu_fan_speed_percent": nvml.nvmlDeviceGetFanSpeed,
    "gpu_pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "gpu_pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth,
    "gpu_pcie_tx_kilobytes": lambda h: nvml.nvmlDeviceGetPcieThroughput(h, nvml.NVML_PCIE_UTIL_TX_BYTES),
    "gpu_pcie_rx_kilobytes": lambda h: nvml.nvmlDeviceGetPcieThroughput(h, nvml.NVML_PCIE_UTIL_RX_BYTES),
    "gpu_pcie_replays": nvml.nvmlDeviceGetPcieReplayCounter,
    "gpu_processes": lambda h: len(nvml.nvmlDeviceGetComputeRunningProcesses(h)),
}


class GpuCollector:
    """Asks the driver when Prometheus asks us."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family a metric, one sample a GPU."""
        families = {name: GaugeMetricFamily(name, name, labels=["gpu", "uuid", "name"]) for name in METRICS}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            labels = [str(index), nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)]
            for name, read in METRICS.items():
                try:
                    families[name].add_metric(labels, read(handle))
                except nvml.NVMLError:
                    continue
        yield from families.values()


if __name__ == "__main__":
    nvml.nvmlInit()
    REGISTRY.register(GpuCollector())
    start_http_server(int(sys.argv[1]), addr="127.0.0.1")
    threading.Event().wait()
