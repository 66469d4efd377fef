// Are there GPUs enough, where do they go, and for how long will they last.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local recorded(name, matchers=[]) = promql.metric(name, here + matchers, '');
  local metric(name, matchers=[]) = promql.metric(name, here + matchers);
  local held = 'project!~"|[(](unallocated|unsliced)[)]"';
  local free = 'project=~"|[(]unallocated[)]"';
  local states = ['busy', 'unused', 'unmeasured', 'unallocated', 'unsliced', 'unavailable'];
  // A day's sum of five-minute increments, as GPU hours.
  local hours(matchers) = fill('sum by (%s, state) (sum_over_time(%s[1d])) / 3600', [
    config.clusterLabel,
    recorded('cluster:gpu_seconds:increase5m', matchers),
  ]);
  local part(state) = fill('sum(sum_over_time(%s[7d])) / sum(sum_over_time(%s[7d]))', [
    recorded('cluster:gpu_seconds:increase5m', [fill('state="%s"', state)]),
    recorded('cluster:gpu_capacity_seconds:increase5m'),
  ]);
  // GPUs that are held, as an hourly mean: what a trend is drawn through.
  local demand = fill('sum(%s) / 300', recorded('cluster:gpu_seconds:increase5m', ['state=~"busy|unused|unmeasured"']));
  local hourly = fill('avg_over_time((%s)[1h:])', demand);
  // A straight line through thirty days, and how fast it rises. At most four times what there is: a line through a few
  // hours leads anywhere.
  local past = fill('(%s)[30d:30m]', demand);
  local all = fill('sum(%s)', recorded('cluster:gpus:count'));
  local slope = fill('deriv(%s)', past);
  local most(expr) = fill('clamp(%s, 0, scalar(4 * %s))', [expr, all]);
  local mig = promql.max(['profile', 'mig_uuid'], metric('gpu_mig_info'));
  local slices = promql.metric('run_gpu:gpu_share:max', here + ['mig_uuid!=""'], '');
  local heldSlices = promql.metric('run_gpu:gpu_share:max', here + ['mig_uuid!=""', held], '');
  local freeByNode = fill('(%s > 0)', promql.sum(['node'], recorded('node_run:gpu_share:sum', [free])));
  local toNode = panels.dataLink('Open node', dashboards.url('node', { node: '${__value.text}' }));

  {
    'capacity.json': dashboards.dashboard(
      'capacity',
      'Capacity',
      'Whether there are GPUs enough, where they go, and for how long they will last.',
      [],
      [
        {
          title: 'Now',
          panels: [
            panels.stat(
              'GPUs',
              'GPUs that are seen now.',
              'none',
              [panels.query(fill('sum(%s)', recorded('cluster:gpus:count')), 'GPUs')],
              'No GPU is reported.',
              { w: 4, decimals: 0, graph: true },
            ),
            panels.stat(
              'Held',
              'GPUs that somebody holds, shares added up.',
              'none',
              [panels.query(fill('sum(%s)', recorded('run:gpu_share:sum', [held])), 'held')],
              'Nobody holds a GPU, or no source says who does.',
              { w: 4, decimals: 1, graph: true },
            ),
            panels.stat(
              'Free',
              'GPUs that nobody holds, slices included.',
              'none',
              [panels.query(fill('sum(%s) or vector(0)', recorded('run:gpu_share:sum', [free])), 'free')],
              'No source says who holds GPUs.',
              { w: 4, decimals: 1, graph: true, thresholds: [[null, colors.attention], [1, colors.good]] },
            ),
            panels.stat(
              'Whole nodes free',
              'Nodes of which nobody holds anything: room for a run of many GPUs.',
              'none',
              [panels.query(fill('count(%s == %s) or vector(0)', [
                promql.sum(['node'], recorded('node_run:gpu_share:sum', [free])),
                promql.sum(['node'], recorded('node:gpus:count')),
              ]), 'nodes')],
              'No source says who holds GPUs.',
              { w: 4, decimals: 0 },
            ),
            panels.stat(
              'Largest free block',
              'Most GPUs that are free on one node: a pod that asks for more has to wait.',
              'none',
              [panels.query(
                fill('max(%s) or vector(0)', promql.sum(['node'], recorded('node_run:gpu_share:sum', [free]))), 'GPUs'
              )],
              'No source says who holds GPUs.',
              { w: 4, decimals: 1 },
            ),
            panels.stat(
              'Made use of, last week',
              'Part of all GPU time of seven days, that of nodes that were down included, in which GPUs did work.',
              'percentunit',
              [panels.query(part('busy'), 'busy')],
              'Not recorded for long enough, or no source meters GPU time.',
              { w: 4, min: 0, max: 1, decimals: 0 },
            ),
          ],
        },
        {
          title: 'Where GPU time goes',
          panels: [
            panels.timeseries(
              'GPU hours a day, by what became of them',
              'Each bar is the day that ends there. All together are the hours that there were: busy and unused are held, unallocated '
              + 'is free, unsliced is what MIG slices leave over, unavailable did not answer or takes no work.',
              'none',
              [panels.query(hours([]), '{{state}}', interval='1d')],
              'Not recorded yet: it takes gpufleet with a source of owners, and a midnight.',
              {
                w: 16,
                h: 9,
                stack: true,
                min: 0,
                drawStyle: 'bars',
                fill: 85,
                points: 'never',
                axisLabel: 'GPU hours',
                overrides: [
                  panels.override(state, { color: panels.fixedColor(colors[state]) })
                  for state in states
                ],
              },
            ),
            panels.bargauge(
              'Last seven days',
              'The same, as parts of all GPU time.',
              'percentunit',
              [panels.query(part(state), state, instant=true) for state in states],
              'Not recorded yet.',
              {
                w: 8,
                h: 9,
                min: 0,
                max: 1,
                overrides: [
                  panels.override(state, { color: panels.fixedColor(colors[state]) })
                  for state in states
                ],
              },
            ),
          ],
        },
        {
          title: 'For how long it will last, if it goes on as in the last 30 days',
          panels: [
            panels.stat(
              'Until all is held',
              'When the line reaches what there is now. An extrapolation of 30 days of demand, which knows nothing '
              + 'of what is planned.',
              'd',
              [panels.query(fill('clamp_min((%s - predict_linear(%s, 0)) / (%s > 0) / 86400, 0)', [all, past, slope]), 'days')],
              'Demand does not rise.',
              {
                w: 4,
                h: 9,
                decimals: 0,
                thresholds: [[null, colors.bad], [30, colors.attention], [90, colors.good]],
              },
            ),
            panels.stat(
              'Demand in 30 days',
              'GPUs that the line leads to, at most four times what there is. An extrapolation of 30 days of demand.',
              'none',
              [panels.query(most(fill('predict_linear(%s, 30 * 86400)', past)), 'GPUs')],
              'Not recorded yet.',
              { w: 4, h: 9, decimals: 0 },
            ),
            panels.timeseries(
              'Demand, and where it leads',
              'GPUs that were held, as hourly means, beside all that there are. Dashed: where the line through the 30 days before '
              + 'each point led to 30 days after it, so its end is a month from now. An extrapolation.',
              'none',
              [
                panels.query(hourly, 'held', interval='1h'),
                panels.query(
                  fill('max_over_time(%s[1h:])', all), 'there are', interval='1h'
                ),
                panels.query(
                  most(fill('predict_linear(%s, 30 * 86400)', past)), 'extrapolated, 30 days later', interval='6h'
                ),
              ],
              'Not recorded yet.',
              {
                w: 16,
                h: 9,
                min: 0,
                fill: 0,
                overrides: [
                  panels.override('held', { color: panels.fixedColor(colors.blue), 'custom.lineWidth': 2 }),
                  panels.override('there are', { color: panels.fixedColor(colors.grey) }),
                  panels.override('extrapolated, 30 days later', {
                    color: panels.fixedColor(colors.blue),
                    'custom.lineStyle': { fill: 'dash', dash: [10, 10] },
                  }),
                ],
              },
            ),
          ],
        },
        {
          title: 'Who asks for it',
          panels: [
            panels.timeseries(
              'Held by project',
              'GPUs that each project holds, as hourly means.',
              'none',
              [panels.query(
                fill('%s / 3600', promql.sum(['project'], fill('sum_over_time(%s[1h])', recorded(
                  'project:gpu_allocated_seconds:increase5m', [held]
                )))),
                '{{project}}',
                interval='1h',
              )],
              'Not recorded yet, or nothing was held for an hour.',
              { w: 12, h: 8, stack: true, min: 0 },
            ),
            panels.timeseries(
              'GPUs by model',
              'GPUs of each kind that were seen.',
              'none',
              [panels.query(promql.sum(['model'], recorded('model:gpus:count')), '{{model}}', interval='1h')],
              'No GPU is reported.',
              { w: 12, h: 8, stack: true, min: 0, decimals: 0 },
            ),
          ],
        },
        {
          title: 'What there is',
          panels: [
            panels.table(
              'By model',
              'GPUs of each kind, and what they do.',
              [
                panels.row(promql.sum(['model'], recorded('model:gpus:count'))),
                panels.row(promql.avg(['model'], recorded('model:gpu_busy:ratio_rate5m'))),
                panels.row(promql.avg(['model'], recorded('model:gpu_sm_active:ratio_rate5m'))),
              ],
              [
                { field: 'model', name: 'Model' },
                { field: 'Value #A', name: 'GPUs', decimals: 0, width: 80 },
                { field: 'Value #B', name: 'Busy', unit: 'percentunit', decimals: 0, width: 90, empty: 'not measured' },
                { field: 'Value #C', name: 'SM active', unit: 'percentunit', decimals: 0, width: 110, empty: 'not measured' },
              ],
              'No GPU is reported.',
              { w: 12, h: 8, sortBy: 'GPUs' },
            ),
            panels.table(
              'Free GPUs by node',
              'Nodes on which something is free now, most first.',
              [
                panels.row(freeByNode),
                panels.row(fill('%s and on (%s) %s', [
                  promql.sum(['node'], recorded('node:gpus:count')),
                  promql.level(['node']),
                  freeByNode,
                ])),
              ],
              [
                { field: 'node', name: 'Node', link: toNode },
                { field: 'Value #A', name: 'Free', decimals: 1, width: 90 },
                { field: 'Value #B', name: 'Of', decimals: 0, width: 70 },
              ],
              'Nothing is free, or no source says who holds GPUs.',
              { w: 12, h: 8, sortBy: 'Free' },
            ),
            panels.table(
              'Slices by profile',
              'MIG slices of each size, and how many of them somebody holds.',
              [
                panels.row(promql.count(['profile'], mig)),
                panels.row(promql.count(['profile'], fill('%s and on (%s) %s', [
                  mig,
                  promql.level(['mig_uuid']),
                  heldSlices,
                ]))),
              ],
              [
                { field: 'profile', name: 'Profile' },
                { field: 'Value #A', name: 'Slices', decimals: 0, width: 90 },
                { field: 'Value #B', name: 'Held', decimals: 0, width: 90, empty: '0' },
              ],
              'No GPU is cut into slices.',
              { w: 8, h: 7, sortBy: 'Slices' },
            ),
            panels.timeseries(
              'Slices',
              'MIG slices that somebody holds, and all that there are.',
              'none',
              [
                panels.query(promql.count([], heldSlices), 'held', interval='1h'),
                panels.query(promql.count([], slices), 'there are', interval='1h'),
              ],
              'No GPU is cut into slices.',
              {
                w: 16,
                h: 7,
                min: 0,
                decimals: 0,
                overrides: [
                  panels.override('held', { color: panels.fixedColor(colors.blue) }),
                  panels.override('there are', { color: panels.fixedColor(colors.grey), 'custom.fillOpacity': 0 }),
                ],
              },
            ),
          ],
        },
      ],
      time={ from: 'now-30d', to: 'now' },
    ),
  }
