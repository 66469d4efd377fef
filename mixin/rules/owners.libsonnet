// Who holds which GPU, joined once; what the GPUs do, for each holder; and from there every other level. These are
// all the series that there are one of for each GPU: everything else is recorded by node or by run.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local promql = lib.promql;
  local gpu = lib.vocabulary.gpu;
  local slice = lib.vocabulary.slice;
  local record = lib.rules.record;
  local nodeRun = ['node'] + config.runLabels;

  // Each holder with what its GPU does or, where it holds a slice, what the slice does. A slice's activity is shown
  // relative to the slice. What no slice covers does nothing that could be shown.
  local attributed(word) =
    if !gpu.has(word) then null
    else if !slice.has(word) then promql.attributed(gpu.mean(word))
    else promql.attributed(gpu.mean(word), ['mig_uuid=""', 'project!="(unsliced)"']) + '\nor\n' + promql.attributedSlices(slice.mean(word));

  // Sums of shares and of shares times a recorded reading: means of any level are one over the other.
  local weighted(name) =
    local series = fill('run_gpu:%s', name);
    [
      promql.sum(nodeRun, 'run_gpu:gpu_share:max * ' + series),
      promql.sum(nodeRun, 'run_gpu:gpu_share:max and ' + series),
    ];
  local readings = {
    gpu_busy: 'busy',
    gpu_sm_active: 'sm_active',
    gpu_tensor_active: 'tensor_active',
  };
  local names = [name for name in std.objectFields(readings) if gpu.has(readings[name])];
  local mean(name, labels, matchers='') = fill('%s\n/\n(%s > 0)', [
    promql.sum(labels, fill('node_run:%s_gpus:sum%s', [name, matchers])),
    promql.sum(labels, fill('node_run:%s_share:sum%s', [name, matchers])),
  ]);

  [
    lib.rules.group('gpufleet-owners', [
      record('run_gpu:gpu_share:max', lib.vocabulary.owners),
      record('node_run:gpu_share:sum', promql.sum(nodeRun, 'run_gpu:gpu_share:max')),
      record('node:gpus:count', promql.sum(['node'], 'node_run:gpu_share:sum')),
      record('run:gpu_share:sum', promql.sum(config.runLabels, 'node_run:gpu_share:sum')),
      record('cluster:gpus:count', promql.sum([], 'node:gpus:count')),
    ], interval=config.evaluationInterval),

    // Means over five minutes do not change much in one: this is most of what all rules together cost.
    lib.rules.group('gpufleet-readings', [
      record(fill('run_gpu:%s:ratio_rate5m', name), attributed(readings[name]))
      for name in names
    ] + [
      record(
        'run_gpu:sm_clock:ratio_avg5m',
        if gpu.has('sm_clock_max') then promql.attributed(
          fill('%s\n/\n%s', [gpu.mean('sm_clock'), fill('(%s > 0)', gpu.now('sm_clock_max'))])
        ),
      ),
    ] + std.flattenArrays([
      [
        record(fill('node_run:%s_gpus:sum', name), weighted(name + ':ratio_rate5m')[0]),
        record(fill('node_run:%s_share:sum', name), weighted(name + ':ratio_rate5m')[1]),
      ]
      for name in names
    ]), interval=config.readingsInterval),

    lib.rules.group('gpufleet-utilization', std.flattenArrays([
      [
        record(fill('node:%s:ratio_rate5m', name), mean(name, ['node'])),
        record(fill('run:%s:ratio_rate5m', name), mean(name, config.runLabels, '{run!=""}')),
        record(fill('node_run:%s:ratio_rate5m', name), mean(name, nodeRun, '{run!=""}')),
        record(fill('project:%s:ratio_rate5m', name), mean(name, ['project'])),
        record(fill('cluster:%s:ratio_rate5m', name), mean(name, [])),
      ]
      for name in names
    ]), interval=config.readingsInterval),

    lib.rules.group('gpufleet-models', [
      record('model:gpus:count', promql.count(['model'], lib.vocabulary.models)),
    ] + [
      record(
        fill('model:%s:ratio_rate5m', name),
        promql.avg(['model'], promql.join(
          fill('(%s)', lib.vocabulary.models),
          fill('avg by (%s) (run_gpu:%s:ratio_rate5m)', [promql.level(['uuid']), name]),
        )),
      )
      for name in names
    ], interval='5m'),
  ]
