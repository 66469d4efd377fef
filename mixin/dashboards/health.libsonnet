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
  // Series by node of what a counter of errors has risen by in an hour. Healthy nodes are left out, unless all may be
  // healthy for long: then a line at zero says so.
  local counters(title, description, word, empty, rest=' > 0', w=8) = panels.timeseries(
    title,
    description,
    'none',
    [panels.query(
      local rises = byNode([], if !gpu.has(word) then null else promql.sum(['uuid'], gpu.events(word, '1h', here)));
      if rises == null then null else fill('topk(5, %s%s)', [rises, rest]),
      '{{node}}',
    )],
    empty,
    { w: w, h: 7, min: 0, decimals: 0, fill: 0, dataLinks: [panels.dataLink('Open node', dashboards.url(
      'node', { node: '${__field.labels.node}' }
    ))] },
  );
  // Of a word that is 1 or 0, or a number, the sum over the chosen nodes.
  local total(word, matchers=[], labels=[], nonzero=' > 0') = if !gpu.has(word) then null else promql.sum(labels, fill(
    '(%s) and on (%s) %s', [gpu.now(word, here + matchers), level, promql.owners(onNode)]
  )) + (if labels == [] then '' else nonzero);
  local broken = metric('gpu_fault_active', ['class!="application"', 'node=~"$node"']);
  // Incidents that were open in thirty days: few series, of which the last sample is read.
  local incidents(labels) = promql.max(labels + ['incident'], fill('last_over_time(%s[30d])', broken));
  local offenders = fill('(%s > bool 0)', promql.max(['node', 'gpu', 'uuid'], fill('last_over_time(%s[30d])', metric(
    'gpu_fault_active', ['class!="application"', 'uuid!=""', 'node=~"$node"']
  ))));
  local lastFault = metric('gpu_last_fault_timestamp_seconds');
  // A counter begins at its first event, which increase() does not see.
  local risen(now, before) = fill('clamp_min(%s - (%s or 0 * %s), 0)', [now, before, now]);
  local xids(window) = if !gpu.has('xid') then null else fill(
    '(%s > 0)', risen(gpu.total('xid', here), gpu.before('xid', window, here))
  );
  // There is a series only while something is wrong: bars, so that no line is drawn across the time between.
  local sparse = { h: 8, min: 0, decimals: 0, drawStyle: 'bars', fill: 80, lineWidth: 0, points: 'never' };
  local asked = 'action!~"none|unknown"';

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
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background', w: 3 },
            ),
            panels.stat(
              'Nodes to isolate',
              'Nodes that must get no work: those with an incident that isolates: they need a reset, a reboot or a new board.',
              'none',
              [panels.query(
                fill(
                  'count(%s) or vector(0)',
                  promql.max(['node'], metric('gpu_fault_active', ['isolate="true"', 'node=~"$node"'])),
                ),
                'nodes',
              )],
              'No gpufleet is scraped.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background', w: 3 },
            ),
            panels.stat(
              'Not ok',
              'GPUs that are lost, hung, in want of a reset, or that the driver does not let anyone see.',
              'none',
              [panels.query(total('state', ['state!="ok"']), 'GPUs')],
              'No source says in which state GPUs are.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], w: 3 },
            ),
            panels.stat(
              'Asks for reset',
              'GPUs for which the driver asks for a reset, a reboot or a drain.',
              'none',
              [panels.query(total('recovery_action', [asked]), 'GPUs')],
              'No source says what the driver asks for.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]], w: 3 },
            ),
            panels.stat(
              'With a problem',
              'GPUs that something is wrong with now, incidents or not: slow links, heat, memory, no answer.',
              'none',
              [panels.query(fill('count(%s) or vector(0)', promql.max(['uuid'], fill('%s and on (%s) %s', [
                problems,
                level,
                suspects,
              ]))), 'GPUs')],
              'No source says.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]], w: 3 },
            ),
            panels.stat(
              'At risk',
              'GPUs with several signs that they will break.',
              'none',
              [panels.query(
                fill('count(%s >= %s) or vector(0)', [recorded('gpu:risk:sum'), config.thresholds.risk]), 'GPUs'
              )],
              'No source says.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]], w: 3 },
            ),
            panels.stat(
              'Quarantined',
              'Nodes that the quarantine has taken out, of as many as it may.',
              'none',
              [
                panels.query(fill('sum(%s)', metric('gpufleet_quarantine_nodes')), 'out'),
                panels.query(fill('sum(%s)', metric('gpufleet_quarantine_budget')), 'allowed'),
              ],
              'No quarantine service is scraped.',
              { decimals: 0, w: 3, thresholds: [[null, colors.neutral]] },
            ),
            panels.stat(
              'Breaker',
              'Whether the quarantine has stopped itself because too much fails in the same way. A person resets it.',
              'none',
              [panels.query(fill('max(%s)', metric('gpufleet_quarantine_breaker_open')), 'breaker')],
              'No quarantine service is scraped.',
              {
                w: 3,
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
              [panels.row(
                // Where the event has no time (it is of a node), only the incident.
                fill('1000 * %s or %s', [
                  promql.join(metric('gpu_fault_active', ['node=~"$node"']), lastFault),
                  metric('gpu_fault_active', ['node=~"$node"']),
                ])
              )],
              [
                { field: 'node', name: 'Node', link: toNode, width: 120 },
                { field: 'gpu', name: 'GPU', link: toGpu, width: 60 },
                { field: 'fault', name: 'Fault', width: 145 },
                { field: 'class', name: 'Class', width: 95 },
                { field: 'action', name: 'Do', width: 150 },
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
                {
                  field: 'Value',
                  name: 'Last event',
                  unit: 'dateTimeAsIso',
                  width: 150,
                  mappings: panels.mapValues({ '1': { text: 'unknown', color: colors.neutral } }),
                },
                { field: 'uuid', name: 'UUID', width: 95 },
              ],
              'No incident is open.',
              { w: 15, h: 9, sortBy: 'Isolates' },
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
              { w: 9, h: 9, sortBy: 'Risk' },
            ),
          ],
        },
        {
          title: 'What is wrong',
          panels: [
            panels.timeseries(
              'Problems',
              'GPUs with each problem that is read at every poll.',
              'none',
              [panels.query(
                promql.count(['problem'], fill('%s and on (%s) %s', [problems, level, suspects])), '{{problem}}'
              )],
              'Nothing has been wrong in this time.',
              sparse { w: 12, stack: true },
            ),
            panels.timeseries(
              'States that are not ok',
              'GPUs in each state but ok. A lost one is no longer on the bus; a hung one does not answer.',
              'none',
              [panels.query(total('state', ['state!="ok"'], ['state']), '{{state}}')],
              'All GPUs were ok, or no source says.',
              sparse { w: 6, stack: true },
            ),
            panels.timeseries(
              'What the driver asks for',
              'GPUs for which the driver asks for each action.',
              'none',
              [panels.query(total('recovery_action', [asked], ['action']), '{{action}}')],
              'The driver asked for nothing, or no source says.',
              sparse { w: 6, stack: true },
            ),
          ],
        },
        {
          title: 'What keeps coming back',
          panels: [
            panels.table(
              'GPUs, 30 days',
              'GPUs by the number of their incidents in thirty days, and of all events in them; those of programs left out.',
              [
                panels.row(promql.count(['node', 'gpu', 'uuid'], incidents(['node', 'gpu', 'uuid']) + ' and ' + fill(
                  'on (%s) %s', [level, offenders]
                ))),
                panels.row(promql.join(offenders, fill('1 + changes(%s[30d])', lastFault))),
                panels.row(fill('1000 * %s', promql.join(offenders, fill('last_over_time(%s[30d])', lastFault)))),
              ],
              [
                { field: 'node', name: 'Node', link: toNode },
                { field: 'gpu', name: 'GPU', link: toGpu, width: 60 },
                { field: 'Value #A', name: 'Incidents', decimals: 0, width: 95 },
                { field: 'Value #B', name: 'Events', decimals: 0, width: 80, empty: '–' },
                { field: 'Value #C', name: 'Last', unit: 'dateTimeAsIso', width: 155, empty: '–' },
                { field: 'uuid', name: 'UUID', width: 110 },
              ],
              'No GPU had an incident.',
              { w: 12, h: 8, sortBy: 'Incidents' },
            ),
            panels.table(
              'Nodes, 30 days',
              'Nodes by the number of their incidents in thirty days, and how many of their GPUs had one: many on one GPU are '
              + 'its board, many on several the node.',
              [
                panels.row(promql.count(['node'], incidents(['node']))),
                panels.row(promql.count(['node'], offenders)),
              ],
              [
                { field: 'node', name: 'Node', link: toNode },
                { field: 'Value #A', name: 'Incidents', decimals: 0, width: 110 },
                { field: 'Value #B', name: 'GPUs', decimals: 0, width: 80, empty: '–' },
              ],
              'No node had an incident.',
              { w: 6, h: 8, sortBy: 'Incidents' },
            ),
            panels.table(
              'Xids of this time',
              'Driver errors in the shown time on all nodes, by code: whose fault each is, and how many GPUs had it.',
              [
                panels.row(if gpu.has('xid') then promql.sum(['xid'], xids('$__range'))),
                panels.row(if gpu.has('xid') then promql.count(['xid'], xids('$__range'))),
                // Only gpufleet says whose fault one is.
                panels.row(if std.member(config.sources, 'gpufleet') then fill('%s and on (%s) %s', [
                  promql.max(['xid', 'class'], fill('increase(%s[$__range])', metric('gpu_xid_errors_total'))),
                  promql.level(['xid']),
                  xids('$__range'),
                ])),
              ],
              [
                { field: 'xid', name: 'Xid', width: 60 },
                { field: 'class', name: 'Class', empty: '–' },
                { field: 'Value #A', name: 'Times', decimals: 0, width: 75 },
                { field: 'Value #B', name: 'GPUs', decimals: 0, width: 75 },
              ],
              'The driver has reported no error.',
              { w: 6, h: 8, sortBy: 'Times' },
            ),
            panels.timeseries(
              'Xids in an hour',
              'Driver errors in the hour before each point, by code, of all nodes: those of a GPU that fell off its bus, too.',
              'none',
              [panels.query(
                if gpu.has('xid') then promql.sum(['xid'], xids('1h')),
                'Xid {{xid}}',
              )],
              'The driver has reported no error.',
              sparse { w: 24, h: 6, stack: true },
            ),
          ],
        },
        {
          title: 'Quarantine',
          panels: [
            panels.timeseries(
              'Nodes out',
              'Nodes that the quarantine has taken out, and as many as it may take out at a time.',
              'none',
              [
                panels.query(fill('sum(%s)', metric('gpufleet_quarantine_nodes')), 'out'),
                panels.query(fill('sum(%s)', metric('gpufleet_quarantine_budget')), 'allowed'),
              ],
              'No quarantine service is scraped.',
              {
                w: 8,
                h: 7,
                min: 0,
                decimals: 0,
                interpolation: 'stepAfter',
                overrides: [
                  panels.override('out', { color: panels.fixedColor(colors.bad) }),
                  panels.override('allowed', {
                    color: panels.fixedColor(colors.grey),
                    'custom.fillOpacity': 0,
                    'custom.lineStyle': { fill: 'dash', dash: [10, 10] },
                  }),
                ],
              },
            ),
            panels.timeseries(
              'Decisions',
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
              { w: 8, h: 7, min: 0, decimals: 0 },
            ),
            panels.timeseries(
              'What was done',
              'Actions on nodes in the hour before each point, and how they ended.',
              'none',
              [panels.query(
                promql.sum(
                  ['action', 'outcome'],
                  fill('increase(%s[1h])', metric('gpufleet_quarantine_actions_total')),
                ),
                '{{action}} ({{outcome}})',
              )],
              'No quarantine service is scraped.',
              { w: 8, h: 7, min: 0, decimals: 0 },
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
              w=6,
            ),
            counters(
              'Corrected memory errors',
              'Errors of an hour that were corrected, by node. Many of them say that a board ages.',
              'ecc_correctable',
              'No corrected error in this time.',
              w=6,
            ),
            panels.timeseries(
              'Rows replaced, rows that wait',
              'Rows of memory that were replaced by spare ones, and GPUs that wait for a reset to replace one.',
              'none',
              [
                panels.query(
                  total('remapped_uncorrectable'), 'replaced, uncorrectable'
                ),
                panels.query(
                  total('remapped_correctable'), 'replaced, correctable'
                ),
                panels.query(
                  total('remap_pending'), 'GPUs that wait'
                ),
              ],
              'No source reports rows.',
              { w: 6, h: 7, min: 0, decimals: 0 },
            ),
            panels.timeseries(
              'Banks by spare rows left',
              'Banks of memory by how many spare rows they have left; those that have all are left out. Low: replace the board '
              + 'soon. None: the next bad row cannot be replaced.',
              'none',
              [panels.query(total('remap_banks', ['availability!="max"'], ['availability'], nonzero=''), '{{availability}}')],
              'No bank has used a spare row, or no source counts them.',
              {
                w: 6,
                h: 7,
                stack: true,
                min: 0,
                decimals: 0,
                overrides: [
                  panels.override(left[0], { color: panels.fixedColor(left[1]) })
                  for left in [['high', colors.good], ['partial', colors.neutral], ['low', colors.attention], ['none', colors.bad]]
                ],
              },
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
              rest='',
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
