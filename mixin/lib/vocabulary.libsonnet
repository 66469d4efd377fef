// One word for each reading of a GPU, whatever source it comes from. Every expression has one series a GPU and only
// the labels cluster and uuid (a slice's mig_uuid, too), and those that the word itself has. What no configured source
// reports is null: rules, panels and alerts leave out what is null.
local fill = import 'fill.libsonnet';
local promqlOf = import 'promql.libsonnet';

local files = {
  gpufleet: import '../sources/gpufleet.libsonnet',
  dcgm: import '../sources/dcgm.libsonnet',
  dcgm49: import '../sources/dcgm49.libsonnet',
};

function(config)
  local promql = promqlOf(config);
  local sources = [files[name](config) for name in config.sources];
  // As elements of arrays, which are worked out once: a field is worked out each time.
  local tables = [[source.gpu for source in sources], [source.slice for source in sources]];
  local tablesOf(kind) = tables[if kind == 'slice' then 1 else 0];
  local words = import 'words.libsonnet';

  // Every source's expression, the first one in front: it counts on a GPU that several have.
  // In brackets where there are several: it goes into other expressions, in which `or` would bind last.
  local preferred(exprs, extra, key) =
    if std.length(exprs) == 0 then null
    else if std.length(exprs) == 1 then exprs[0]
    else if std.length(extra) == 0 then '(' + std.join('\nor\n', exprs) + ')'
    else '(' + std.join('\nor on (' + promql.level(key) + ')\n', exprs) + ')';

  // `condition`, as '> 0', is put inside where one source has the word: what is filtered first needs no aggregation, and
  // of a fleet's GPUs next to none are left. Of several sources the first one counts, whether it meets it or not.
  local read(kind, word, matchers, form, condition='') =
    local known = words[kind];
    assert std.objectHas(known, word) : fill('mixin/lib/words.libsonnet has no word %s for a %s', [word, kind]);
    local extra = std.get(known[word], 'labels', []);
    local key = if kind == 'slice' then ['uuid', 'mig_uuid'] else ['uuid'];
    local made(tail) = [
      promql.max(key + extra, sources[i].rename(expr + tail, kind == 'slice'))
      for i in std.range(0, std.length(sources) - 1)
      if std.objectHas(tablesOf(kind)[i], word)
      for found in [tablesOf(kind)[i][word]]
      for entry in (if std.isArray(found) then found else [found])
      for expr in [
        local select(name) = sources[i].select(name, entry.fixed + matchers, kind == 'slice');
        local expr = form(entry, select);
        if expr == null || !std.objectHas(entry, 'plus') then expr else expr + ' + ' + form(entry.plus, select),
      ]
      if expr != null
    ];
    local exprs = made('');
    if condition == '' || std.length(exprs) == 0 then preferred(exprs, extra, key)
    else if std.length(exprs) == 1 then made(' ' + condition)[0]
    else preferred(exprs, extra, key) + ' ' + condition;

  local forms = {
    now(entry, select):
      (if entry.gauge != null then select(entry.gauge)
       else 'rate(' + select(entry.counter) + '[' + config.rateInterval + '])') + entry.scale,
    panel(entry, select):
      (if entry.gauge != null then select(entry.gauge)
       else 'rate(' + select(entry.counter) + '[$__rate_interval])') + entry.scale,
    mean(window):: function(entry, select)
      (if entry.counter != null then 'rate(' + select(entry.counter) + '[' + window + '])'
       else 'avg_over_time(' + select(entry.gauge) + '[' + window + '])') + entry.scale,
    high(window):: function(entry, select)
      if entry.gauge == null then null else 'max_over_time(' + select(entry.gauge) + '[' + window + '])' + entry.scale,
    events(window):: function(entry, select)
      if entry.counter == null then null else 'increase(' + select(entry.counter) + '[' + window + '])' + entry.scale,
    total(entry, select): if entry.counter == null then null else select(entry.counter) + entry.scale,
    before(window):: function(entry, select)
      if entry.counter == null then null else promql.ago(select(entry.counter), window) + entry.scale,
  };

  local reader(kind) = {
    // Whether a configured source has it.
    has(word):: std.length([table for table in tablesOf(kind) if std.objectHas(table, word)]) > 0,
    // The present value; of what is only counted, the rate over the configured window.
    now(word, matchers=[], condition=''):: read(kind, word, matchers, forms.now, condition),
    // The same for a panel, whose windows follow its step.
    panel(word, matchers=[]):: read(kind, word, matchers, forms.panel),
    // The mean over a window: exact where the source integrates, the mean of samples where it does not.
    mean(word, window=config.rateInterval, matchers=[], condition='')::
      read(kind, word, matchers, forms.mean(window), condition),
    // The highest sample in a window.
    high(word, window, matchers=[]):: read(kind, word, matchers, forms.high(window)),
    // How much a counter of errors has risen in a window. Not for time or money: promql.increment is.
    events(word, window, matchers=[], condition='')::
      read(kind, word, matchers, forms.events(window), condition),
    // A counter as it stands.
    total(word, matchers=[]):: read(kind, word, matchers, forms.total),
    // The same, as it stood so long ago.
    before(word, window, matchers=[]):: read(kind, word, matchers, forms.before(window)),
  };

  {
    gpu: reader('gpu'),
    slice: reader('slice'),
    // Each holder of each GPU and slice; the value is its share of the GPU. For rules/owners.libsonnet alone: all
    // others read what that records (promql.owners).
    owners: std.join(fill('\nor on (%s)\n', promql.level(['uuid'])), [source.owners for source in sources]),
    // Each target that tells of GPUs, with its node: labels job, instance, node.
    exporters: std.join(fill('\nor on (%s)\n', promql.level(['job', 'instance'])), [source.exporters for source in sources]),
    // Each GPU with its model (label `model`).
    models: std.join(fill('\nor on (%s)\n', promql.level(['uuid'])), [source.models for source in sources]),
  }
