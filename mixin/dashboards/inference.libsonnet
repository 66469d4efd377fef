// Served models: how soon and how well they answer, what queues, and what their GPUs do meanwhile.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local of = here + ['model=~"$model"'];
  local recorded(name) = promql.metric('model:inference_' + name, of, '');
  // By model and system: their histograms have different bounds, and can't be added up.
  local quantile(q, name) = fill('histogram_quantile(%s, %s)', [
    q,
    promql.sum(
      ['model', 'system', 'le'], promql.metric('model_le:inference_' + name + '_seconds_bucket:rate5m', of, '')
    ),
  ]);
  local quantiles(name) = [
    panels.query(quantile(q[0], name), q[1] + ' {{model}} {{system}}')
    for q in [[0.5, 'p50'], [0.99, 'p99']]
  ];
  local slowest(q, name) = panels.query(fill('max(%s)', quantile(q, name)), 'slowest model');
  local latency(title, description, name) = panels.timeseries(
    title, description, 's', quantiles(name), 'No server reports this, or nobody asks.', { w: 8, h: 7, min: 0 },
  );
  local each(title, description, unit, series, empty, opts={}) = panels.timeseries(
    title, description, unit, [panels.query(recorded(series), '{{model}} {{system}}')], empty, { w: 8, h: 7, min: 0 } + opts,
  );
  local served = ['project!~"|[(](unallocated|unsliced)[)]"', 'run=~"$run"'];
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
              { w: 4, graph: true, thresholds: [[null, colors.good], [config.thresholds.ttftSeconds, colors.bad]] },
            ),
            panels.stat(
              'Whole answer, p90',
              'Nine of ten requests are answered sooner; of the model where it takes longest.',
              's',
              [slowest(0.9, 'e2e')],
              'No server reports it, or nobody asks.',
              { w: 4, graph: true, thresholds: [[null, colors.good], [config.thresholds.e2eSeconds, colors.bad]] },
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
              { w: 4, min: 0, thresholds: [[null, colors.good], [config.thresholds.errorObjective, colors.bad]] },
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
              { w: 4, min: 0, max: 1, decimals: 0, graph: true, thresholds: [[null, colors.good], [0.95, colors.attention]] },
            ),
            panels.stat(
              'Tokens generated',
              'By all replicas of the chosen models.',
              'cps',
              [panels.query(fill('sum(%s)', recorded('generation_tokens:rate5m')), 'tokens a second')],
              'No server reports tokens.',
              { w: 4, decimals: 0, graph: true },
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
            panels.timeseries(
              'Requests in work, and waiting',
              'Requests that replicas work on, and those that wait for room.',
              'none',
              [
                panels.query(recorded('requests_running:sum'), 'in work: {{model}} {{system}}'),
                panels.query(recorded('requests_waiting:sum'), 'waiting: {{model}} {{system}}'),
              ],
              'No server reports requests.',
              { w: 8, h: 7, min: 0 },
            ),
            each('Requests', 'Requests that end in a second.', 'reqps', 'requests:rate5m', 'No server counts requests.'),
            panels.timeseries(
              'Failed and given up',
              'Requests a second that fail, and that clients give up.',
              'reqps',
              [
                panels.query(recorded('requests_failed:rate5m'), 'failed: {{model}} {{system}}'),
                panels.query(recorded('requests_aborted:rate5m'), 'given up: {{model}} {{system}}'),
              ],
              'No server counts them.',
              { w: 8, h: 7, min: 0 },
            ),
            panels.timeseries(
              'Tokens',
              'Tokens read in prompts and generated, a second.',
              'cps',
              [
                panels.query(recorded('prompt_tokens:rate5m'), 'read: {{model}} {{system}}'),
                panels.query(recorded('generation_tokens:rate5m'), 'generated: {{model}} {{system}}'),
              ],
              'No server reports tokens.',
              { w: 8, h: 7, min: 0 },
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
              'cps',
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
                if gpu.has('memory_used') then promql.sum(['run'], promql.shared(gpu.now('memory_used', here), here + served)),
                '{{run}}',
              )],
              'No source reports memory, or none of these runs holds a GPU.',
              { w: 8, h: 7, min: 0 },
            ),
          ],
        },
        {
          title: 'What their GPUs do: choose the run that serves',
          panels: [
            panels.timeseries(
              'SM activity',
              'Part of the time in which a multiprocessor had work, by run. High with a queue: more replicas. Low with a queue: '
              + 'something else is short.',
              'percentunit',
              [panels.query(promql.metric('run:gpu_sm_active:ratio_rate5m', here + served, ''), '{{run}}')],
              'No source reports SM activity.',
              { w: 8, h: 7, min: 0, max: 1 },
            ),
            panels.timeseries(
              'Tokens for each busy GPU second',
              'Tokens generated over the time in which the GPUs of the chosen runs had work: what a model gets out of its GPUs.',
              'none',
              [panels.query(fill('sum(%s) / (sum(%s) > 0)', [
                recorded('generation_tokens:rate5m'),
                fill('%s * %s', [
                  promql.metric('run:gpu_sm_active:ratio_rate5m', here + served, ''),
                  promql.metric('run:gpu_share:sum', here + served, ''),
                ]),
              ]), 'tokens')],
              'No server reports tokens, or no source SM activity.',
              { w: 8, h: 7, min: 0 },
            ),
            panels.timeseries(
              'Clock over the highest',
              'Slowest node of each run: heat or a power cap makes every answer late.',
              'percentunit',
              [panels.query(
                promql.min(['run'], promql.metric('node_run:sm_clock:ratio_min5m', here + served, '')), '{{run}}'
              )],
              'No source reports clocks.',
              { w: 8, h: 7, max: 1 },
            ),
          ],
        },
      ],
    ),
  }
