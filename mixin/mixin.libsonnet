// The mixin: recording rules, alerts and dashboards, in the form that every tool for mixins takes.
(import 'config.libsonnet') {
  local lib = (import 'lib/lib.libsonnet')($._config),
  // The rules of which some sources and systems make only a part: an alert on what is not recorded is left out.
  local partial = [
    rule
    for file in [
      import 'rules/inference.libsonnet',
      import 'rules/network.libsonnet',
      import 'rules/problems.libsonnet',
    ]
    for group in file(lib)
    for rule in group.rules
  ],
  local recorded = {
    series: std.set([rule.record for rule in partial]),
    problems: std.set([rule.labels.problem for rule in partial if rule.record == 'gpu:problem:max']),
  },
  prometheusRules+:: { groups+: (import 'rules/all.libsonnet')(lib) },
  prometheusAlerts+:: { groups+: (import 'alerts/all.libsonnet')(lib { recorded: recorded }) },
  grafanaDashboards+:: (import 'dashboards/all.libsonnet')(lib),
}
