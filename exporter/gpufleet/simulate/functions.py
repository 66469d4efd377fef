"""Which function answers which call, for a GPU's handle and for a MIG slice's."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.simulate import identity, memory, mig, processes, readings

DeviceAnswer = Callable[..., int]
"""Takes what the handle stands for and the call's other arguments; returns NVML's code."""

OF_GPU: dict[str, DeviceAnswer] = {
    "nvmlDeviceGetUUID": identity.uuid,
    "nvmlDeviceGetName": identity.name,
    "nvmlDeviceGetSerial": identity.serial,
    "nvmlDeviceGetVbiosVersion": identity.vbios,
    "nvmlDeviceGetPciInfo_v3": identity.pci,
    "nvmlDeviceGetMinorNumber": identity.minor,
    "nvmlDeviceGetArchitecture": identity.architecture,
    "nvmlDeviceGetMaxClockInfo": identity.max_clock,
    "nvmlDeviceGetMaxPcieLinkGeneration": identity.max_pcie_generation,
    "nvmlDeviceGetMaxPcieLinkWidth": identity.max_pcie_width,
    "nvmlDeviceGetTemperatureThreshold": identity.temperature_threshold,
    "nvmlDeviceGetSupportedClocksEventReasons": identity.supported_reasons,
    "nvmlDeviceGetSupportedClocksThrottleReasons": identity.supported_reasons,
    "nvmlDeviceGetNumFans": identity.fans,
    "nvmlDeviceGetFieldValues": readings.field_values,
    "nvmlDeviceGetMemoryInfo_v2": memory.memory_v2,
    "nvmlDeviceGetMemoryInfo": memory.memory_v1,
    "nvmlDeviceGetBAR1MemoryInfo": memory.bar1,
    "nvmlDeviceGetUtilizationRates": readings.utilization,
    "nvmlDeviceGetEncoderUtilization": readings.encoder,
    "nvmlDeviceGetDecoderUtilization": readings.decoder,
    "nvmlDeviceGetJpgUtilization": readings.jpeg,
    "nvmlDeviceGetOfaUtilization": readings.ofa,
    "nvmlDeviceGetClockInfo": readings.clock,
    "nvmlDeviceGetCurrentClocksEventReasons": readings.reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": readings.reasons,
    "nvmlDeviceGetPerformanceState": readings.performance_state,
    "nvmlDeviceGetTemperatureV": readings.temperature_v,
    "nvmlDeviceGetTemperature": readings.temperature,
    "nvmlDeviceGetMarginTemperature": readings.margin,
    "nvmlDeviceGetPowerUsage": readings.power,
    "nvmlDeviceGetFanSpeed_v2": readings.fan_speed,
    "nvmlDeviceGetEccMode": memory.ecc_mode,
    "nvmlDeviceGetMemoryErrorCounter": memory.memory_errors,
    "nvmlDeviceGetSramEccErrorStatus": memory.sram_errors,
    "nvmlDeviceGetRowRemapperHistogram": memory.remap_histogram,
    "nvmlDeviceGetCurrPcieLinkGeneration": readings.pcie_generation,
    "nvmlDeviceGetCurrPcieLinkWidth": readings.pcie_width,
    "nvmlDeviceGetGpuFabricInfoV": readings.fabric_v,
    "nvmlDeviceGetGpuFabricInfo": readings.fabric_v1,
    "nvmlDeviceGetComputeRunningProcesses_v3": processes.processes,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": processes.no_clients,
    "nvmlGpmQueryDeviceSupport": identity.gpm_support,
    "nvmlDeviceGetMigMode": mig.mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": mig.most_slices,
    "nvmlDeviceGetGpuInstanceProfileInfo": mig.profile_info,
    "nvmlDeviceGetMigDeviceHandleByIndex": mig.slice_by_index,
}
OF_SLICE: dict[str, DeviceAnswer] = {
    "nvmlDeviceGetUUID": identity.slice_uuid,
    "nvmlDeviceGetName": identity.slice_name,
    "nvmlDeviceGetMemoryInfo_v2": memory.slice_memory_v2,
    "nvmlDeviceGetMemoryInfo": memory.slice_memory_v1,
    "nvmlDeviceGetBAR1MemoryInfo": memory.slice_bar1,
    "nvmlDeviceGetMemoryErrorCounter": memory.slice_memory_errors,
    "nvmlDeviceGetComputeRunningProcesses_v3": processes.slice_processes,
    "nvmlDeviceGetGpuInstanceId": mig.gpu_instance,
    "nvmlDeviceGetComputeInstanceId": mig.compute_instance,
    "nvmlDeviceGetAttributes_v2": mig.attributes,
}
