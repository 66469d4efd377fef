// Progress of training, as the processes report it through the exporter: one series a run, whatever its ranks.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local promql = lib.promql;
  local record = lib.rules.record;
  local run = lib.config.runLabels;
  local attempt = run + ['attempt'];
  local metric(name) = promql.metric(name, [], lib.config.trainingSelector);
  local rate(name, window) = fill('rate(%s[%s])', [metric(name), window]);

  if !std.member(lib.config.sources, 'gpufleet') then [] else [
    lib.rules.group('gpufleet-training', [
      record('run_attempt:train_ranks:count', promql.count(attempt, metric('train_info'))),
      record('run:train_ranks:count', promql.sum(run, 'run_attempt:train_ranks:count')),
      // Windows of hours are laid over these, of which there are few, and not over each rank's.
      record('run_attempt:train_restarts:max', promql.max(attempt, metric('train_restarts_total'))),
      record('run_attempt:train_checkpoints:max', promql.max(attempt, promql.metric(
        'train_checkpoints_total', ['outcome="ok"'], lib.config.trainingSelector
      ))),
      // Ranks step together: the fastest is the run's.
      record('run:train_steps:rate5m', promql.max(run, rate('train_steps_total', '5m'))),
      record(
        'run:train_last_step_timestamp_seconds:max', promql.max(run, metric('train_last_step_timestamp_seconds'))
      ),
      record(
        'run:train_step_duration_seconds:median15m',
        fill('histogram_quantile(0.5, %s)', promql.sum(run + ['le'], rate('train_step_duration_seconds_bucket', '15m'))),
      ),
      record('node_run:train_step_duration_seconds:mean5m', fill('%s\n/\n(%s > 0)', [
        promql.sum(['node'] + run, rate('train_step_duration_seconds_sum', '5m')),
        promql.sum(['node'] + run, rate('train_step_duration_seconds_count', '5m')),
      ])),
      record('run:train_tokens:rate5m', promql.sum(run, rate('train_tokens_total', '5m'))),
      record('run:train_loss:avg', promql.avg(run, metric('train_loss'))),
      record('run:train_grad_norm:max', promql.max(run, metric('train_grad_norm'))),
      record('run:train_learning_rate:max', promql.max(run, metric('train_learning_rate'))),
      record(
        'run:train_last_checkpoint_timestamp_seconds:max',
        promql.max(run, metric('train_last_checkpoint_timestamp_seconds')),
      ),
      record(
        'run:train_checkpoints:increase6h',
        promql.max(run, 'increase(run_attempt:train_checkpoints:max[6h])'),
      ),
      record('run:train_checkpoint:ratio_rate1h', promql.max(run, rate('train_checkpoint_duration_seconds_total', '1h'))),
    ], interval=lib.config.evaluationInterval),
  ]
