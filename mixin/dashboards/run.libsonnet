// One run: is it healthy, busy and worth its money; which of its nodes do the others wait for; does it make progress.
// Its nodes share charts, and a pod that is chosen shows its GPUs in them.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local ofRun = here + ['run=~"$run"'];
  local ofNodes = ofRun + ['node=~"$node"'];
  local run(name, matchers=[]) = promql.metric(name, ofRun + matchers, '');
  local ours = std.member(config.sources, 'gpufleet');
  local podLevel = ['node', 'workload_pod'];
  local incidents = fill('%s or (%s and on (%s) %s)', [
    promql.metric('gpu_fault_active', ofRun),
    promql.metric('gpu_fault_active', here),
    promql.level(['uuid']),
    promql.owners(ofRun),
  ]);
  local anHour(expr) = fill('12 * sum(%s)', expr);
  local inAll(name) = fill('sum(sum_over_time(%s[$__range]))', run(name));

  local lines = (import 'run_lines.libsonnet')(lib);
  local toNode = panels.dataLink('Open node', dashboards.url('node', { node: '${__value.text}' }));

  local stat(title, description, unit, expr, empty, opts={}) =
    panels.stat(title, description, unit, [panels.query(expr, title)], empty, { w: 3, h: 3 } + opts);
  local line(title, description, unit, queries, empty, opts={}) =
    panels.timeseries(title, description, unit, queries, empty, { w: 8, h: 7, fill: 0 } + opts);
  local activity = [[null, colors.grey], [0.05, colors.orange], [0.3, colors.yellow], [0.6, colors.green]];
  local ratio = { min: 0, max: 1, decimals: 0 };
  local silent = 'The run does not report its steps.';
  local unpriced = 'No price book is configured.';
  local since(name) = fill('time() - max(%s)', run(name));
  local clocks = gpu.has('sm_clock_max');
  local waits = promql.metric('node_run:waiting_in_collective:ratio', ofNodes, '');
  local onNodes(series) = promql.metric(series, here + ['node=~"$node"'], '');
  // What is known of nodes, of those where the run, or its chosen pod, has GPUs.
  local ofPod(expr) = fill('(%s) and on (%s) %s', [
    expr,
    promql.level(['node']),
    promql.owners(ofNodes + ['workload_pod=~"$pod"']),
  ]);

  {
    'run.json': dashboards.dashboard(
      'run',
      'Run',
      'Whether one run is healthy, busy and worth its money, and which of its nodes the others wait for.',
      [
        dashboards.variables.oneRun,
        dashboards.variables.nodeOfRun,
        dashboards.variables.pod,
        {
          type: 'custom',
          name: 'lines',
          label: 'Lines at most',
          description: 'A run with more nodes is shown by its spread and by the nodes that stand out.',
          query: '16,32,64',
          current: { selected: true, text: '32', value: '32' },
          options: [
            { selected: number == '32', text: number, value: number }
            for number in ['16', '32', '64']
          ],
          multi: false,
          includeAll: false,
          hide: 0,
          skipUrlSync: false,
        },
      ],
      [
        {
          title: 'Is it healthy, busy, worth it',
          panels: [
            stat(
              'GPUs',
              'GPUs that the run holds, parts of shared ones added up.',
              'none',
              fill('sum(%s)', run('run:gpu_share:sum')),
              'The run holds no GPU now.',
              { decimals: 0 },
            ),
            stat(
              'SM active',
              'Part of the time in which a multiprocessor had work, over all GPUs of the run.',
              'percentunit',
              fill('avg(%s)', run('run:gpu_sm_active:ratio_rate5m')),
              'No source reports SM activity.',
              ratio { thresholds: activity },
            ),
            stat(
              'Tensor active',
              'Part of the cycles in which tensor cores were active, over all GPUs of the run.',
              'percentunit',
              if gpu.has('tensor_active') then fill('avg(%s)', run('run:gpu_tensor_active:ratio_rate5m')),
              'No source reports the activity of tensor cores.',
              ratio { thresholds: [[null, colors.neutral]] },
            ),
            stat(
              'Waiting',
              'Part of the GPUs that run kernels and compute nothing: they wait for others of the run.',
              'percentunit',
              if gpu.has('sm_active') then fill('avg(%s)', run('run:waiting_in_collective:ratio')),
              'No source reports SM activity.',
              ratio { thresholds: [[null, colors.good], [0.1, colors.attention], [0.3, colors.bad]] },
            ),
            stat(
              'Stragglers',
              'Nodes that are slower than the spread of the run and the floor allow.',
              'none',
              if clocks then fill('sum(%s > bool 0)', run('node_run:straggler_deficit:ratio')),
              'Only of three nodes or more.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]] },
            ),
            stat(
              'Open incidents',
              'Incidents that are not closed on GPUs that the run has, or had when they happened.',
              'none',
              if ours then fill('count(%s) or vector(0)', incidents),
              'No gpufleet is scraped.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]] },
            ),
            stat(
              'Cost an hour',
              'Price of the GPUs that the run holds, of the last five minutes, as an hour of it.',
              config.currencyUnit,
              anHour(run('run:gpu_cost:increase5m')),
              unpriced,
              { decimals: 2 },
            ),
            stat(
              'Unused an hour',
              'The part of it that was paid for and not used.',
              config.currencyUnit,
              anHour(run('run:gpu_unused_cost:increase5m')),
              unpriced,
              { decimals: 2, thresholds: [[null, colors.unused]] },
            ),
            stat(
              'Step',
              'Median duration of an optimizer step over a quarter of an hour.',
              's',
              if ours then fill('max(%s)', run('run:train_step_duration_seconds:median15m')),
              silent,
              { decimals: 2 },
            ),
            stat(
              'Last step',
              'Time since any rank has finished a step.',
              's',
              if ours then since('run:train_last_step_timestamp_seconds:max'),
              silent,
              {
                decimals: 0,
                thresholds: [[null, colors.good], [60, colors.attention], [config.thresholds.stalledSeconds, colors.bad]],
              },
            ),
            stat(
              'Tokens a second',
              'Tokens that all ranks train on.',
              'short',
              if ours then fill('sum(%s)', run('run:train_tokens:rate5m')),
              'The run does not report tokens.',
              { decimals: 0 },
            ),
            stat(
              'Loss',
              'Mean of the ranks, as last reported.',
              'none',
              if ours then fill('avg(%s)', run('run:train_loss:avg')),
              'The run does not report its loss.',
              { decimals: 3 },
            ),
            stat(
              'Checkpoint age',
              'Age of the last good checkpoint: what would be lost if the run broke now.',
              's',
              if ours then since('run:train_last_checkpoint_timestamp_seconds:max'),
              'The run has reported no checkpoint.',
              { decimals: 0, thresholds: [[null, colors.good], [config.thresholds.checkpointSeconds, colors.bad]] },
            ),
            stat(
              'Started again',
              'Times that the processes of the run were started again in the shown time.',
              'none',
              if ours then fill('max(increase(%s[$__range]))', promql.metric(
                'train_restarts_total', ofRun, config.trainingSelector
              )),
              silent,
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]] },
            ),
            stat(
              'Cost',
              'Price of the GPU time that the run held in the shown time.',
              config.currencyUnit,
              inAll('run:gpu_cost:increase5m'),
              unpriced,
              { decimals: 2 },
            ),
            stat(
              'Unused',
              'The part of it that was paid for and not used, in the shown time.',
              config.currencyUnit,
              inAll('run:gpu_unused_cost:increase5m'),
              unpriced,
              { decimals: 2, thresholds: [[null, colors.unused]] },
            ),
          ],
        },
        {
          title: 'What needs someone',
          panels: [
            panels.table(
              'Nodes, the slowest first',
              'A straggler is slower than the spread of the run and the floor allow, and the others wait for it: the node that '
              + 'waits least. Below the median: of the clock of its slowest GPU, over its highest clock.',
              [
                panels.row(if clocks then promql.max(
                  ['node'], fill('%s > bool 0', promql.metric('node_run:straggler_deficit:ratio', ofNodes, ''))
                )),
                panels.row(if clocks then promql.max(['node'], fill('1 - (%s)', promql.join(
                  promql.metric('node_run:sm_clock:ratio_min5m', ofNodes, ''),
                  run('run:sm_clock:ratio_median5m'),
                  config.runLabels,
                  '/',
                )))),
                panels.row(promql.max(['node'], promql.metric('node_run:throttled:ratio_max5m', ofNodes, ''))),
                panels.row(promql.max(['node'], promql.metric('node_run:gpu_temperature_celsius:max', ofNodes, ''))),
                panels.row(if gpu.has('sm_active') then promql.max(['node'], waits)),
              ],
              [
                { field: 'node', name: 'Node', link: toNode },
                {
                  field: 'Value #A',
                  name: 'Straggler',
                  width: 90,
                  cell: panels.cells.text,
                  color: { mode: 'thresholds' },
                  mappings: panels.mapValues({
                    '0': { text: 'no', color: colors.good },
                    '1': { text: 'yes', color: colors.bad },
                  }),
                  empty: 'too few',
                },
                { field: 'Value #B', name: 'Below median', unit: 'percentunit', decimals: 0, width: 130, empty: '–' },
                {
                  field: 'Value #C',
                  name: 'Held back',
                  unit: 'percentunit',
                  decimals: 0,
                  width: 90,
                  cell: panels.cells.text,
                  color: { mode: 'thresholds' },
                  thresholds: [[null, colors.neutral], [config.thresholds.stragglerThrottled, colors.bad]],
                  empty: '–',
                },
                { field: 'Value #D', name: 'Hottest', unit: 'celsius', decimals: 0, width: 80, empty: '–' },
                { field: 'Value #E', name: 'Waiting', unit: 'percentunit', decimals: 0, width: 80, empty: '–' },
              ],
              'The run holds no GPU now.',
              { w: 10, h: 6, sortBy: 'Below median' },
            ),
            panels.table(
              'Open incidents',
              'Incidents that are not closed on GPUs that the run has, or had when they happened, and what to do.',
              [panels.row(if ours then incidents)],
              [
                { field: 'node', name: 'Node', link: toNode, width: 110 },
                { field: 'gpu', name: 'GPU', width: 50 },
                { field: 'fault', name: 'Fault', width: 100 },
                { field: 'action', name: 'Do', width: 110 },
                { field: 'run', name: 'Had it', width: 80 },
              ],
              'No incident is open on GPUs of this run.',
              { w: 7, h: 6 },
            ),
            panels.table(
              'Who owns it',
              'Whose run it is: who is told of a fault of its own, and of money that it does not use.',
              [panels.row(if ours then promql.sum(
                ['project', 'task', 'workload_user', 'workload_namespace'],
                promql.join('(' + promql.max(
                  ['uuid', 'mig_uuid', 'workload_user', 'workload_namespace'] + config.runLabels,
                  promql.metric('gpu_owner_info', ofRun),
                ) + ')', promql.owners(ofRun), ['uuid', 'mig_uuid'] + config.runLabels),
              ) else promql.sum(['project', 'task', 'workload_namespace'], promql.owners(ofRun)))],
              [
                {
                  field: 'project',
                  name: 'Project',
                  width: 110,
                  link: panels.dataLink('Open cost', dashboards.url('cost', { project: '${__value.text}', run: '$run' })),
                },
                { field: 'task', name: 'Task', width: 90 },
                { field: 'workload_user', name: 'User', width: 80 },
                { field: 'workload_namespace', name: 'Namespace', width: 160 },
              ],
              'The run holds no GPU now.',
              { w: 7, h: 6 },
            ),
          ],
        },
        {
          title: 'Its nodes side by side, or the GPUs of the chosen pod',
          panels: [
            if clocks then lines.recorded(
              'SM clock',
              'Clock of the slowest GPU over its highest clock, means of five minutes. A line below the others makes the run wait.',
              'percentunit',
              'node_run:sm_clock:ratio_min5m',
              'run_gpu:sm_clock:ratio_avg5m',
              'No source reports clocks.',
              { max: 1 },
            ),
            if gpu.has('tensor_active') then lines.recorded(
              'Tensor activity',
              'Part of the cycles in which tensor cores were active, means of five minutes.',
              'percentunit',
              'node_run:gpu_tensor_active:ratio_rate5m',
              'run_gpu:gpu_tensor_active:ratio_rate5m',
              'No source reports the activity of tensor cores.',
              { min: 0 },
            ),
            lines.recorded(
              'SM activity',
              'Part of the time in which a multiprocessor had work, means of five minutes.',
              'percentunit',
              'node_run:gpu_sm_active:ratio_rate5m',
              'run_gpu:gpu_sm_active:ratio_rate5m',
              'No source reports SM activity.',
              { min: 0, max: 1 },
            ),
            lines.high(
              'Temperature',
              'Of the hottest GPU.',
              'celsius',
              'node_run:gpu_temperature_celsius:max',
              gpu.panel('temperature', here),
              'No source reports temperatures.',
            ),
            lines.high(
              'Power',
              'Power drawn by the GPUs of the run, added up for each node.',
              'watt',
              'node_run:gpu_power_watts:sum',
              gpu.panel('power', here),
              'No source reports power.',
              { min: 0 },
            ),
            lines.high(
              'Clocks held back',
              'Part of the time in which heat, the power brake or the board held the clocks of the worst GPU back.',
              'percentunit',
              'node_run:throttled:ratio_max5m',
              gpu.mean('throttled', '$__rate_interval', here),
              'No source counts throttling.',
              { min: 0, max: 1 },
            ),
          ],
        },
        {
          title: 'Progress',
          panels: if !ours then [] else [
            line(
              'Duration of a step',
              'Median of the run over a quarter of an hour, and the five nodes whose steps take longest.',
              's',
              [
                panels.query(run('run:train_step_duration_seconds:median15m'), 'median'),
                panels.query(fill('topk(5, %s)', promql.max(
                  ['node'], promql.metric('node_run:train_step_duration_seconds:mean5m', ofNodes, '')
                )), '{{node}}'),
              ],
              silent,
              { min: 0, overrides: [panels.override('median', { 'custom.lineWidth': 3, color: panels.fixedColor(colors.grey) })] },
            ),
            line(
              'Steps a second',
              'Steps of the fastest rank: ranks step together.',
              'short',
              [panels.query(run('run:train_steps:rate5m'), 'steps a second')],
              silent,
              { min: 0 },
            ),
            line(
              'Tokens a second',
              'Tokens that all ranks train on.',
              'short',
              [panels.query(run('run:train_tokens:rate5m'), 'tokens a second')],
              'The run does not report tokens.',
              { min: 0 },
            ),
            line(
              'Loss',
              'Mean of the ranks, as last reported.',
              'none',
              [panels.query(run('run:train_loss:avg'), 'loss')],
              'The run does not report its loss.',
            ),
            line(
              'Gradient norm',
              'Highest of the ranks, as last reported.',
              'none',
              [panels.query(run('run:train_grad_norm:max'), 'gradient norm')],
              'The run does not report it.',
              { min: 0 },
            ),
            line(
              'Age of the checkpoint',
              'Time since the last good checkpoint. A saw with even teeth is well; a slope that goes on is lost work if the run breaks.',
              'dthms',
              [panels.query(since('run:train_last_checkpoint_timestamp_seconds:max'), 'age')],
              'The run has reported no checkpoint.',
              { min: 0 },
            ),
          ],
        },
        {
          title: 'Waiting, and the network between',
          panels: [
            line(
              'Waiting in collectives',
              'Part of the GPUs of each node that run kernels and compute nothing. The node that waits least is the one that the '
              + 'others wait for.',
              'percentunit',
              [panels.query(if gpu.has('sm_active') then fill('topk(20, %s)', ofPod(promql.max(['node'], waits))), '{{node}}')],
              'No source reports SM activity.',
              { min: 0, max: 1, dataLinks: [lines.links.node] },
            ),
            line(
              'RDMA traffic',
              'Bytes a second that the adapters of each node send and receive; of many nodes those with most.',
              'Bps',
              [panels.query(fill('topk(20, %s)', ofPod(fill('%s + %s', [
                onNodes('node:rdma_receive_bytes:rate5m'),
                onNodes('node:rdma_transmit_bytes:rate5m'),
              ]))), '{{node}}')],
              'The nodes have no RDMA adapters, or no source reports them.',
              { min: 0, dataLinks: [lines.links.node] },
            ),
            line(
              'Packets sent again',
              'For each gigabyte that the node moves, so that a busy node does not look ill. One above the others has a bad cable.',
              'short',
              [panels.query(fill('topk(20, %s)', ofPod(onNodes('node:rdma_retransmits_per_gigabyte:rate5m'))), '{{node}}')],
              'The nodes have no RDMA adapters, or move nothing.',
              { min: 0, dataLinks: [lines.links.node] },
            ),
          ],
        },
        {
          title: 'Pods and money',
          panels: [
            panels.table(
              'Pods',
              'Each pod with what it holds and does. Click one for its GPUs in the charts above.',
              [
                panels.row(promql.sum(podLevel, promql.owners(ofNodes))),
                panels.row(promql.avg(podLevel, promql.metric('run_gpu:gpu_sm_active:ratio_rate5m', ofNodes, ''))),
                panels.row(
                  if gpu.has('tensor_active')
                  then promql.avg(podLevel, promql.metric('run_gpu:gpu_tensor_active:ratio_rate5m', ofNodes, ''))
                ),
                panels.row(
                  if clocks
                  then promql.min(podLevel, promql.metric('run_gpu:sm_clock:ratio_avg5m', ofNodes, ''))
                ),
              ],
              [
                {
                  field: 'workload_pod',
                  name: 'Pod',
                  link: panels.dataLink('Only the GPUs of this pod', lines.withPod('${__value.text}')),
                  width: 250,
                },
                { field: 'node', name: 'Node', link: toNode, width: 110 },
                { field: 'Value #A', name: 'GPUs', unit: 'none', decimals: 1, width: 70 },
                {
                  field: 'Value #B',
                  name: 'SM active',
                  unit: 'percentunit',
                  min: 0,
                  max: 1,
                  decimals: 0,
                  cell: panels.cells.bar,
                  color: { mode: 'thresholds' },
                  thresholds: activity,
                  empty: 'not measured',
                },
                { field: 'Value #C', name: 'Tensor', unit: 'percentunit', decimals: 0, width: 80, empty: '–' },
                { field: 'Value #D', name: 'Slowest clock', unit: 'percentunit', decimals: 0, width: 110, empty: '–' },
              ],
              'The run holds no GPU now, or its nodes have no pods.',
              { w: 12, h: 8, sortBy: 'SM active', ascending: true },
            ),
            line(
              'Cost an hour',
              'Price of what the run holds, and the part of it that it does not use, as money an hour.',
              config.currencyUnit,
              [
                panels.query(anHour(run('run:gpu_cost:increase5m')), 'cost', interval='5m'),
                panels.query(fill('12 * sum by (reason) (%s)', run('run:gpu_unused_cost:increase5m')), 'unused: {{reason}}', interval='5m'),
              ],
              unpriced,
              { w: 12, h: 8, min: 0, fill: 20 },
            ),
          ],
        },
      ],
      opts={ annotations: [{
        name: 'Alerts',
        datasource: { type: 'prometheus', uid: '${datasource}' },
        enable: true,
        hide: false,
        iconColor: colors.red,
        expr: promql.metric('ALERTS', ofRun + ['alertstate="firing"', 'severity!="info"'], ''),
        step: '60s',
        titleFormat: '{{alertname}}',
        textFormat: '{{node}} {{gpu}}',
        tagKeys: 'severity,team',
        useValueForTime: false,
      }] },
    ),
  }
