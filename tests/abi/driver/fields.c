/* nvmlDeviceGetFieldValues: a table per GPU, with the ways in which drivers are known to fill an entry badly. */
#include "state.h"

#include <time.h>

const struct field_cell *find_field(const struct gpu *gpu, uint32_t id, uint32_t scope) {
    if (scope == UINT32_MAX) {
        scope = ALL_LINKS;
    } else if (scope >= ALL_LINKS) {
        return NULL;
    }
    uint32_t key = (id << 8 | scope) + 1;
    uint32_t place = key * UINT32_C(2654435761) >> 21;
    for (int i = 0; i < FIELD_CELLS; i++, place = (place + 1) % FIELD_CELLS) {
        const struct field_cell *cell = &gpu->field[place];
        if (cell->key == key) {
            return cell;
        }
        if (!cell->key) {
            return NULL;
        }
    }
    return NULL;
}

_Static_assert(FIELD_CELLS == 1 << (32 - 21), "the hash's shift follows the table's size");

uint64_t field_value(const struct field_cell *cell) {
    uint64_t value = cell->value;
    if (control->moving_since_ns) {
        if (cell->rate) {
            value += (uint64_t)(cell->rate * moving_seconds());
        }
        if (cell->wobble) {
            value += (uint64_t)wobble(cell->wobble);
        }
    }
    return value;
}

static void answer(const struct call *call, nvmlFieldValue_t *entry, long long now) {
    const struct field_cell *cell = find_field(call->gpu, entry->fieldId, entry->scopeId);
    if (!cell || call->mig || cell->flags & FIELD_SINGLE_CALL || (cell->flags & FIELD_NOT_ON_MIG && mig_enabled(call->gpu))) {
        entry->timestamp = now;
        entry->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        return;
    }
    if (cell->flags & FIELD_UNTOUCHED) {
        return;
    }
    if (cell->flags & FIELD_ZEROED) {
        entry->timestamp = entry->latencyUsec = 0;
        entry->valueType = 0;
        entry->nvmlReturn = NVML_SUCCESS;
        entry->value.ullVal = 0;
        return;
    }
    entry->timestamp = now;
    entry->latencyUsec = control->model_latency ? control->latency_per_field_us : 1;
    entry->nvmlReturn = (nvmlReturn_t)cell->code;
    if (cell->code) {
        return; /* the value is undefined: whatever was there */
    }
    entry->valueType = (nvmlValueType_t)cell->type;
    entry->value.ullVal = field_value(cell);
    if (cell->flags & FIELD_DIRTY_HIGH) {
        entry->value.ullVal |= UINT64_C(0xdeadbeef00000000);
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values) {
    CALL_ENTITY(nvmlDeviceGetFieldValues, device, values);
    if (valuesCount <= 0) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    __atomic_fetch_add(&control->field_entries, (uint64_t)valuesCount, __ATOMIC_RELAXED);
    if (control->model_latency && control->latency_per_field_us) {
        uint64_t ns = (uint64_t)control->latency_per_field_us * 1000 * (uint64_t)valuesCount;
        nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}, NULL);
    }
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    long long now = (long long)clock.tv_sec * 1000000 + clock.tv_nsec / 1000;
    for (int i = 0; i < valuesCount; i++) {
        answer(&call, &values[i], now);
    }
    RETURN(NVML_SUCCESS);
}

/* The single calls that older programs use for what also has a field id. */

static nvmlReturn_t field_u32(const struct gpu *gpu, uint32_t id, unsigned int *out) {
    const struct field_cell *cell = find_field(gpu, id, 0);
    if (!cell || cell->flags & (FIELD_UNTOUCHED | FIELD_ZEROED)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (!cell->code) {
        *out = (unsigned int)field_value(cell);
    }
    return (nvmlReturn_t)cell->code;
}

static nvmlReturn_t field_u64(const struct gpu *gpu, uint32_t id, unsigned long long *out) {
    const struct field_cell *cell = find_field(gpu, id, 0);
    if (!cell || cell->flags & (FIELD_UNTOUCHED | FIELD_ZEROED)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (!cell->code) {
        *out = field_value(cell);
    }
    return (nvmlReturn_t)cell->code;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power) {
    CALL_GPU(nvmlDeviceGetPowerUsage, device, power);
    nvmlReturn_t code = field_u32(call.gpu, NVML_FI_DEV_POWER_AVERAGE, power);
    RETURN(code ? field_u32(call.gpu, NVML_FI_DEV_POWER_INSTANT, power) : code);
}

#define FIELD_CALL(name, id)                                        \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *out) {     \
        CALL_GPU(name, device, out);                                \
        RETURN(field_u32(call.gpu, (id), out));                     \
    }

FIELD_CALL(nvmlDeviceGetPowerManagementLimit, NVML_FI_DEV_POWER_REQUESTED_LIMIT)
FIELD_CALL(nvmlDeviceGetPowerManagementDefaultLimit, NVML_FI_DEV_POWER_DEFAULT_LIMIT)
FIELD_CALL(nvmlDeviceGetEnforcedPowerLimit, NVML_FI_DEV_POWER_CURRENT_LIMIT)
FIELD_CALL(nvmlDeviceGetPcieReplayCounter, NVML_FI_DEV_PCIE_REPLAY_COUNTER)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit, unsigned int *maxLimit) {
    CALL_GPU(nvmlDeviceGetPowerManagementLimitConstraints, device, maxLimit ? minLimit : NULL);
    nvmlReturn_t code = field_u32(call.gpu, NVML_FI_DEV_POWER_MIN_LIMIT, minLimit);
    RETURN(code ? code : field_u32(call.gpu, NVML_FI_DEV_POWER_MAX_LIMIT, maxLimit));
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy) {
    CALL_GPU(nvmlDeviceGetTotalEnergyConsumption, device, energy);
    RETURN(field_u64(call.gpu, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, energy));
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                         nvmlEccCounterType_t counterType, unsigned long long *eccCounts) {
    CALL_GPU(nvmlDeviceGetTotalEccErrors, device, eccCounts);
    RETURN(field_u64(call.gpu, NVML_FI_DEV_ECC_SBE_VOL_TOTAL + (uint32_t)errorType + 2u * (uint32_t)counterType, eccCounts));
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                       unsigned int *isPending, unsigned int *failureOccurred) {
    CALL_GPU(nvmlDeviceGetRemappedRows, device, uncRows && isPending && failureOccurred ? corrRows : NULL);
    nvmlReturn_t code = field_u32(call.gpu, NVML_FI_DEV_REMAPPED_COR, corrRows);
    code = code ? code : field_u32(call.gpu, NVML_FI_DEV_REMAPPED_UNC, uncRows);
    code = code ? code : field_u32(call.gpu, NVML_FI_DEV_REMAPPED_PENDING, isPending);
    RETURN(code ? code : field_u32(call.gpu, NVML_FI_DEV_REMAPPED_FAILURE, failureOccurred));
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive) {
    CALL_GPU(nvmlDeviceGetNvLinkState, device, isActive);
    if (link >= call.gpu->nvlink_count || mig_enabled(call.gpu)) {
        RETURN(link >= NVML_NVLINK_MAX_LINKS ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    }
    const struct field_cell *cell = find_field(call.gpu, NVML_FI_DEV_NVLINK_GET_STATE, link);
    if (!cell) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    *isActive = cell->value == 1 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *counterValue) {
    static const uint32_t ids[] = {NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
                                   NVML_FI_DEV_NVLINK_ERROR_DL_CRC};
    CALL_GPU(nvmlDeviceGetNvLinkErrorCounter, device, counterValue);
    const struct field_cell *cell =
        (unsigned int)counter < sizeof ids / sizeof *ids && !mig_enabled(call.gpu) ? find_field(call.gpu, ids[counter], link) : NULL;
    if (!cell || cell->code) {
        RETURN(cell ? (nvmlReturn_t)cell->code : NVML_ERROR_NOT_SUPPORTED);
    }
    *counterValue = field_value(cell);
    RETURN(NVML_SUCCESS);
}
