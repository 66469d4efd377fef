// dcgm-exporter 4.9 and newer: DCGM 4.7's names and base units. What is not in its default list of fields has to be
// added there; mixin/README.md says for each reading which field it is.
local seriesOf = import 'dcgm_series.libsonnet';
local entry = import 'entry.libsonnet';

function(config)
  local series = seriesOf(config);
  {
    name: 'dcgm49',
    select:: series.select,
    rename:: series.rename,
    owners:: series.owners('DCGM_FI_DEV_GPU_TEMP_CELSIUS'),
    models:: series.models('DCGM_FI_DEV_GPU_TEMP_CELSIUS'),
    exporters:: series.exporters('DCGM_FI_DEV_GPU_TEMP_CELSIUS'),

    gpu: {
      busy: [
        entry.gauge('DCGM_FI_DEV_GPU_UTIL_RATIO'),
        entry.gauge('DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO'),
      ],
      sm_active: entry.gauge('DCGM_FI_PROF_SM_UTIL_RATIO'),
      tensor_active: entry.gauge('DCGM_FI_PROF_TENSOR_UTIL_RATIO'),
      sm_occupancy: entry.gauge('DCGM_FI_PROF_SM_OCCUPANCY_RATIO'),
      dram_active: entry.gauge('DCGM_FI_PROF_DRAM_UTIL_RATIO'),
      memory_busy: entry.gauge('DCGM_FI_DEV_MEMORY_UTIL_RATIO'),
      encoder_busy: entry.gauge('DCGM_FI_DEV_ENC_UTIL_RATIO'),
      decoder_busy: entry.gauge('DCGM_FI_DEV_DEC_UTIL_RATIO'),

      sm_clock: entry.gauge('DCGM_FI_DEV_SM_CLOCK_HERTZ'),
      sm_clock_max: entry.gauge('DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ'),
      memory_clock: entry.gauge('DCGM_FI_DEV_MEMORY_CLOCK_HERTZ'),
      throttled: entry.counter('DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL'),
      throttled_thermal: entry.counter('DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL'),
      power_capped: entry.counter('DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL'),
      performance_state: entry.gauge('DCGM_FI_DEV_GPU_PSTATE'),

      temperature: entry.gauge('DCGM_FI_DEV_GPU_TEMP_CELSIUS'),
      memory_temperature: entry.gauge('DCGM_FI_DEV_MEMORY_TEMP_CELSIUS'),
      temperature_margin: entry.gauge('DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS'),
      power: entry.gauge('DCGM_FI_DEV_BOARD_POWER_WATTS'),
      power_limit: entry.gauge('DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS'),
      energy: entry.counter('DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL'),
      fan: entry.gauge('DCGM_FI_DEV_FAN_SPEED_RATIO'),

      memory_used: entry.gauge('DCGM_FI_DEV_FB_USED_BYTES'),
      memory_free: entry.gauge('DCGM_FI_DEV_FB_FREE_BYTES'),
      memory_reserved: entry.gauge('DCGM_FI_DEV_FB_RESERVED_BYTES'),
      memory_total: entry.gauge('DCGM_FI_DEV_FB_CAPACITY_BYTES'),

      ecc_correctable: entry.counter('DCGM_FI_DEV_ECC_SBE_VOL_TOTAL'),
      ecc_uncorrectable: entry.counter('DCGM_FI_DEV_ECC_DBE_VOL_TOTAL'),
      ecc_aggregate_uncorrectable: entry.gauge('DCGM_FI_DEV_ECC_DBE_AGG_TOTAL'),
      sram_exceeded: entry.gauge('DCGM_FI_DEV_SRAM_EXCEEDED'),
      remapped_correctable: entry.gauge('DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL'),
      remapped_uncorrectable: entry.gauge('DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL'),
      remap_pending: entry.gauge('DCGM_FI_DEV_ROW_REMAP_PENDING'),
      remap_failure: entry.gauge('DCGM_FI_DEV_ROW_REMAP_FAILED'),

      pcie_generation: entry.gauge('DCGM_FI_DEV_PCIE_LINK_GEN'),
      pcie_generation_max: entry.gauge('DCGM_FI_DEV_PCIE_MAX_LINK_GEN'),
      pcie_width: entry.gauge('DCGM_FI_DEV_PCIE_LINK_WIDTH'),
      pcie_width_max: entry.gauge('DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH'),
      pcie_replays: entry.counter('DCGM_FI_DEV_PCIE_REPLAY_TOTAL'),
      pcie_transmit: entry.gauge('DCGM_FI_PROF_PCIE_TX_BYTES'),
      pcie_receive: entry.gauge('DCGM_FI_PROF_PCIE_RX_BYTES'),
      nvlink_transmit: entry.gauge('DCGM_FI_PROF_NVLINK_TX_BYTES'),
      nvlink_receive: entry.gauge('DCGM_FI_PROF_NVLINK_RX_BYTES'),
      nvlink_traffic: entry.gauge('DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND'),

      xid: entry.counter('DCGM_EXP_XID_ERRORS_TOTAL'),
    },
    slice: {
      sm_active: entry.gauge('DCGM_FI_PROF_SM_UTIL_RATIO'),
      tensor_active: entry.gauge('DCGM_FI_PROF_TENSOR_UTIL_RATIO'),
      dram_active: entry.gauge('DCGM_FI_PROF_DRAM_UTIL_RATIO'),
      memory_used: entry.gauge('DCGM_FI_DEV_FB_USED_BYTES'),
    },
  }
