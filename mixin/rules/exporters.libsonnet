// Which exporters of GPUs there are, and whether they answer.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local promql = lib.promql;
  local target = ['job', 'instance'];
  local series = 'node_instance:gpu_exporter_up:max';

  [
    lib.rules.group('gpufleet-exporters', [
      // `up` of every target that has told of GPUs. One that has stopped to answer is known by what this rule itself
      // recorded before, for as long as it is a target: a window of a day over each exporter's own series would be read
      // in full every minute. Whoever answers at an address now is who it belongs to.
      lib.rules.record(series, promql.join(
        fill('((\n%s\nor on (%s)\nlast_over_time(%s[1h])\n) >= bool 0)', [
          lib.vocabulary.exporters,
          promql.level(target),
          series,
        ]),
        'up',
        target,
      )),
    ], interval=lib.config.evaluationInterval),
  ]
