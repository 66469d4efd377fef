// What is wrong with a GPU that is no incident of the driver's: from what each poll reads. One alert for each GPU and
// problem, whoever holds it.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local gpu = lib.vocabulary.gpu;
  local alert = lib.rules.alert;
  local known = lib.recorded.problems;
  // One problem, or several as `a|b`.
  local about(problem, window='') =
    local present = [each for each in std.split(problem, '|') if std.setMember(each, known)];
    if std.length(present) == 0 then null else
      local operator = if std.length(present) == 1 then '=' else '=~';
      local series = 'gpu:problem:max{problem' + operator + '"' + std.join('|', present) + '"}';
      promql.join('gpu:suspect:info', if window == '' then series else 'last_over_time(' + series + '[' + window + '])')
      + ' > 0';
  local it = lib.rules.gpuOfNode;
  local runs = lib.rules.itsRuns;
  local ours = std.member(config.sources, 'gpufleet');

  [
    lib.rules.group('gpufleet-health', [
      alert(
        'GpuNotAnswering',
        about('not_answering'),
        'critical',
        'infra',
        'A GPU does not answer its driver.',
        it + " has not answered for two minutes: a call to the driver hangs, its own or another GPU's." + runs,
        wait='2m',
      ),
      alert(
        'GpuLost',
        about('lost'),
        'critical',
        'infra',
        'A GPU has fallen off the bus or is gone.',
        it + ' is lost or gone.' + runs,
        wait='2m',
      ),
      alert(
        'GpusMissing',
        if !ours then null else promql.max(['node'], promql.onNode(fill('(%s - %s > 0)', [
          promql.max(['instance'], promql.metric('gpu_count_expected')),
          promql.max(['instance'], promql.metric('gpu_count_visible')),
        ]))),
        'critical',
        'infra',
        'A node has fewer working GPUs than it should have.',
        'Node {{ $labels.node }} misses {{ $value }} of its GPUs.',
        wait='2m',
      ),
      alert(
        'GpuRecoveryActionRequired',
        about('reboot_required'),
        'critical',
        'infra',
        'The driver wants a reset or a reboot before a GPU can be used.',
        it + ' needs its node rebooted, or its bus reset, says the driver.' + runs,
        wait='1m',
      ),
      alert(
        'GpuRecoveryActionRequired',
        about('reset_required'),
        'warning',
        'infra',
        'The driver wants a reset or a reboot before a GPU can be used.',
        it + ': its driver asks for'
        + '{{ with printf `gpu_recovery_action{uuid=%q,action!="none"} == 1` $labels.uuid | query }}'
        + '{{ with first . }} {{ .Labels.action }}{{ end }}{{ else }} a reset{{ end }}.' + runs,
        wait='1m',
      ),
      alert(
        'GpuEccUncorrectable',
        about('ecc_uncorrectable'),
        'warning',
        'infra',
        'A GPU has had memory errors that could not be corrected.',
        it + ' had {{ printf "%.0f" $value }} uncorrectable memory errors in five minutes.' + runs,
        keepFiringFor='1h',
      ),
      alert(
        'GpuRowRemapFailed',
        about('remap_failure'),
        'critical',
        'infra',
        'A GPU has no spare row left for a broken one and must be replaced.',
        it + ' could not replace a row of its memory.' + runs,
        wait='5m',
      ),
      alert(
        'GpuRowRemapPending',
        about('remap_pending'),
        'warning',
        'infra',
        'A GPU has to be reset to replace a broken row of its memory.',
        it + ' waits for a reset to replace a row. It works until then.' + runs,
        wait='30m',
      ),
      alert(
        'GpuSramThresholdExceeded',
        about('sram_exceeded'),
        'critical',
        'infra',
        'A GPU has had more SRAM errors than its maker accepts and must be replaced.',
        it + ' is over the threshold of uncorrectable SRAM errors.' + runs,
        wait='5m',
      ),
      alert(
        'GpuNvlinkDegraded',
        about('nvlink_down', '10m'),
        'warning',
        'infra',
        'A GPU has fewer NVLinks up than others of its model.',
        it + ' has {{ $value }} NVLinks down, others of its model in this cluster have fewer.' + runs,
        wait='10m',
      ),
      alert(
        'GpuNvlinkErrors',
        about('nvlink_errors', '10m'),
        'warning',
        'infra',
        'The NVLinks of a GPU recover from errors again and again.',
        it + ' had {{ printf "%.0f" $value }} replays and recoveries on its NVLinks in an hour, far more than others of its model.' + runs,
        wait='10m',
      ),
      alert(
        'GpuPcieDegraded',
        about('pcie_narrow|pcie_slow', '10m'),
        'warning',
        'infra',
        'A GPU is connected by fewer PCIe lanes, or at a lower speed, than it can be.',
        it + ' uses fewer PCIe lanes than it has or, though it is busy, a lower speed:'
        + '{{ with printf `last_over_time(gpu:problem:max{problem=~"pcie_.*",uuid=%q}[10m])` $labels.uuid | query | sortByLabel "problem" }}{{ range . }} '
        + '{{ .Labels.problem }} ({{ .Value }}){{ end }}{{ end }}.' + runs,
        wait='15m',
      ),
      alert(
        'GpuThermalThrottling',
        about('throttled_thermal', '6m'),
        'warning',
        'infra',
        'Heat slows a busy GPU down.',
        it + ' was slowed down by heat for {{ $value | humanizePercentage }} of the time.' + runs,
        wait='15m',
      ),
      alert(
        'GpuPowerBrake',
        about('throttled_power_brake', '6m'),
        'warning',
        'infra',
        'A power supply slows GPUs down.',
        it + ' was slowed down by the power brake for {{ $value | humanizePercentage }} of the time.' + runs,
        wait='10m',
      ),
      alert(
        'GpuPowerBrake',
        if !std.setMember('throttled_power_brake', known) then null
        else promql.count([], promql.count(['node'], about('throttled_power_brake', '6m')))
             + fill(' >= %s', thresholds.powerBrakeNodes),
        'critical',
        'infra',
        'A power supply slows GPUs down.',
        'The power brake is on at {{ $value }} nodes at once: look at the power of the room or the rack, not at a node.',
        wait='10m',
      ),
      alert(
        'GpuHardwareXid',
        about('xid'),
        'critical',
        'infra',
        'The driver has reported an error that only hardware causes.',
        it + ' had {{ printf "%.0f" $value }} Xids in 15 minutes after which it must get no work.' + runs,
        keepFiringFor='30m',
      ),
      alert(
        'GpuHardwareXid',
        about('xid_degraded'),
        'warning',
        'infra',
        'The driver has reported an error that only hardware causes.',
        it + ' had {{ printf "%.0f" $value }} Xids in 15 minutes after which it works on, and should be reset when free.' + runs,
        keepFiringFor='30m',
      ),
      alert(
        'GpuApplicationFault',
        if !ours then null else promql.max(
          ['node', 'gpu', 'uuid', 'incident', 'fault', 'project', 'run', 'task', 'workload_namespace', 'workload_pod'],
          promql.metric('gpu_fault_active', ['class="application"', 'isolate!="true"']),
        ) + ' > 0',
        'info',
        'ml',
        'A program has made the driver stop it; the hardware is well.',
        'Fault {{ $labels.fault }} on GPU {{ $labels.gpu }} of node {{ $labels.node }} comes from the program that ran there.'
        + '{{ with $labels.run }} Run: {{ . }}.{{ end }}'
        + '{{ with $labels.workload_pod }} Pod: {{ $labels.workload_namespace }}/{{ . }}.{{ end }}',
      ),
    ], interval=config.evaluationInterval),

    lib.rules.group('gpufleet-fleet', [
      alert(
        'GpuAtRisk',
        promql.join('gpu:suspect:info', 'last_over_time(gpu:risk:sum[10m])') + fill(' >= %s', thresholds.risk),
        'warning',
        'infra',
        'A GPU shows several signs that it will break.',
        it + ' shows:{{ with printf `last_over_time(gpu:risk_part:score{uuid=%q}[10m])` $labels.uuid | query | sortByLabel "part" }}'
        + '{{ range . }} {{ .Labels.part }} ({{ .Value }}){{ end }}{{ end }}; together {{ $value }}.' + runs,
        wait='1h',
      ),
      alert(
        'GpuFleetWideFault',
        if !ours then null else
          local nodes = promql.max(['node', 'driver_version'], promql.metric('gpufleet_node_info'));
          // What programs do to themselves they do everywhere at once, and it is nobody's page.
          local fault = promql.metric('gpu_fault_active', ['class!="application"']);
          local affected = promql.count(['driver_version'], promql.join(fill('(%s)', nodes), fill('%s\nunless on (%s)\n%s\nand on (%s)\n%s', [
            promql.max(['node', 'incident'], fault),
            promql.level(['node', 'incident']),
            promql.ago(fault, '30m'),
            // Of a node that is seen for the first time all faults are new, and none has to be.
            promql.level(['node']),
            fill('last_over_time(%s)', promql.ago(promql.metric('gpufleet_node_info') + '[30m]', '30m')),
          ]), ['node']));
          fill('(%s) >= %s\nand on (%s)\n(%s) >= %s * %s', [
            affected,
            thresholds.fleetWideNodes,
            promql.level(['driver_version']),
            affected,
            thresholds.fleetWidePart,
            promql.count(['driver_version'], nodes),
          ]),
        'critical',
        'infra',
        'Many nodes have had a new fault within half an hour.',
        '{{ $value }} nodes with driver {{ $labels.driver_version }} have had a new fault in 30 minutes: look for one cause.',
        wait='5m',
        keepFiringFor='1h',
      ),
      alert(
        'GpuQuarantineBudgetExhausted',
        // Where none may be, none is exhausted.
        if !ours then null else fill('%s > 0 >= %s', [
          promql.max([], promql.metric('gpufleet_quarantine_nodes')),
          promql.max([], promql.metric('gpufleet_quarantine_budget')),
        ]),
        'critical',
        'infra',
        'As many nodes are in quarantine as may be; further bad ones stay in use.',
        '{{ $value }} nodes are in quarantine, which is all that the policy allows.',
        wait='15m',
      ),
      alert(
        'GpuQuarantineBreakerOpen',
        if !ours then null else promql.max([], promql.metric('gpufleet_quarantine_breaker_open')) + ' == 1',
        'critical',
        'infra',
        'The quarantine has stopped itself: too many nodes fail in the same way.',
        'The breaker of the quarantine is open{{ with $labels.cluster }} in cluster {{ . }}{{ end }}: a person has to look '
        + 'and reset it.',
        wait='1m',
      ),
    ], interval=config.evaluationInterval),
  ]
