/* Multi-instance GPU: enumeration of a GPU's slices. */
#include "state.h"

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode) {
    CALL_GPU(nvmlDeviceGetMigMode, device, pendingMode ? currentMode : NULL);
    *pendingMode = call.gpu->mig_mode_pending;
    RETURN(give_u32(currentMode, call.gpu->mig_mode));
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *maximum) {
    CALL_GPU(nvmlDeviceGetMaxMigDeviceCount, device, maximum);
    *maximum = call.gpu->mig_maximum;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice) {
    CALL_GPU(nvmlDeviceGetMigDeviceHandleByIndex, device, migDevice);
    if (index >= call.gpu->mig_maximum || index >= MAX_MIG) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    if (!mig_enabled(call.gpu) || !call.gpu->mig[index].present) {
        RETURN(NVML_ERROR_NOT_FOUND);
    }
    *migDevice = device_handle(call.column, index + 1, false);
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device) {
    CALL_ENTITY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, migDevice, device);
    if (!call.mig) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    *device = device_handle(call.column, 0, false);
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice) {
    CALL_ENTITY(nvmlDeviceIsMigDeviceHandle, device, isMigDevice);
    *isMigDevice = call.mig != NULL;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    CALL_ENTITY(nvmlDeviceGetGpuInstanceId, device, id);
    if (!call.mig) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    *id = call.mig->gi;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    CALL_ENTITY(nvmlDeviceGetComputeInstanceId, device, id);
    if (!call.mig) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    *id = call.mig->ci;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    CALL_ENTITY(nvmlDeviceGetAttributes_v2, device, attributes);
    if (!call.mig) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = call.mig->multiprocessors,
        .sharedCopyEngineCount = call.mig->copy_engines,
        .sharedDecoderCount = call.mig->decoders,
        .sharedEncoderCount = call.mig->encoders,
        .sharedJpegCount = call.mig->jpeg,
        .sharedOfaCount = call.mig->ofa,
        .gpuInstanceSliceCount = call.mig->gi_slices,
        .computeInstanceSliceCount = call.mig->ci_slices,
        .memorySizeMB = call.mig->memory_total >> 20,
    };
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *info) {
    CALL_GPU(nvmlDeviceGetGpuInstanceProfileInfo, device, info);
    static const unsigned int slices[] = {1, 2, 3, 4, 7};
    if (profile >= NVML_GPU_INSTANCE_PROFILE_COUNT) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    if (!call.gpu->mig_maximum || profile >= sizeof slices / sizeof *slices) {
        RETURN(NVML_ERROR_NOT_SUPPORTED);
    }
    unsigned int wanted = slices[profile];
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = 19 - profile,
        .sliceCount = wanted,
        .instanceCount = 7 / wanted,
        .multiprocessorCount = wanted == 7 ? call.gpu->multiprocessors : call.gpu->multiprocessors / 8 * wanted,
        .copyEngineCount = wanted,
        .decoderCount = wanted,
        .jpegCount = wanted,
        .memorySizeMB = (call.gpu->memory_total >> 20) / 8 * (wanted == 7 ? 8 : wanted),
    };
    RETURN(NVML_SUCCESS);
}
