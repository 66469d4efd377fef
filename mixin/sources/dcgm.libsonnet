// dcgm-exporter before 4.9: DCGM's old names, MHz, per cent and MiB. What is not in its default list of fields has to
// be added there; mixin/README.md says for each reading which field it is.
local seriesOf = import 'dcgm_series.libsonnet';
local entry = import 'entry.libsonnet';

function(config)
  local series = seriesOf(config);
  {
    name: 'dcgm',
    select:: series.select,
    rename:: series.rename,
    owners:: series.owners('DCGM_FI_DEV_GPU_TEMP'),
    models:: series.models('DCGM_FI_DEV_GPU_TEMP'),
    exporters:: series.exporters('DCGM_FI_DEV_GPU_TEMP'),

    gpu: {
      // While MIG is on, or on newer versions by configuration, only one of these two is there.
      busy: [
        entry.gauge('DCGM_FI_DEV_GPU_UTIL', scale=' / 100'),
        entry.gauge('DCGM_FI_PROF_GR_ENGINE_ACTIVE'),
      ],
      sm_active: entry.gauge('DCGM_FI_PROF_SM_ACTIVE'),
      tensor_active: entry.gauge('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE'),
      sm_occupancy: entry.gauge('DCGM_FI_PROF_SM_OCCUPANCY'),
      dram_active: entry.gauge('DCGM_FI_PROF_DRAM_ACTIVE'),
      memory_busy: entry.gauge('DCGM_FI_DEV_MEM_COPY_UTIL', scale=' / 100'),
      encoder_busy: entry.gauge('DCGM_FI_DEV_ENC_UTIL', scale=' / 100'),
      decoder_busy: entry.gauge('DCGM_FI_DEV_DEC_UTIL', scale=' / 100'),

      sm_clock: entry.gauge('DCGM_FI_DEV_SM_CLOCK', scale=' * 1e6'),
      sm_clock_max: entry.gauge('DCGM_FI_DEV_MAX_SM_CLOCK', scale=' * 1e6'),
      memory_clock: entry.gauge('DCGM_FI_DEV_MEM_CLOCK', scale=' * 1e6'),
      // Nanoseconds, whatever the comment in DCGM's header says.
      throttled: entry.counter('DCGM_FI_DEV_THERMAL_VIOLATION', scale=' / 1e9'),
      throttled_thermal: entry.counter('DCGM_FI_DEV_THERMAL_VIOLATION', scale=' / 1e9'),
      power_capped: entry.counter('DCGM_FI_DEV_POWER_VIOLATION', scale=' / 1e9'),
      performance_state: entry.gauge('DCGM_FI_DEV_PSTATE'),

      temperature: entry.gauge('DCGM_FI_DEV_GPU_TEMP'),
      memory_temperature: entry.gauge('DCGM_FI_DEV_MEMORY_TEMP'),
      temperature_margin: entry.gauge('DCGM_FI_DEV_GPU_TEMP_LIMIT'),
      power: entry.gauge('DCGM_FI_DEV_POWER_USAGE'),
      power_limit: entry.gauge('DCGM_FI_DEV_ENFORCED_POWER_LIMIT'),
      energy: entry.counter('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION', scale=' / 1e3'),
      fan: entry.gauge('DCGM_FI_DEV_FAN_SPEED', scale=' / 100'),

      memory_used: entry.gauge('DCGM_FI_DEV_FB_USED', scale=' * 1048576'),
      memory_free: entry.gauge('DCGM_FI_DEV_FB_FREE', scale=' * 1048576'),
      memory_reserved: entry.gauge('DCGM_FI_DEV_FB_RESERVED', scale=' * 1048576'),
      memory_total: entry.gauge('DCGM_FI_DEV_FB_TOTAL', scale=' * 1048576'),

      ecc_correctable: entry.counter('DCGM_FI_DEV_ECC_SBE_VOL_TOTAL'),
      ecc_uncorrectable: entry.counter('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL'),
      ecc_aggregate_uncorrectable: entry.gauge('DCGM_FI_DEV_ECC_DBE_AGG_TOTAL'),
      sram_exceeded: entry.gauge('DCGM_FI_DEV_THRESHOLD_SRM'),
      remapped_correctable: entry.gauge('DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS'),
      remapped_uncorrectable: entry.gauge('DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS'),
      remap_pending: entry.gauge('DCGM_FI_DEV_ROW_REMAP_PENDING'),
      remap_failure: entry.gauge('DCGM_FI_DEV_ROW_REMAP_FAILURE'),

      pcie_generation: entry.gauge('DCGM_FI_DEV_PCIE_LINK_GEN'),
      pcie_generation_max: entry.gauge('DCGM_FI_DEV_PCIE_MAX_LINK_GEN'),
      pcie_width: entry.gauge('DCGM_FI_DEV_PCIE_LINK_WIDTH'),
      pcie_width_max: entry.gauge('DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH'),
      pcie_replays: entry.counter('DCGM_FI_DEV_PCIE_REPLAY_COUNTER'),
      pcie_transmit: entry.gauge('DCGM_FI_PROF_PCIE_TX_BYTES'),
      pcie_receive: entry.gauge('DCGM_FI_PROF_PCIE_RX_BYTES'),
      // Declared as counters, and rates all the same.
      nvlink_transmit: entry.gauge('DCGM_FI_PROF_NVLINK_TX_BYTES'),
      nvlink_receive: entry.gauge('DCGM_FI_PROF_NVLINK_RX_BYTES'),
      nvlink_traffic: entry.gauge('DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL', scale=' * 1e6'),

      xid: entry.counter('DCGM_EXP_XID_ERRORS_TOTAL'),
    },
    slice: {
      sm_active: entry.gauge('DCGM_FI_PROF_SM_ACTIVE'),
      tensor_active: entry.gauge('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE'),
      dram_active: entry.gauge('DCGM_FI_PROF_DRAM_ACTIVE'),
      memory_used: entry.gauge('DCGM_FI_DEV_FB_USED', scale=' * 1048576'),
    },
  }
