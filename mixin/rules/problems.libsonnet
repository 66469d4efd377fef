// What is wrong with which GPU, one series for each GPU and problem, and none where nothing is: so that every alert
// about a GPU reads a few series, and where the GPU is gets looked up once.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local gpu = lib.vocabulary.gpu;
  local record = lib.rules.record;
  local level = promql.level(['uuid']);
  local problem(name, expr) = record('gpu:problem:max', expr, { problem: name });
  local has(words, expr) = if std.length([w for w in words if !gpu.has(w)]) > 0 then null else expr;

  // 1 where one of the states is the present one.
  local flagged(word, matchers) = if !gpu.has(word) then null else promql.max(['uuid'], gpu.now(word, matchers)) + ' == 1';
  local flag(word) = if !gpu.has(word) then null else gpu.now(word) + ' == 1';
  local reboot = 'action=~"node_reboot|system_reboot|bus_reset"';
  local busy = fill('max by (%s) (run_gpu:gpu_busy:ratio_rate5m) > %s', [level, thresholds.busy]);
  local above(word, limit) = if !gpu.has(word) then null else fill('%s > %s', [gpu.mean(word), limit]);
  local whenBusy(expr) = if expr == null || !gpu.has('busy') then expr else fill('%s\nand on (%s)\n%s', [expr, level, busy]);
  local links = if !gpu.has('nvlink_active') then null else promql.join(
    fill('(%s)', lib.vocabulary.models), gpu.now('nvlink_active')
  );
  local recoveries = if !gpu.has('nvlink_errors') then null else promql.sum(
    ['uuid'], gpu.events('nvlink_errors', '1h', ['error=~"recovery|recovery_total|replay"'])
  );

  [
    lib.rules.group('gpufleet-problems', [
      problem('not_answering', flagged('state', ['state=~"hung|driver_blocked"'])),
      problem('lost', flagged('state', ['state=~"lost|gone"'])),
      problem('reboot_required', flagged('recovery_action', [reboot])),
      problem('reset_required', (
        // Only one of the eight members is read: `none` is 0 where there is something to do.
        if !gpu.has('recovery_action') then null else fill('1 - (%s == 0)\nunless on (%s)\n(%s)', [
          promql.max(['uuid'], gpu.now('recovery_action', ['action="none"'])),
          level,
          flagged('recovery_action', [reboot]),
        ])
      )),
      problem('ecc_uncorrectable', (
        if !gpu.has('ecc_uncorrectable') then null
        else promql.sum(['uuid'], gpu.events('ecc_uncorrectable', config.rateInterval)) + ' > 0'
      )),
      problem('remap_failure', flag('remap_failure')),
      problem('remap_pending', flag('remap_pending')),
      problem('sram_exceeded', flag('sram_exceeded')),
      problem('pcie_narrow', has(
        ['pcie_width', 'pcie_width_max'],
        fill('%s\n<\n%s', [gpu.now('pcie_width'), gpu.now('pcie_width_max')]),
      )),
      // The link of an idle GPU is slow by design.
      problem('pcie_slow', whenBusy(has(
        ['pcie_generation', 'pcie_generation_max'],
        fill('%s\n<\n%s', [gpu.now('pcie_generation'), gpu.now('pcie_generation_max')]),
      ))),
      problem('throttled_thermal', whenBusy(above('throttled_thermal', thresholds.throttled))),
      problem('throttled_power_brake', above('throttled_power_brake', thresholds.powerBrake)),
      problem('xid', (
        // gpufleet folds them into incidents. Only codes that no application can cause.
        if std.member(config.sources, 'gpufleet') || !gpu.has('xid') then null else promql.sum(
          ['uuid'], gpu.events('xid', '15m', ['xid=~"48|62|63|64|74|79|92|94|95|110|119|120|140|143|149|151|154|158"'])
        ) + ' > 0'
      )),
      // For ten minutes more: what is recorded each five minutes may be missed by a moment.
      record('gpu:suspect:info', fill('(%s)\nand on (%s)\n(%s)', [
        promql.gpus,
        level,
        'last_over_time(gpu:problem:max[10m]) or last_over_time(gpu:risk:sum[10m])',
      ])),
    ], interval=config.evaluationInterval),

    // What takes an hour of samples, or a look at all peers, every five minutes.
    lib.rules.group('gpufleet-links', [
      // Fewer links than the best of its model in the cluster: models differ, and a board may have none in use.
      problem('nvlink_down', if links == null then null else promql.join(
        fill('(%s)', links), promql.max(['model'], links), ['model'], '<'
      )),
      problem('nvlink_errors', if recoveries == null then null else fill('%s\n> %s', [
        recoveries,
        thresholds.nvlinkErrorsPerHour,
      ])),
    ], interval='5m'),
  ]
