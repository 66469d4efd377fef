// GPU time and money of each run, five minutes at a time: what is recorded adds up over any window.
function(lib)
  local time = 'gpu_allocated_seconds_total';
  local increment = lib.promql.increment;
  [
    lib.rules.group('gpufleet-cost', [
      lib.rules.record('run:gpu_allocated_seconds:increase5m', increment(time)),
      lib.rules.record(
        'run:gpu_productive_seconds:increase5m', increment('gpu_productive_seconds_total', age=time)
      ),
      lib.rules.record('run:gpu_cost:increase5m', increment('gpu_cost_total', extra=['currency'], age=time)),
    ] + [
      // Each reason by itself: together they are twice the series of any other counter, and a rule should take less than
      // a second for 16,000 GPUs.
      lib.rules.record(
        'run:gpu_unused_cost:increase5m',
        increment('gpu_unused_cost_total', extra=['currency', 'reason'], age=time, matchers=[['reason', '=', reason]]),
        { reason: reason },
      )
      for reason in ['idle', 'down']
    ], interval='5m'),
  ]
