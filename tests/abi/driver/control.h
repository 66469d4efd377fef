/*
 * The memory that the stand-in driver shares with the test that scripts it.
 *
 * One file, mapped by both: the test writes what the driver is to say, the library writes what was asked of it. Only
 * fixed-width members, so that tests/support/fake_nvml_layout.py can mirror it; a test compares every offset.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include <stdint.h>

enum {
    CONTROL_MAGIC = 0x67706601,
    MAX_GPUS = 16,
    SYSTEM = MAX_GPUS, /* the column of calls that concern no GPU */
    COLUMNS = MAX_GPUS + 1,
    MAX_FUNCTIONS = 128,
    MAX_MIG = 8,
    MAX_FANS = 4,
    MAX_PROCESSES = 64,
    FIELD_CELLS = 2048, /* a power of two: open addressing */
    GPM_METRICS = 480,
    MIG_GPM_METRICS = 64,
    EVENT_RING = 256,
    ALL_LINKS = 255,
};

#define ABSENT32 UINT32_MAX /* a reading that this GPU does not have: NOT_SUPPORTED */
#define ABSENT64 UINT64_MAX

/* What the library does for one function on one GPU. */
struct rule {
    int32_t code;         /* the return code, when not 0 */
    uint32_t hang;        /* 1: calls that come now do not return ... */
    uint32_t hang_ms;     /* ... for this long, or until released when 0 */
    uint32_t released;    /* calls out since an older value of this go on */
    uint32_t latency_us;  /* added to the modelled latency */
    uint32_t reserved;
};

enum field_flag {
    FIELD_UNTOUCHED = 1,   /* the driver leaves the whole entry as the caller had it */
    FIELD_ZEROED = 2,      /* the driver writes zeros, timestamp and return code included */
    FIELD_DIRTY_HIGH = 4,  /* the upper half of the union is not cleared */
    FIELD_NOT_ON_MIG = 8,  /* NOT_SUPPORTED while MIG is enabled */
    FIELD_SINGLE_CALL = 16, /* the field id is not known to this driver, the single call of that reading is */
};

/* One entry of a GPU's field table, found by (field id, scope). */
struct field_cell {
    uint32_t key;   /* (id << 8 | scope) + 1; 0 is an empty cell; scope 255 stands for all links */
    uint32_t flags;
    int32_t code;
    uint32_t type;
    uint64_t value;
    uint32_t rate;   /* a counter's increments per second while the readings move */
    uint32_t wobble; /* a gauge's amplitude while the readings move */
};

struct gpm_cell {
    double value;
    double wobble;
    int32_t code;
    uint32_t reserved;
};

struct process_entry {
    uint64_t used_memory;
    uint32_t pid;
    uint32_t gi;
    uint32_t ci;
    uint32_t client; /* of the MPS server: listed there alone */
};

struct mig_instance {
    char uuid[96];
    char name[96];
    uint64_t memory_total;
    uint64_t memory_used;
    uint32_t present;
    uint32_t gi;
    uint32_t ci;
    uint32_t multiprocessors;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpeg;
    uint32_t ofa;
    uint32_t gi_slices;
    uint32_t ci_slices;
    int32_t code; /* every call on this instance returns it, when not 0 */
    struct gpm_cell gpm[MIG_GPM_METRICS];
};

struct gpu {
    char uuid[96];
    char name[96];
    char serial[32];
    char vbios[32];
    char part[32];
    uint32_t present; /* 0: taken out of the node */
    int32_t code;     /* every call on this GPU returns it, when not 0 */
    uint32_t domain;
    uint32_t bus;
    uint32_t device;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t minor;
    uint32_t architecture;
    uint32_t brand;
    uint32_t cuda_major;
    uint32_t cuda_minor;
    uint32_t cores;
    uint32_t bus_width;
    uint32_t clock[4];     /* MHz: graphics, SM, memory, video */
    uint32_t clock_max[4];
    uint32_t utilization_gpu;
    uint32_t utilization_memory;
    uint32_t encoder;
    uint32_t decoder;
    uint32_t jpeg;
    uint32_t ofa;
    uint32_t performance_state;
    int32_t temperature;
    int32_t margin; /* INT32_MIN: not supported */
    uint32_t threshold[8];
    uint32_t fan_count;
    uint32_t fan[MAX_FANS];
    uint32_t fan_rpm;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint32_t pcie_generation_max;
    uint32_t pcie_width_max;
    uint32_t pcie_throughput; /* KB/s, each direction */
    uint32_t persistence;
    uint32_t compute_mode;
    uint32_t display;
    uint32_t ecc_current;
    uint32_t ecc_pending;
    uint32_t sram_threshold_exceeded;
    uint32_t histogram[5]; /* max, high, partial, low, none; histogram[0] absent: not supported */
    uint32_t fabric_version; /* newest struct version that this driver takes; 0: no fabric calls */
    uint32_t fabric_state;
    uint32_t fabric_status;
    uint32_t fabric_clique;
    uint32_t fabric_health_mask;
    uint32_t fabric_health_summary;
    uint32_t nvlink_count;
    uint32_t gpm_supported;
    uint32_t process_count;
    uint32_t process_stride; /* 24; 32 is what early 535 drivers wrote */
    uint32_t mig_mode; /* absent: not supported */
    uint32_t mig_mode_pending;
    uint32_t mig_maximum;
    uint32_t mig_generation;
    int32_t mig_stale_code; /* for a handle from before the last partitioning; 0: it reaches whatever is there now */
    int32_t mig_parent_memory_code; /* memory of the whole GPU while MIG is enabled */
    uint32_t multiprocessors; /* of the profile that takes the whole GPU */
    uint64_t reasons;
    uint64_t reasons_supported;
    uint64_t memory_total; /* absent: not supported (memory shared with the host) */
    uint64_t memory_reserved;
    uint64_t memory_used;
    uint64_t bar1_total;
    uint64_t bar1_used;
    uint64_t events_supported;
    uint64_t ecc_count[2][2][8]; /* error type, counter type, location */
    uint64_t sram[11];
    uint8_t fabric_cluster[16];
    struct process_entry process[MAX_PROCESSES];
    struct mig_instance mig[MAX_MIG];
    struct gpm_cell gpm[GPM_METRICS];
    struct field_cell field[FIELD_CELLS];
};

struct event {
    uint64_t type;
    uint64_t data;
    uint32_t gpu;
    uint32_t gi;
    uint32_t ci;
    uint32_t alias; /* 1: delivered with another handle than the one that was registered */
};

/* Things that a caller must never do; each is counted and answered with an error, where the real library would crash. */
struct misuse {
    uint64_t uninitialized_call;
    uint64_t unbalanced_shutdown;
    uint64_t stale_handle;         /* from before the last nvmlShutdown */
    uint64_t bad_handle;           /* never given out, or cut to 32 bits */
    uint64_t freed_sample;
    uint64_t mismatched_samples;   /* of two entities, or from before a re-partitioning or shutdown */
    uint64_t sample_in_use;        /* freed or used while a call on it was out */
    uint64_t gpm_parallel;
    uint64_t shutdown_during_call;
    uint64_t samples_left;         /* not freed at the last nvmlShutdown */
    uint64_t event_sets_left;
    uint64_t stale_event_set;
    uint64_t set_freed_during_wait;
    uint64_t buffer_in_use;        /* a buffer handed over while a stuck call still had it */
    uint64_t wrong_version;        /* a struct whose version word this driver does not take */
    uint64_t call_while_stuck[COLUMNS]; /* a further call on a GPU that had one stuck */
};

struct control {
    uint32_t magic;
    uint32_t size;
    uint32_t wake; /* a futex: the test raises it after each change that a waiting call must see */
    uint32_t gpu_count;
    uint32_t order[MAX_GPUS]; /* enumeration index -> gpu[] */
    uint32_t hold_all;  /* every call blocks, as when another process holds the driver's lock */
    uint32_t serialize; /* one driver-wide lock: a stuck call blocks every other */
    uint32_t model_latency;
    uint32_t driver_generation;
    int32_t restart_code; /* what calls return after the driver was restarted under an open library */
    uint32_t driver_down;
    int32_t init_code;
    uint32_t library_build; /* the library on disk; a process keeps the one it loaded */
    uint32_t kernel_build;
    int32_t cuda_version;
    uint32_t gpm_spacing_ms; /* samples closer than this give NaN */
    uint32_t sram_version; /* struct versions that this driver takes */
    uint32_t temperature_version;
    uint32_t margin_version;
    uint32_t scribble_versions; /* a version word is gone after the call, as a driver is free to do */
    uint32_t reserved;
    char driver_version[80];
    char nvml_version[80];
    uint64_t moving_since_ns; /* CLOCK_MONOTONIC; 0: readings stand still */
    uint64_t event_head;
    struct event events[EVENT_RING];
    uint32_t latency_us[MAX_FUNCTIONS];
    uint32_t latency_per_field_us;
    uint32_t open_descriptors;
    uint32_t initialized; /* nvmlInit less nvmlShutdown, all processes */
    uint32_t samples_live;
    uint32_t out[COLUMNS];
    uint32_t max_out[COLUMNS];
    uint32_t stuck[COLUMNS];
    uint32_t max_stuck[COLUMNS];
    uint64_t field_entries; /* entries asked for, all GetFieldValues calls together */
    uint64_t counts[COLUMNS][MAX_FUNCTIONS];
    struct misuse misuse;
    struct rule rules[COLUMNS][MAX_FUNCTIONS];
    struct gpu gpus[MAX_GPUS];
};

#endif
