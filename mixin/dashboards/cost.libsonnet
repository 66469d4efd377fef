// What GPUs cost, whom, and what of it was made use of.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local of = here + ['project=~"$project"'];
  local held = 'project!~"|[(](unallocated|unsliced)[)]"';
  local recorded(name, matchers=of) = promql.metric(name, matchers, '');
  local over(series, window, matchers=of) = fill('sum_over_time(%s[%s])', [promql.metric(series, matchers, ''), window]);
  local total(series, matchers=of) = fill('sum(%s)', over(series, '$__range', matchers));
  local mine = of + [held];
  local by(labels, series) = promql.sum(labels, over(series, '$__range', mine));
  local used = fill('%s / (%s > 0)', [
    total('project:gpu_productive_seconds:increase5m', mine),
    total('project:gpu_allocated_seconds:increase5m', mine),
  ]);
  local states = ['busy', 'unused', 'unmeasured', 'unallocated', 'unsliced', 'unavailable'];
  local stateColors = [panels.override(state, { color: panels.fixedColor(colors[state]) }) for state in states];
  local toRun = panels.dataLink('Open run', dashboards.url('run', { run: '${__value.text}' }));
  local toProject = panels.dataLink('This project', dashboards.url('cost', { project: '${__value.text}' }));
  local money = { unit: config.currencyUnit, decimals: 0 };
  local usedColumn = {
    field: 'Value #D',
    name: 'Used',
    unit: 'percentunit',
    decimals: 0,
    min: 0,
    max: 1,
    cell: panels.cells.bar,
    color: panels.fixedColor(colors.busy),
    empty: 'not measured',
  };
  local columns = [
    money { field: 'Value #A', name: 'Cost', empty: 'no price' },
    money { field: 'Value #B', name: 'Unused', empty: '–' },
    { field: 'Value #C', name: 'GPU hours', decimals: 0 },
    usedColumn,
  ];
  // Cost, unused cost, GPU hours and the part that was used, by these labels.
  local rows(labels, level) = [
    panels.row(by(labels, level + ':gpu_cost:increase5m')),
    panels.row(by(labels, level + ':gpu_unused_cost:increase5m')),
    panels.row(by(labels, level + ':gpu_allocated_seconds:increase5m') + ' / 3600'),
    panels.row(fill('%s / (%s > 0)', [
      by(labels, level + ':gpu_productive_seconds:increase5m'),
      by(labels, level + ':gpu_allocated_seconds:increase5m'),
    ])),
  ];
  // As rules/slices.libsonnet.
  local gpu = lib.vocabulary.gpu;
  local sliceable = gpu.has('memory_total') && gpu.has('sm_active') && gpu.has('mig_enabled');
  local ifSliceable(panel) = if sliceable then panel else null;
  local unmetered = 'No gpufleet meters GPU time, or nothing was held in this time.';

  {
    'cost.json': dashboards.dashboard(
      'cost',
      'Cost',
      'What GPUs cost, whom, and what of it was made use of.',
      [dashboards.variables.project],
      [
        {
          title: 'In the shown time',
          panels: [
            panels.stat(
              'Cost',
              "What the chosen projects' GPUs cost, at the prices of the time.",
              config.currencyUnit,
              [panels.query(total('project:gpu_cost:increase5m', mine), 'cost', instant=true)],
              'No price book is configured, or nothing was held.',
              { w: 5, decimals: 0 },
            ),
            panels.stat(
              'Unused',
              'What of it was held and not made use of: cost times one less utilization.',
              config.currencyUnit,
              [panels.query(total('project:gpu_unused_cost:increase5m', mine), 'unused', instant=true)],
              'No price book is configured, or utilization is not measured.',
              { w: 5, decimals: 0, thresholds: [[null, colors.unused]] },
            ),
            panels.stat(
              'Used',
              'Part of the held GPU time in which GPUs did work.',
              'percentunit',
              [panels.query(used, 'used', instant=true)],
              unmetered,
              { w: 4, min: 0, max: 1, decimals: 0 },
            ),
            panels.stat(
              'GPU hours',
              'Time for which GPUs were held, shares added up.',
              'none',
              [panels.query(
                fill('%s / 3600', total('project:gpu_allocated_seconds:increase5m', mine)), 'GPU hours', instant=true
              )],
              unmetered,
              { w: 5, decimals: 0 },
            ),
            ifSliceable(panels.stat(
              'A slice would return',
              'What runs that would have fit a MIG slice would have saved in it, by the most that they used.',
              config.currencyUnit,
              [panels.query(total('run:gpu_slice_return_cost:increase5m', mine), 'would be saved', instant=true)],
              'No run would have fit a slice.',
              { w: 5, decimals: 0 },
            )),
          ],
        },
        {
          title: 'Where the money goes',
          panels: [
            panels.timeseries(
              'Cost a day, by what became of it',
              'Each point is the day before it. Unallocated is what nobody held, unsliced what MIG slices leave over, unavailable '
              + 'what did not answer or takes no work, at the mean price.',
              config.currencyUnit,
              [panels.query(
                fill('sum by (%s, state) (%s)', [
                  config.clusterLabel,
                  over('cluster:gpu_capacity_cost:increase5m', '1d', here),
                ]), '{{state}}', interval='1h'
              )],
              'No price book is configured, or nothing was recorded yet.',
              { w: 12, h: 8, stack: true, min: 0, overrides: stateColors },
            ),
            panels.timeseries(
              'Unused a day, by project',
              'Each point is the day before it.',
              config.currencyUnit,
              [panels.query(
                fill('topk(10, %s)', promql.sum(['project'], over('project:gpu_unused_cost:increase5m', '1d', mine))),
                '{{project}}',
                interval='1h',
              )],
              'No price book is configured, or nothing was unused.',
              { w: 12, h: 8, stack: true, min: 0 },
            ),
          ],
        },
        {
          title: 'Who',
          panels: [
            panels.table(
              'Projects',
              'Cost, what of it was not used, GPU hours, and the part of them that was used.',
              rows(['project'], 'project'),
              [{ field: 'project', name: 'Project', link: toProject }] + columns,
              unmetered,
              { w: 12, h: 9, sortBy: 'Cost' },
            ),
            ifSliceable(panels.table(
              'What a slice would save',
              'Runs of one GPU a pod that would have fit a MIG slice by the most that they used in seven days, and what it would '
              + 'have returned in the shown time.',
              [
                panels.row(promql.sum(
                  ['project', 'run', 'task'], over('run:gpu_slice_return_cost:increase5m', '$__range', mine)
                )),
                panels.row(promql.max(['project', 'run', 'task', 'slice'], recorded('run:gpu_slice_fit:ratio', mine))),
              ],
              [
                { field: 'run', name: 'Run', link: toRun },
                { field: 'task', name: 'Task' },
                { field: 'slice', name: 'Slice', width: 70 },
                { field: 'Value #B', name: 'Of a GPU', unit: 'percentunit', decimals: 0, width: 90 },
                money { field: 'Value #A', name: 'Would return', width: 120, empty: 'no price' },
              ],
              'No run would have fit a slice, or none of a GPU each was there.',
              { w: 12, h: 9, sortBy: 'Would return' },
            )),
            panels.table(
              'Runs',
              'The same by run and task, the fifty that cost most.',
              [
                panels.row(fill('topk(50, %s)', by(['project', 'run', 'task'], 'run:gpu_cost:increase5m'))),
              ] + rows(['project', 'run', 'task'], 'run')[1:],
              [
                { field: 'run', name: 'Run', link: toRun },
                { field: 'project', name: 'Project', link: toProject },
                { field: 'task', name: 'Task' },
              ] + columns,
              unmetered,
              { w: 24, h: 9, sortBy: 'Cost' },
            ),
          ],
        },
        {
          title: 'Why it was not used, and prices',
          panels: [
            panels.timeseries(
              'Unused an hour, by reason',
              'Idle: the GPU was up and did nothing. Down: it was held and could not be used.',
              config.currencyUnit,
              [panels.query(
                fill('12 * %s', promql.sum(['reason'], recorded('run:gpu_unused_cost:increase5m', mine))), '{{reason}}'
              )],
              'No price book is configured, or nothing was unused.',
              { w: 12, h: 7, min: 0, stack: true },
            ),
            panels.table(
              'Prices in use',
              'Price of a GPU hour by model, the lowest and the highest that the price book gives.',
              if !gpu.has('price') then [null] else [
                panels.row(promql.min(
                  ['model'], promql.join(fill('(%s)', lib.vocabulary.models), promql.max(['uuid'], gpu.now('price', here)))
                )),
                panels.row(promql.max(
                  ['model'], promql.join(fill('(%s)', lib.vocabulary.models), promql.max(['uuid'], gpu.now('price', here)))
                )),
              ],
              [
                { field: 'model', name: 'Model' },
                money { field: 'Value #A', name: 'Lowest', decimals: 2 },
                money { field: 'Value #B', name: 'Highest', decimals: 2 },
              ],
              'No price book is configured.',
              { w: 12, h: 7, sortBy: 'Highest' },
            ),
          ],
        },
      ],
      time={ from: 'now-30d', to: 'now' },
    ),
  }
