/* Readings that have no field id. */
#include "state.h"

/* Whether a struct's version word is one that this driver takes. */
static bool takes(unsigned int *version, uint32_t wanted) {
    if (*version != wanted) {
        count(&control->misuse.wrong_version);
        return false;
    }
    if (control->scribble_versions) {
        *version = 0;
    }
    return true;
}

static uint32_t moved(uint32_t value, double amplitude, uint32_t limit) {
    if (value == ABSENT32 || !control->moving_since_ns) {
        return value;
    }
    uint32_t sum = value + (uint32_t)wobble(amplitude);
    return sum > limit ? limit : sum;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    CALL_ENTITY(nvmlDeviceGetMemoryInfo_v2, device, memory);
    if (!takes(&memory->version, nvmlMemory_v2)) {
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (call.mig) {
        memory->total = call.mig->memory_total;
        memory->reserved = 0;
        memory->used = call.mig->memory_used;
    } else {
        if (mig_enabled(call.gpu) && call.gpu->mig_parent_memory_code) {
            RETURN((nvmlReturn_t)call.gpu->mig_parent_memory_code);
        }
        if (call.gpu->memory_total == ABSENT64) {
            RETURN(NVML_ERROR_NOT_SUPPORTED);
        }
        memory->total = call.gpu->memory_total;
        memory->reserved = call.gpu->memory_reserved;
        memory->used = call.gpu->memory_used + ((uint64_t)wobble(64) << 20);
    }
    memory->free = memory->total - memory->reserved - memory->used;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    CALL_ENTITY(nvmlDeviceGetMemoryInfo, device, memory);
    if (call.mig) {
        memory->total = call.mig->memory_total;
        memory->used = call.mig->memory_used;
    } else {
        if (mig_enabled(call.gpu) && call.gpu->mig_parent_memory_code) {
            RETURN((nvmlReturn_t)call.gpu->mig_parent_memory_code);
        }
        if (call.gpu->memory_total == ABSENT64) {
            RETURN(NVML_ERROR_NOT_SUPPORTED);
        }
        memory->total = call.gpu->memory_total;
        memory->used = call.gpu->memory_reserved + call.gpu->memory_used + ((uint64_t)wobble(64) << 20);
    }
    memory->free = memory->total - memory->used;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory) {
    CALL_ENTITY(nvmlDeviceGetBAR1MemoryInfo, device, bar1Memory);
    if (call.gpu->bar1_total == ABSENT64) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    bar1Memory->bar1Total = call.gpu->bar1_total;
    bar1Memory->bar1Used = call.gpu->bar1_used;
    bar1Memory->bar1Free = call.gpu->bar1_total - call.gpu->bar1_used;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    CALL_GPU(nvmlDeviceGetUtilizationRates, device, utilization);
    if (mig_enabled(call.gpu) || call.gpu->utilization_gpu == ABSENT32) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    utilization->gpu = moved(call.gpu->utilization_gpu, 5, 100);
    utilization->memory = moved(call.gpu->utilization_memory, 5, 100);
    RETURN(NVML_SUCCESS);
}

#define ENGINE(name, member)                                                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *utilization, unsigned int *samplingPeriodUs) { \
        CALL_GPU(name, device, samplingPeriodUs ? utilization : NULL);                               \
        if (mig_enabled(call.gpu)) {                                                                 \
            RETURN(NVML_ERROR_NOT_SUPPORTED);                                                        \
        }                                                                                            \
        *samplingPeriodUs = 167000;                                                                  \
        RETURN(give_u32(utilization, call.gpu->member));                                             \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, encoder)
ENGINE(nvmlDeviceGetDecoderUtilization, decoder)
ENGINE(nvmlDeviceGetJpgUtilization, jpeg)
ENGINE(nvmlDeviceGetOfaUtilization, ofa)

#define CLOCK(name, member, amplitude)                                                       \
    nvmlReturn_t name(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {       \
        CALL_GPU(name, device, clock);                                                       \
        if ((unsigned int)type >= NVML_CLOCK_COUNT) {                                        \
            RETURN(NVML_ERROR_INVALID_ARGUMENT);                                             \
        }                                                                                    \
        RETURN(give_u32(clock, moved(call.gpu->member[type], (amplitude), ABSENT32 - 1)));    \
    }

CLOCK(nvmlDeviceGetClockInfo, clock, type == NVML_CLOCK_MEM ? 0 : 45)
CLOCK(nvmlDeviceGetMaxClockInfo, clock_max, 0)

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t clockType, unsigned int *clockMHz) {
    (void)clockType;
    CALL_GPU(nvmlDeviceGetApplicationsClock, device, clockMHz);
    RETURN(NVML_ERROR_DEPRECATED); /* as real drivers do from 590 on */
}

#define MASK(name, member)                                                 \
    nvmlReturn_t name(nvmlDevice_t device, unsigned long long *reasons) {   \
        CALL_GPU(name, device, reasons);                                   \
        if (call.gpu->member == ABSENT64) {                                \
            RETURN(NVML_ERROR_NOT_SUPPORTED);                              \
        }                                                                  \
        *reasons = call.gpu->member;                                       \
        RETURN(NVML_SUCCESS);                                              \
    }

MASK(nvmlDeviceGetCurrentClocksEventReasons, reasons)
MASK(nvmlDeviceGetCurrentClocksThrottleReasons, reasons)
MASK(nvmlDeviceGetSupportedClocksEventReasons, reasons_supported)
MASK(nvmlDeviceGetSupportedClocksThrottleReasons, reasons_supported)

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *pState) {
    CALL_GPU(nvmlDeviceGetPerformanceState, device, pState);
    RETURN(give_u32((unsigned int *)pState, call.gpu->performance_state));
}

static int temperature(const struct gpu *gpu) { return gpu->temperature + (int)wobble(3); }

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *reading) {
    CALL_GPU(nvmlDeviceGetTemperatureV, device, reading);
    if (!takes(&reading->version, control->temperature_version)) {
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (reading->sensorType != NVML_TEMPERATURE_GPU) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    reading->temperature = temperature(call.gpu);
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp) {
    CALL_GPU(nvmlDeviceGetTemperature, device, temp);
    if (sensorType != NVML_TEMPERATURE_GPU) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    *temp = (unsigned int)temperature(call.gpu);
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin) {
    CALL_GPU(nvmlDeviceGetMarginTemperature, device, margin);
    if (!takes(&margin->version, control->margin_version)) {
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (call.gpu->margin == INT32_MIN) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    margin->marginTemperature = call.gpu->margin;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType, unsigned int *temp) {
    CALL_GPU(nvmlDeviceGetTemperatureThreshold, device, temp);
    if ((unsigned int)thresholdType >= 8) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    RETURN(give_u32(temp, call.gpu->threshold[thresholdType]));
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed) {
    CALL_GPU(nvmlDeviceGetFanSpeed_v2, device, speed);
    if (fan >= call.gpu->fan_count) {
        RETURN(call.gpu->fan_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    }
    RETURN(give_u32(speed, call.gpu->fan[fan]));
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *speed) {
    CALL_GPU(nvmlDeviceGetFanSpeed, device, speed);
    RETURN(call.gpu->fan_count ? give_u32(speed, call.gpu->fan[0]) : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, nvmlFanSpeedInfo_t *fanSpeed) {
    CALL_GPU(nvmlDeviceGetFanSpeedRPM, device, fanSpeed);
    if (!takes(&fanSpeed->version, nvmlFanSpeedInfo_v1)) {
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (fanSpeed->fan >= call.gpu->fan_count) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    RETURN(give_u32(&fanSpeed->speed, call.gpu->fan_rpm));
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
    CALL_GPU(nvmlDeviceGetEccMode, device, pending ? current : NULL);
    *(unsigned int *)pending = call.gpu->ecc_pending;
    RETURN(give_u32((unsigned int *)current, call.gpu->ecc_current));
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                             nvmlEccCounterType_t counterType, nvmlMemoryLocation_t locationType,
                                             unsigned long long *counter) {
    CALL_ENTITY(nvmlDeviceGetMemoryErrorCounter, device, counter);
    if ((unsigned int)errorType > 1 || (unsigned int)counterType > 1 || (unsigned int)locationType > 7) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    bool on_instance = errorType == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && counterType == NVML_VOLATILE_ECC &&
                       locationType == NVML_MEMORY_LOCATION_SRAM;
    uint64_t value = call.gpu->ecc_count[errorType][counterType][locationType];
    if (value == ABSENT64 || call.gpu->ecc_current != 1 || (call.mig && !on_instance)) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    *counter = value;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status) {
    CALL_GPU(nvmlDeviceGetSramEccErrorStatus, device, status);
    if (!takes(&status->version, control->sram_version)) {
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    if (call.gpu->sram[0] == ABSENT64 || call.gpu->ecc_current != 1) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    const uint64_t *sram = call.gpu->sram;
    status->aggregateUncParity = sram[0];
    status->aggregateUncSecDed = sram[1];
    status->aggregateCor = sram[2];
    status->volatileUncParity = sram[3];
    status->volatileUncSecDed = sram[4];
    status->volatileCor = sram[5];
    status->aggregateUncBucketL2 = sram[6];
    status->aggregateUncBucketSm = sram[7];
    status->aggregateUncBucketPcie = sram[8];
    status->aggregateUncBucketMcu = sram[9];
    status->aggregateUncBucketOther = sram[10];
    status->bThresholdExceeded = call.gpu->sram_threshold_exceeded;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values) {
    CALL_GPU(nvmlDeviceGetRowRemapperHistogram, device, values);
    const uint32_t *histogram = call.gpu->histogram;
    if (histogram[0] == ABSENT32) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    values->max = histogram[0];
    values->high = histogram[1];
    values->partial = histogram[2];
    values->low = histogram[3];
    values->none = histogram[4];
    RETURN(NVML_SUCCESS);
}

#define PLAIN(name, member)                                      \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *out) {  \
        CALL_GPU(name, device, out);                             \
        RETURN(give_u32(out, call.gpu->member));                 \
    }

PLAIN(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation)
PLAIN(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value) {
    (void)counter;
    CALL_GPU(nvmlDeviceGetPcieThroughput, device, value);
    RETURN(mig_enabled(call.gpu) ? NVML_ERROR_NOT_SUPPORTED : give_u32(value, call.gpu->pcie_throughput));
}

static void fabric_common(const struct gpu *gpu, unsigned char *cluster, nvmlReturn_t *status, unsigned int *clique,
                          nvmlGpuFabricState_t *state) {
    memcpy(cluster, gpu->fabric_cluster, sizeof gpu->fabric_cluster);
    *status = (nvmlReturn_t)gpu->fabric_status;
    *clique = gpu->fabric_clique;
    *state = (nvmlGpuFabricState_t)gpu->fabric_state;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *gpuFabricInfo) {
    CALL_GPU(nvmlDeviceGetGpuFabricInfoV, device, gpuFabricInfo);
    unsigned int asked = gpuFabricInfo->version;
    unsigned int newest = call.gpu->fabric_version;
    if (!newest) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    bool known = (asked == nvmlGpuFabricInfo_v2 && newest >= 2) || (asked == nvmlGpuFabricInfo_v3 && newest >= 3);
    if (!takes(&gpuFabricInfo->version, known ? asked : 0)) {
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    /* Version 2 is four bytes shorter: nothing is written behind it. */
    fabric_common(call.gpu, gpuFabricInfo->clusterUuid, &gpuFabricInfo->status, &gpuFabricInfo->cliqueId, &gpuFabricInfo->state);
    gpuFabricInfo->healthMask = call.gpu->fabric_health_mask;
    if (asked == nvmlGpuFabricInfo_v3) {
        gpuFabricInfo->healthSummary = (unsigned char)call.gpu->fabric_health_summary;
    }
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *gpuFabricInfo) {
    CALL_GPU(nvmlDeviceGetGpuFabricInfo, device, gpuFabricInfo);
    if (!call.gpu->fabric_version) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    fabric_common(call.gpu, gpuFabricInfo->clusterUuid, &gpuFabricInfo->status, &gpuFabricInfo->cliqueId, &gpuFabricInfo->state);
    RETURN(NVML_SUCCESS);
}
