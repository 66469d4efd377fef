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
  local overTwoWeeks = fill('avg_over_time((%s)[1h:])', demand);
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
              'Largest free block on a node',
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
              'Each point is the day before it. All together are the hours that there were: busy and unused are held, unallocated '
              + 'is free, unsliced is what MIG slices leave over, unavailable did not answer or takes no work.',
              'none',
              [panels.query(hours([]), '{{state}}', interval='1h')],
              'Not recorded yet: it takes gpufleet with a source of owners, and some minutes.',
              {
                w: 16,
                h: 9,
                stack: true,
                min: 0,
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
          title: 'For how long it will last',
          panels: [
            panels.timeseries(
              'Demand, and where it leads',
              'GPUs that were held, as hourly means, beside all that there are. The dashed line is a straight line through the shown '
              + 'time, thirty days on, at most four times what there is: an extrapolation, which knows nothing of what is planned.',
              'none',
              [
                panels.query(overTwoWeeks, 'held', interval='1h'),
                panels.query(
                  fill('max_over_time(sum(%s)[1h:])', recorded('cluster:gpus:count')), 'there are', interval='1h'
                ),
                panels.query(
                  fill('clamp(predict_linear((%s)[$__range:30m], 30 * 86400), 0, scalar(4 * sum(%s)))', [
                    demand,
                    recorded('cluster:gpus:count'),
                  ]),
                  'in 30 days, if it goes on so',
                  interval='1h',
                ),
              ],
              'Not recorded yet.',
              {
                w: 12,
                h: 8,
                min: 0,
                fill: 0,
                overrides: [panels.override('in 30 days, if it goes on so', {
                  'custom.lineStyle': { fill: 'dash', dash: [10, 10] },
                })],
              },
            ),
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
                panels.row(promql.sum(['node'], recorded('node_run:gpu_share:sum', [free]))),
                panels.row(promql.sum(['node'], recorded('node:gpus:count'))),
              ],
              [
                { field: 'node', name: 'Node', link: toNode },
                { field: 'Value #A', name: 'Free', decimals: 2, empty: '0' },
                { field: 'Value #B', name: 'GPUs', decimals: 0 },
              ],
              'Nothing is free, or no source says who holds GPUs.',
              { w: 12, h: 8, sortBy: 'Free' },
            ),
            panels.timeseries(
              'Slices',
              'MIG slices that somebody holds, and all there are, by node.',
              'none',
              [
                panels.query(
                  promql.count(['node'], promql.metric('run_gpu:gpu_share:max', here + ['mig_uuid!=""', held], '')),
                  'held {{node}}',
                ),
                panels.query(
                  promql.count(['node'], promql.metric('run_gpu:gpu_share:max', here + ['mig_uuid!=""'], '')),
                  'all {{node}}',
                ),
              ],
              'No GPU is cut into slices.',
              { w: 24, h: 7, min: 0, decimals: 0 },
            ),
          ],
        },
      ],
      time={ from: 'now-30d', to: 'now' },
    ),
  }
