// What someone who runs a job, or looks after those who do, must know of it.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local gpu = lib.vocabulary.gpu;
  local alert = lib.rules.alert;
  local run = config.runLabels;
  local level = promql.level(run);
  local nodeLevel = promql.level(['node'] + run);
  local reported = std.member(config.sources, 'gpufleet');
  local ifReported(expr) = if reported then expr else null;
  local clocked = gpu.has('sm_clock_max');
  local counter(name, matchers=[]) = promql.metric(name, matchers, config.trainingSelector);
  // By process: one that begins with events on it is new, whatever others of its run have counted before.
  local risenOf(name, window, matchers=[]) = promql.risen(counter(name, matchers), window, run + ['attempt', 'rank']);
  local of(name) = promql.metric(name, ['run!=""'], '');
  local its = 'Run {{ $labels.run }}{{ with $labels.project }} of project {{ . }}{{ end }}';

  local deficit = 'node_run:straggler_deficit:ratio';
  local throttled = fill('%s > 0\nand on (%s)\nnode_run:throttled:ratio_max5m > %s', [
    deficit,
    nodeLevel,
    thresholds.stragglerThrottled,
  ]);
  local slower = "{{ $value | humanizePercentage }} further below its run's median clock than the run's own spread allows";
  local large = fill('%s\nand on (%s)\nrun:nodes:count >= %s', [throttled, level, thresholds.stragglerCriticalNodes]);

  local loss = counter('train_loss');
  local attempts = promql.count(run, 'max_over_time(run_attempt:train_ranks:count[1h])');
  local age = '(time() - run:train_last_step_timestamp_seconds:max)';
  // A step's usual time, from an hour in which the run may stand still.
  local usual = 'max_over_time(run:train_step_duration_seconds:median15m[1h])';
  local checkpointAge = '(time() - run:train_last_checkpoint_timestamp_seconds:max)';
  // Checkpoints of six hours, when it last wrote them at its own pace.
  local written = 'max_over_time(run:train_checkpoints:increase6h[1d])';

  local tensor = if gpu.has('tensor_active') then of('run:gpu_tensor_active:ratio_rate5m');
  local ofNodes = of('node_run:gpu_tensor_active:ratio_rate5m');
  local ranks = 'run:train_ranks:count';
  // The runs whose processes all say that they are as many as are there, or were at most within a window.
  local complete(count) = fill('(%s and on (%s)\n%s)', [
    promql.count(run + ['world_size'], counter('train_info')),
    promql.level(run + ['world_size']),
    promql.aggregate('count_values', run, count, '"world_size"'),
  ]);

  // Who may stand still: interactive projects, whoever is in an excluded namespace, and what waits for requests.
  local mayRest = std.join(' or ', [each for each in [
    if config.interactiveProjects != ''
    then promql.metric('run:gpu_share:sum', [['project', '=~', config.interactiveProjects]], ''),
    if config.excludedNamespaces != '' then promql.owners([['workload_namespace', '=~', config.excludedNamespaces]]),
    if std.setMember('run:inference_pods:count', lib.recorded.series) then 'run:inference_pods:count',
  ] if each != null]);
  local atWork(expr) = if mayRest == '' then expr else fill('%s\nunless on (%s)\n(%s)', [expr, level, mayRest]);
  local idle(window) = atWork(fill('max_over_time(%s[%s]) < %s\nand on (%s)\n%s\nand on (%s)\nrun:gpu_share:sum', [
    of('run:gpu_busy:ratio_rate5m'),
    window,
    thresholds.idle,
    level,
    promql.ago('run:gpu_share:sum', window),
    level,
  ]));
  local idleText = its + ' holds {{ with printf `run:gpu_share:sum{project=%q,run=%q,task=%q}` $labels.project $labels.run '
                   + '$labels.task | query }}{{ . | first | value | printf "%.1f" }} {{ end }}GPUs';

  [
    lib.rules.group('gpufleet-runs', [
      alert(
        'GpuRunStragglerNode',
        if clocked then fill('%s\nunless on (%s)\nrun:nodes:count >= %s', [
          throttled,
          level,
          thresholds.stragglerCriticalNodes,
        ]),
        'warning',
        'infra',
        'One node holds up the run that it belongs to.',
        'Node {{ $labels.node }} is throttled, and its clock is ' + slower + '. ' + its + ' waits for it.',
        wait='10m',
        keepFiringFor='15m',
      ),
      alert(
        'GpuRunStragglerNode',
        if clocked then large,
        'critical',
        'infra',
        'One node holds up the run that it belongs to.',
        'Node {{ $labels.node }} is throttled, and its clock is ' + slower + '. ' + its
        + ', which is large, waits for it.',
        wait='10m',
        keepFiringFor='15m',
      ),
      alert(
        'GpuRunStragglerNode',
        // Where nothing counts throttling, a slow clock alone has to be slower, and for longer.
        if clocked then fill('%s > %s\nunless on (%s)\nnode_run:throttled:ratio_max5m', [
          deficit,
          0.1 - thresholds.stragglerDeficit,
          nodeLevel,
        ]),
        'info',
        'infra',
        'One node holds up the run that it belongs to.',
        'The clock of node {{ $labels.node }} is ' + slower + '; nothing says why. ' + its + ' may wait for it.',
        wait='15m',
      ),
      alert(
        'GpuRunStalled',
        // Not where a step takes that long, nor while it evaluates: what waits for another leaves its tensor cores alone.
        ifReported(fill('%s > %s\nunless on (%s)\n%s <= 10 * %s', [age, thresholds.stalledSeconds, level, age, usual]) + (
          if tensor == null then '' else fill('\nunless on (%s)\n%s > %s', [level, ofNodes, thresholds.inactive])
        )),
        'critical',
        'ml',
        'A training run has made no step for too long.',
        its + ' has made no step for {{ $value | humanizeDuration }}.',
        wait='5m',
      ),
      alert(
        'GpuRunStalled',
        // Without the reporter: it used its tensor cores for half an hour, on several nodes, and does no more.
        if tensor != null then atWork(fill(
          'max_over_time(%s[15m]) < 0.02\nand on (%s)\ncount_over_time(%s) >= 6\nand on (%s)\nrun:nodes:count > 1%s',
          [
            tensor,
            level,
            promql.ago(fill('(%s > 0.1)[6h:5m]', tensor), '15m'),
            level,
            if reported then fill('\nunless on (%s)\n%s', [level, ranks]) else '',
          ]
        )),
        'warning',
        'ml',
        'A training run has made no step for too long.',
        its + ' has stopped to use its tensor cores: {{ $value | humanizePercentage }} in 15 minutes.',
        wait='5m',
      ),
      alert(
        'GpuRunPartialActivity',
        if tensor != null then atWork(fill('%s\nand on (%s)\n%s > %s', [
          fill('max_over_time(%s[10m]) < %s', [ofNodes, thresholds.inactive]),
          level,
          promql.quantile('0.5', run, ofNodes),
          thresholds.active,
        ])),
        'warning',
        'ml',
        'A node of a run does nothing while the others work.',
        'Node {{ $labels.node }} uses its tensor cores {{ $value | humanizePercentage }} of the time, others of its run work. '
        + its + '.',
        wait='10m',
      ),
      alert(
        'GpuRunNodeMissing',
        // Fewer than there were, and fewer than those that are left believe: who is told of it goes on without them, or
        // has begun anew. And they make no steps: else it is an exporter that is missing.
        ifReported(fill('(\n  %s < max_over_time(%s[30m])\n  or\n  %s < max_over_time(%s[1d])\n  and on (%s)\n  %s\n)', [
          ranks,
          ranks,
          ranks,
          ranks,
          level,
          complete(fill('max_over_time(%s[1d])', ranks)),
        ]) + fill('\nunless on (%s)\n%s\nunless on (%s)\n%s < %s', [
          level,
          complete(ranks),
          level,
          age,
          thresholds.missingStepSeconds,
        ])),
        'critical',
        'ml',
        'A part of a run has vanished while others are still there.',
        its + ' has {{ $value }} processes left, fewer than it had and than it takes.',
        wait='3m',
      ),
      alert(
        'GpuRunNodeMissing',
        // Without the reporter: a node less, and the others, that worked, do no more. Pods that end one by one leave the
        // rest at work.
        if tensor != null then atWork(fill(
          'run:nodes:count < max_over_time(run:nodes:count[30m])\nand on (%s)\n%s < 0.02\nand on (%s)\n'
          + 'max_over_time(%s[30m]) > 0.1%s',
          [level, tensor, level, tensor, if reported then fill('\nunless on (%s)\n%s', [level, ranks]) else '']
        )),
        'warning',
        'ml',
        'A part of a run has vanished while others are still there.',
        its + ' has {{ $value }} nodes left, fewer than half an hour ago, and they have stopped to use their tensor cores.',
        wait='5m',
      ),
      alert(
        'GpuRunCheckpointOverdue',
        // Its own pace where it has one, the configured limit otherwise; and a run that has never written one.
        ifReported(fill('(\n  %s > %s * 21600 / (%s > 1)\n  or\n  (%s > %s unless on (%s) %s > 1)\n)\nor\n(%s\nunless on (%s)\n%s)', [
          checkpointAge,
          thresholds.checkpointIntervals,
          written,
          checkpointAge,
          thresholds.checkpointSeconds,
          level,
          written,
          fill('%s > 0 and on (%s) %s', [
            'run:train_steps:rate5m',
            level,
            promql.ago('run:train_ranks:count', thresholds.checkpointSeconds + 's'),
          ]),
          level,
          'run:train_last_checkpoint_timestamp_seconds:max',
        ])),
        'warning',
        'ml',
        'A training run has not written a checkpoint for too long.',
        its + ' is overdue with its checkpoint{{ if gt $value 100.0 }}: the last is {{ $value | humanizeDuration }} old'
        + '{{ else }}: it has written none yet{{ end }}.',
        wait='5m',
      ),
      alert(
        'GpuRunCheckpointFailed',
        // Since a failure of the last ten minutes none of these has been written, since one before none of half an hour.
        ifReported(fill('(\n%s\nunless on (%s)\n%s < 600\nor\n%s\nunless on (%s)\n%s < 1800\n)\nand on (%s)\n%s', [
          promql.max(run, risenOf('train_checkpoints_total', '10m', ['outcome="failed"'])),
          level,
          checkpointAge,
          promql.max(run, risenOf('train_checkpoints_total', '30m', ['outcome="failed"'])),
          level,
          checkpointAge,
          level,
          ranks,
        ])),
        'warning',
        'ml',
        'A training run could not write a checkpoint.',
        its + ' failed to write a checkpoint in the last half hour and has written none since.',
      ),
      alert(
        'GpuRunLossNonFinite',
        ifReported(fill('%s > %s\nor\n%s', [
          promql.max(run, risenOf('train_nonfinite_steps_total', '10m')),
          thresholds.nonfiniteSteps,
          // A loss that is not a number is unequal to itself, and max would hide it.
          promql.count(run, fill('(%s != %s or abs(%s) == Inf)', [loss, loss, loss])),
        ])),
        'critical',
        'ml',
        'The loss of a training run is not a number.',
        its + ' has had steps without a finite loss or gradient in the last ten minutes.',
      ),
      alert(
        'GpuRunRestarts',
        // Within an attempt the processes count it; the next attempt counts from zero, and is a start itself.
        ifReported(fill('(\n  %s\n  + %s\n  or %s - 1\n) >= %s', [
          promql.sum(run, 'increase(run_attempt:train_restarts:max[1h])'),
          fill('(%s - 1)', attempts),
          attempts,
          thresholds.restarts,
        ])),
        'warning',
        'ml',
        'A training run starts again and again.',
        its + ' was started {{ printf "%.0f" $value }} times in an hour.',
      ),
      alert(
        'GpuRunLossDivergence',
        if config.optionalAlerts.lossDivergence then ifReported(
          fill('%s > %s * (quantile_over_time(0.5, run:train_loss:avg[1h]) > 0)\nand on (%s)\n%s > %s * quantile_over_time(0.5, run:train_grad_norm:max[1h])', [
            'run:train_loss:avg',
            thresholds.divergedLoss,
            level,
            'run:train_grad_norm:max',
            thresholds.divergedGradient,
          ])
        ),
        'warning',
        'ml',
        'The loss of a training run leaves its own past, and the gradient with it.',
        its + ' has a loss of {{ printf "%.3g" $value }}, far above that of the last hour.',
        wait='15m',
      ),
      alert(
        'GpuRunEfficiencyDrop',
        // Only where there are hours to compare with.
        if config.optionalAlerts.efficiencyDrop && tensor != null then atWork(fill(
          '%s\n/\n(quantile_over_time(0.5, %s[6h]) > 0.1)\n< %s\nand on (%s)\n%s',
          [tensor, tensor, thresholds.efficiency, level, promql.ago(tensor, '2h')]
        )),
        'warning',
        'ml',
        'A run uses its GPUs less than it did in the hours before.',
        its + ' uses its tensor cores {{ $value | humanizePercentage }} as much as in the six hours before.',
        wait='30m',
      ),
      alert(
        'GpuAllocatedIdle',
        fill('%s\nunless on (%s)\n(%s)', [idle('1h'), level, idle('4h')]),
        'info',
        'ml',
        'A run holds GPUs and does not use them.',
        idleText + ' and has used them {{ $value | humanizePercentage }} of the time at most for an hour.',
      ),
      alert(
        'GpuAllocatedIdle',
        idle('4h'),
        'warning',
        'ml',
        'A run holds GPUs and does not use them.',
        idleText + ' and has used them {{ $value | humanizePercentage }} of the time at most for four hours.',
      ),
    ], interval=config.evaluationInterval),
  ]
