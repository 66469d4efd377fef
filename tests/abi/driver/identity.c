/* Who is there: the system, handles, names and what does not change while the driver is loaded. */
#include "state.h"

#include <stdio.h>
#include <strings.h>

const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const names[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
    };
    count(&control->counts[SYSTEM][FN_nvmlErrorString]);
    return (unsigned int)result < sizeof names / sizeof *names ? names[result] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    CALL_SYSTEM(nvmlSystemGetDriverVersion, version);
    RETURN(give_text(version, length, control->driver_version));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    CALL_SYSTEM(nvmlSystemGetNVMLVersion, version);
    RETURN(give_text(version, length, control->nvml_version));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    CALL_SYSTEM(nvmlSystemGetCudaDriverVersion, version);
    *version = control->cuda_version;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CALL_SYSTEM(nvmlSystemGetCudaDriverVersion_v2, version);
    *version = control->cuda_version;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount) {
    CALL_SYSTEM(nvmlDeviceGetCount_v2, deviceCount);
    *deviceCount = attached_count();
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned int column = initialized() && index < attached_count() ? attached_gpu(index) : SYSTEM;
    struct call call;
    if (enter_gpu(&call, FN_nvmlDeviceGetHandleByIndex_v2, column, device)) {
        RETURN(call.code);
    }
    if (column == SYSTEM) {
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    *device = device_handle(column, 0, false);
    RETURN(NVML_SUCCESS);
}

static unsigned int find_gpu(bool (*matches)(const struct gpu *, const char *), const char *wanted) {
    for (unsigned int i = 0; wanted && initialized() && i < attached_count(); i++) {
        if (matches(&control->gpus[attached_gpu(i)], wanted)) {
            return attached_gpu(i);
        }
    }
    return SYSTEM;
}

static void bus_id(const struct gpu *gpu, char *out, size_t length) {
    snprintf(out, length, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->device);
}

static bool has_bus_id(const struct gpu *gpu, const char *wanted) {
    char text[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
    bus_id(gpu, text, sizeof text);
    /* The domain may be written with four digits. */
    return !strcasecmp(text, wanted) || !strcasecmp(text + 4, wanted);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device) {
    unsigned int column = find_gpu(has_bus_id, pciBusId);
    struct call call;
    if (enter_gpu(&call, FN_nvmlDeviceGetHandleByPciBusId_v2, column, device)) {
        RETURN(call.code);
    }
    if (column == SYSTEM) {
        RETURN(NVML_ERROR_NOT_FOUND);
    }
    *device = device_handle(column, 0, false);
    RETURN(NVML_SUCCESS);
}

static unsigned int instance_with(const struct gpu *gpu, const char *uuid) {
    for (unsigned int i = 0; mig_enabled(gpu) && i < MAX_MIG; i++) {
        if (gpu->mig[i].present && !strcmp(gpu->mig[i].uuid, uuid)) {
            return i + 1;
        }
    }
    return 0;
}

static bool has_uuid(const struct gpu *gpu, const char *wanted) {
    return !strcmp(gpu->uuid, wanted) || instance_with(gpu, wanted);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    unsigned int column = find_gpu(has_uuid, uuid);
    struct call call;
    if (enter_gpu(&call, FN_nvmlDeviceGetHandleByUUID, column, device)) {
        RETURN(call.code);
    }
    if (column == SYSTEM) {
        RETURN(NVML_ERROR_NOT_FOUND);
    }
    *device = device_handle(column, instance_with(call.gpu, uuid), false);
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    CALL_ENTITY(nvmlDeviceGetUUID, device, uuid);
    RETURN(give_text(uuid, length, call.mig ? call.mig->uuid : call.gpu->uuid));
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    CALL_ENTITY(nvmlDeviceGetName, device, name);
    RETURN(give_text(name, length, call.mig ? call.mig->name : call.gpu->name));
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    CALL_GPU(nvmlDeviceGetSerial, device, serial);
    RETURN(give_text(serial, length, call.gpu->serial));
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    CALL_GPU(nvmlDeviceGetVbiosVersion, device, version);
    RETURN(give_text(version, length, call.gpu->vbios));
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *partNumber, unsigned int length) {
    CALL_GPU(nvmlDeviceGetBoardPartNumber, device, partNumber);
    RETURN(give_text(partNumber, length, call.gpu->part));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    CALL_GPU(nvmlDeviceGetPciInfo_v3, device, pci);
    memset(pci, 0, sizeof *pci);
    pci->domain = call.gpu->domain;
    pci->bus = call.gpu->bus;
    pci->device = call.gpu->device;
    pci->pciDeviceId = call.gpu->pci_device_id;
    pci->pciSubSystemId = call.gpu->pci_subsystem_id;
    bus_id(call.gpu, pci->busId, sizeof pci->busId);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%s", pci->busId + 4);
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    CALL_ENTITY(nvmlDeviceGetIndex, device, index);
    *index = call.mig_index;
    for (unsigned int i = 0; !call.mig && i < attached_count(); i++) {
        if (attached_gpu(i) == call.column) {
            *index = i;
        }
    }
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    CALL_ENTITY(nvmlDeviceGetCudaComputeCapability, device, minor ? major : NULL);
    *major = (int)call.gpu->cuda_major;
    *minor = (int)call.gpu->cuda_minor;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, nvmlDriverModel_t *current, nvmlDriverModel_t *pending) {
    (void)pending; /* Windows only */
    CALL_GPU(nvmlDeviceGetDriverModel_v2, device, current);
    RETURN(NVML_ERROR_NOT_SUPPORTED);
}

#define CONSTANT(name, type, member)                                   \
    nvmlReturn_t name(nvmlDevice_t device, type *out) {                \
        CALL_GPU(name, device, out);                                   \
        RETURN(give_u32((unsigned int *)out, call.gpu->member));       \
    }

CONSTANT(nvmlDeviceGetMinorNumber, unsigned int, minor)
CONSTANT(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
CONSTANT(nvmlDeviceGetBrand, nvmlBrandType_t, brand)
CONSTANT(nvmlDeviceGetNumGpuCores, unsigned int, cores)
CONSTANT(nvmlDeviceGetMemoryBusWidth, unsigned int, bus_width)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, pcie_generation_max)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, pcie_width_max)
CONSTANT(nvmlDeviceGetNumFans, unsigned int, fan_count)
CONSTANT(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, persistence)
CONSTANT(nvmlDeviceGetComputeMode, nvmlComputeMode_t, compute_mode)
CONSTANT(nvmlDeviceGetDisplayMode, nvmlEnableState_t, display)
CONSTANT(nvmlDeviceGetDisplayActive, nvmlEnableState_t, display)
