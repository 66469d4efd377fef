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

  local age = '(time() - run:train_last_step_timestamp_seconds:max)';
  // A step's usual time, from an hour in which the run may stand still.
  local usual = 'max_over_time(run:train_step_duration_seconds:median15m[1h])';
  local checkpointAge = '(time() - run:train_last_checkpoint_timestamp_seconds:max)';
  // Checkpoints of six hours, when it last wrote them at its own pace.
  local written = 'max_over_time(run:train_checkpoints:increase6h[1d])';

  // Who may be idle: interactive projects, and whoever is in an excluded namespace.
  local idle(window) =
    fill('max_over_time(%s[%s]) < %s\nand on (%s)\n%s', [
      promql.metric(
        'run:gpu_busy:ratio_rate5m',
        ['run!=""'] + (
          if config.interactiveProjects == '' then [] else [['project', '!~', config.interactiveProjects]]
        ),
        '',
      ),
      window,
      thresholds.idle,
      level,
      promql.ago('run:gpu_share:sum', window),
    ]) + (
      if config.excludedNamespaces == '' then '' else fill('\nunless on (%s)\n%s', [
        level,
        promql.owners([['workload_namespace', '=~', config.excludedNamespaces]]),
      ])
    );
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
        // Not where a step takes that long.
        ifReported(fill('%s > %s\nunless on (%s)\n%s <= 10 * %s', [age, thresholds.stalledSeconds, level, age, usual])),
        'critical',
        'ml',
        'A training run has made no step for too long.',
        its + ' has made no step for {{ $value | humanizeDuration }}.',
        wait='5m',
      ),
      alert(
        'GpuRunStalled',
        // Without the reporter: it used its tensor cores for long, on several nodes, and does no more.
        if gpu.has('tensor_active') then fill(
          'max_over_time(%s[15m]) < 0.02\nand on (%s)\navg_over_time(%s) > 0.1\nand on (%s)\nrun:nodes:count > 1',
          [
            of('run:gpu_tensor_active:ratio_rate5m'),
            level,
            promql.ago(of('run:gpu_tensor_active:ratio_rate5m') + '[30m]', '20m'),
            level,
          ]
        ) + (
          if reported then fill('\nunless on (%s)\nrun:train_ranks:count', level) else ''
        ),
        'warning',
        'ml',
        'A training run has made no step for too long.',
        its + ' has stopped to use its tensor cores: {{ $value | humanizePercentage }} in 15 minutes.',
        wait='5m',
      ),
      alert(
        'GpuRunPartialActivity',
        if gpu.has('tensor_active') then fill('%s\nand on (%s)\n%s > %s', [
          fill('max_over_time(%s[10m]) < %s', [of('node_run:gpu_tensor_active:ratio_rate5m'), thresholds.inactive]),
          level,
          promql.quantile('0.5', run, of('node_run:gpu_tensor_active:ratio_rate5m')),
          thresholds.active,
        ]),
        'warning',
        'ml',
        'A node of a run does nothing while the others work.',
        'Node {{ $labels.node }} uses its tensor cores {{ $value | humanizePercentage }} of the time, others of its run work. '
        + its + '.',
        wait='10m',
      ),
      alert(
        'GpuRunNodeMissing',
        // Processes are told of by the exporter of their node: where that is down and the others go on, they are not missing.
        ifReported(fill('%s\n<\nmax_over_time(%s[30m])\nunless on (%s)\n(%s < %s\nand on (%s)\n%s)', [
          'run:train_ranks:count',
          'run:train_ranks:count',
          level,
          age,
          thresholds.missingStepSeconds,
          level,
          fill('(last_over_time(%s[30m]) and on (%s) max by (%s) (node_instance:gpu_exporter_up:max) == 0)', [
            'node_run:gpu_share:sum',
            promql.level(['node']),
            promql.level(['node']),
          ]),
        ])),
        'critical',
        'ml',
        'Processes of a training run have vanished while others are still there.',
        its + ' has {{ $value }} processes left, fewer than half an hour ago.',
        wait='3m',
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
        ifReported(fill('(%s)\nunless on (%s)\n%s < 600', [
          promql.risen(counter('train_checkpoints_total', ['outcome="failed"']), '30m', run, 'sum'),
          level,
          checkpointAge,
        ])),
        'warning',
        'ml',
        'A training run could not write a checkpoint.',
        its + ' failed to write a checkpoint in the last half hour and has written none since.',
      ),
      alert(
        'GpuRunLossNonFinite',
        ifReported(fill('(%s) > %s\nor\n%s', [
          promql.risen(counter('train_nonfinite_steps_total'), '10m', run),
          thresholds.nonfiniteSteps,
          // A loss that is not a number is unequal to itself, and max would hide it.
          promql.count(run, fill('(%s != %s)', [counter('train_loss'), counter('train_loss')])),
        ])),
        'critical',
        'ml',
        'The loss of a training run is not a number.',
        its + ' has had steps without a finite loss or gradient in the last ten minutes.',
      ),
      alert(
        'GpuRunRestarts',
        ifReported(fill('%s >= %s', [
          promql.max(run, fill('increase(%s[1h])', counter('train_restarts_total'))),
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
          fill('%s > %s * quantile_over_time(0.5, run:train_loss:avg[1h])\nand on (%s)\n%s > %s * quantile_over_time(0.5, run:train_grad_norm:max[1h])', [
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
        if config.optionalAlerts.efficiencyDrop && gpu.has('tensor_active') then fill('%s\n/\n(quantile_over_time(0.5, %s[6h]) > 0.1)\n< %s', [
          of('run:gpu_tensor_active:ratio_rate5m'),
          of('run:gpu_tensor_active:ratio_rate5m'),
          thresholds.efficiency,
        ]),
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
    ]),
  ]
