// Groups of rules, and the rules in them. What needs a reading that no configured source has is null and left out.
local fill = import 'fill.libsonnet';

function(config) {
  // For descriptions: which GPU it is, and which runs hold it. The runs are looked up when the alert is written: as
  // labels they would make another alert of it whenever its holder changes.
  gpuOfNode:: 'GPU {{ $labels.gpu }} of node {{ $labels.node }}',
  itsRuns:: '{{ with printf `count by (run) (run_gpu:gpu_share:max{uuid=%q,run!=""})` $labels.uuid | query | sortByLabel "run" }} Held by'
            + '{{ range . }} {{ .Labels.run }}{{ end }}.{{ end }}',
  // Several lines are written as a block, which ends in a line break. (strReplace is fast; findSubstr is not.)
  local block(expr) =
    if std.strReplace(expr, '\n', '') == expr || std.endsWith(expr, '\n') then expr else expr + '\n',

  // A recorded series. Its name is level:metric:operations; `labels` are constant ones.
  record(name, expr, labels={}):: if expr == null then null else {
    record: name,
    expr: block(expr),
    [if labels != {} then 'labels']: labels,
  },

  // An alert. `summary` is a fixed sentence, `description` a template that names node, GPU, run and figure.
  // severity: critical wakes someone, warning is a ticket, info is context. team: infra, ml, serving, finops or
  // monitoring. `keepFiringFor` is left out where the configuration says so.
  alert(name, expr, severity, team, summary, description, wait=null, keepFiringFor=null, labels={}):: if expr == null
  then null else {
    assert std.member(['critical', 'warning', 'info'], severity) : name + ': severity ' + severity,
    assert std.member(['infra', 'ml', 'serving', 'finops', 'monitoring'], team) : name + ': team ' + team,
    alert: name,
    expr: block(expr),
    [if wait != null then 'for']: wait,
    [if keepFiringFor != null && config.keepFiringFor then 'keep_firing_for']: keepFiringFor,
    labels: { severity: severity, team: team } + labels,
    annotations: {
      summary: summary,
      description: description,
      runbook_url: fill(config.runbookURLPattern, name),
    },
  },

  // A group. `interval` null is the server's own: for the incidents alone, which shall be told as soon as they are seen.
  group(name, rules, interval=null):: {
    local kept = std.filter(function(rule) rule != null, rules),
    assert std.length(kept) <= 20 : fill('group %s has %s rules: at most 20', [name, std.length(kept)]),
    name: name,
    [if interval != null then 'interval']: interval,
    rules: kept,
  },
}
