// Where all GPU time and all money went, five minutes at a time: capacity = busy + unused + unmeasured + unallocated +
// unsliced + unavailable. Everything but capacity is counted, and unavailable is what is left: nodes that do not
// answer, and what is free on nodes that take no work.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local promql = lib.promql;
  local record = lib.rules.record;
  local run = config.runLabels;

  // Nobody's; (unknown) is somebody's.
  local held = '{project!~"[(](unallocated|unsliced)[)]"}';
  local seconds = 'cluster:gpu_seconds:increase5m';
  local money = 'cluster:gpu_capacity_cost:increase5m';
  local capacity = 'cluster:gpu_capacity_seconds:increase5m';
  local allocated = 'run:gpu_allocated_seconds:increase5m';
  local productive = 'run:gpu_productive_seconds:increase5m';
  local cost = 'run:gpu_cost:increase5m';
  local unused = 'run:gpu_unused_cost:increase5m';

  // 0 where there is none, so that states can be added up.
  local orZero(expr) = fill('%s\nor\n0 * %s', [expr, capacity]);
  local time(state, expr) = record(seconds, expr, { state: state });
  local priced(state, expr) = record(money, expr, { state: state });
  local unmeasured(series) =
    fill('%s%s\nunless on (%s)\n%s', [series, held, promql.level(run), productive]);

  local schedulable = promql.metric('kube_node_spec_unschedulable', [], config.kubeStateMetricsSelector);

  [
    lib.rules.group('gpufleet-capacity', [
      record(
        'node:metered_gpus:count',
        promql.count(['node'], promql.max(['node', 'uuid'], promql.metric('gpu_allocated_seconds_total'))),
      ),
      record(
        capacity,
        '300 * ' + promql.sum([], fill('max_over_time(node:metered_gpus:count[%s])', config.capacityLookback)),
      ),
      record('cluster:gpu_cordoned_seconds:increase5m', orZero(
        '300 * ' + promql.sum(
          [],
          fill('node_run:gpu_share:sum{project="(unallocated)"} and on (%s) %s == 1', [promql.level(['node']), schedulable]),
        )
      )),
      time('busy', orZero(promql.sum([], productive + held))),
      time('unused', orZero(promql.sum([], fill('clamp_min(%s%s - %s, 0)', [allocated, held, productive])))),
      time('unmeasured', orZero(promql.sum([], unmeasured(allocated)))),
      time('unallocated', fill('clamp_min(\n  (%s)\n  -\n  cluster:gpu_cordoned_seconds:increase5m,\n  0\n)', [
        orZero(promql.sum([], allocated + '{project="(unallocated)"}')),
      ])),
      time('unsliced', orZero(promql.sum([], allocated + '{project="(unsliced)"}'))),
      time('unavailable', fill('clamp_min(%s - %s, 0)', [capacity, promql.sum([], seconds + '{state!="unavailable"}')])),

      priced('busy', promql.sum(
        ['currency'],
        fill('clamp_min(%s%s - on (%s) %s, 0)', [
          cost,
          held,
          promql.level(run + ['currency']),
          promql.sum(run + ['currency'], unused),
        ])
      )),
      priced('unused', promql.sum(['currency'], unused)),
      priced('unmeasured', promql.sum(['currency'], unmeasured(cost))),
      priced('unallocated', promql.sum(['currency'], cost + '{project="(unallocated)"}')),
      priced('unsliced', promql.sum(['currency'], cost + '{project="(unsliced)"}')),
      // At the mean price of what was counted: what does not answer has no price of its own.
      priced('unavailable', promql.join(
        promql.join(
          promql.sum(['currency'], cost),
          fill('%s > 0', promql.sum([], allocated)),
          [],
          '/',
        ),
        seconds + '{state="unavailable"}',
        [],
      )),
    ], interval='5m'),

    lib.rules.group('gpufleet-rollups', [
      record('project:gpu_allocated_seconds:increase5m', promql.sum(['project'], allocated)),
      record('project:gpu_productive_seconds:increase5m', promql.sum(['project'], productive)),
      record('project:gpu_cost:increase5m', promql.sum(['project', 'currency'], cost)),
      record('project:gpu_unused_cost:increase5m', promql.sum(['project', 'currency'], unused)),
      record('cluster:gpu_cost:increase5m', promql.sum(['currency'], cost)),
      record('cluster:gpu_unused_cost:increase5m', promql.sum(['currency'], unused)),
    ], interval='5m'),
  ]
