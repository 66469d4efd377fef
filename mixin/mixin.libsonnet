// The mixin: recording rules, alerts and dashboards, in the form that every tool for mixins takes.
(import 'config.libsonnet') {
  local lib = (import 'lib/lib.libsonnet')($._config),
  prometheusRules+:: { groups+: (import 'rules/all.libsonnet')(lib) },
  prometheusAlerts+:: { groups+: (import 'alerts/all.libsonnet')(lib) },
  grafanaDashboards+:: (import 'dashboards/all.libsonnet')(lib),
}
