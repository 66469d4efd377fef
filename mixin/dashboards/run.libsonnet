// One run, all its nodes on shared charts: is it fast, who holds it up, does it learn, what does it cost.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local variables = dashboards.variables;
  local gpu = lib.vocabulary.gpu;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local of = here + ['run=~"$run"'];
  local onNodes = of + ['node=~"$node"'];
  local inPods = onNodes + ['workload_pod=~"$pod"'];
  local recorded(name, matchers=of) = promql.metric(name, matchers, '');
  local trained(name) = promql.metric('run:train_' + name, of, '');
  local reported(name) = promql.metric(name, of, config.trainingSelector);
  local anHour(expr) = fill('12 * (%s)', expr);
  local inRange(series, matchers=of) = fill('sum(sum_over_time(%s[$__range]))', promql.metric(series, matchers, ''));
  local toNode(value) = panels.dataLink('Open node', dashboards.url('node', { node: value }));
  local podLinks = [
    panels.dataLink('Only this pod', dashboards.url('run', { run: '${run}', pod: '${__field.labels.workload_pod}' })),
    panels.dataLink('All pods', dashboards.url('run', { run: '${run}', pod: '$__all' })),
    toNode('${__field.labels.node}'),
  ];

  // Of a large run the ten nodes that matter, and the median of all: thousands of lines say nothing.
  local shared(title, description, unit, name, pick, by, empty, opts={}) =
    local each = promql.aggregate(by, ['node', 'workload_pod'], promql.metric('run_gpu:' + name, inPods, ''));
    panels.timeseries(
      title,
      description + ' Of a run of many nodes the ten ' + (if pick == 'bottomk' then 'lowest' else 'highest')
      + ' and the median. Click a line for its pod alone, again for all.',
      unit,
      [
        panels.query(fill('%s(10, %s)', [pick, each]), '{{node}} {{workload_pod}}'),
        panels.query(fill('quantile(0.5, %s)', each), 'median'),
      ],
      empty,
      {
        w: 12,
        h: 8,
        fill: 0,
        dataLinks: podLinks,
        overrides: [panels.override('median', {
          color: panels.fixedColor(colors.neutral),
          'custom.lineStyle': { fill: 'dash', dash: [8, 8] },
        })],
      } + opts,
    );
  local byGpu(title, description, unit, expr, empty, opts={}) = panels.timeseries(
    title,
    description,
    unit,
    [panels.query(
      if expr == null then null else fill('topk(16, %s)', promql.max(['node', 'gpu', 'uuid'], promql.attributed(expr, inPods))),
      '{{node}} GPU {{gpu}}',
    )],
    empty,
    {
      w: 8,
      h: 7,
      fill: 0,
      dataLinks: [panels.dataLink('Open GPU', dashboards.url(
        'gpu', { node: '${__field.labels.node}', gpu: '${__field.labels.uuid}' }
      ))],
    } + opts,
  );
  local ifTrained(panel) = if std.member(config.sources, 'gpufleet') then panel else null;
  local training(title, description, unit, queries, empty, opts={}) = ifTrained(
    panels.timeseries(title, description, unit, queries, empty, { w: 8, h: 7, fill: 0 } + opts)
  );
  local quiet = 'Nothing is reported: the training reporter is not switched on in this run.';

  {
    'run.json': dashboards.dashboard(
      'run',
      'Run',
      'One run, all its nodes on shared charts: is it fast, who holds it up, does it learn, what does it cost.',
      [variables.oneRun, variables.nodeOfRun, variables.pod],
      [
        {
          title: 'Now',
          panels: [
            panels.stat(
              'GPUs',
              'GPUs that the run holds, shares added up, and the nodes that they are on.',
              'none',
              [
                panels.query(fill('sum(%s)', recorded('run:gpu_share:sum')), 'GPUs'),
                panels.query(fill('sum(%s)', recorded('run:nodes:count')), 'nodes'),
              ],
              'The run holds nothing now.',
              { w: 4, decimals: 0 },
            ),
            panels.stat(
              'SM active',
              'Part of the time in which a multiprocessor had work, the mean of its GPUs.',
              'percentunit',
              [panels.query(fill('avg(%s)', recorded('run:gpu_sm_active:ratio_rate5m')), 'SM active')],
              'No source reports SM activity.',
              { w: 4, min: 0, max: 1, decimals: 0, graph: true },
            ),
            panels.stat(
              'Tensor active',
              'Part of the cycles in which tensor cores were active: what a training run is for.',
              'percentunit',
              [panels.query(fill('avg(%s)', recorded('run:gpu_tensor_active:ratio_rate5m')), 'tensor')],
              'No source reports tensor cores.',
              { w: 4, min: 0, max: 1, decimals: 0, graph: true },
            ),
            panels.stat(
              'Nodes that hold it up',
              'Nodes whose clock is below the median of the run by more than its spread and the floor allow.',
              'none',
              [panels.query(
                fill('count(%s > 0) or 0 * count(%s)', [
                  recorded('node_run:straggler_deficit:ratio'),
                  recorded('run:nodes:count'),
                ]), 'stragglers'
              )],
              'The run is not there.',
              { w: 4, decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background' },
            ),
            ifTrained(panels.stat(
              'Last step',
              'Time since a step of the run ended, beside what its steps usually take.',
              's',
              [
                panels.query(fill('time() - max(%s)', trained('last_step_timestamp_seconds:max')), 'ago'),
                panels.query(fill('max(%s)', trained('step_duration_seconds:median15m')), 'a step takes'),
              ],
              quiet,
              {
                w: 4,
                thresholds: [[null, colors.good], [120, colors.attention], [config.thresholds.stalledSeconds, colors.bad]],
              },
            )),
            panels.stat(
              'Cost an hour, and unused',
              'Price of what the run holds, and what of it was not used, of the last five minutes as an hour of it.',
              config.currencyUnit,
              [
                panels.query(anHour(fill('sum(%s)', recorded('run:gpu_cost:increase5m'))), 'cost'),
                panels.query(anHour(fill('sum(%s)', recorded('run:gpu_unused_cost:increase5m'))), 'unused'),
              ],
              'No price book is configured.',
              { w: 4, decimals: 0 },
            ),
          ],
        },
        {
          title: 'All its nodes',
          panels: [
            shared(
              'SM clock over the highest',
              'Slowest GPU of each node. A node below the others holds them up; they then show the highest clock.',
              'percentunit',
              'sm_clock:ratio_avg5m',
              'bottomk',
              'min',
              'No source reports clocks and the highest clock.',
              { max: 1 },
            ),
            shared(
              'Tensor activity',
              'Mean of the GPUs of each node. Those that wait have less.',
              'percentunit',
              'gpu_tensor_active:ratio_rate5m',
              'bottomk',
              'avg',
              'No source reports tensor cores.',
              { min: 0 },
            ),
            shared(
              'SM activity',
              'Mean of the GPUs of each node. The one that the others wait for has most.',
              'percentunit',
              'gpu_sm_active:ratio_rate5m',
              'topk',
              'avg',
              'No source reports SM activity.',
              { min: 0, max: 1 },
            ),
            panels.timeseries(
              'Temperature',
              'Hottest GPU of each node: the ten highest, and the median of all.',
              'celsius',
              [
                panels.query(fill('topk(10, %s)', recorded('node_run:gpu_temperature_celsius:max', onNodes)), '{{node}}'),
                panels.query(fill('quantile(0.5, %s)', recorded('node_run:gpu_temperature_celsius:max', onNodes)), 'median'),
              ],
              'No source reports temperatures.',
              {
                w: 12,
                h: 8,
                fill: 0,
                dataLinks: [toNode('${__field.labels.node}')],
                overrides: [panels.override('median', {
                  color: panels.fixedColor(colors.neutral),
                  'custom.lineStyle': { fill: 'dash', dash: [8, 8] },
                })],
              },
            ),
          ],
        },
        {
          title: 'Who holds it up, and what broke',
          panels: [
            panels.table(
              'Nodes that hold it up',
              "How much further below the median each is than the run's own spread allows, and how much of the time it was throttled.",
              [
                panels.row(promql.max(['node'], recorded('node_run:straggler_deficit:ratio')) + ' > 0'),
                panels.row(fill('%s and on (%s) %s > 0', [
                  promql.max(['node'], recorded('node_run:throttled:ratio_max5m')),
                  promql.level(['node']),
                  recorded('node_run:straggler_deficit:ratio'),
                ])),
              ],
              [
                { field: 'node', name: 'Node', link: toNode('${__value.text}') },
                { field: 'Value #A', name: 'Slower by', unit: 'percentunit', decimals: 0, width: 100 },
                { field: 'Value #B', name: 'Throttled', unit: 'percentunit', decimals: 0, width: 100, empty: 'not counted' },
              ],
              'No node holds the run up.',
              { w: 8, h: 7, sortBy: 'Slower by' },
            ),
            panels.table(
              'Incidents',
              'What broke under this run and is not closed: what it was, whose fault, and what to do.',
              [panels.row(promql.metric('gpu_fault_active', of))],
              [
                { field: 'node', name: 'Node', link: toNode('${__value.text}') },
                { field: 'gpu', name: 'GPU', width: 60 },
                { field: 'fault', name: 'Fault' },
                { field: 'class', name: 'Class' },
                { field: 'action', name: 'Do' },
                { field: 'refund', name: 'Retry back', width: 100 },
              ],
              'Nothing broke under this run.',
              { w: 16, h: 7, sortBy: 'Node', ascending: true },
            ),
            panels.table(
              'Where it runs',
              'GPUs that the run holds on each node, what they do, and how hot and how throttled they are.',
              [
                panels.row(promql.sum(['node', 'project', 'task'], recorded('node_run:gpu_share:sum', onNodes))),
                panels.row(promql.avg(
                  ['node', 'project', 'task'], recorded('node_run:gpu_sm_active:ratio_rate5m', onNodes)
                )),
                panels.row(promql.max(
                  ['node', 'project', 'task'], recorded('node_run:gpu_temperature_celsius:max', onNodes)
                )),
                panels.row(promql.max(
                  ['node', 'project', 'task'], recorded('node_run:throttled:ratio_max5m', onNodes)
                )),
              ],
              [
                { field: 'node', name: 'Node', link: toNode('${__value.text}') },
                { field: 'project', name: 'Project' },
                { field: 'task', name: 'Task' },
                { field: 'Value #A', name: 'GPUs', decimals: 2, width: 80 },
                {
                  field: 'Value #B',
                  name: 'SM active',
                  unit: 'percentunit',
                  decimals: 0,
                  min: 0,
                  max: 1,
                  cell: panels.cells.bar,
                  color: panels.fixedColor(colors.busy),
                  empty: 'not measured',
                },
                { field: 'Value #C', name: 'Hottest', unit: 'celsius', decimals: 0, width: 90, empty: '–' },
                { field: 'Value #D', name: 'Throttled', unit: 'percentunit', decimals: 0, width: 100, empty: '–' },
              ],
              'The run holds nothing now.',
              { w: 24, h: 7, sortBy: 'Throttled' },
            ),
          ],
        },
        {
          title: 'Does it learn',
          panels: [
            training(
              'Time of a step',
              'Mean of each node, and the median of the run.',
              's',
              [
                panels.query(fill('topk(10, %s)', recorded('node_run:train_step_duration_seconds:mean5m', onNodes)), '{{node}}'),
                panels.query(trained('step_duration_seconds:median15m'), 'median of the run'),
              ],
              quiet,
              { min: 0 },
            ),
            training('Loss', 'Mean of the processes that report one.', 'none', [
              panels.query(trained('loss:avg'), 'loss'),
            ], quiet),
            training('Gradient norm', 'The highest of the processes. It leaps before a loss diverges.', 'none', [
              panels.query(trained('grad_norm:max'), 'gradient norm'),
            ], quiet, { min: 0 }),
            training('Tokens', 'Tokens that all processes train on in a second.', 'cps', [
              panels.query(trained('tokens:rate5m'), 'tokens'),
            ], quiet, { min: 0 }),
            training('Age of the last checkpoint', 'What is lost if a node fails now.', 's', [
              panels.query(fill('time() - %s', trained('last_checkpoint_timestamp_seconds:max')), 'age'),
            ], quiet, { min: 0 }),
            training('Processes, and starts', 'Processes that report, and how often they were started again in the hour before.', 'none', [
              panels.query(trained('ranks:count'), 'processes'),
              panels.query(fill('max(increase(%s[1h]))', reported('train_restarts_total')), 'starts again'),
            ], quiet, { min: 0, decimals: 0 }),
          ],
        },
        {
          title: 'GPUs of the chosen pods',
          panels: [
            byGpu(
              'SM clock',
              'Clock of each GPU: the sixteen highest.',
              'hertz',
              gpu.panel('sm_clock', here),
              'No source reports clocks.',
            ),
            byGpu(
              'Power',
              'Power that each GPU draws: the sixteen highest.',
              'watt',
              gpu.panel('power', here),
              'No source reports power.',
              { min: 0 },
            ),
            byGpu(
              'Memory used',
              'Allocated memory of each GPU: the sixteen highest.',
              'bytes',
              gpu.panel('memory_used', here),
              'No source reports memory.',
              { min: 0 },
            ),
          ],
        },
        {
          title: 'Network and money',
          panels: [
            panels.timeseries(
              'RDMA received',
              'Bytes a second over all RDMA ports of each node of the run: the ten lowest. One below the others is slow, or waits.',
              'Bps',
              [panels.query(fill('bottomk(10, %s and on (%s) %s)', [
                promql.metric('node:rdma_receive_bytes:rate5m', here, ''),
                promql.level(['node']),
                recorded('node_run:gpu_share:sum', onNodes),
              ]), '{{node}}')],
              'No source reports RDMA.',
              { w: 8, h: 7, min: 0, fill: 0 },
            ),
            panels.timeseries(
              'Cost an hour, by what became of it',
              'What the run pays, and what of it was not used.',
              config.currencyUnit,
              [
                panels.query(anHour(fill('sum(%s)', recorded('run:gpu_cost:increase5m'))), 'cost'),
                panels.query(anHour(promql.sum(['reason'], recorded('run:gpu_unused_cost:increase5m'))), 'unused: {{reason}}'),
              ],
              'No price book is configured.',
              { w: 8, h: 7, min: 0 },
            ),
            panels.stat(
              'In the shown time',
              'What the run has cost, what of it was not used, and its GPU hours.',
              config.currencyUnit,
              [
                panels.query(inRange('run:gpu_cost:increase5m'), 'cost', instant=true),
                panels.query(inRange('run:gpu_unused_cost:increase5m'), 'unused', instant=true),
                panels.query(inRange('run:gpu_allocated_seconds:increase5m') + ' / 3600', 'GPU hours', instant=true),
              ],
              'Nothing was recorded in this time.',
              { w: 8, h: 7, decimals: 0, overrides: [panels.override('GPU hours', { unit: 'none' })] },
            ),
          ],
        },
      ],
    ),
  }
