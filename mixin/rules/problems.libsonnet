// What is wrong with which GPU, one series for each GPU and problem, and none where nothing is: so that every alert
// about a GPU reads a few series, and where the GPU is gets looked up once.
local fill = import '../lib/fill.libsonnet';
local xids = import '../lib/xids.libsonnet';

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
  local flagged(word, matchers) =
    if !gpu.has(word) then null else promql.max(['uuid'], gpu.now(word, matchers, '== 1'));
  local flag(word) = if !gpu.has(word) then null else gpu.now(word, condition='== 1');
  local above(word, limit) = if !gpu.has(word) then null else gpu.mean(word, condition=fill('> %s', limit));
  local reboot = 'action=~"node_reboot|system_reboot|bus_reset"';
  local busy = 'run_gpu:gpu_busy:ratio_rate5m';
  // While MIG is on the driver does not say whether the GPU is busy; its slices may.
  local whenBusy(expr) = if expr == null || !gpu.has('busy') then expr else fill('%s\nand on (%s)\n%s', [
    expr,
    level,
    (
      if lib.vocabulary.slice.has('sm_active')
      then fill('(%s > %s or run_gpu:gpu_sm_active:ratio_rate5m{mig_uuid!=""} > %s)', [busy, thresholds.busy, thresholds.busy])
      else fill('%s > %s', [busy, thresholds.busy])
    ),
  ]);
  local unlessIdle(expr) = if expr == null || !gpu.has('busy') then expr
  else fill('%s\nunless on (%s)\n%s <= %s', [expr, level, busy, thresholds.busy]);
  local byModel(expr) = promql.join(fill('(%s)', lib.vocabulary.models), expr);
  local down(condition='') =
    if !gpu.has('nvlink_inactive') then null else byModel(gpu.now('nvlink_inactive', condition=condition));
  // A difference of two samples: an increase over an hour would read all of them, of every GPU.
  local retries = ['error=~"recovery|recovery_total|replay"'];
  local recoveries(condition='') =
    if !gpu.has('nvlink_errors') then null else promql.sum(['uuid'], fill('%s\n-\n%s%s', [
      gpu.total('nvlink_errors', retries),
      gpu.before('nvlink_errors', '1h', retries),
      condition,
    ]));

  // gpufleet folds Xids into incidents: only of GPUs that it does not see. dcgm-exporter begins to count at the first
  // one, which increase() does not see: so what is there for the first time counts, too, on a GPU that was there.
  local reported(codes) = if config.sources == ['gpufleet'] || !gpu.has('xid') then null else
    local matchers = [fill('xid=~"%s"', codes)];
    local seen = fill('(%s > 0\nor\n(%s > 0 unless on (%s)\n%s\nand on (%s)\n%s))', [
      gpu.events('xid', '15m', matchers),
      gpu.total('xid', matchers),
      promql.level(['uuid', 'xid']),
      gpu.before('xid', '15m', matchers),
      level,
      promql.ago(promql.owners(), '15m'),
    ]);
    promql.sum(['uuid'], if !std.member(config.sources, 'gpufleet') then seen else fill('%s\nunless on (%s)\n%s', [
      seen,
      level,
      promql.metric('gpu_info'),
    ])) + ' > 0';

  [
    lib.rules.group('gpufleet-problems', [
      problem('not_answering', flagged('state', ['state=~"hung|driver_blocked"'])),
      problem('lost', flagged('state', ['state=~"lost|gone"'])),
      problem('reboot_required', flagged('recovery_action', [reboot])),
      problem('reset_required', (
        // Only one of the members is read: `none` is 0 where there is something to do.
        if !gpu.has('recovery_action') then null else fill('1 - %s\nunless on (%s)\n%s', [
          promql.max(['uuid'], gpu.now('recovery_action', ['action="none"'], '== 0')),
          level,
          'gpu:problem:max{problem="reboot_required"}',
        ])
      )),
      problem('ecc_uncorrectable', (
        if !gpu.has('ecc_uncorrectable') then null
        else promql.sum(['uuid'], gpu.events('ecc_uncorrectable', config.rateInterval, condition='> 0'))
      )),
      problem('remap_failure', flag('remap_failure')),
      problem('remap_pending', flag('remap_pending')),
      problem('sram_exceeded', flag('sram_exceeded')),
      problem('xid', reported(xids.fatal)),
      problem('xid_degraded', reported(xids.degraded)),
      // For ten minutes more: what is recorded each five minutes may be missed by a moment.
      record('gpu:suspect:info', fill('(%s)\nand on (%s)\n(%s)', [
        promql.gpus,
        level,
        'last_over_time(gpu:problem:max[10m]) or last_over_time(gpu:risk:sum[10m])',
      ])),
    ], interval=config.evaluationInterval),

    // What takes an hour of samples, a look at all peers, or two readings of every GPU, and can wait: every five minutes.
    lib.rules.group('gpufleet-links', [
      problem('pcie_narrow', has(
        ['pcie_width', 'pcie_width_max'],
        fill('%s\n<\n%s', [gpu.now('pcie_width'), gpu.now('pcie_width_max')]),
      )),
      // The link of an idle GPU is slow by design.
      problem('pcie_slow', whenBusy(has(
        ['pcie_generation', 'pcie_generation_max'],
        fill('%s\n<\n%s', [gpu.now('pcie_generation'), gpu.now('pcie_generation_max')]),
      ))),
      // Where nobody can say whether it is busy, it is taken to be: heat does not come from nothing.
      problem('throttled_thermal', unlessIdle(above('throttled_thermal', thresholds.throttled))),
      problem('throttled_power_brake', above('throttled_power_brake', thresholds.powerBrake)),
      // More links down than on the best of its model in the cluster: boards of some models have links that are never
      // connected. A link that sleeps is not down.
      record('model:nvlink_inactive:min', if down() == null then null else promql.min(['model'], down())),
      problem('nvlink_down', if down() == null then null else promql.max(['uuid'], promql.join(
        fill('(%s)', down('> 0')), 'model:nvlink_inactive:min', ['model'], '>'
      ))),
      // What most of a model do is no GPU's trouble; of a handful nobody can say what most do.
      record('model:nvlink_recoveries:median1h', if recoveries() == null then null else fill('%s\nand\nmodel:gpus:count >= 8', [
        promql.quantile(0.5, ['model'], byModel(recoveries())),
      ])),
      problem('nvlink_errors', if recoveries() == null then null else promql.max(['uuid'], promql.join(
        fill('(%s)', byModel(fill('(%s) > %s', [recoveries(' > 0'), thresholds.nvlinkErrorsPerHour]))),
        fill('%s * model:nvlink_recoveries:median1h or 0 * model:gpus:count', [thresholds.nvlinkErrorsOverMedian]),
        ['model'],
        '>',
      ))),
    ], interval='5m'),
  ]
