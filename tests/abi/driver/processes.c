/* Who uses a GPU. */
#include "state.h"

static bool belongs(const struct call *call, const struct process_entry *process) {
    return !call->mig || (process->gi == call->mig->gi && process->ci == call->mig->ci);
}

static nvmlReturn_t list(const struct call *call, bool clients, unsigned int *infoCount, nvmlProcessInfo_t *infos) {
    unsigned int room = *infoCount, found = 0;
    for (unsigned int i = 0; i < call->gpu->process_count; i++) {
        const struct process_entry *process = &call->gpu->process[i];
        if (!belongs(call, process) || (process->client != 0) != clients) {
            continue;
        }
        if (found < room && infos) {
            nvmlProcessInfo_t entry = {.pid = process->pid,
                                       .usedGpuMemory = process->used_memory,
                                       .gpuInstanceId = process->gi,
                                       .computeInstanceId = process->ci};
            memcpy((char *)infos + found * call->gpu->process_stride, &entry, sizeof entry);
        }
        found++;
    }
    *infoCount = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos) {
    CALL_ENTITY(nvmlDeviceGetComputeRunningProcesses_v3, device, infoCount);
    RETURN(list(&call, false, infoCount, infos));
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                        nvmlProcessInfo_t *infos) {
    CALL_ENTITY(nvmlDeviceGetMPSComputeRunningProcesses_v3, device, infoCount);
    RETURN(list(&call, true, infoCount, infos));
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos) {
    (void)infos;
    CALL_ENTITY(nvmlDeviceGetGraphicsRunningProcesses_v3, device, infoCount);
    *infoCount = 0;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp) {
    CALL_GPU(nvmlDeviceGetProcessUtilization, device, processSamplesCount);
    if (mig_enabled(call.gpu)) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    unsigned int room = *processSamplesCount;
    *processSamplesCount = call.gpu->process_count;
    if (!call.gpu->process_count) {
        RETURN(NVML_ERROR_NOT_FOUND);
    }
    if (!utilization || room < call.gpu->process_count) {
        RETURN(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (unsigned int i = 0; i < call.gpu->process_count; i++) {
        utilization[i] = (nvmlProcessUtilizationSample_t){
            .pid = call.gpu->process[i].pid, .timeStamp = lastSeenTimeStamp + 1, .smUtil = 50, .memUtil = 20};
    }
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist) {
    CALL_ENTITY(nvmlDeviceGetRunningProcessDetailList, device, plist);
    if (plist->version != nvmlProcessDetailList_v1) {
        count(&control->misuse.wrong_version);
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    unsigned int room = plist->numProcArrayEntries, found = 0;
    for (unsigned int i = 0; plist->mode == 0 && i < call.gpu->process_count; i++) {
        const struct process_entry *process = &call.gpu->process[i];
        if (!belongs(&call, process)) {
            continue;
        }
        if (found < room && plist->procArray) {
            plist->procArray[found] = (nvmlProcessDetail_v1_t){.pid = process->pid,
                                                               .usedGpuMemory = process->used_memory,
                                                               .gpuInstanceId = process->gi,
                                                               .computeInstanceId = process->ci};
        }
        found++;
    }
    plist->numProcArrayEntries = found;
    RETURN(found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}
