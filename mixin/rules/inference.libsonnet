// One vocabulary for all systems that run models: series of a model (labels model and system), so that there is one
// alert and one panel for each thing.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local promql = lib.promql;
  local record = lib.rules.record;
  local table = import '../sources/inference.libsonnet';
  local systems = [table[name] { system: name } for name in config.inferenceSystems];
  local window = config.rateInterval;

  local select(system, name, suffix='') =
    local plain = if std.isString(name) then { name: name, matchers: [] } else name;
    promql.metric(
      system.prefix + plain.name + suffix,
      plain.matchers,
      if std.objectHas(system, 'selector') then config[system.selector] else config.inferenceSelector,
    );
  // By model and system, whatever the system's labels are.
  local tidy(system, expr, op, more=[]) =
    local named = if system.model == '' || system.model == 'model' then expr
    else 'label_replace(' + expr + ', "model", "$1", "' + system.model + '", "(.+)")';
    promql.aggregate(
      op, ['system', 'model'] + more, 'label_replace(' + named + ', "system", "' + system.system + '", "", "")'
    );
  local over(word, form, op='sum', more=[]) =
    local exprs = [
      tidy(system, form(system, name), op, more)
      for system in systems
      if std.objectHas(system, word)
      for name in system[word]
    ];
    if std.length(exprs) == 0 then null else std.join('\nor\n', exprs);

  local value(system, name) = select(system, name);
  // SGLang's processes of one model each tell of the whole, so one of them is asked.
  local whole(system, name) =
    if std.objectHas(system, 'ranks')
    then promql.aggregate('max', ['job', 'instance', 'dp_rank', system.model], select(system, name))
    else select(system, name);
  local rate(system, name) = 'rate(' + select(system, name) + '[' + window + '])';
  local buckets(system, name) = 'rate(' + select(system, name, '_bucket') + '[' + window + '])';
  local mean(word, total) =
    local exprs = [
      fill('%s\n/\n(%s > 0)', [
        tidy(system, 'rate(' + select(system, name, '_sum') + '[' + window + '])', 'sum'),
        tidy(system, 'rate(' + select(system, name, '_count') + '[' + window + '])', 'sum'),
      ])
      for system in systems
      if std.objectHas(system, word)
      for name in system[word]
    ] + [
      fill('%s%s\n/\n(%s > 0)', [
        tidy(system, 'rate(' + select(system, system[total].sum) + '[' + window + '])', 'sum'),
        system[total].scale,
        tidy(system, 'rate(' + select(system, system[total].count) + '[' + window + '])', 'sum'),
      ])
      for system in systems
      if std.objectHas(system, total)
    ];
    if std.length(exprs) == 0 then null else std.join('\nor\n', exprs);

  // Every request that has ended, whichever way: where all fail, that is all of them.
  local ended =
    local total(system) =
      local good = tidy(system, rate(system, system.finished[0]), 'sum');
      local bad = tidy(system, rate(system, system.failed[0]), 'sum');
      fill('(%s + %s\nor\n%s\nor\n%s)', [good, bad, good, bad]);
    std.join('\nor\n', [
      if std.objectHas(system, 'apart') then total(system) else tidy(system, rate(system, name), 'sum')
      for system in systems
      for name in system.finished
    ]);
  // Runs that serve a model: one of their pods is a server that reports. An empty label of the pod leaves them out.
  local replicas =
    local labelled(to, from, expr) = fill('label_replace(%s, "%s", "$1", "%s", "(.+)")', [expr, to, from]);
    local replica(system) = labelled('workload_namespace', config.inferenceNamespaceLabel, labelled(
      'workload_pod',
      config.inferencePodLabel,
      select(system, { name: system.waiting[0], matchers: [[config.inferencePodLabel, '!=', '']] }),
    ));
    if config.inferencePodLabel == '' then null else fill('%s and on (%s)\n(%s)', [
      promql.owners(['workload_pod!=""', 'run!=""']),
      promql.level(['workload_namespace', 'workload_pod']),
      std.join(' or ', [replica(system) for system in systems]),
    ]);

  if std.length(systems) == 0 then [] else [
    lib.rules.group('gpufleet-inference', [
      record('model:inference_requests_running:sum', over('running', whole)),
      record('model:inference_requests_waiting:sum', over('waiting', whole)),
      record('model:inference_kv_usage:ratio_max', over('kv_usage', value, 'max')),
      record('model:inference_prompt_tokens:rate5m', over('prompt_tokens', rate)),
      record('model:inference_generation_tokens:rate5m', over('generation_tokens', rate)),
      record('model:inference_requests:rate5m', ended),
      record('model:inference_requests_failed:rate5m', over('failed', rate)),
      record('model:inference_requests_aborted:rate5m', over('aborted', rate)),
      record('model:inference_preemptions:rate5m', over('preemptions', rate)),
      record('model:inference_prefix_hits:ratio_rate5m', (
        local hits = over('prefix_hits', rate);
        if hits == null then null else fill('(%s)\n/\n((%s) > 0)', [hits, over('prefix_queries', rate)])
      )),
      record('model:inference_ttft_seconds:mean5m', mean('ttft', 'no_total')),
      record('model:inference_e2e_seconds:mean5m', mean('e2e', 'e2e_total')),
      record('model:inference_queue_seconds:mean5m', mean('queue_time', 'queue_total')),
      record('model_le:inference_ttft_seconds_bucket:rate5m', over('ttft', buckets, more=['le'])),
      record('model_le:inference_itl_seconds_bucket:rate5m', over('itl', buckets, more=['le'])),
      record('model_le:inference_e2e_seconds_bucket:rate5m', over('e2e', buckets, more=['le'])),
      record('run:inference_pods:count', if replicas == null then null else promql.count(config.runLabels, replicas)),
    ], interval=config.evaluationInterval),
  ]
