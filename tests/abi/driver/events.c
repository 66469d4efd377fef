/* Event sets: what the test put into the shared ring is delivered to the sets that registered for it before. */
#include "state.h"

#include <pthread.h>

enum { SETS = 32 };

static struct event_set {
    uint32_t serial;
    bool live;
    uint32_t waiting;
    uint32_t generation;
    uint64_t next; /* the first entry of the ring not looked at yet */
    uint64_t types[MAX_GPUS];
    uint64_t since[MAX_GPUS]; /* entries before it came before the registration and are lost */
} sets[SETS];
static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;

#define SET_TAG UINT64_C(0x6e5e)

static struct event_set *find_set(nvmlEventSet_t handle) {
    uint64_t value = (uint64_t)(uintptr_t)handle;
    struct event_set *set = &sets[value & (SETS - 1)];
    if (value >> 32 != SET_TAG || (value >> 16 & 0xffff) != (set->serial & 0xffff) || !set->live ||
        set->generation != generation()) {
        count(&control->misuse.stale_event_set);
        return NULL;
    }
    return set;
}

unsigned int event_sets_live(void) {
    unsigned int live = 0;
    for (unsigned int i = 0; i < SETS; i++) {
        live += sets[i].live && sets[i].generation == generation();
    }
    return live;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    CALL_SYSTEM(nvmlEventSetCreate, set);
    nvmlReturn_t code = NVML_ERROR_INSUFFICIENT_RESOURCES;
    pthread_mutex_lock(&sets_lock);
    for (unsigned int i = 0; i < SETS && code; i++) {
        if (!sets[i].live || sets[i].generation != generation()) {
            sets[i] = (struct event_set){
                .serial = sets[i].serial + 1, .live = true, .generation = generation(), .next = control->event_head};
            *set = (nvmlEventSet_t)(uintptr_t)(SET_TAG << 32 | (uint64_t)(sets[i].serial & 0xffff) << 16 | i);
            code = NVML_SUCCESS;
        }
    }
    pthread_mutex_unlock(&sets_lock);
    RETURN(code);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    CALL_SYSTEM(nvmlEventSetFree, set ? NO_BUFFER : NULL);
    pthread_mutex_lock(&sets_lock);
    struct event_set *found = find_set(set);
    if (found) {
        if (found->waiting) {
            count(&control->misuse.set_freed_during_wait);
        }
        found->live = false;
    }
    pthread_mutex_unlock(&sets_lock);
    RETURN(found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes) {
    CALL_GPU(nvmlDeviceGetSupportedEventTypes, device, eventTypes);
    *eventTypes = call.gpu->events_supported;
    RETURN(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set) {
    CALL_GPU(nvmlDeviceRegisterEvents, device, set ? NO_BUFFER : NULL);
    if (eventTypes & ~call.gpu->events_supported || !eventTypes) {
        RETURN(NVML_ERROR_NOT_SUPPORTED); /* and nothing is registered */
    }
    pthread_mutex_lock(&sets_lock);
    struct event_set *found = find_set(set);
    if (found) {
        if (!found->types[call.column]) {
            found->since[call.column] = control->event_head;
        }
        found->types[call.column] |= eventTypes;
    }
    pthread_mutex_unlock(&sets_lock);
    RETURN(found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

static bool next_event(struct event_set *set, nvmlEventData_t *data) {
    uint64_t head = __atomic_load_n(&control->event_head, __ATOMIC_ACQUIRE);
    while (set->next < head) {
        uint64_t number = set->next++;
        const struct event *event = &control->events[number % EVENT_RING];
        if (event->gpu < MAX_GPUS && set->types[event->gpu] & event->type && number >= set->since[event->gpu]) {
            *data = (nvmlEventData_t){.device = device_handle(event->gpu, 0, event->alias),
                                      .eventType = event->type,
                                      .eventData = event->data,
                                      .gpuInstanceId = event->gi,
                                      .computeInstanceId = event->ci};
            return true;
        }
    }
    return false;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms) {
    CALL_SYSTEM(nvmlEventSetWait_v2, data);
    uint64_t deadline = monotonic_ns() + timeoutms * UINT64_C(1000000);
    nvmlReturn_t code = NVML_SUCCESS;
    pthread_mutex_lock(&sets_lock);
    struct event_set *found = find_set(set);
    if (!found) {
        pthread_mutex_unlock(&sets_lock);
        RETURN(NVML_ERROR_INVALID_ARGUMENT);
    }
    found->waiting++;
    uint32_t driver = control->driver_generation;
    for (;;) {
        uint32_t seen = __atomic_load_n(&control->wake, __ATOMIC_ACQUIRE);
        if (next_event(found, data)) {
            break;
        }
        code = NVML_ERROR_TIMEOUT;
        if (driver != control->driver_generation || control->driver_down) {
            code = (nvmlReturn_t)control->restart_code;
        } else if (control->rules[SYSTEM][FN_nvmlEventSetWait_v2].code) {
            code = (nvmlReturn_t)control->rules[SYSTEM][FN_nvmlEventSetWait_v2].code;
        } else if (monotonic_ns() < deadline) {
            pthread_mutex_unlock(&sets_lock);
            wait_for_wake(seen, deadline);
            pthread_mutex_lock(&sets_lock);
            code = NVML_SUCCESS;
            continue;
        }
        break;
    }
    found->waiting--;
    pthread_mutex_unlock(&sets_lock);
    RETURN(code);
}
