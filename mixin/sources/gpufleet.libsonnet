// gpufleet's own metrics (docs/metrics.md).
local fill = import '../lib/fill.libsonnet';
local promqlOf = import '../lib/promql.libsonnet';
local entry = import 'entry.libsonnet';

function(config)
  local promql = promqlOf(config);
  // Reasons for which a GPU that has work is slower than it could be, and that someone can do something about. The
  // power cap is not one: a busy GPU is expected to be at it.
  local held = ['reason', '=~', 'hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown'];
  {
    name: 'gpufleet',
    select(name, matchers, slice=false):: promql.metric(name, matchers),
    // Its series have the vocabulary's labels already.
    rename(expr, slice):: expr,

    owners:: fill('%s\nor on (%s)\n%s', [
      promql.max(promql.ownerLabels, promql.metric('gpu_owner_share')),
      promql.level(['uuid']),
      // Without a source of owners a GPU still has a node.
      promql.max(['node', 'gpu', 'uuid'], promql.metric('gpu_info')),
    ]),
    // Each exporter that tells of GPUs, by its target and node.
    exporters:: promql.max(['job', 'instance', 'node'], promql.metric('gpufleet_node_info')),
    models:: promql.max(
      ['uuid', 'model'],
      fill('label_replace(%s, "model", "$1", "name", "(.+)")', promql.metric('gpu_info')),
    ),

    gpu: {
      up: entry.gauge('gpu_up'),
      state: entry.gauge('gpu_state'),
      busy: entry.integrated('gpu_utilization_ratio', 'gpu_busy_seconds_total'),
      sm_active: entry.integrated('gpu_sm_active_ratio', 'gpu_sm_active_seconds_total'),
      tensor_active: entry.integrated('gpu_tensor_active_ratio', 'gpu_tensor_active_seconds_total'),
      sm_occupancy: entry.gauge('gpu_sm_occupancy_ratio'),
      dram_active: entry.gauge('gpu_dram_active_ratio'),
      pipe_active: entry.gauge('gpu_pipe_active_ratio'),
      memory_busy: entry.gauge('gpu_memory_utilization_ratio'),
      encoder_busy: entry.gauge('gpu_encoder_utilization_ratio'),
      decoder_busy: entry.gauge('gpu_decoder_utilization_ratio'),
      processes: entry.gauge('gpu_processes'),

      sm_clock: entry.gauge('gpu_sm_clock_hertz'),
      sm_clock_max: entry.gauge('gpu_sm_clock_max_hertz'),
      memory_clock: entry.gauge('gpu_memory_clock_hertz'),
      throttled: entry.counter('gpu_clock_event_seconds_total', [held]),
      throttled_thermal: entry.counter(
        'gpu_clock_event_seconds_total', [['reason', '=~', 'sw_thermal_slowdown|hw_thermal_slowdown']]
      ),
      throttled_power_brake: entry.counter(
        'gpu_clock_event_seconds_total', [['reason', '=', 'hw_power_brake_slowdown']]
      ),
      power_capped: entry.counter('gpu_clock_event_seconds_total', [['reason', '=', 'sw_power_cap']]),
      clock_event: entry.counter('gpu_clock_event_seconds_total'),
      performance_state: entry.gauge('gpu_performance_state'),

      temperature: entry.gauge('gpu_temperature_celsius'),
      memory_temperature: entry.gauge('gpu_memory_temperature_celsius'),
      temperature_margin: entry.gauge('gpu_temperature_margin_celsius'),
      power: entry.gauge('gpu_power_watts'),
      power_limit: entry.gauge('gpu_power_limit_watts', [['limit', '=', 'enforced']]),
      energy: entry.counter('gpu_energy_joules_total'),
      fan: entry.gauge('gpu_fan_speed_ratio'),

      memory_used: entry.gauge('gpu_memory_used_bytes'),
      memory_free: entry.gauge('gpu_memory_free_bytes'),
      memory_reserved: entry.gauge('gpu_memory_reserved_bytes'),
      memory_total: entry.gauge('gpu_memory_total_bytes'),

      // The driver's sum is left out: it is there beside the parts.
      ecc_correctable: entry.counter('gpu_ecc_errors_total', [['type', '=', 'correctable'], ['location', '!=', 'total']]),
      ecc_uncorrectable: entry.counter(
        'gpu_ecc_errors_total', [['type', '=', 'uncorrectable'], ['location', '!=', 'total']]
      ),
      ecc_aggregate_uncorrectable: entry.gauge(
        'gpu_ecc_aggregate_errors', [['type', '=', 'uncorrectable'], ['location', '!=', 'total']]
      ),
      sram_exceeded: entry.gauge('gpu_ecc_sram_threshold_exceeded'),
      remapped_correctable: entry.gauge('gpu_remapped_rows', [['cause', '=', 'correctable']]),
      remapped_uncorrectable: entry.gauge('gpu_remapped_rows', [['cause', '=', 'uncorrectable']]),
      remap_pending: entry.gauge('gpu_row_remap_pending'),
      remap_failure: entry.gauge('gpu_row_remap_failure'),
      remap_banks: entry.gauge('gpu_row_remap_banks'),
      retired_pages: entry.gauge('gpu_retired_pages'),

      pcie_generation: entry.gauge('gpu_pcie_link_generation', [['kind', '=', 'current']]),
      pcie_generation_max: entry.gauge('gpu_pcie_link_generation', [['kind', '=', 'max']]),
      pcie_width: entry.gauge('gpu_pcie_link_width', [['kind', '=', 'current']]),
      pcie_width_max: entry.gauge('gpu_pcie_link_width', [['kind', '=', 'max']]),
      pcie_replays: entry.counter('gpu_pcie_replays_total'),
      pcie_transmit: entry.gauge('gpu_pcie_transmit_bytes_per_second'),
      pcie_receive: entry.gauge('gpu_pcie_receive_bytes_per_second'),
      nvlink_transmit: entry.counter('gpu_nvlink_transmit_bytes_total'),
      nvlink_receive: entry.counter('gpu_nvlink_receive_bytes_total'),
      nvlink_traffic: entry.sum('gpu_nvlink_transmit_bytes_total', 'gpu_nvlink_receive_bytes_total'),
      nvlink_active: entry.gauge('gpu_nvlink_links', [['state', '=', 'active']]),
      nvlink_inactive: entry.gauge('gpu_nvlink_links', [['state', '=', 'inactive']]),
      nvlink_errors: entry.counter('gpu_nvlink_errors_total'),
      nvlink_worst_link_errors: entry.counter('gpu_nvlink_worst_link_errors_total'),
      fabric_state: entry.gauge('gpu_fabric_state'),
      fabric_health: entry.gauge('gpu_fabric_health'),

      recovery_action: entry.gauge('gpu_recovery_action'),
      xid: entry.counter('gpu_xid_errors_total'),
      last_fault: entry.gauge('gpu_last_fault_timestamp_seconds'),
      mig_enabled: entry.gauge('gpu_mig_enabled'),
      price: entry.gauge('gpu_price_per_hour'),
    },
    slice: {
      sm_active: entry.integrated('gpu_mig_sm_active_ratio', 'gpu_mig_sm_active_seconds_total'),
      tensor_active: entry.integrated('gpu_mig_tensor_active_ratio', 'gpu_mig_tensor_active_seconds_total'),
      dram_active: entry.gauge('gpu_mig_dram_active_ratio'),
      memory_used: entry.gauge('gpu_mig_memory_used_bytes'),
      memory_total: entry.gauge('gpu_mig_memory_total_bytes'),
      compute_fraction: entry.gauge('gpu_mig_compute_fraction'),
    },
  }
