// One node: its GPUs side by side, who holds them and what is wrong with them.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local ofNode = here + ['node=~"$node"'];
  local level = ['node', 'gpu', 'uuid'];
  // Each GPU of the node once, however many hold it.
  local each(expr) = if expr == null then null else promql.max(level, promql.attributed(expr, ofNode));
  // Of what has a label of its own, the readings of this node's GPUs.
  local onThese(expr) = if expr == null then null else fill('(%s) and on (%s) %s', [
    expr,
    promql.level(['uuid']),
    promql.owners(ofNode),
  ]);
  local toGpu = panels.dataLink('Open GPU', dashboards.url(
    'gpu', { node: '${__field.labels.node}', gpu: '${__field.labels.uuid}' }
  ));
  local chart(title, description, unit, expr, empty, opts={}) = panels.timeseries(
    title,
    description,
    unit,
    [panels.query(each(expr), 'GPU {{gpu}}')],
    empty,
    { w: 8, h: 7, fill: 0, dataLinks: [toGpu] } + opts,
  );
  local ratio = { min: 0, max: 1 };

  {
    'node.json': dashboards.dashboard(
      'node',
      'Node',
      'The GPUs of one node side by side, who holds them and what is wrong with them.',
      [dashboards.variables.oneNode],
      [
        {
          title: 'Now',
          panels: [
            panels.table(
              'Holders',
              'Who holds which GPU, or which share or slice of it, and what it does there.',
              [
                panels.row(promql.max(promql.ownerLabels, promql.owners(ofNode))),
                panels.row(promql.max(
                  promql.ownerLabels, promql.metric('run_gpu:gpu_sm_active:ratio_rate5m', ofNode, '')
                )),
              ],
              [
                {
                  field: 'gpu',
                  name: 'GPU',
                  width: 60,
                  link: panels.dataLink('Open GPU', dashboards.url(
                    'gpu', { node: '$node', gpu: '${__data.fields.UUID}' }
                  )),
                },
                { field: 'project', name: 'Project' },
                {
                  field: 'run',
                  name: 'Run',
                  link: panels.dataLink('Open run', dashboards.url('run', { run: '${__value.text}' })),
                },
                { field: 'workload_pod', name: 'Pod' },
                { field: 'Value #A', name: 'Share', unit: 'percentunit', decimals: 0, width: 80, empty: '–' },
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
                { field: 'uuid', name: 'UUID', width: 110 },
              ],
              'The node reports no GPU now.',
              { w: 14, h: 9, sortBy: 'GPU', ascending: true },
            ),
            panels.table(
              'Open incidents',
              'Incidents of this node that are not closed, and what to do.',
              [panels.row(promql.metric('gpu_fault_active', ofNode))],
              [
                { field: 'gpu', name: 'GPU', width: 60 },
                { field: 'fault', name: 'Fault' },
                { field: 'class', name: 'Class' },
                { field: 'action', name: 'Do' },
                { field: 'isolate', name: 'Isolates', width: 80 },
              ],
              'No incident is open on this node.',
              { w: 10, h: 9 },
            ),
          ],
        },
        {
          title: 'Work',
          panels: [
            chart(
              'SM activity',
              'Part of the time in which a multiprocessor had work, over all of them.',
              'percentunit',
              gpu.panel('sm_active', here),
              'No source reports SM activity.',
              ratio,
            ),
            chart(
              'Tensor activity',
              'Part of the cycles in which tensor cores were active.',
              'percentunit',
              gpu.panel('tensor_active', here),
              'No source reports the activity of tensor cores.',
              { min: 0 },
            ),
            chart(
              'Memory used',
              'Allocated memory.',
              'bytes',
              gpu.panel('memory_used', here),
              'No source reports memory, as on boards that share it with the host.',
              { min: 0 },
            ),
          ],
        },
        {
          title: 'Heat, power, clocks',
          panels: [
            chart(
              'Temperature', 'Temperature of the die.', 'celsius', gpu.panel('temperature', here), 'Not reported.'
            ),
            chart('Power', 'Power drawn by the board.', 'watt', gpu.panel('power', here), 'Not reported.', { min: 0 }),
            chart(
              'SM clock',
              'Clock of the multiprocessors. One GPU below the others makes a run wait.',
              'hertz',
              gpu.panel('sm_clock', here),
              'Not reported.',
            ),
            panels.timeseries(
              'Clocks held back, by reason',
              'Seconds for which each reason held clocks back in a second, over all GPUs of the node. Reasons overlap; '
              + 'idle GPUs are left out.',
              's',
              [panels.query(
                if gpu.has('clock_event') then promql.sum(['reason'], onThese(
                  gpu.panel('clock_event', here + ['reason!~"gpu_idle|low_utilization|applications_clocks_setting"'])
                )) + ' > 0',
                '{{reason}}',
              )],
              'Nothing held the clocks back, or no source counts why.',
              { min: 0 },
            ),
            panels.bargauge(
              'GPUs held back by heat or power brake',
              'Part of the shown time in which heat, the power brake or the board held the clocks back.',
              'percentunit',
              [panels.query(each(gpu.mean('throttled', '$__range', here)), 'GPU {{gpu}}', instant=true)],
              'No source counts throttling.',
              { min: 0, max: 1, thresholds: [[null, colors.good], [0.05, colors.attention], [0.2, colors.bad]] },
            ),
          ],
        },
        {
          title: 'Links and faults',
          panels: [
            chart(
              'NVLink traffic',
              'Bytes a second sent and received over NVLink.',
              'Bps',
              gpu.panel('nvlink_traffic', here),
              'The GPUs have no NVLink, or no source reports it.',
              { min: 0 },
            ),
            chart(
              'PCIe received',
              'Bytes a second received over PCIe.',
              'Bps',
              gpu.panel('pcie_receive', here),
              'No source reports PCIe traffic.',
              { min: 0 },
            ),
            panels.timeseries(
              'NVLink errors',
              'Errors and recoveries a second on all links of a GPU, by kind.',
              'cps',
              [panels.query(
                if gpu.has('nvlink_errors') then promql.sum(['uuid', 'error'], onThese(gpu.panel('nvlink_errors', here)))
                                                 + ' > 0',
                '{{error}} {{uuid}}',
              )],
              'No link has had an error in this time.',
              { w: 8, h: 7, min: 0 },
            ),
            panels.timeseries(
              'Xids',
              'Driver errors in the hour before each point, by code.',
              'none',
              [panels.query(
                if gpu.has('xid') then promql.sum(['xid'], onThese(gpu.events('xid', '1h', here))) + ' > 0',
                'Xid {{xid}}',
              )],
              'The driver has reported no error.',
              { w: 12, h: 7, min: 0, points: 'always' },
            ),
            chart(
              'PCIe lanes',
              'Lanes that the PCIe link uses. Fewer than its neighbours: reseat the board.',
              'none',
              gpu.panel('pcie_width', here),
              'Not reported.',
              { w: 12, min: 0, decimals: 0 },
            ),
          ],
        },
      ],
    ),
  }
