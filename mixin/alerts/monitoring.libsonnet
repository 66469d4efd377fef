// Whether all the others can be believed.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local alert = lib.rules.alert;
  local ours = std.member(config.sources, 'gpufleet');
  local ifOurs(expr) = if ours then expr else null;
  // A node's exporter may have several targets, as while its pod is replaced: it is down when none answers.
  local exporters = promql.max(['job', 'node'], 'node_instance:gpu_exporter_up:max');
  local down = promql.count([], exporters + ' == 0');
  local polled = promql.metric('gpufleet_last_poll_timestamp_seconds');
  local groups = 'rule_group=~".*;gpufleet-.*"';

  [
    lib.rules.group('gpufleet-monitoring', [
      alert(
        'GpuExporterDown',
        exporters + ' == 0',
        'warning',
        'monitoring',
        "A node's GPU exporter does not answer.",
        "The exporter of node {{ $labels.node }} (job {{ $labels.job }}) has not answered for five minutes: of this node's "
        + 'GPUs it tells nothing.',
        wait='5m',
      ),
      alert(
        'GpuExportersDown',
        // One of three nodes is a third of them, and still one node's trouble.
        fill('%s\n/\n%s\n> %s\nand on (%s)\n%s >= %s', [
          down,
          promql.count([], exporters),
          thresholds.exportersDown,
          promql.level([]),
          down,
          thresholds.exportersDownLeast,
        ]),
        'critical',
        'monitoring',
        'Many GPU exporters do not answer.',
        '{{ $value | humanizePercentage }} of the GPU exporters{{ with $labels.cluster }} of cluster {{ . }}{{ end }} do not '
        + 'answer.',
        wait='5m',
      ),
      alert(
        'GpuExporterPollStalled',
        // By the GPU that was read last: a single one that is not is another alert. A clock that is wrong stands still
        // as little as any, and who was told to let go of the driver reads nothing on purpose.
        ifOurs(promql.max(['node'], promql.onNode(fill('((%s > %s)\nunless on (%s)\n(%s or %s))', [
          promql.min(['instance'], fill('(time() - %s)', polled)),
          thresholds.pollStalledSeconds,
          promql.level(['instance']),
          fill('changes(%s[5m]) > 0', polled),
          promql.metric('gpufleet_quiesced') + ' == 1',
        ])))),
        'warning',
        'monitoring',
        'An exporter answers, but reads no GPU.',
        'The GPUs of node {{ $labels.node }} were last read {{ $value | humanizeDuration }} ago.',
        wait='2m',
      ),
      alert(
        'GpuExporterSourceDown',
        ifOurs(promql.min(['job', 'instance', 'source'], promql.metric('gpufleet_source_up')) + ' == 0'),
        'warning',
        'monitoring',
        'A source of an exporter does not answer.',
        'Source {{ $labels.source }} of the exporter at {{ $labels.instance }}'
        + '{{ with printf `gpufleet_node_info{instance=%q}` $labels.instance | query }}'
        + ' on node {{ . | first | label "node" }}{{ end }} has not answered for 15 minutes.',
        wait='15m',
      ),
      alert(
        'GpuExporterQuiesced',
        ifOurs(promql.max(['node'], promql.onNode(fill('(%s == 1)', promql.metric('gpufleet_quiesced'))))),
        'warning',
        'monitoring',
        'An exporter has let go of its GPUs and was not told to go on.',
        'gpufleet on node {{ $labels.node }} has been quiesced for more than half an hour.',
        wait='30m',
      ),
      alert(
        'GpuSimulatedData',
        ifOurs(promql.max(['node'], promql.onNode(fill('(%s == 1)', promql.metric('gpufleet_simulated'))))),
        'warning',
        'monitoring',
        'Metrics of GPUs that do not exist are taken for real.',
        'What node {{ $labels.node }} reports is simulated.',
        wait='5m',
      ),
      alert(
        'GpuRulesMissed',
        std.join('\nor\n', [
          promql.sum(['rule_group'], fill('increase(%s[15m])', promql.metric(counter, [groups], ''))) + ' > 0'
          for counter in ['prometheus_rule_group_iterations_missed_total', 'prometheus_rule_evaluation_failures_total']
        ]),
        'warning',
        'monitoring',
        'Prometheus skips rules about GPUs or fails in them, so that cost is incomplete.',
        'Group {{ $labels.rule_group }} missed {{ printf "%.0f" $value }} evaluations, or failed in them, in 15 minutes.',
        wait='15m',
      ),
    ], interval=config.evaluationInterval),
  ]
