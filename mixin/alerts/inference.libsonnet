// What the users of a model notice. One alert for each, whatever serves the model.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local alert = lib.rules.alert;
  local level = promql.level(['model', 'system']);
  local recorded = lib.recorded.series;
  // Left out where no configured system reports all of these.
  local needs(names, expr) = if std.length([n for n in names if !std.setMember(n, recorded)]) > 0 then null else expr;
  local running = 'model:inference_requests_running:sum';
  local waiting = 'model:inference_requests_waiting:sum';
  local generated = 'model:inference_generation_tokens:rate5m';
  local requests = 'model:inference_requests:rate5m';
  local failed = 'model:inference_requests_failed:rate5m';
  local kv = 'model:inference_kv_usage:ratio_max';
  local it = 'Model {{ $labels.model }}{{ with $labels.system }} on {{ . }}{{ end }}';

  // More than a part of the answers are later than the bound: so is the quantile that leaves this part above it. Asked
  // this way, because each system has bounds of its own, which need not have ours among them. What is above
  // the highest counts as that one.
  // At most 0.95: a lax objective times the factor may be more than all.
  local late(factor) = std.min(factor * thresholds.latencyObjective, 0.95);
  local percent(part) = std.floor(100 * part + 0.5);
  local lateText(factor) = fill(
    it + ' gives more than %s% of its answers, or of their first tokens, later than it should: '
    + 'of those that come soonest, %s% take up to {{ $value | humanizeDuration }}',
    [percent(late(factor)), percent(1 - late(factor))]
  );
  local burn(buckets, seconds, factor, long, short) =
    local over(window, matchers=[]) = fill('avg_over_time(%s[%s])', [promql.metric(buckets, matchers, ''), window]);
    local part = late(factor);
    local quantile(window) = fill('histogram_quantile(%s, %s) >= %s', [
      1 - part,
      promql.sum(['model', 'system', 'le'], over(window)),
      seconds,
    ]);
    fill('%s\nand on (%s)\n%s\nand on (%s)\n%s > %s', [
      quantile(long),
      level,
      quantile(short),
      level,
      promql.sum(['model', 'system'], over(short, ['le="+Inf"'])),
      thresholds.requestsPerSecond,
    ]);
  local ttft = 'model_le:inference_ttft_seconds_bucket:rate5m';
  local e2e = 'model_le:inference_e2e_seconds_bucket:rate5m';
  local latency(factor, long, short) = needs([ttft], fill('(%s)%s', [
    burn(ttft, thresholds.ttftSeconds, factor, long, short),
    if std.setMember(e2e, recorded) then fill('\nor\n(%s)', burn(e2e, thresholds.e2eSeconds, factor, long, short)) else '',
  ]));
  local errors(factor, long, short) =
    // Sums: a count of failures that begins with the first one was nothing before.
    local part(window) = fill('sum_over_time(%s[%s])\n/\n(sum_over_time(%s[%s]) > 0)', [failed, window, requests, window]);
    needs([failed, requests], fill('%s > %s\nand on (%s)\n%s > %s\nand on (%s)\navg_over_time(%s[%s]) > %s', [
      part(long),
      factor * thresholds.errorObjective,
      level,
      part(short),
      factor * thresholds.errorObjective,
      level,
      requests,
      short,
      thresholds.requestsPerSecond,
    ]));

  if std.length(config.inferenceSystems) == 0 then [] else [
    lib.rules.group('gpufleet-serving', [
      alert(
        'InferenceNoProgress',
        // What makes embeddings generates no token, and some count those of a request when it ends: so none ends either.
        needs([running, generated], fill('min_over_time(%s[5m]) > 0\nand on (%s)\n%s == 0%s', [
          running,
          level,
          generated,
          if std.setMember(requests, recorded)
          then fill('\nunless on (%s)\n%s > 0', [level, requests]) else '',
        ])),
        'critical',
        'serving',
        'A model has requests in work and generates nothing.',
        it + ' has {{ $value }} requests in work and has generated no token for minutes.',
        wait='5m',
      ),
      // 14.4 times the objective spends two per cent of a month's allowance in an hour, 6 times five per cent in six.
      alert(
        'InferenceErrorsHigh',
        errors(14.4, '1h', '5m'),
        'critical',
        'serving',
        'A model fails far more requests than it may.',
        it + ' fails {{ $value | humanizePercentage }} of its requests.',
        wait='2m',
      ),
      alert(
        'InferenceErrorsHigh',
        errors(6, '6h', '30m'),
        'warning',
        'serving',
        'A model fails far more requests than it may.',
        it + ' has failed {{ $value | humanizePercentage }} of its requests for hours.',
        wait='15m',
      ),
      alert(
        'InferenceLatencyBurn',
        latency(14.4, '1h', '5m'),
        'critical',
        'serving',
        'A model answers too late too often.',
        lateText(14.4) + '.',
        wait='2m',
      ),
      alert(
        'InferenceLatencyBurn',
        latency(6, '6h', '30m'),
        'warning',
        'serving',
        'A model answers too late too often.',
        lateText(6) + ', for hours.',
        wait='15m',
      ),
      alert(
        'InferenceQueueGrowing',
        needs([running, waiting], fill('%s > %s\nand on (%s)\nderiv(%s[10m]) > 0', [waiting, running, level, waiting])),
        'warning',
        'serving',
        'More requests wait for a model than it works on, and the queue grows.',
        it + ' has {{ $value }} requests waiting, more than it works on.',
        wait='10m',
      ),
      alert(
        'InferenceKvCacheSaturated',
        needs([kv, waiting], fill('%s > %s\nand on (%s)\n(%s > 0%s)', [
          kv,
          thresholds.kvCache,
          level,
          waiting,
          if std.setMember('model:inference_preemptions:rate5m', recorded)
          then ' or model:inference_preemptions:rate5m > 0' else '',
        ])),
        'warning',
        'serving',
        'A model has no room in its KV cache, and requests wait or are put back for it.',
        it + ' uses {{ $value | humanizePercentage }} of its KV cache while requests wait or are preempted.',
        wait='10m',
      ),
    ], interval=config.evaluationInterval),
  ]
