// All of the library with the configuration in it: `local lib = (import '../lib/lib.libsonnet')(config);`.
function(config) {
  config: config,
  promql: (import 'promql.libsonnet')(config),
  vocabulary: (import 'vocabulary.libsonnet')(config),
  rules: (import 'rules.libsonnet')(config),
  panels: (import 'panels.libsonnet')(config),
  dashboards: (import 'dashboards.libsonnet')(config),
  colors: import 'colors.libsonnet',
  // What of it is recorded; set where alerts are made.
  recorded: { series: [], problems: [] },
}
