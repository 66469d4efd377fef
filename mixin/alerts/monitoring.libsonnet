// Whether all the others can be believed.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local alert = lib.rules.alert;
  local ours = std.member(config.sources, 'gpufleet');
  local ifOurs(expr) = if ours then expr else null;
  local level = promql.level(['job', 'instance']);
  // Targets that have shown a GPU within a day.
  local known = std.join(' or ', (
    if ours then [fill('last_over_time(%s[1d])', promql.metric('gpufleet_build_info'))] else []
  ) + (
    if std.member(config.sources, 'dcgm')
    then [fill('last_over_time(%s[1d])', promql.metric('DCGM_FI_DEV_GPU_TEMP', [], config.dcgmSelector))] else []
  ) + (
    if std.member(config.sources, 'dcgm49')
    then [fill('last_over_time(%s[1d])', promql.metric('DCGM_FI_DEV_GPU_TEMP_CELSIUS', [], config.dcgmSelector))] else []
  ));
  local down = fill('up == 0\nand on (%s)\n(%s)', [level, known]);
  local seen = fill('up\nand on (%s)\n(%s)', [level, known]);
  local many = fill('%s\n/\n%s\n> %s', [promql.count([], down), promql.count([], seen), thresholds.exportersDown]);
  local groups = 'rule_group=~".*;gpufleet-.*"';

  [
    lib.rules.group('gpufleet-monitoring', [
      alert(
        'GpuExporterDown',
        promql.max(['job', 'instance'], down) + ' == 0',
        'warning',
        'monitoring',
        "A node's GPU exporter does not answer.",
        'The exporter at {{ $labels.instance }} (job {{ $labels.job }}) has not answered for five minutes: nothing is known '
        + 'of the GPUs of its node.',
        wait='5m',
      ),
      alert(
        'GpuExportersDown',
        many,
        'critical',
        'monitoring',
        'Many GPU exporters do not answer.',
        '{{ $value | humanizePercentage }} of the GPU exporters{{ with $labels.cluster }} of cluster {{ . }}{{ end }} do not '
        + 'answer.',
        wait='5m',
      ),
      alert(
        'GpuExporterPollStalled',
        // By the GPU that was read last: a single one that is not is another alert.
        ifOurs(promql.max(['node'], promql.onNode(fill('(%s > 60)', promql.min(
          ['instance'], fill('(time() - %s)', promql.metric('gpufleet_last_poll_timestamp_seconds'))
        ))))),
        'warning',
        'monitoring',
        'An exporter answers, but has read no GPU for a minute.',
        'The GPUs of node {{ $labels.node }} were last read {{ $value | humanizeDuration }} ago.',
        wait='2m',
      ),
      alert(
        'GpuExporterSourceDown',
        ifOurs(promql.min(['job', 'instance', 'source'], promql.metric('gpufleet_source_up')) + ' == 0'),
        'warning',
        'monitoring',
        'A source of an exporter does not answer.',
        'Source {{ $labels.source }} of the exporter at {{ $labels.instance }} has not answered for 15 minutes.',
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
        promql.sum(['rule_group'], fill('increase(%s[15m])', promql.metric(
          'prometheus_rule_group_iterations_missed_total', [groups], ''
        ))) + ' > 0',
        'warning',
        'monitoring',
        'Prometheus does not keep up with the rules about GPUs, so that cost is incomplete.',
        'Group {{ $labels.rule_group }} missed {{ printf "%.0f" $value }} evaluations in 15 minutes.',
        wait='15m',
      ),
    ]),
  ]
