// Served models: how soon and how well they answer, what queues, and what their GPUs do meanwhile.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local limits = config.thresholds;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local of = here + ['model=~"$model"'];
  local recorded(name) = promql.metric('model:inference_' + name, of, '');
  // By model and system: their histograms have different bounds, and can't be added up.
  local level = ['model', 'system'];
  local quantile(q, name) = fill('histogram_quantile(%s, %s)', [
    q,
    promql.sum(level + ['le'], promql.metric('model_le:inference_' + name + '_seconds_bucket:rate5m', of, '')),
  ]);
  local slowest(q, name) = panels.query(fill('max(%s)', quantile(q, name)), 'slowest model');
  // Names of models begin with who made them, which a legend has no room for.
  local short = { transformations: [{
    id: 'renameByRegex',
    options: { regex: '^([^/]*\\s)?[^/\\s]+/(.*)$', renamePattern: '$1$2' },
  }] };
  local small = { w: 8, h: 8, min: 0, fill: 0 } + short;
  local line(width, dash) = {
    'custom.lineWidth': width,
    'custom.lineStyle': if dash == [] then { fill: 'solid' } else { fill: 'dash', dash: dash },
  };
  local latency(title, description, name) = panels.timeseries(
    title,
    description,
    's',
    [
      panels.query(quantile(q[0], name), q[1] + ' {{model}} {{system}}')
      for q in [[0.99, 'p99'], [0.9, 'p90'], [0.5, 'p50']]
    ],
    'No server reports this, or nobody asks.',
    small {
      h: 9,
      overrides: [
        panels.overrideMatching('^p99 .*', line(2, [])),
        panels.overrideMatching('^p90 .*', line(1, [])),
        panels.overrideMatching('^p50 .*', line(1, [4, 4])),
      ],
    },
  );
  local each(title, description, unit, series, empty, opts={}) = panels.timeseries(
    title, description, unit, [panels.query(recorded(series), '{{model}} {{system}}')], empty, small + opts,
  );
  local two(title, description, unit, series, empty, opts={}) = panels.timeseries(
    title,
    description,
    unit,
    [panels.query(recorded(one[1]), one[0] + ' {{model}} {{system}}') for one in series],
    empty,
    small { overrides: [panels.overrideMatching(fill('^%s .*', series[1][0]), line(1, [4, 4]))] } + opts,
  );
  local cell(expr) = panels.row(promql.max(level, expr));
  local late(limit) = { thresholds: [[null, 'text'], [limit, colors.bad]], cell: panels.cells.text };

  local served = ['project!~"|[(](unallocated|unsliced)[)]"', 'run=~"$run"'];
  // Of the runs whose pods are known to be servers; where none is known, of all that are chosen.
  local servers = promql.metric('run:inference_pods:count', here, '');
  local ofServers(expr) = if expr == null then null else fill('((%s and on (%s) %s) or (%s unless on (%s) %s))', [
    expr,
    promql.level(config.runLabels),
    servers,
    expr,
    promql.level([]),
    servers,
  ]);
  local activity = ofServers(promql.metric('run:gpu_sm_active:ratio_rate5m', here + served, ''));
  // Of the chosen runs together, by the GPUs that each holds.
  local busyGpus = fill('sum(%s * %s)', [activity, ofServers(promql.metric('run:gpu_share:sum', here + served, ''))]);
  local heldGpus = fill('sum(%s)', ofServers(promql.metric('run:gpu_share:sum', here + served, '')));
  // What users see on the left, what GPUs do on the right.
  local against(title, description, unit, expr, legend) = panels.timeseries(
    title,
    description,
    unit,
    [
      panels.query(expr, legend, name='A'),
      panels.query(fill('%s / (%s > 0)', [busyGpus, heldGpus]), 'SM activity (right)', name='B'),
    ],
    'No server reports it, or no source SM activity.',
    {
      w: 12,
      h: 8,
      min: 0,
      fill: 0,
      overrides: [
        panels.overrideQuery('A', { color: panels.fixedColor(colors.blue), 'custom.lineWidth': 2 }),
        panels.overrideQuery('B', {
          unit: 'percentunit',
          max: 1,
          color: panels.fixedColor(colors.busy),
          'custom.axisPlacement': 'right',
          'custom.fillOpacity': 15,
        }),
      ],
    },
  );
  local model = dashboards.variables.query(
    'model',
    'Model',
    fill('label_values(model:inference_requests_running:sum{%s=~"$cluster"}, model)', config.clusterLabel),
  );

  if std.length(config.inferenceSystems) == 0 then {} else {
    'inference.json': dashboards.dashboard(
      'inference',
      'Inference',
      'Served models: how soon and how well they answer, what queues, and what their GPUs do meanwhile.',
      [model, dashboards.variables.run],
      [
        {
          title: 'Now',
          panels: [
            panels.stat(
              'First token, p99',
              'Ninety-nine of a hundred requests get their first token sooner; of the model where it takes longest.',
              's',
              [slowest(0.99, 'ttft')],
              'No server reports it, or nobody asks.',
              { w: 4, graph: true, thresholds: [[null, colors.good], [limits.ttftSeconds, colors.bad]] },
            ),
            panels.stat(
              'Whole answer, p90',
              'Nine of ten requests are answered sooner; of the model where it takes longest.',
              's',
              [slowest(0.9, 'e2e')],
              'No server reports it, or nobody asks.',
              { w: 4, graph: true, thresholds: [[null, colors.good], [limits.e2eSeconds, colors.bad]] },
            ),
            panels.stat(
              'Failed',
              'Part of the requests that fail; those that clients give up are not among them.',
              'percentunit',
              [panels.query(fill('sum(%s) / (sum(%s) > 0)', [
                recorded('requests_failed:rate5m'),
                recorded('requests:rate5m'),
              ]), 'failed')],
              'No server counts failures, or nobody asks.',
              {
                w: 4,
                min: 0,
                decimals: 2,
                graph: true,
                thresholds: [[null, colors.good], [limits.errorObjective, colors.bad]],
              },
            ),
            panels.stat(
              'Waiting',
              'Requests that wait for room.',
              'none',
              [panels.query(fill('sum(%s)', recorded('requests_waiting:sum')), 'waiting')],
              'No server reports its queue.',
              { w: 4, decimals: 0, graph: true, thresholds: [[null, colors.good], [1, colors.attention]] },
            ),
            panels.stat(
              'Fullest cache',
              'KV cache in use at the model where it is fullest. Full alone is healthy; full with a queue is not.',
              'percentunit',
              [panels.query(fill('max(%s)', recorded('kv_usage:ratio_max')), 'used')],
              'No server reports its cache.',
              {
                w: 4,
                min: 0,
                max: 1,
                decimals: 0,
                graph: true,
                thresholds: [[null, colors.good], [limits.kvCache, colors.attention]],
              },
            ),
            panels.stat(
              'Tokens generated',
              'By all replicas of the chosen models.',
              'si:tok/s',
              [panels.query(fill('sum(%s)', recorded('generation_tokens:rate5m')), 'tokens')],
              'No server reports tokens.',
              { w: 4, decimals: 1, graph: true },
            ),
            panels.table(
              'Models',
              'Each served model: how soon it answers, what goes wrong, and what it is busy with. Red is later, or fails more '
              + 'often, than the alerts allow.',
              [
                cell(quantile(0.5, 'ttft')),
                cell(quantile(0.99, 'ttft')),
                cell(quantile(0.99, 'itl')),
                cell(quantile(0.9, 'e2e')),
                cell(fill('%s / (%s > 0)', [recorded('requests_failed:rate5m'), recorded('requests:rate5m')])),
                cell(recorded('requests:rate5m')),
                cell(recorded('requests_running:sum')),
                cell(recorded('requests_waiting:sum')),
                cell(recorded('kv_usage:ratio_max')),
                cell(recorded('generation_tokens:rate5m')),
              ],
              [
                {
                  field: 'model',
                  name: 'Model',
                  link: panels.dataLink('Only this model', dashboards.url('inference', { model: '${__value.text}' })),
                },
                { field: 'system', name: 'Server', width: 90 },
                { field: 'Value #A', name: 'First token p50', unit: 's', width: 125, empty: '–' },
                { field: 'Value #B', name: 'p99', unit: 's', width: 85, empty: '–' } + late(limits.ttftSeconds),
                { field: 'Value #C', name: 'Between tokens p99', unit: 's', width: 150, empty: '–' },
                { field: 'Value #D', name: 'Answer p90', unit: 's', width: 105, empty: '–' } + late(limits.e2eSeconds),
                { field: 'Value #E', name: 'Failed', unit: 'percentunit', decimals: 2, width: 80, empty: '–' }
                + late(limits.errorObjective),
                { field: 'Value #F', name: 'Requests', unit: 'reqps', decimals: 1, width: 105, empty: '–' },
                { field: 'Value #G', name: 'In work', decimals: 0, width: 80, empty: '–' },
                { field: 'Value #H', name: 'Waiting', decimals: 0, width: 80, empty: '–' },
                {
                  field: 'Value #I',
                  name: 'KV cache',
                  unit: 'percentunit',
                  min: 0,
                  max: 1,
                  decimals: 0,
                  width: 150,
                  cell: panels.cells.bar,
                  thresholds: [[null, colors.good], [limits.kvCache, colors.attention]],
                  empty: '–',
                },
                { field: 'Value #J', name: 'Generated', unit: 'si:tok/s', decimals: 1, width: 110, empty: '–' },
              ],
              'No model is served, or none of the systems in config.inferenceSystems is scraped.',
              { w: 24, h: 6, sortBy: 'Waiting' },
            ),
          ],
        },
        {
          title: 'Latency',
          panels: [
            latency('Time to the first token', 'What a user waits before anything comes.', 'ttft'),
            latency('Time between tokens', 'How fast an answer flows.', 'itl'),
            latency('Whole answer', 'From the request to the last token.', 'e2e'),
          ],
        },
        {
          title: 'Load',
          panels: [
            two(
              'Requests in work, and waiting',
              'Requests that replicas work on and, dashed, those that wait for room.',
              'none',
              [['in work', 'requests_running:sum'], ['waiting', 'requests_waiting:sum']],
              'No server reports requests.',
            ),
            each('Requests', 'Requests that end in a second.', 'reqps', 'requests:rate5m', 'No server counts requests.'),
            two(
              'Failed and given up',
              'Requests a second that fail and, dashed, that clients give up.',
              'reqps',
              [['failed', 'requests_failed:rate5m'], ['given up', 'requests_aborted:rate5m']],
              'No server counts them.',
            ),
            two(
              'Tokens',
              'Tokens generated and, dashed, read in prompts, a second.',
              'si:tok/s',
              [['generated', 'generation_tokens:rate5m'], ['read', 'prompt_tokens:rate5m']],
              'No server reports tokens.',
            ),
            each(
              'Time in the queue',
              'Mean time that a request waits before a replica works on it.',
              's',
              'queue_seconds:mean5m',
              'No server reports it.',
            ),
            each(
              'Preemptions',
              'Requests a second that are put back because the cache is full: their work is done twice.',
              'reqps',
              'preemptions:rate5m',
              'No server counts them.',
            ),
          ],
        },
        {
          title: 'Memory',
          panels: [
            each(
              'KV cache in use',
              'Part of the cache that holds contexts, at the fullest replica.',
              'percentunit',
              'kv_usage:ratio_max',
              'No server reports its cache.',
              { max: 1 },
            ),
            each(
              'Prompt tokens found in the cache',
              "Part of the prompts' tokens that need not be computed again.",
              'percentunit',
              'prefix_hits:ratio_rate5m',
              'No server reports it.',
              { max: 1 },
            ),
            panels.timeseries(
              'Memory used',
              'Memory of the GPUs that the chosen runs hold: weights, cache and the rest.',
              'bytes',
              [panels.query(
                if gpu.has('memory_used') then promql.sum(
                  ['run'], promql.join(ofServers(promql.owners(here + served)), gpu.now('memory_used', here))
                ),
                '{{run}}',
              )],
              'No source reports memory, or none of these runs holds a GPU.',
              { w: 8, h: 8, min: 0, fill: 0 },
            ),
          ],
        },
        {
          title: 'What their GPUs do: where the servers are not known by their pods, choose the runs that serve',
          panels: [
            against(
              'First token against SM activity',
              'Late with busy GPUs: more replicas. Late with idle GPUs: something else is short, as memory for the cache. p99 of '
              + 'the slowest chosen model; activity of the GPUs that the chosen runs hold.',
              's',
              fill('max(%s)', quantile(0.99, 'ttft')),
              'first token, p99',
            ),
            against(
              'Tokens against SM activity',
              'Tokens generated by the chosen models; activity of the GPUs that the chosen runs hold. Where one falls and the '
              + 'other does not, the GPUs do something else.',
              'si:tok/s',
              fill('sum(%s)', recorded('generation_tokens:rate5m')),
              'generated',
            ),
            panels.timeseries(
              'SM activity by run',
              'Part of the time in which a multiprocessor had work.',
              'percentunit',
              [panels.query(activity, '{{run}}')],
              'No source reports SM activity.',
              { w: 8, h: 8, min: 0, max: 1, fill: 0 },
            ),
            panels.timeseries(
              'Tokens for each busy GPU second',
              'Tokens generated over the time in which the GPUs of the chosen runs had work: what a model gets out of its GPUs.',
              'none',
              [panels.query(
                fill('sum(%s) / (%s > 0)', [recorded('generation_tokens:rate5m'), busyGpus]), 'tokens'
              )],
              'No server reports tokens, or no source SM activity.',
              { w: 8, h: 8, min: 0 },
            ),
            panels.timeseries(
              'Clock over the highest',
              'Slowest node of each run: heat or a power cap makes every answer late.',
              'percentunit',
              [panels.query(
                promql.min(['run'], ofServers(promql.metric('node_run:sm_clock:ratio_min5m', here + served, ''))), '{{run}}'
              )],
              'No source reports clocks.',
              { w: 8, h: 8, max: 1, fill: 0 },
            ),
          ],
        },
      ],
    ),
  }
