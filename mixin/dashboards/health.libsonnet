// What is broken, what will be, what keeps coming back, and what was done about it.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local onNode = here + ['node=~"$node"'];
  local recorded(name, matchers=[]) = promql.metric(name, here + matchers, '');
  local metric(name, matchers=[]) = promql.metric(name, here + matchers);
  local suspects = recorded('gpu:suspect:info', ['node=~"$node"']);
  local level = promql.level(['uuid']);
  local toNode = panels.dataLink('Open node', dashboards.url('node', { node: '${__value.text}' }));
  local toGpu = panels.dataLink('Open GPU', dashboards.url(
    'gpu', { node: '${__data.fields.Node}', gpu: '${__data.fields.UUID}' }
  ));
  // GPUs with a problem, by problem.
  local problems = promql.metric('gpu:problem:max', here, '');
  // What has a label of its own, of the GPUs of the chosen nodes, with the node.
  local byNode(labels, expr) = if expr == null then null else promql.sum(
    ['node'] + labels,
    promql.join('(' + promql.max(['node', 'uuid'], promql.owners(onNode)) + ' > bool 0)', expr),
  );
  local counters(title, description, word, empty, opts={}) = panels.timeseries(
    title,
    description,
    'none',
    [panels.query(
      local rises = byNode([], if !gpu.has(word) then null else promql.sum(['uuid'], gpu.events(word, '1h', here)));
      if rises == null then null else fill('topk(10, %s)', rises),
      '{{node}}',
    )],
    empty,
    { w: 8, h: 7, min: 0 } + opts,
  );

  {
    'health.json': dashboards.dashboard(
      'health',
      'Health',
      'What is broken, what will be, what keeps coming back, and what was done about it.',
      [dashboards.variables.node],
      [
        {
          title: 'Now',
          panels: [
            panels.stat(
              'Open incidents',
              'Incidents that are not closed.',
              'none',
              [panels.query(fill('count(%s) or vector(0)', metric('gpu_fault_active', ['node=~"$node"'])), 'open')],
              'No gpufleet is scraped.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background', w: 4 },
            ),
            panels.stat(
              'Nodes that must get no work',
              'Nodes with an incident that isolates: they need a reset, a reboot or a new board.',
              'none',
              [panels.query(
                fill(
                  'count(%s) or vector(0)',
                  promql.max(['node'], metric('gpu_fault_active', ['isolate="true"', 'node=~"$node"'])),
                ),
                'nodes',
              )],
              'No gpufleet is scraped.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background', w: 4 },
            ),
            panels.stat(
              'GPUs with a problem',
              'GPUs that something is wrong with now, incidents or not: slow links, heat, memory, no answer.',
              'none',
              [panels.query(fill('count(%s) or vector(0)', promql.max(['uuid'], fill('%s and on (%s) %s', [
                problems,
                level,
                suspects,
              ]))), 'GPUs')],
              'No source says.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]], w: 4 },
            ),
            panels.stat(
              'GPUs at risk',
              'GPUs with several signs that they will break.',
              'none',
              [panels.query(
                fill('count(%s >= %s) or vector(0)', [recorded('gpu:risk:sum'), config.thresholds.risk]), 'GPUs'
              )],
              'No source says.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]], w: 4 },
            ),
            panels.stat(
              'Quarantined',
              'Nodes that the quarantine has taken out, of as many as it may.',
              'none',
              [
                panels.query(fill('sum(%s)', metric('gpufleet_quarantine_nodes')), 'out'),
                panels.query(fill('sum(%s)', metric('gpufleet_quarantine_budget')), 'may be out'),
              ],
              'No quarantine service is scraped.',
              { decimals: 0, w: 4, thresholds: [[null, colors.neutral]] },
            ),
            panels.stat(
              'Breaker',
              'Whether the quarantine has stopped itself because too much fails in the same way. A person resets it.',
              'none',
              [panels.query(fill('max(%s)', metric('gpufleet_quarantine_breaker_open')), 'breaker')],
              'No quarantine service is scraped.',
              {
                w: 4,
                colorMode: 'background',
                mappings: panels.mapValues({
                  '0': { text: 'closed', color: colors.good },
                  '1': { text: 'OPEN', color: colors.bad },
                }),
              },
            ),
          ],
        },
        {
          title: 'What needs someone',
          panels: [
            panels.table(
              'Open incidents',
              'Each incident that is not closed: what broke, whose fault it is, what to do, and who had the GPU.',
              [panels.row(metric('gpu_fault_active', ['node=~"$node"']))],
              [
                { field: 'node', name: 'Node', link: toNode, width: 130 },
                { field: 'gpu', name: 'GPU', link: toGpu, width: 60 },
                { field: 'fault', name: 'Fault', width: 140 },
                { field: 'class', name: 'Class', width: 95 },
                { field: 'action', name: 'Do', width: 120 },
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
                { field: 'incident', name: 'Incident', width: 150 },
                { field: 'uuid', name: 'UUID', width: 95 },
              ],
              'No incident is open.',
              { w: 14, h: 9, sortBy: 'Isolates' },
            ),
            panels.table(
              'GPUs at risk',
              'GPUs that show signs that they will break: how many, and what their weights come to. Its alert names them.',
              [
                panels.row(promql.join(suspects, recorded('gpu:risk:sum'))),
                panels.row(promql.join(suspects, promql.count(['uuid'], recorded('gpu:risk_part:score')))),
              ],
              [
                { field: 'node', name: 'Node', link: toNode },
                { field: 'gpu', name: 'GPU', link: toGpu, width: 60 },
                { field: 'Value #A', name: 'Risk', decimals: 0, width: 70 },
                { field: 'Value #B', name: 'Signs', decimals: 0, width: 80 },
                { field: 'uuid', name: 'UUID', width: 120 },
              ],
              'No GPU shows a sign.',
              { w: 10, h: 9, sortBy: 'Risk' },
            ),
          ],
        },
        {
          title: 'What keeps coming back',
          panels: [
            panels.timeseries(
              'Problems over time',
              'GPUs with each problem that is read at every poll.',
              'none',
              [panels.query(
                promql.count(['problem'], fill('%s and on (%s) %s', [problems, level, suspects])), '{{problem}}'
              )],
              'Nothing has been wrong in this time.',
              { w: 12, h: 8, stack: true, min: 0, decimals: 0 },
            ),
            panels.timeseries(
              'Xids in an hour',
              'Driver errors in the hour before each point, by code. Whose fault each is: the runbook of its alert.',
              'none',
              [panels.query(
                local xids = if !gpu.has('xid') then null else promql.sum(['xid'], gpu.events('xid', '1h', here));
                if xids == null then null else xids + ' > 0',
                'Xid {{xid}}',
              )],
              'The driver has reported no error.',
              { w: 12, h: 8, min: 0, points: 'always' },
            ),
            panels.table(
              'Repeat offenders',
              'GPUs by the number of incidents that were open at some time in the shown range, those of programs left out.',
              [panels.row(promql.count(
                ['node', 'gpu', 'uuid'],
                promql.max(
                  ['node', 'gpu', 'uuid', 'incident'],
                  fill('last_over_time(%s[$__range])', metric(
                    'gpu_fault_active', ['class!="application"', 'uuid!=""', 'node=~"$node"']
                  )),
                ),
              ))],
              [
                { field: 'node', name: 'Node', link: toNode },
                { field: 'gpu', name: 'GPU', link: toGpu, width: 60 },
                { field: 'Value', name: 'Incidents', decimals: 0, width: 100 },
                { field: 'uuid', name: 'UUID' },
              ],
              'No GPU had an incident.',
              { w: 12, h: 8, sortBy: 'Incidents' },
            ),
            panels.timeseries(
              'Quarantine decisions',
              'Decisions on incidents in the hour before each point, refusals with their reason.',
              'none',
              [panels.query(
                promql.sum(
                  ['decision', 'reason'],
                  fill('increase(%s[1h])', metric('gpufleet_quarantine_decisions_total')),
                ),
                '{{decision}} ({{reason}})',
              )],
              'No quarantine service is scraped.',
              { w: 12, h: 8, min: 0 },
            ),
          ],
        },
        {
          title: 'Memory',
          panels: [
            counters(
              'Uncorrectable memory errors',
              'Errors of an hour that could not be corrected, by node.',
              'ecc_uncorrectable',
              'No uncorrectable error in this time.',
            ),
            counters(
              'Corrected memory errors',
              'Errors of an hour that were corrected, by node. Many of them say that a board ages.',
              'ecc_correctable',
              'No corrected error in this time.',
            ),
            panels.timeseries(
              'Rows replaced, rows that wait',
              'Rows of memory that were replaced by spare ones, and GPUs that wait for a reset to replace one.',
              'none',
              [
                panels.query(
                  if gpu.has('remapped_uncorrectable') then fill(
                    'sum(%s)', gpu.now('remapped_uncorrectable', here)
                  ), 'replaced, uncorrectable'
                ),
                panels.query(
                  if gpu.has('remapped_correctable') then fill(
                    'sum(%s)', gpu.now('remapped_correctable', here)
                  ), 'replaced, correctable'
                ),
                panels.query(
                  if gpu.has('remap_pending') then fill('sum(%s)', gpu.now('remap_pending', here)), 'GPUs that wait'
                ),
              ],
              'No source reports rows.',
              { w: 8, h: 7, min: 0, decimals: 0 },
            ),
          ],
        },
        {
          title: 'Links and clocks',
          panels: [
            counters(
              'NVLink errors and recoveries',
              'On all links of a node in the hour before each point.',
              'nvlink_errors',
              'No link has had an error.',
            ),
            counters(
              'PCIe packets sent again',
              'Of all GPUs of a node in the hour before each point.',
              'pcie_replays',
              'No packet was sent again.',
            ),
            panels.timeseries(
              'GPUs held back, by reason',
              'GPU seconds a second for which each reason held clocks back, over all chosen nodes. Reasons overlap; the power cap is '
              + 'left out: a busy GPU is expected to be at it.',
              'none',
              [panels.query(
                local held = if !gpu.has('clock_event') then null
                else gpu.panel('clock_event', here + ['reason=~".*slowdown"']);
                if held == null then null else promql.sum(['reason'], fill('(%s) and on (%s) %s', [
                  held,
                  level,
                  promql.owners(onNode),
                ])),
                '{{reason}}',
              )],
              'Nothing held a clock back.',
              { w: 8, h: 7, min: 0 },
            ),
          ],
        },
      ],
      time={ from: 'now-24h', to: 'now' },
    ),
  }
