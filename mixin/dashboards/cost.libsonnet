// What GPU time costs, who spends it, what of it is used for nothing, and what could be had for less.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local run = config.runLabels;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local chosen = here + ['project=~"$project"', 'run=~"$run"'];
  // A holder's: what nobody has is nobody's cost here, and has charts of its own.
  local held = 'project!~"[(](unallocated|unsliced)[)]"';
  local series(name, matchers=[]) = promql.metric(name, chosen + [held] + matchers, '');
  local fleet(name, matchers=[]) = promql.metric(name, here + matchers, '');
  local cost = series('run:gpu_cost:increase5m');
  local unused = series('run:gpu_unused_cost:increase5m');
  local allocated = series('run:gpu_allocated_seconds:increase5m');
  local productive = series('run:gpu_productive_seconds:increase5m');

  // Sums over the shown time, and over a day: from its beginning, where its bar stands, to its end or to now.
  local shown(selector) = fill('sum_over_time(%s[$__range])', selector);
  local day(selector) = fill('sum_over_time(%s)', promql.ago(selector + '[1d]', '-1d'));
  local total(expr, labels=null) = if labels == null then fill('sum(%s)', expr) else promql.sum(labels, expr);
  // Of the time whose use was measured, the part that was used.
  local utilization(over, labels=null) = fill('%s / (%s > 0)', [
    total(over(productive), labels),
    total(fill('%s and %s', [over(allocated), over(productive)]), labels),
  ]);
  local part(over, labels=null) = fill('%s / (%s > 0)', [total(over(unused), labels), total(over(cost), labels)]);

  local unpriced = 'No price book is configured, or nothing was held.';
  local unmetered = 'Nothing was held, or no source meters GPU time.';
  local states = ['busy', 'unused', 'unmeasured', 'unallocated', 'unsliced', 'unavailable'];
  local inColors = [panels.override(state, { color: panels.fixedColor(colors[state]) }) for state in states];
  local toRun = panels.dataLink('Open run', dashboards.url('run', { run: '${__value.text}' }));
  local toProject = panels.dataLink('Only this project', dashboards.url('cost', { project: '${__value.text}' }));

  local stat(title, description, unit, expr, empty, opts={}) = panels.stat(
    title, description, unit, [panels.query(expr, title, instant=true)], empty, { w: 3, h: 4 } + opts
  );
  // A bar for each day (of UTC), in its place from midnight to midnight.
  local days(title, description, unit, queries, empty, opts={}) =
    local panel = panels.timeseries(title, description + ' Days are those of UTC; the last one is not over.', unit, queries, empty, {
      w: 12,
      h: 8,
      stack: true,
      min: 0,
      drawStyle: 'bars',
      interval: '1d',
    } + opts);
    if panel == null then null else panel { fieldConfig+: { defaults+: { custom+: { barAlignment: 1 } } } };
  // By project, then by run: the same columns.
  local figures(first, labels, extra='') =
    local rows(expr) = panels.row(expr + extra);
    {
      queries: [
        rows(total(shown(allocated), labels) + ' / 3600'),
        rows(utilization(shown, labels)),
        rows(total(shown(cost), labels)),
        rows(total(shown(unused), labels)),
        rows(part(shown, labels)),
      ],
      columns: first + [
        { field: 'Value #A', name: 'GPU hours', unit: 'short', decimals: 1, width: 100, empty: '–' },
        {
          field: 'Value #B',
          name: 'Utilization',
          unit: 'percentunit',
          min: 0,
          max: 1,
          decimals: 0,
          cell: panels.cells.bar,
          color: panels.fixedColor(colors.busy),
          empty: 'not measured',
        },
        { field: 'Value #C', name: 'Cost', unit: config.currencyUnit, decimals: 2, width: 110, empty: 'no price' },
        { field: 'Value #D', name: 'Unused cost', unit: config.currencyUnit, decimals: 2, width: 110, empty: '–' },
        {
          field: 'Value #E',
          name: 'Unused',
          unit: 'percentunit',
          min: 0,
          max: 1,
          decimals: 0,
          cell: panels.cells.bar,
          color: panels.fixedColor(colors.unused),
          empty: '–',
        },
      ],
    };
  local byProject = figures([{ field: 'project', name: 'Project', link: toProject }], ['project']);
  local byRun = figures(
    [
      { field: 'run', name: 'Run', link: toRun },
      { field: 'task', name: 'Task' },
      { field: 'project', name: 'Project', link: toProject },
    ],
    run,
    fill(' and on (%s) topk(100, %s)', [promql.level(run), total(shown(allocated), run)]),
  );
  local prices = if !gpu.has('price') then null else promql.join(
    fill('(%s)', lib.vocabulary.models), gpu.now('price', here)
  );
  local fit = series('run:gpu_slice_fit:ratio');
  local returns = series('run:gpu_slice_return_cost:increase5m');
  local measurable = gpu.has('memory_total') && gpu.has('sm_active') && gpu.has('mig_enabled');

  {
    'cost.json': dashboards.dashboard(
      'cost',
      'Cost',
      'What GPU time costs, who spends it, what of it is not used, and what could be had for less.',
      [
        dashboards.variables.project,
        dashboards.variables.query('run', 'Run', fill(
          'label_values(run:gpu_share:sum{%s=~"$cluster",project=~"$project",run!=""}, run)', config.clusterLabel
        )),
      ],
      [
        {
          title: 'In the shown time',
          panels: [
            stat(
              'Cost',
              'Price of all GPU time that was held, used or not.',
              config.currencyUnit,
              total(shown(cost)),
              unpriced,
              { w: 4, decimals: 2 },
            ),
            stat(
              'Unused cost',
              'Price of the GPU time that was held and not used.',
              config.currencyUnit,
              total(shown(unused)),
              unpriced,
              { w: 4, decimals: 2, thresholds: [[null, colors.unused]] },
            ),
            stat(
              'Unused part',
              'Unused cost as a part of the cost.',
              'percentunit',
              part(shown),
              unpriced,
              {
                decimals: 0,
                min: 0,
                max: 1,
                thresholds: [[null, colors.good], [0.3, colors.attention], [config.thresholds.unusedPart, colors.bad]],
              },
            ),
            stat(
              'GPU hours',
              'GPU time that was held, shares of GPUs counted as such.',
              'short',
              total(shown(allocated)) + ' / 3600',
              unmetered,
              { decimals: 0 },
            ),
            stat(
              'Utilization',
              'Part of the held time whose use was measured, in which GPUs did work.',
              'percentunit',
              utilization(shown),
              'No use of GPUs was measured.',
              { decimals: 0, min: 0, max: 1, thresholds: [[null, colors.bad], [0.3, colors.attention], [0.6, colors.good]] },
            ),
            if !measurable then null else stat(
              'Slices return',
              'What runs that would have fit a MIG slice, by the most that they used, would have saved in it.',
              config.currencyUnit,
              total(shown(returns)),
              'No run would fit a slice, or there is no price.',
              { decimals: 2 },
            ),
            stat(
              'Thirty days like the last',
              'Cost of thirty days at the pace of the last 24 hours'
              + (if config.monthlyBudget > 0 then fill(', beside a budget of %s a month.', config.monthlyBudget) else '.'),
              config.currencyUnit,
              fill('30 * sum(sum_over_time(%s[1d]))', cost),
              unpriced,
              {
                w: 4,
                decimals: 2,
                thresholds: [[null, colors.neutral]]
                            + (if config.monthlyBudget > 0 then [[config.monthlyBudget, colors.bad]] else []),
              },
            ),
          ],
        },
        {
          title: 'By day',
          panels: [
            days(
              'Cost by project',
              'Price of the GPU time that each project held.',
              config.currencyUnit,
              [panels.query(promql.sum(['project'], day(cost)), '{{project}}')],
              unpriced,
            ),
            days(
              'Unused cost by project',
              'Price of the GPU time that each project held and did not use.',
              config.currencyUnit,
              [panels.query(promql.sum(['project'], day(unused)), '{{project}}')],
              unpriced,
            ),
            days(
              'Unused cost by reason',
              'Idle is what was held and did nothing, down is what the holder paid for and did not get.',
              config.currencyUnit,
              [panels.query(promql.sum(['reason'], day(unused)), '{{reason}}')],
              unpriced,
              {
                overrides: [
                  panels.override('idle', { color: panels.fixedColor(colors.unused) }),
                  panels.override('down', { color: panels.fixedColor(colors.unavailable) }),
                ],
              },
            ),
            days(
              'Utilization',
              'Part of the held time whose use was measured, in which GPUs did work, by project.',
              'percentunit',
              [panels.query(utilization(day, ['project']), '{{project}}')],
              'No use of GPUs was measured.',
              { stack: false, fill: 0, max: 1, drawStyle: 'line', points: 'always', lineWidth: 2 },
            ),
          ],
        },
        {
          title: 'Who spends it',
          panels: [
            panels.table(
              'Projects',
              'What each project held in the shown time, and what it made of it. Click one to see its runs alone.',
              byProject.queries,
              byProject.columns,
              unmetered,
              { w: 24, h: 6, sortBy: 'Unused cost' },
            ),
            panels.table(
              'Runs and tasks',
              'The same for each run: the hundred that held most.',
              byRun.queries,
              byRun.columns,
              unmetered,
              { w: 24, h: 10, sortBy: 'Unused cost' },
            ),
          ],
        },
        {
          title: 'Where the capacity of the whole fleet goes',
          panels: [
            days(
              'GPU hours by what became of them',
              'Busy and unused time is held, unmeasured too; unallocated is free, unsliced is what MIG slices leave over, '
              + 'unavailable did not answer or takes no work. Whatever project is chosen.',
              'short',
              [panels.query(
                fill('sum by (state) (%s) / 3600', day(fleet('cluster:gpu_seconds:increase5m'))), '{{state}}'
              )],
              'Not recorded yet, or no source meters GPU time.',
              { w: 8, overrides: inColors, axisLabel: 'GPU hours' },
            ),
            days(
              'The same in money',
              'All GPU time at its price; what was unavailable at the mean price of the rest.',
              config.currencyUnit,
              [panels.query(
                fill('sum by (state) (%s)', day(fleet('cluster:gpu_capacity_cost:increase5m'))), '{{state}}'
              )],
              'No price book is configured.',
              { w: 8, overrides: inColors },
            ),
            panels.table(
              'In the shown time',
              'Each state with its part of all GPU time and of all money.',
              [
                panels.row(fill('sum by (state) (%s) / 3600', shown(fleet('cluster:gpu_seconds:increase5m')))),
                panels.row(fill('sum by (state) (%s) / scalar(sum(%s))', [
                  shown(fleet('cluster:gpu_seconds:increase5m')),
                  shown(fleet('cluster:gpu_capacity_seconds:increase5m')),
                ])),
                panels.row(fill('sum by (state) (%s)', shown(fleet('cluster:gpu_capacity_cost:increase5m')))),
                panels.row(fill('sum by (state) (%s) / scalar(sum(%s))', [
                  shown(fleet('cluster:gpu_capacity_cost:increase5m')),
                  shown(fleet('cluster:gpu_capacity_cost:increase5m')),
                ])),
              ],
              [
                {
                  field: 'state',
                  name: 'State',
                  width: 110,
                  cell: panels.cells.text,
                  mappings: panels.mapValues({ [state]: { text: state, color: colors[state] } for state in states }),
                },
                { field: 'Value #A', name: 'Hours', unit: 'short', decimals: 1, width: 85 },
                { field: 'Value #B', name: 'of time', unit: 'percentunit', decimals: 1, width: 80 },
                { field: 'Value #C', name: 'Money', unit: config.currencyUnit, decimals: 2, width: 100, empty: 'no price' },
                { field: 'Value #D', name: 'of money', unit: 'percentunit', decimals: 1, width: 95, empty: '–' },
              ],
              'Not recorded yet, or no source meters GPU time.',
              { w: 8, h: 8, sortBy: 'Hours' },
            ),
          ],
        },
        {
          title: 'What could be had for less',
          panels: [
            if !measurable then null else panels.table(
              'Runs that a slice would do for',
              'The smallest MIG slice that would have held the most that the run used in seven days, the part of a GPU that it '
              + 'takes, and the money that it would have returned in the shown time. Only runs whose pods hold one whole GPU each.',
              [
                panels.row(promql.max(run + ['slice'], fit)),
                panels.row(fill('%s and on (%s) %s', [total(shown(cost), run), promql.level(run), fit])),
                panels.row(fill('%s and on (%s) %s', [total(shown(returns), run), promql.level(run), fit])),
              ],
              [
                { field: 'run', name: 'Run', link: toRun },
                { field: 'task', name: 'Task' },
                { field: 'project', name: 'Project', link: toProject },
                { field: 'slice', name: 'Slice', width: 70 },
                { field: 'Value #A', name: 'of a GPU', unit: 'percentunit', decimals: 0, width: 90 },
                { field: 'Value #B', name: 'Cost', unit: config.currencyUnit, decimals: 2, width: 110, empty: 'no price' },
                {
                  field: 'Value #C',
                  name: 'It would return',
                  unit: config.currencyUnit,
                  decimals: 2,
                  width: 130,
                  empty: 'no price',
                },
              ],
              'No run would fit a slice, or none holds one GPU for each pod.',
              { w: 16, h: 7, sortBy: 'It would return' },
            ),
            panels.table(
              'Prices in use',
              'Price of a whole GPU for an hour, by kind: the lowest and the highest, where clusters or pools differ.',
              [
                panels.row(if prices == null then null else promql.count(['model'], prices)),
                panels.row(if prices == null then null else promql.min(['model'], prices)),
                panels.row(if prices == null then null else promql.max(['model'], prices)),
              ],
              [
                { field: 'model', name: 'Kind' },
                { field: 'Value #A', name: 'GPUs', unit: 'none', decimals: 0, width: 70 },
                { field: 'Value #B', name: 'From', unit: config.currencyUnit, decimals: 2, width: 80 },
                { field: 'Value #C', name: 'To', unit: config.currencyUnit, decimals: 2, width: 80 },
              ],
              'No price book is configured.',
              { w: 8, h: 7, sortBy: 'To' },
            ),
          ],
        },
      ],
      { from: 'now-30d', to: 'now' },
      // Money is recorded every five minutes.
      { refresh: '5m' },
    ),
  }
