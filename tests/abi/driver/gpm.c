/* GPU performance monitoring: samples, and metrics computed from two of them. */
#include "state.h"

#include <math.h>
#include <pthread.h>

enum { SAMPLES = 512, WHOLE_GPU = 255 };

static struct sample {
    uint32_t serial; /* grows each time the place is given out: a freed sample is told from its successor */
    bool live;
    bool filled;
    uint32_t busy; /* calls that have it at the moment */
    uint32_t column;
    uint32_t mig; /* the instance's place, or WHOLE_GPU */
    uint32_t mig_gi; /* the instance, by the only name that a caller of GpmMigSampleGet has for it */
    uint32_t mig_generation;
    uint32_t generation;
    uint64_t taken_ns;
} samples[SAMPLES];
static pthread_mutex_t samples_lock = PTHREAD_MUTEX_INITIALIZER;

#define SAMPLE_TAG UINT64_C(0x5a3d)

static nvmlGpmSample_t sample_handle(unsigned int place) {
    return (nvmlGpmSample_t)(uintptr_t)(SAMPLE_TAG << 32 | (uint64_t)(samples[place].serial & 0xffff) << 16 | place);
}

static struct sample *find_sample(nvmlGpmSample_t handle) {
    uint64_t value = (uint64_t)(uintptr_t)handle;
    struct sample *sample = &samples[value & (SAMPLES - 1)];
    if (value >> 32 != SAMPLE_TAG || (value >> 16 & 0xffff) != (sample->serial & 0xffff) || !sample->live) {
        count(&control->misuse.freed_sample);
        return NULL;
    }
    return sample;
}

unsigned int gpm_samples_live(void) {
    unsigned int live = 0;
    for (unsigned int i = 0; i < SAMPLES; i++) {
        live += samples[i].live;
    }
    return live;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *gpmSupport) {
    CALL_ENTITY(nvmlGpmQueryDeviceSupport, device, gpmSupport);
    if (gpmSupport->version != NVML_GPM_SUPPORT_VERSION) {
        count(&control->misuse.wrong_version);
        RETURN(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    gpmSupport->isSupportedDevice = call.gpu->gpm_supported;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *gpmSample) {
    CALL_SYSTEM(nvmlGpmSampleAlloc, gpmSample);
    nvmlReturn_t code = NVML_ERROR_MEMORY;
    pthread_mutex_lock(&samples_lock);
    for (unsigned int i = 0; i < SAMPLES && code; i++) {
        if (!samples[i].live) {
            samples[i] = (struct sample){.serial = samples[i].serial + 1, .live = true};
            *gpmSample = sample_handle(i);
            __atomic_add_fetch(&control->samples_live, 1, __ATOMIC_RELAXED);
            code = NVML_SUCCESS;
        }
    }
    pthread_mutex_unlock(&samples_lock);
    RETURN(code);
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t gpmSample) {
    CALL_SYSTEM(nvmlGpmSampleFree, gpmSample ? NO_BUFFER : NULL);
    pthread_mutex_lock(&samples_lock);
    struct sample *sample = find_sample(gpmSample);
    if (sample && __atomic_load_n(&sample->busy, __ATOMIC_SEQ_CST)) {
        count(&control->misuse.sample_in_use);
    }
    if (sample) {
        sample->live = false;
        __atomic_sub_fetch(&control->samples_live, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&samples_lock);
    RETURN(sample ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

/* The sample is the call's from its beginning on, also while the call is stuck. */
static struct sample *hold(nvmlGpmSample_t handle) {
    pthread_mutex_lock(&samples_lock);
    struct sample *sample = find_sample(handle);
    if (sample && __atomic_fetch_add(&sample->busy, 1, __ATOMIC_SEQ_CST)) {
        count(&control->misuse.sample_in_use);
    }
    pthread_mutex_unlock(&samples_lock);
    return sample;
}

static void let_go(struct sample *sample) {
    if (sample) {
        __atomic_sub_fetch(&sample->busy, 1, __ATOMIC_SEQ_CST);
    }
}

static nvmlReturn_t fill(const struct call *call, struct sample *sample, unsigned int mig) {
    if (!sample) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!call->gpu->gpm_supported) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    sample->filled = true;
    sample->column = call->column;
    sample->mig = mig;
    sample->mig_gi = mig == WHOLE_GPU ? UINT32_MAX : call->gpu->mig[mig].gi;
    sample->mig_generation = call->gpu->mig_generation;
    sample->generation = generation();
    sample->taken_ns = monotonic_ns();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t gpmSample) {
    struct sample *sample = hold(gpmSample);
    struct call call;
    if (enter_handle(&call, FN_nvmlGpmSampleGet, device, gpmSample ? NO_BUFFER : NULL, true)) {
        let_go(sample);
        RETURN(call.code);
    }
    nvmlReturn_t code = fill(&call, sample, call.mig ? call.mig_index : WHOLE_GPU);
    let_go(sample);
    RETURN(code);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpuInstanceId, nvmlGpmSample_t gpmSample) {
    struct sample *sample = hold(gpmSample);
    struct call call;
    if (enter_handle(&call, FN_nvmlGpmMigSampleGet, device, gpmSample ? NO_BUFFER : NULL, false)) {
        let_go(sample);
        RETURN(call.code);
    }
    nvmlReturn_t code = mig_enabled(call.gpu) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; code == NVML_ERROR_NOT_FOUND && i < MAX_MIG; i++) {
        if (call.gpu->mig[i].present && call.gpu->mig[i].gi == gpuInstanceId) {
            code = fill(&call, sample, i);
        }
    }
    let_go(sample);
    RETURN(code);
}

static void compute(const struct sample *sample, bool too_close, nvmlGpmMetric_t *metric) {
    const struct gpu *gpu = &control->gpus[sample->column];
    const struct gpm_cell *cells = sample->mig == WHOLE_GPU ? gpu->gpm : gpu->mig[sample->mig].gpm;
    unsigned int known = sample->mig == WHOLE_GPU ? GPM_METRICS : MIG_GPM_METRICS;
    if (metric->metricId >= known) {
        metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        return;
    }
    const struct gpm_cell *cell = &cells[metric->metricId];
    metric->nvmlReturn = (nvmlReturn_t)cell->code;
    if (!cell->code) {
        metric->value = too_close ? (double)NAN : cell->value + wobble(cell->wobble);
    }
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metricsGet) {
    struct sample *older = metricsGet ? hold(metricsGet->sample1) : NULL;
    struct sample *newer = older && metricsGet->sample1 == metricsGet->sample2 ? older
                           : metricsGet                                       ? hold(metricsGet->sample2)
                                                                              : NULL;
    /* Pure computation, but a test may want it to hang for one GPU. */
    struct call call;
    unsigned int column = newer && newer->filled ? newer->column : SYSTEM;
    nvmlReturn_t code = NVML_ERROR_INVALID_ARGUMENT;
    if (enter_gpu(&call, FN_nvmlGpmMetricsGet, column, metricsGet)) {
        code = call.code;
    } else if (metricsGet->version != NVML_GPM_METRICS_GET_VERSION) {
        count(&control->misuse.wrong_version);
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    } else if (older && newer && older->filled && newer->filled) {
        bool same = older->column == newer->column && older->mig_gi == newer->mig_gi &&
                    older->generation == newer->generation && older != newer && older->taken_ns < newer->taken_ns;
        bool cut_between = newer->mig != WHOLE_GPU && older->mig_generation != newer->mig_generation;
        if (!same) {
            count(&control->misuse.mismatched_samples);
        } else if (!cut_between) { /* a caller cannot know in time that the GPU was cut anew: refused, no misuse */
            bool too_close = newer->taken_ns - older->taken_ns < control->gpm_spacing_ms * UINT64_C(1000000);
            for (unsigned int i = 0; i < metricsGet->numMetrics; i++) {
                compute(newer, too_close, &metricsGet->metrics[i]);
            }
            code = NVML_SUCCESS;
        }
    }
    let_go(older);
    if (newer != older) {
        let_go(newer);
    }
    RETURN(code);
}
