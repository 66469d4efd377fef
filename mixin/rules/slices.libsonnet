// Which runs would have fit a MIG slice, by the most that they used in the seven days before (or since they began),
// and the money that would have been returned. Only runs whose pods hold one whole GPU each: collectives do not run
// across slices.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local promql = lib.promql;
  local gpu = lib.vocabulary.gpu;
  local record = lib.rules.record;
  local run = lib.config.runLabels;
  local possible = gpu.has('memory_total') && gpu.has('sm_active') && gpu.has('mig_enabled');
  local whole = ['run!=""', 'mig_uuid=""'];

  // Sevenths of the multiprocessors and eighths of the memory, as on A100, H100 and newer; from the smallest.
  local slices = [
    { name: '1g', compute: '1 / 7', memory: '1 / 8' },
    { name: '2g', compute: '2 / 7', memory: '2 / 8' },
    { name: '3g', compute: '3 / 7', memory: '4 / 8' },
    { name: '4g', compute: '4 / 7', memory: '4 / 8' },
  ];
  local used = 'run:gpu_memory_used:ratio_max7d';
  local active = 'run:gpu_sm_active:ratio_max7d';
  local fits(slice) =
    fill('label_replace(0 * (%s <= %s and %s <= %s) + %s, "slice", "%s", "", "")', [
      used,
      slice.memory,
      active,
      slice.compute,
      // What a slice takes from others is the larger of its two parts.
      if slice.memory == '4 / 8' && slice.compute == '3 / 7' then '4 / 8'
      else slice.compute,
      slice.name,
    ]);
  local fit = 'run:gpu_slice_fit:ratio';

  if !possible then [] else [
    lib.rules.group('gpufleet-slices', [
      record('run:gpu_memory_used:ratio_max5m', promql.max(run, promql.attributed(
        fill('%s\n/\n(%s > 0)', [gpu.high('memory_used', '5m'), gpu.now('memory_total')]), whole
      ))),
      record('run:gpu_sm_active:ratio_max5m', promql.max(
        run, promql.metric('run_gpu:gpu_sm_active:ratio_rate5m', whole, '')
      )),
      record('run:gpu_memory_used:ratio_max1h', 'max_over_time(run:gpu_memory_used:ratio_max5m[1h])'),
      record('run:gpu_sm_active:ratio_max1h', 'max_over_time(run:gpu_sm_active:ratio_max5m[1h])'),
      record('run:gpu_memory_used:ratio_max7d', 'max_over_time(run:gpu_memory_used:ratio_max1h[7d:1h])'),
      record('run:gpu_sm_active:ratio_max7d', 'max_over_time(run:gpu_sm_active:ratio_max1h[7d:1h])'),
      record(
        'run:gpus_per_pod:max',
        promql.max(run, promql.count(
          run + ['workload_namespace', 'workload_pod'],
          fill('%s and on (%s) %s', [promql.owners(whole), promql.level(['uuid']), gpu.now('mig_enabled')]),
        )),
      ),
      record(
        fit,
        fill('(\n  %s\n)\nand on (%s)\nrun:gpus_per_pod:max == 1', [
          std.join(
            fill('\n  or on (%s)\n  ', promql.level(run)), std.map(fits, slices)
          ),
          promql.level(run),
        ]),
      ),
      record('run:gpu_slice_return_cost:increase5m', promql.join('run:gpu_cost:increase5m', '1 - ' + fit, run)),
    ], interval='5m'),
  ]
