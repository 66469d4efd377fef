/* What every call of the stand-in driver goes through: the shared memory, handles, counting, hanging, misuse. */
#ifndef STATE_H
#define STATE_H

/* The names in this library are the symbols themselves, not the header's aliases of the newest version. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <stdbool.h>
#include <string.h>

#include "control.h"

enum function {
#define FUNCTION(name) FN_##name,
#include "functions.def"
#undef FUNCTION
    FUNCTION_COUNT
};

_Static_assert((int)FUNCTION_COUNT <= (int)MAX_FUNCTIONS, "MAX_FUNCTIONS is too small");

extern struct control *control;

/* One call under way. */
struct call {
    enum function function;
    unsigned int column; /* the GPU's place in the shared memory, or SYSTEM */
    unsigned int mig_index; /* with mig set */
    struct gpu *gpu;
    struct mig_instance *mig; /* set when the handle is an instance's */
    const void *buffer;
    nvmlReturn_t code;
    bool in_gpm;
};

/*
 * Each returns true when the call ends here, with call->code. leave() must be called in either case. out is what the
 * caller must not leave null: a buffer that is written to, or NO_BUFFER.
 */
#define NO_BUFFER control
bool enter_system(struct call *call, enum function function, const void *out);
bool enter_gpu(struct call *call, enum function function, unsigned int column, const void *out);
bool enter_handle(struct call *call, enum function function, nvmlDevice_t device, const void *out, bool mig_allowed);
nvmlReturn_t leave(struct call *call, nvmlReturn_t code);

#define CALL_SYSTEM(name, out)                       \
    struct call call;                                \
    if (enter_system(&call, FN_##name, (out)))       \
    return leave(&call, call.code)

/* For a function that takes whole GPUs only; an instance's handle gets NOT_SUPPORTED. */
#define CALL_GPU(name, device, out)                              \
    struct call call;                                            \
    if (enter_handle(&call, FN_##name, (device), (out), false))  \
    return leave(&call, call.code)

#define CALL_ENTITY(name, device, out)                           \
    struct call call;                                            \
    if (enter_handle(&call, FN_##name, (device), (out), true))   \
    return leave(&call, call.code)

#define RETURN(code) return leave(&call, (code))

nvmlDevice_t device_handle(unsigned int gpu, unsigned int mig /* index + 1, or 0 */, bool alias);
unsigned int attached_count(void);
unsigned int attached_gpu(unsigned int index);
bool initialized(void);
uint32_t generation(void);

bool mig_enabled(const struct gpu *gpu);

/* While the readings move: seconds since they began, and a number between 0 and amplitude that changes ten times a second. */
double moving_seconds(void);
double wobble(double amplitude);

nvmlReturn_t give_text(char *out, unsigned int length, const char *text);
nvmlReturn_t give_u32(unsigned int *out, uint32_t value);

/* Waits until the shared wake word differs from seen, or the deadline (CLOCK_MONOTONIC, ns; 0: none). */
void wait_for_wake(uint32_t seen, uint64_t deadline_ns);
uint64_t monotonic_ns(void);

void count(uint64_t *counter);

/* Resources that nvmlShutdown should find freed. */
unsigned int gpm_samples_live(void);
unsigned int event_sets_live(void);

const struct field_cell *find_field(const struct gpu *gpu, uint32_t id, uint32_t scope);
uint64_t field_value(const struct field_cell *cell);

#endif
