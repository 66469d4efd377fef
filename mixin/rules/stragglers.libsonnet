// Which node do the others of a run wait for? A node is slow by its slowest GPU, in clocks over the highest clock of
// that GPU, so that models can be mixed; it is a straggler if it is slower than the run's median by more than the
// run's own spread, and is held back at that. Peers that wait have the highest clocks and the least activity: neither
// says that a node is slow.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local gpu = lib.vocabulary.gpu;
  local record = lib.rules.record;
  local run = config.runLabels;
  local nodeRun = ['node'] + run;

  local clock = if gpu.has('sm_clock_max') then 'node_run:sm_clock:ratio_min5m' else null;
  local ifClock(expr) = if clock == null then null else expr;
  local spread = fill('%s * 1.48 * run:sm_clock:ratio_mad5m', thresholds.stragglerSpread);
  local floor = fill('%s * run:sm_clock:ratio_median5m', thresholds.stragglerDeficit);

  // The fewest are looked at first: most GPUs that have work compute.
  local waits = [
    fill('run_gpu:gpu_sm_active:ratio_rate5m{run!=""} < %s', thresholds.waitingSmActive),
    fill('run_gpu:gpu_busy:ratio_rate5m{run!=""} > %s', thresholds.waitingBusy),
  ] + (
    if gpu.has('tensor_active')
    then [fill('run_gpu:gpu_tensor_active:ratio_rate5m{run!=""} < %s', thresholds.waitingTensorActive)] else []
  );

  [
    lib.rules.group('gpufleet-stragglers', [
      record('run:nodes:count', promql.count(run, 'node_run:gpu_share:sum{run!=""}')),
      record('node_run:sm_clock:ratio_min5m', ifClock(promql.min(nodeRun, 'run_gpu:sm_clock:ratio_avg5m{run!=""}'))),
      record('node_run:throttled:ratio_max5m', promql.max(
        nodeRun, promql.attributed(gpu.mean('throttled'), ['run!=""'])
      )),
      record('run:sm_clock:ratio_median5m', ifClock(promql.quantile('0.5', run, clock))),
      record(
        'run:sm_clock:ratio_mad5m',
        ifClock(promql.quantile('0.5', run, fill('abs(%s)', promql.join(clock, 'run:sm_clock:ratio_median5m', run, '-')))),
      ),
      // Above 0 a node is slower than the run's spread and the floor allow; only where there are peers enough.
      record(
        'node_run:straggler_deficit:ratio',
        ifClock(
          promql.join(
            fill('-(%s)', promql.join(clock, 'run:sm_clock:ratio_median5m', run, '-')),
            promql.larger(spread, floor),
            run,
            '-',
          ) + fill('\nand on (%s)\nrun:nodes:count >= %s', [promql.level(run), thresholds.stragglerNodes])
        ),
      ),
      // Kernels run (they spin in a collective), and compute nothing.
      record(
        'node_run:waiting_gpus:sum',
        if gpu.has('sm_active')
        then promql.sum(
          nodeRun, 'run_gpu:gpu_share:max{run!=""}\nand (' + std.join('\nand ', ['(' + each + ')' for each in waits]) + ')'
        ) + '\nor\n0 * node_run:gpu_sm_active_share:sum{run!=""}',
      ),
      record(
        'node_run:waiting_in_collective:ratio',
        if gpu.has('sm_active')
        then 'node_run:waiting_gpus:sum / (node_run:gpu_sm_active_share:sum > 0)',
      ),
      record(
        'run:waiting_in_collective:ratio',
        if gpu.has('sm_active')
        then fill('%s\n/\n(%s > 0)', [
          promql.sum(run, 'node_run:waiting_gpus:sum'),
          promql.sum(run, 'node_run:gpu_sm_active_share:sum{run!=""}'),
        ]),
      ),
      record('node_run:gpu_temperature_celsius:max', promql.max(nodeRun, promql.attributed(gpu.now('temperature')))),
      record('node_run:gpu_power_watts:sum', promql.sum(nodeRun, promql.shared(gpu.now('power')))),
      record('node:gpu_power_watts:sum', promql.sum(['node'], 'node_run:gpu_power_watts:sum')),
      record('node:gpu_temperature_celsius:max', promql.max(['node'], 'node_run:gpu_temperature_celsius:max')),
    ], interval=config.readingsInterval),
  ]
