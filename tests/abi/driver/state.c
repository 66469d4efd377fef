#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct control *control;

static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t references;
static uint32_t attach_generation; /* grows with each first nvmlInit: handles of an older one are stale */
static uint32_t attached_driver;   /* the driver's generation that the library attached to */
static uint32_t loaded_build;
static uint32_t attached[MAX_GPUS];
static unsigned int attached_gpus;
static int descriptors[MAX_GPUS + 1];
static unsigned int descriptor_count;
static char directory[PATH_MAX];

/* Buffers that calls which are stuck at the moment will still write to. */
enum { STUCK_BUFFERS = 64 };
static _Atomic(const void *) stuck_buffers[STUCK_BUFFERS];
static atomic_int stuck_total;
static atomic_int in_gpm;

static void fail(const char *what, const char *path) {
    fprintf(stderr, "stand-in libnvidia-ml: %s %s: %s\n", what, path, strerror(errno));
    abort();
}

/* The control file named by the environment, or the one beside the library. */
__attribute__((constructor)) static void load(void) {
    Dl_info info;
    if (dladdr((void *)&load, &info) && realpath(info.dli_fname, directory)) {
        char *slash = strrchr(directory, '/');
        if (slash) {
            *slash = '\0';
        }
    }
    char beside[PATH_MAX + 16];
    snprintf(beside, sizeof beside, "%s/control", directory);
    const char *path = getenv("GPUFLEET_FAKE_NVML_CONTROL");
    if (!path || !*path) {
        path = beside;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) {
        fail("cannot open the control file", path);
    }
    errno = EPROTO;
    if ((size_t)status.st_size != sizeof *control) {
        fail("wrong size of the control file", path);
    }
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) {
        fail("cannot map", path);
    }
    close(fd);
    if (control->magic != CONTROL_MAGIC || control->size != sizeof *control) {
        errno = EPROTO;
        fail("no control file:", path);
    }
    loaded_build = control->library_build;
}

void count(uint64_t *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void wait_for_wake(uint32_t seen, uint64_t deadline_ns) {
    struct timespec limit, *timeout = NULL;
    if (deadline_ns) {
        uint64_t now = monotonic_ns();
        uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        limit = (struct timespec){.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
        timeout = &limit;
    }
    syscall(SYS_futex, &control->wake, FUTEX_WAIT, seen, timeout, NULL, 0);
}

static uint32_t now_wake(void) { return __atomic_load_n(&control->wake, __ATOMIC_ACQUIRE); }

double moving_seconds(void) {
    uint64_t since = control->moving_since_ns;
    return since ? (double)(monotonic_ns() - since) / 1e9 : 0.0;
}

double wobble(double amplitude) {
    if (!control->moving_since_ns) {
        return 0.0;
    }
    uint64_t tick = (uint64_t)(moving_seconds() * 10);
    return amplitude * (double)(tick * 7919u % 101u) / 100.0;
}

bool mig_enabled(const struct gpu *gpu) { return gpu->mig_mode == NVML_DEVICE_MIG_ENABLE; }

nvmlReturn_t give_text(char *out, unsigned int length, const char *text) {
    if (!text[0]) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (strlen(text) >= length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    strcpy(out, text);
    return NVML_SUCCESS;
}

nvmlReturn_t give_u32(unsigned int *out, uint32_t value) {
    if (value == ABSENT32) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *out = value;
    return NVML_SUCCESS;
}

/* A handle: never dereferenced by a caller, and recognisably wrong when cut to 32 bits. */
#define HANDLE_TAG UINT64_C(0x2ead)

nvmlDevice_t device_handle(unsigned int gpu, unsigned int mig, bool alias) {
    uint64_t value = HANDLE_TAG << 32 | (uint64_t)alias << 46 | (uint64_t)(attach_generation & 0xffff) << 16 | gpu << 4 | mig;
    if (mig) {
        value |= (uint64_t)(control->gpus[gpu].mig_generation & 0xff) << 8;
    }
    return (nvmlDevice_t)(uintptr_t)value;
}

bool initialized(void) { return __atomic_load_n(&references, __ATOMIC_ACQUIRE) > 0; }
uint32_t generation(void) { return attach_generation; }
unsigned int attached_count(void) { return attached_gpus; }
unsigned int attached_gpu(unsigned int index) { return attached[index]; }

static void raise_to(uint32_t *maximum, uint32_t value) {
    uint32_t seen = __atomic_load_n(maximum, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(maximum, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static bool is_gpm(enum function function) {
    return function >= FN_nvmlGpmSampleAlloc && function <= FN_nvmlGpmMetricsGet;
}

static int begin_stuck(struct call *call) {
    uint32_t stuck = __atomic_add_fetch(&control->stuck[call->column], 1, __ATOMIC_SEQ_CST);
    raise_to(&control->max_stuck[call->column], stuck);
    if (call->in_gpm) {
        atomic_fetch_sub(&in_gpm, 1);
    }
    int place = -1;
    for (int i = 0; call->buffer && i < STUCK_BUFFERS && place < 0; i++) {
        const void *empty = NULL;
        if (atomic_compare_exchange_strong(&stuck_buffers[i], &empty, call->buffer)) {
            place = i;
        }
    }
    atomic_fetch_add(&stuck_total, 1);
    return place;
}

static void end_stuck(struct call *call, int place) {
    atomic_fetch_sub(&stuck_total, 1);
    if (place >= 0) {
        atomic_store(&stuck_buffers[place], NULL);
    }
    if (call->in_gpm && atomic_fetch_add(&in_gpm, 1) > 0) {
        count(&control->misuse.gpm_parallel);
    }
    __atomic_sub_fetch(&control->stuck[call->column], 1, __ATOMIC_SEQ_CST);
}

static void block(struct call *call, const struct rule *rule) {
    uint32_t seen = now_wake();
    if (control->hold_all) {
        int place = begin_stuck(call);
        while (__atomic_load_n(&control->hold_all, __ATOMIC_ACQUIRE)) {
            wait_for_wake(seen, 0);
            seen = now_wake();
        }
        end_stuck(call, place);
    }
    if (!rule->hang) {
        return;
    }
    uint32_t released = __atomic_load_n(&rule->released, __ATOMIC_ACQUIRE);
    uint64_t deadline = rule->hang_ms ? monotonic_ns() + rule->hang_ms * UINT64_C(1000000) : 0;
    int place = begin_stuck(call);
    while (__atomic_load_n(&rule->released, __ATOMIC_ACQUIRE) == released && !(deadline && monotonic_ns() >= deadline)) {
        wait_for_wake(seen, deadline);
        seen = now_wake();
    }
    end_stuck(call, place);
}

static void take_driver_lock(struct call *call) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += 50000000;
    if (limit.tv_nsec >= 1000000000) {
        limit.tv_sec++;
        limit.tv_nsec -= 1000000000;
    }
    if (pthread_mutex_timedlock(&driver_lock, &limit)) {
        int place = begin_stuck(call);
        pthread_mutex_lock(&driver_lock);
        end_stuck(call, place);
    }
}

static void pass_time(uint32_t us) {
    /* Linux adds about 50 us of timer slack to a sleep. */
    struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = (us % 1000000) * 1000L};
    if (us > 55) {
        pause.tv_nsec = pause.tv_nsec >= 50000 ? pause.tv_nsec - 50000 : pause.tv_nsec;
        nanosleep(&pause, NULL);
        return;
    }
    for (uint64_t end = monotonic_ns() + us * UINT64_C(1000); monotonic_ns() < end;) {
    }
}

static void begin(struct call *call, enum function function, unsigned int column, const void *out) {
    *call = (struct call){.function = function, .column = column, .buffer = out == NO_BUFFER ? NULL : out, .in_gpm = is_gpm(function)};
    if (column < MAX_GPUS) {
        call->gpu = &control->gpus[column];
    }
    count(&control->counts[column][function]);
    raise_to(&control->max_out[column], __atomic_add_fetch(&control->out[column], 1, __ATOMIC_SEQ_CST));
    if (call->in_gpm && atomic_fetch_add(&in_gpm, 1) > 0) {
        count(&control->misuse.gpm_parallel);
    }
    if (__builtin_expect(atomic_load(&stuck_total) > 0, 0)) {
        if (column < MAX_GPUS && __atomic_load_n(&control->stuck[column], __ATOMIC_SEQ_CST) > 0) {
            count(&control->misuse.call_while_stuck[column]);
        }
        for (int i = 0; call->buffer && i < STUCK_BUFFERS; i++) {
            if (atomic_load(&stuck_buffers[i]) == call->buffer) {
                count(&control->misuse.buffer_in_use);
            }
        }
    }
}

static bool proceed(struct call *call) {
    const struct rule *rule = &control->rules[call->column][call->function];
    /* Waiting for an event does not keep the driver's lock. */
    if (control->serialize && call->function != FN_nvmlEventSetWait_v2) {
        take_driver_lock(call);
        block(call, rule);
        pthread_mutex_unlock(&driver_lock);
    } else {
        block(call, rule);
    }
    uint32_t latency = rule->latency_us + (control->model_latency ? control->latency_us[call->function] : 0);
    if (__builtin_expect(latency > 0, 0)) {
        pass_time(latency);
    }
    bool opening = call->function <= FN_nvmlErrorString;
    if (!opening && __builtin_expect(!initialized(), 0)) {
        count(&control->misuse.uninitialized_call);
        call->code = NVML_ERROR_UNINITIALIZED;
        return true;
    }
    /* What is freed in this process alone can be freed whatever has become of the driver. */
    bool freeing = call->function == FN_nvmlGpmSampleFree || call->function == FN_nvmlEventSetFree;
    if (!opening && !freeing && __builtin_expect(attached_driver != control->driver_generation || control->driver_down, 0)) {
        call->code = (nvmlReturn_t)control->restart_code;
        return true;
    }
    if (call->gpu && __builtin_expect(call->gpu->code || !call->gpu->present, 0)) {
        call->code = call->gpu->code ? (nvmlReturn_t)call->gpu->code : NVML_ERROR_GPU_IS_LOST;
        return true;
    }
    call->code = (nvmlReturn_t)rule->code;
    return call->code != NVML_SUCCESS;
}

static bool finish_enter(struct call *call, const void *out) {
    if (proceed(call)) {
        return true;
    }
    call->code = NVML_ERROR_INVALID_ARGUMENT;
    return out == NULL;
}

bool enter_system(struct call *call, enum function function, const void *out) {
    begin(call, function, SYSTEM, out);
    return finish_enter(call, out);
}

bool enter_gpu(struct call *call, enum function function, unsigned int column, const void *out) {
    begin(call, function, column, out);
    return finish_enter(call, out);
}

/* The place of a handle's GPU; SYSTEM when the handle was never given out or is out of date. */
static unsigned int resolve(nvmlDevice_t device, unsigned int *mig, unsigned int *mig_generation, bool *stale) {
    uint64_t value = (uint64_t)(uintptr_t)device;
    *mig = value & 0xf;
    *mig_generation = value >> 8 & 0xff;
    *stale = (value >> 16 & 0xffff) != (attach_generation & 0xffff);
    if ((value >> 32 & ~(UINT64_C(1) << 14)) != HANDLE_TAG || *mig > MAX_MIG) {
        return SYSTEM;
    }
    return value >> 4 & 0xf;
}

bool enter_handle(struct call *call, enum function function, nvmlDevice_t device, const void *out, bool mig_allowed) {
    unsigned int mig, mig_generation;
    bool stale;
    unsigned int column = resolve(device, &mig, &mig_generation, &stale);
    begin(call, function, column, out);
    if (column == SYSTEM || stale) {
        count(column == SYSTEM ? &control->misuse.bad_handle : &control->misuse.stale_handle);
        call->code = initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
        return true;
    }
    if (proceed(call)) {
        return true;
    }
    if (mig) {
        if (mig_generation != (call->gpu->mig_generation & 0xff) && call->gpu->mig_stale_code) {
            call->code = (nvmlReturn_t)call->gpu->mig_stale_code;
            return true;
        }
        call->mig_index = mig - 1;
        call->mig = &call->gpu->mig[mig - 1];
        call->code = NVML_ERROR_NOT_FOUND;
        if (!call->mig->present || !mig_enabled(call->gpu)) {
            return true;
        }
        call->code = (nvmlReturn_t)call->mig->code;
        if (call->code) {
            return true;
        }
        call->code = NVML_ERROR_NOT_SUPPORTED;
        if (!mig_allowed) {
            return true;
        }
    }
    call->code = NVML_ERROR_INVALID_ARGUMENT;
    return out == NULL;
}

nvmlReturn_t leave(struct call *call, nvmlReturn_t code) {
    if (call->in_gpm) {
        atomic_fetch_sub(&in_gpm, 1);
    }
    __atomic_sub_fetch(&control->out[call->column], 1, __ATOMIC_SEQ_CST);
    return code;
}

static bool hold_descriptor(const char *folder, const char *format, unsigned int number) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/", folder);
    snprintf(path + length, sizeof path - (size_t)length, format, number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    descriptors[descriptor_count++] = fd;
    __atomic_add_fetch(&control->open_descriptors, 1, __ATOMIC_SEQ_CST);
    return true;
}

static void drop_descriptors(void) {
    while (descriptor_count) {
        close(descriptors[--descriptor_count]);
        __atomic_sub_fetch(&control->open_descriptors, 1, __ATOMIC_SEQ_CST);
    }
}

static nvmlReturn_t attach(unsigned int flags) {
    char beside[PATH_MAX + 16];
    snprintf(beside, sizeof beside, "%s/dev", directory);
    const char *folder = getenv("GPUFLEET_FAKE_NVML_DEV");
    if (!folder || !*folder) {
        folder = beside;
    }
    if (!hold_descriptor(folder, "nvidiactl", 0)) {
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    attached_gpus = 0;
    for (unsigned int i = 0; i < control->gpu_count; i++) {
        uint32_t place = control->order[i];
        attached[attached_gpus++] = place;
        if (!(flags & NVML_INIT_FLAG_NO_ATTACH)) {
            hold_descriptor(folder, "nvidia%u", control->gpus[place].minor);
        }
    }
    attached_driver = control->driver_generation;
    return attached_gpus || flags & NVML_INIT_FLAG_NO_GPUS ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

static nvmlReturn_t initialize(unsigned int flags) {
    nvmlReturn_t code = NVML_SUCCESS;
    pthread_mutex_lock(&state_lock);
    if (!references) {
        if (control->init_code) {
            code = (nvmlReturn_t)control->init_code;
        } else if (control->driver_down) {
            code = NVML_ERROR_DRIVER_NOT_LOADED;
        } else if (loaded_build != control->kernel_build) {
            code = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
        } else {
            attach_generation++;
            code = attach(flags);
        }
    }
    if (code == NVML_SUCCESS) {
        __atomic_add_fetch(&references, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&control->initialized, 1, __ATOMIC_SEQ_CST);
    } else {
        drop_descriptors();
    }
    pthread_mutex_unlock(&state_lock);
    return code;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    CALL_SYSTEM(nvmlInitWithFlags, NO_BUFFER);
    RETURN(initialize(flags));
}

nvmlReturn_t nvmlInit_v2(void) {
    CALL_SYSTEM(nvmlInit_v2, NO_BUFFER);
    RETURN(initialize(0));
}

nvmlReturn_t nvmlShutdown(void) {
    CALL_SYSTEM(nvmlShutdown, NO_BUFFER);
    pthread_mutex_lock(&state_lock);
    nvmlReturn_t code = NVML_SUCCESS;
    if (!references) {
        count(&control->misuse.unbalanced_shutdown);
        code = NVML_ERROR_UNINITIALIZED;
    } else {
        uint32_t out = 0;
        for (int column = 0; column < COLUMNS; column++) {
            out += __atomic_load_n(&control->out[column], __ATOMIC_SEQ_CST);
        }
        if (out > 1) { /* this one is out itself */
            count(&control->misuse.shutdown_during_call);
        }
        if (references == 1) {
            control->misuse.samples_left += gpm_samples_live();
            control->misuse.event_sets_left += event_sets_live();
            drop_descriptors();
        }
        __atomic_sub_fetch(&references, 1, __ATOMIC_SEQ_CST);
        __atomic_sub_fetch(&control->initialized, 1, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&state_lock);
    RETURN(code);
}
