// PromQL, built so that what must be the same everywhere is written once: selectors with the configured ones, levels
// with the cluster, the one join and the one increment. An expression is a string; one of several lines has no line
// break at its end.
local fill = import 'fill.libsonnet';

function(config) {
  local promql = self,

  // What tells owners of a GPU apart, beside the cluster. Two exporters on a GPU, or one that has moved to another
  // address, say the same of it.
  ownerLabels:: ['node', 'gpu', 'uuid', 'mig_uuid'] + config.runLabels + ['workload_namespace', 'workload_pod'],

  // 'a="b"' of ['a', '=', 'b'], or what is written so already.
  local matcher(m) = if std.isString(m) then m else m[0] + m[1] + '"' + m[2] + '"',

  // A selector: the configured part first. It has no braces when there is nothing to put between them.
  metric(name, matchers=[], selector=config.gpufleetSelector)::
    local inside = std.join(',', (if selector == '' then [] else [selector]) + std.map(matcher, matchers));
    if inside == '' then name else name + '{' + inside + '}',

  // The labels of a level as they stand in by (…) and on (…): the cluster first, in any case.
  level(labels):: std.join(', ', [config.clusterLabel] + std.filter(function(l) l != config.clusterLabel, labels)),

  // Put together with +: formatting with % is jsonnet's slowest way, and this is what rendering spends its time on.
  aggregate(op, labels, expr, parameter=null)::
    op + ' by (' + promql.level(labels) + ') (' + (if parameter == null then '' else parameter + ', ') + expr + ')',
  max(labels, expr):: promql.aggregate('max', labels, expr),
  min(labels, expr):: promql.aggregate('min', labels, expr),
  sum(labels, expr):: promql.aggregate('sum', labels, expr),
  avg(labels, expr):: promql.aggregate('avg', labels, expr),
  count(labels, expr):: promql.aggregate('count', labels, expr),
  quantile(q, labels, expr):: promql.aggregate('quantile', labels, expr, q),

  // THE join: the series of `many`, each with the value of `one` that is equal on `labels` (and the cluster). The side
  // that is looked up is reduced to one series for each value of the labels, whatever it comes with: so no rule can
  // fail with "many-to-many", not with two owners of a GPU, not with two exporters. What is an aggregate on just these
  // labels is that already, also when it is divided by or compared with another: to reduce it twice would cost as much
  // as to read it.
  join(many, one, labels=['uuid'], op='*')::
    local level = promql.level(labels);
    local by = ' by (' + level + ') (';
    local reduced = std.length([a for a in ['max', 'min', 'sum', 'avg', 'count'] if std.startsWith(one, a + by)]) > 0
                    && std.strReplace(one, ' or ', '') == one && std.strReplace(one, '\nor', '') == one
                    && std.strReplace(one, 'group_', '') == one;
    many + '\n' + op + ' on (' + level + ') group_left ()\n' + (
      if !reduced then 'max' + by + one + ')'
      // One call needs no parentheses; what is compared or divided would otherwise be so with the product.
      else if std.strReplace(one, '\n', '') == one && std.endsWith(one, ')')
              && std.length([o for o in ['/', '*', '+', '-', '>', '<', '=', 'and', 'unless'] if std.strReplace(one, ') ' + o, '') != one]) == 0
      then one
      else '(' + one + ')'
    ),

  // Owners of GPUs and of slices as the rules have recorded them (rules/owners.libsonnet): value is the share.
  owners(matchers=[]):: promql.metric('run_gpu:gpu_share:max', matchers, ''),
  // The same, each with value 1.
  holders(matchers=[]):: promql.owners(matchers) + ' > bool 0',

  // Each holder of a GPU with the value of its GPU, not weighted.
  attributed(expr, matchers=[]):: if expr == null then null else promql.join('(' + promql.holders(matchers) + ')', expr),
  // Each holder of a GPU with its share of the value: these add up to the value of the GPU.
  shared(expr, matchers=[]):: if expr == null then null else promql.join(promql.owners(matchers), expr),
  // Each holder of a MIG slice with the value of its slice.
  attributedSlices(expr, matchers=[]):: if expr == null
  then null else
    promql.join('(' + promql.holders(matchers + ['mig_uuid!=""']) + ')', expr, ['uuid', 'mig_uuid']),

  // Every GPU with where it is, each once: labels node, gpu, uuid and, where gpufleet says it, driver_version. Not those
  // of holders: an alert about a GPU is the same one whoever has it.
  gpus::
    local ours = promql.max(['node', 'gpu', 'uuid', 'driver_version'], promql.metric('gpu_info'));
    local any = promql.max(['node', 'gpu', 'uuid'], promql.owners());
    if config.sources == ['gpufleet'] then ours
    else if std.member(config.sources, 'gpufleet') then fill('%s\nor on (%s)\n%s', [ours, promql.level(['uuid']), any])
    else any,

  // A selector as it was so long ago.
  ago(selector, window):: selector + ' offset ' + window,

  // Where a counter of events has risen in a window, or was there for the first time with events on it, which
  // increase() does not see. `labels` tell the counters apart, without the address of who reports them.
  risen(selector, window, labels, op='max')::
    local by(expr) = promql.aggregate(op, labels, expr);
    fill('%s > 0\nor\n(%s > 0 unless on (%s) %s)', [
      by('increase(' + selector + '[' + window + '])'),
      by(selector),
      promql.level(labels),
      by(promql.ago(selector, window)),
    ]),

  // Series of a node's exporter that carry no node: with the node that the exporter says it is on.
  onNode(expr):: promql.join(
    promql.max(['instance', 'node'], promql.metric('gpufleet_node_info')), expr, ['instance']
  ),

  // THE increment of time and of money: what was counted in the five minutes that ended a minute ago, as a difference
  // of what each account held at the end of this window and of the one before. increase() would leave out what an
  // account held when it was first seen and guess at both ends: with runs of minutes it loses up to half.
  // An account is what the exporter counts apart. What it held before is what was last seen in the fifteen minutes
  // before this window: so nothing is lost over a gap of a quarter of an hour. One that was not there has begun (it
  // counts from zero), unless it holds more than those minutes: then it is older than we know it, and what it held is
  // not of this window. A longer look back would be what this rule spends most of its time on. A value below half of the
  // one before is a counter that has begun anew.
  // `keep` are the labels of the result, `extra` those that only this counter has; `matchers` choose some of its series.
  increment(metric, keep=config.runLabels, extra=[], age=null, matchers=[])::
    local account = promql.level(['node', 'uuid'] + config.runLabels + extra);
    local clock = promql.level(['node', 'uuid'] + config.runLabels);
    local of(window, offset, name=metric, over='last_over_time', by=account) =
      local selected = promql.metric(name, if name == metric then matchers else []);
      'max by (' + by + ') (' + over + '(' + selected + '[' + window + '] offset ' + offset + '))';
    local now = of('5m', '1m');
    local least = of('5m', '1m', over='min_over_time');
    |||
      sum by (%(level)s) (
        clamp_min(
          %(now)s
          -
          (
            %(before)s
            <=
            2 * %(least)s
            or
            %(least)s%(old)s
          ),
          0
        )
        or
        %(now)s
      )
    ||| % {
      level: promql.level(keep + extra),
      now: now,
      before: of('15m', '6m'),
      least: least,
      // An account of time is old by its own value; one of money, or of useful time, by that of its time.
      old:
        if age == null then ' > 1300'
        else fill('\n      unless on (%s)\n      %s <= 1300', [clock, of('5m', '1m', age, 'min_over_time', clock)]),
    },

  // The larger of two vectors with equal labels.
  larger(a, b):: '(' + a + ') > (' + b + ') or (' + b + ')',
}
