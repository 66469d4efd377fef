// The whole fleet: is it busy, is it healthy, is it worth its money, and what needs someone now.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local recorded(name, matchers=[]) = promql.metric(name, here + matchers, '');
  local metric(name, matchers=[]) = promql.metric(name, here + matchers);
  // Without a project: a GPU of which dcgm-exporter names no pod, or nobody says who holds it.
  local held = 'project!~"|[(](unallocated|unsliced)[)]"';
  local unheld = 'project=~"|[(](unallocated|unsliced)[)]"';
  // Money of five minutes as money an hour.
  local anHour(expr) = fill('12 * (%s)', expr);
  local toNode(field) = panels.dataLink('Open node', dashboards.url('node', { node: field }));
  local toRun(field) = panels.dataLink('Open run', dashboards.url('run', { run: field }));
  local toProject(field) = panels.dataLink('Open cost', dashboards.url('cost', { project: field }));
  local activity = [[null, colors.grey], [0.05, colors.orange], [0.3, colors.yellow], [0.6, colors.green]];
  local up = gpu.now('up', here);

  {
    'fleet.json': dashboards.dashboard(
      'fleet',
      'Fleet',
      'Whether the fleet is busy, healthy and worth its money, and what needs someone now.',
      [],
      [
        {
          title: 'At a glance',
          panels: [
            panels.stat(
              'GPUs',
              'GPUs that are seen now.',
              'none',
              [panels.query(fill('sum(%s)', recorded('cluster:gpus:count')), 'GPUs')],
              'No GPU is reported: see whether an exporter is scraped.',
              { decimals: 0, graph: true },
            ),
            panels.stat(
              'Allocated',
              'Part of the GPUs that a run, a pod or a user holds, used or not.',
              'percentunit',
              [panels.query(
                fill('sum(%s) / sum(%s)', [recorded('run:gpu_share:sum', [held]), recorded('cluster:gpus:count')]),
                'allocated',
              )],
              'Nobody holds a GPU, or no source says who does.',
              { min: 0, max: 1, decimals: 0, graph: true },
            ),
            panels.stat(
              'Busy',
              'Mean SM activity of all GPUs, free ones included: the part of the time in which a multiprocessor had work.',
              'percentunit',
              [panels.query(fill('avg(%s)', recorded('cluster:gpu_sm_active:ratio_rate5m')), 'SM active')],
              'No source reports SM activity.',
              { min: 0, max: 1, decimals: 0, graph: true, thresholds: activity },
            ),
            panels.stat(
              'Healthy',
              'Part of the GPUs that answered their last poll.',
              'percentunit',
              [panels.query(if up == null then null else fill('avg(%s)', up), 'answer')],
              'No source says whether GPUs answer.',
              { min: 0, max: 1, decimals: 1, thresholds: [[null, colors.bad], [0.95, colors.attention], [1, colors.good]] },
            ),
            panels.stat(
              'Open incidents',
              'Incidents that are not closed. Those that isolate a node need a reset, a reboot or a new board.',
              'none',
              [panels.query(fill('count(%s) or vector(0)', metric('gpu_fault_active')), 'open')],
              'No gpufleet is scraped.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background' },
            ),
            panels.stat(
              'Unused cost an hour',
              'Price of the GPU time that was held and not used, of the last five minutes, as an hour of it.',
              config.currencyUnit,
              [panels.query(anHour(fill('sum(%s)', recorded('cluster:gpu_unused_cost:increase5m'))), 'unused')],
              'No price book is configured, or nothing is held.',
              { decimals: 0, graph: true, thresholds: [[null, colors.unused]] },
            ),
          ],
        },
        {
          title: 'What needs someone now',
          panels: [
            panels.table(
              'Open incidents',
              'Each incident that is not closed, with what to do, who had the GPU when it happened and whether the node '
              + 'takes no more work because of it.',
              [panels.row(metric('gpu_fault_active'))],
              [
                { field: 'node', name: 'Node', link: toNode('${__value.text}'), width: 130 },
                {
                  field: 'gpu',
                  name: 'GPU',
                  width: 60,
                  link: panels.dataLink('Open GPU', dashboards.url(
                    'gpu', { node: '${__data.fields.Node}', gpu: '${__data.fields.UUID}' }
                  )),
                },
                { field: 'fault', name: 'Fault' },
                { field: 'class', name: 'Class' },
                { field: 'action', name: 'Do' },
                {
                  field: 'isolate',
                  name: 'Isolates',
                  width: 90,
                  cell: panels.cells.text,
                  mappings: panels.mapValues({
                    'true': { text: 'yes', color: colors.bad },
                    'false': { text: 'no', color: colors.neutral },
                  }),
                },
                { field: 'run', name: 'Run', link: toRun('${__value.text}') },
                { field: 'uuid', name: 'UUID', width: 110 },
              ],
              'No incident is open.',
              { w: 15, h: 8, sortBy: 'Isolates' },
            ),
            panels.table(
              'Nodes that hold back their run',
              'Nodes whose clock is below their run by more than its spread and the floor allow: the run waits for them.',
              [panels.row(fill('%s > 0', recorded('node_run:straggler_deficit:ratio')))],
              [
                { field: 'node', name: 'Node', link: toNode('${__value.text}') },
                { field: 'run', name: 'Run', link: toRun('${__value.text}') },
                { field: 'Value', name: 'Slower by', unit: 'percentunit', decimals: 0, width: 100 },
              ],
              'No node is slower than its run allows.',
              { w: 9, h: 8, sortBy: 'Slower by' },
            ),
          ],
        },
        {
          title: 'Nodes',
          panels: [
            panels.statusHistory(
              'SM activity by node',
              'Each node over time: grey does nothing, green works. Where a kind of GPU reports no SM activity, the part of '
              + 'the time in which a kernel ran. Click a cell to open the node.',
              'percentunit',
              [panels.query(
                fill('%s or %s', [
                  promql.avg(['node'], recorded('node:gpu_sm_active:ratio_rate5m')),
                  promql.avg(['node'], recorded('node:gpu_busy:ratio_rate5m')),
                ]),
                '{{node}}',
              )],
              'No source reports what the GPUs do.',
              {
                w: 15,
                h: 9,
                maxDataPoints: 60,
                thresholds: activity,
                dataLinks: [toNode('${__field.labels.node}')],
              },
            ),
            panels.timeseries(
              'Hottest GPU of each node',
              'The highest temperature of a die on the ten hottest nodes.',
              'celsius',
              [panels.query(fill('topk(10, %s)', recorded('node:gpu_temperature_celsius:max')), '{{node}}')],
              'No source reports temperatures.',
              { w: 9, h: 9, fill: 0, dataLinks: [toNode('${__field.labels.node}')] },
            ),
          ],
        },
        {
          title: 'Who has it, and is it worth it',
          panels: [
            panels.timeseries(
              'GPUs by project',
              'GPUs that each project holds, and those that nobody holds.',
              'none',
              [
                panels.query(promql.sum(['project'], recorded('run:gpu_share:sum', [held])), '{{project}}'),
                panels.query(fill('sum(%s)', recorded('run:gpu_share:sum', [unheld])), 'unallocated'),
              ],
              'No source says who holds GPUs.',
              {
                stack: true,
                min: 0,
                overrides: [panels.override('unallocated', { color: panels.fixedColor(colors.unallocated) })],
                dataLinks: [toProject('${__field.labels.project}')],
              },
            ),
            panels.timeseries(
              'Unused cost an hour by project',
              'Price of GPU time that was held and not used, as money an hour.',
              config.currencyUnit,
              [panels.query(
                anHour(promql.sum(['project'], recorded('project:gpu_unused_cost:increase5m'))), '{{project}}'
              )],
              'No price book is configured, or nothing is held.',
              { stack: true, min: 0, dataLinks: [toProject('${__field.labels.project}')] },
            ),
            panels.table(
              'Runs',
              'Each run with what it holds, what it does with it and what of it is paid for and not used.',
              [
                panels.row(promql.sum(['project', 'run'], recorded('run:gpu_share:sum', ['run!=""']))),
                panels.row(promql.avg(['project', 'run'], recorded('run:gpu_sm_active:ratio_rate5m', ['run!=""']))),
                panels.row(promql.avg(['project', 'run'], recorded('run:gpu_tensor_active:ratio_rate5m', ['run!=""']))),
                panels.row(anHour(
                  promql.sum(['project', 'run'], recorded('run:gpu_unused_cost:increase5m', ['run!=""']))
                )),
              ],
              [
                { field: 'run', name: 'Run', link: toRun('${__value.text}') },
                { field: 'project', name: 'Project', link: toProject('${__value.text}') },
                { field: 'Value #A', name: 'GPUs', unit: 'none', decimals: 1 },
                {
                  field: 'Value #B',
                  name: 'SM active',
                  unit: 'percentunit',
                  min: 0,
                  max: 1,
                  decimals: 0,
                  cell: panels.cells.bar,
                  thresholds: activity,
                  empty: 'not measured',
                },
                {
                  field: 'Value #C',
                  name: 'Tensor active',
                  unit: 'percentunit',
                  min: 0,
                  max: 1,
                  decimals: 0,
                  cell: panels.cells.bar,
                  color: panels.fixedColor(colors.blue),
                  empty: 'not measured',
                },
                { field: 'Value #D', name: 'Unused an hour', unit: config.currencyUnit, decimals: 2, empty: 'no price' },
              ],
              'Nothing runs, or no source says who holds GPUs.',
              { w: 24, h: 8, sortBy: 'Unused an hour' },
            ),
          ],
        },
      ],
    ),
  }
