// What both generations of dcgm-exporter's metrics have in common: labels, and who holds a GPU.
local promqlOf = import '../lib/promql.libsonnet';

function(config)
  local promql = promqlOf(config);
  // Of the vocabulary's labels, what dcgm-exporter calls them.
  local labels = { uuid: 'UUID' };
  local renamed(m) = if std.isArray(m) && std.objectHas(labels, m[0]) then [labels[m[0]]] + m[1:] else m;
  local replaced(expr, label, from, pattern='(.+)') =
    'label_replace(' + expr + ', "' + label + '", "$1", "' + from + '", "' + pattern + '")';
  {
    // A GPU with MIG is there twice: once itself, and once for each slice, with GPU_I_ID. One is never taken for the
    // other.
    select(name, matchers, slice=false)::
      promql.metric(
        name, std.map(renamed, matchers) + [['GPU_I_ID', if slice then '!=' else '=', '']], config.dcgmSelector
      ),
    rename(expr, slice)::
      local whole = replaced(expr, 'uuid', 'UUID');
      if slice then replaced(whole, 'mig_uuid', 'GPU_I_ID') else whole,

    // From the labels of `metric`, which every GPU has. A GPU of several holders has a series for each of them, or
    // the same one: each holds an equal part. Who holds a MIG slice can't be told in a share of the GPU.
    owners(metric)::
      local renames =
        [['uuid', 'UUID', '(.+)']]
        + [['node', label, '(.+)'] for label in config.dcgmNodeLabels]
        + [
          ['workload_pod', config.dcgmPodLabel, '(.+)'],
          ['workload_namespace', config.dcgmNamespaceLabel, '(.+)'],
          ['project', config.dcgmNamespaceLabel, '(.+)'],
          // Pods of one run are told by their names: web-0 and web-1, train-0-x7k2p and train-1-9qwrt.
          ['run', config.dcgmPodLabel, '(.+?)(?:-[0-9]+)?(?:-[a-z0-9]{5})?'],
        ]
        + (if config.dcgmJobLabel == '' then [] else [['run', config.dcgmJobLabel, '(.+)']]);
      local holders = promql.aggregate(
        'group',
        promql.ownerLabels,
        std.foldl(function(expr, r) replaced(expr, r[0], r[1], r[2]), renames, self.select(metric, [])),
      );
      promql.join(holders, promql.count(['uuid'], holders), op='/'),
    // Each exporter by its target and node.
    exporters(metric)::
      promql.max(['job', 'instance', 'node'], std.foldl(
        function(expr, label) replaced(expr, 'node', label), config.dcgmNodeLabels, self.select(metric, [])
      )),
    models(metric)::
      promql.max(['uuid', 'model'], replaced(self.rename(self.select(metric, []), false), 'model', 'modelName')),
  }
