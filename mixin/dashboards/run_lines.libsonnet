// Charts of a run's nodes: a line for each node, or for each GPU of the pod that is chosen. Of runs with more nodes than
// lines are wanted, the spread of all and the nodes that stand out. One such chart for every reading, so that they can be
// read side by side.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local ofRun = [[config.clusterLabel, '=~', '$cluster'], 'run=~"$run"'];
  local ofNodes = ofRun + ['node=~"$node"'];
  local cluster = promql.level([]);
  local node = promql.level(['node']);

  // Nodes that stand out: those of the lowest means, or the highest.
  local few = 8;
  // What says that no pod is chosen: series without this label, which only the choice of all matches.
  local anyPod = 'workload_pod=~"$pod"';
  local own(pod) = dashboards.url('run', { run: '$run', pod: pod }) + '&${node:queryparam}&${lines:queryparam}';
  local links = {
    pod: panels.dataLink('Only the GPUs of this pod', own('${__field.labels.workload_pod}')),
    all: panels.dataLink('All pods', own('$__all')),
    node: panels.dataLink('Open node', dashboards.url('node', { node: '${__field.labels.node}' })),
    gpu: panels.dataLink('Open GPU', dashboards.url(
      'gpu', { node: '${__field.labels.node}', gpu: '${__field.labels.uuid}' }
    )),
  };

  // Nodes on which one pod of the run has GPUs: its line leads to the pod.
  local sole = fill('%s == 1', promql.count(['node'], promql.max(
    ['node', 'workload_pod'], promql.metric('run_gpu:gpu_share:max', ofNodes, '')
  )));
  // The same chart of every reading. by: the recorded series by node; pod: the series that is reduced to one for each
  // pod (of a recorded one), or null where only nodes are recorded; each: that of the GPUs of the chosen pod.
  local chart(title, description, unit, by, pod, each, extreme, empty, opts={}) =
    local nodes = promql.metric(by, ofNodes + [anyPod], '');
    local shown = fill('(%s and on (%s) %s <= $lines or %s)', [
      nodes,
      cluster,
      promql.count([], nodes),
      fill('%sk(%s, avg_over_time(%s[$__range] @ end()))', [extreme, few, nodes]),
    ]);
    local spread(q) = fill('%s and on (%s) %s > $lines', [
      promql.quantile(q, [], nodes),
      cluster,
      promql.count([], nodes),
    ]);
    panels.timeseries(
      title,
      description + ' Click a line for the GPUs of its pod.',
      unit,
      [
        panels.query(spread('0.1'), 'lowest tenth', name='low'),
        panels.query(spread('0.9'), 'highest tenth', name='high'),
        panels.query(spread('0.5'), 'median', name='median'),
        panels.query(fill('%s and on (%s) (%s and on (%s) %s)', [
          if pod != null then promql.aggregate(if extreme == 'bottom' then 'min' else 'max', ['node', 'workload_pod'], pod)
          else promql.join('(' + promql.max(
            ['node', 'workload_pod'] + config.runLabels, promql.metric('run_gpu:gpu_share:max', ofNodes, '')
          ) + ' > bool 0)', nodes, ['node'] + config.runLabels),
          node,
          shown,
          node,
          sole,
        ]), '{{node}}', name='pods'),
        panels.query(fill('%s unless on (%s) %s', [
          promql.aggregate(
            if extreme == 'bottom' then 'min' else 'max', ['node'], fill('%s and on (%s) %s', [nodes, node, shown])
          ),
          node,
          sole,
        ]), '{{node}}', name='nodes'),
        panels.query(if each == null then null else fill('%s unless on (%s) %s', [
          promql.max(['node', 'gpu', 'uuid', 'mig_uuid', 'workload_pod'], each),
          cluster,
          promql.metric('node_run:gpu_share:sum', ofRun + [anyPod], ''),
        ]), '{{node}} GPU {{gpu}}', name='gpus'),
      ],
      empty,
      {
        w: 8,
        h: 8,
        fill: 0,
        dataLinks: [links.pod, links.all, links.node],
        overrides: [
          panels.overrideQuery('gpus', { links: [links.all, links.gpu, links.node] }),
          panels.overrideQuery('nodes', { links: [links.node] }),
          panels.override('median', {
            color: panels.fixedColor(colors.grey),
            'custom.lineWidth': 3,
            links: [],
          }),
          panels.override('lowest tenth', {
            color: panels.fixedColor(colors.grey),
            'custom.lineWidth': 0,
            links: [],
          }),
          panels.override('highest tenth', {
            color: panels.fixedColor(colors.grey),
            'custom.lineWidth': 0,
            'custom.fillBelowTo': 'lowest tenth',
            'custom.fillOpacity': 25,
            links: [],
          }),
        ],
      } + opts,
    );

  {
    links:: links,
    // This dashboard with a pod chosen, and else as it is.
    withPod:: own,
    // Of a reading that is recorded for each holder, and for nodes as `by`.
    recorded(title, description, unit, by, series, empty, opts={}):: chart(
      title,
      description,
      unit,
      by,
      promql.metric(series, ofNodes, ''),
      promql.metric(series, ofNodes + [anyPod], ''),
      'bottom',
      empty,
      opts,
    ),
    // Of a reading that is recorded for nodes only; `each` is that of GPUs, by uuid.
    high(title, description, unit, by, each, empty, opts={}):: chart(
      title, description, unit, by, null, promql.attributed(each, ofNodes + [anyPod]), 'top', empty, opts
    ),
  }
