// Money: what is spent without an owner, without a price, or beyond the budget.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local alert = lib.rules.alert;
  local metered = std.member(config.sources, 'gpufleet');
  local ifMetered(expr) = if metered then expr else null;
  local allocated = 'run:gpu_allocated_seconds:increase5m';
  local budgeted = config.monthlyBudget > 0;
  // What a window comes to in a month of 30 days, over the budget.
  local pace(window, windows) = fill('%s * %s / %s', [
    windows,
    promql.sum(['currency'], fill('sum_over_time(cluster:gpu_cost:increase5m[%s])', window)),
    config.monthlyBudget,
  ]);

  [
    lib.rules.group('gpufleet-money', [
      alert(
        'GpuAttributionMissing',
        ifMetered(fill('%s\n/\n(%s > 0)\n> %s', [
          promql.sum([], allocated + '{project="(unknown)"}'),
          promql.sum([], allocated + '{project!~"[(](unallocated|unsliced)[)]"}'),
          thresholds.unattributed,
        ])),
        'warning',
        'monitoring',
        "Nobody knows who holds part of the GPUs, so that their cost is nobody's.",
        '{{ $value | humanizePercentage }} of the GPU time that is held{{ with $labels.cluster }} in cluster {{ . }}{{ end }} '
        + 'has no known holder.',
        wait='30m',
      ),
      alert(
        'GpuPriceMissing',
        // By model, as rules of a price book are: one that is forgotten is one alert. Without a budget, only where there is
        // a price book at all.
        ifMetered(promql.count(['name'], fill('%s\nunless on (%s)\n%s%s', [
          promql.max(['name', 'uuid'], promql.metric('gpu_info')),
          promql.level(['uuid']),
          promql.metric('gpu_price_per_hour'),
          if budgeted then '' else fill('\nand on (%s)\n%s', [promql.level([]), promql.metric('gpu_price_per_hour')]),
        ])) + ' > 0'),
        'warning',
        'monitoring',
        'GPUs have no price, so that their cost is counted nowhere.',
        '{{ $value }} GPUs of model {{ $labels.name }}{{ with $labels.cluster }} in cluster {{ . }}{{ end }} match no rule of the '
        + 'price book.{{ with printf `topk(3, sum by (node) (gpu_info{name=%q} unless on (uuid) gpu_price_per_hour))` '
        + '$labels.name | query }} Among them those of{{ range sortByLabel `node` . }} {{ .Labels.node }}{{ end }}.{{ end }}',
        wait='30m',
      ),
      alert(
        'GpuBudgetBurn',
        if budgeted then ifMetered(fill('%s > %s\nand on (%s)\n%s > %s', [
          pace('6h', 120),
          thresholds.budgetPace6h,
          promql.level(['currency']),
          pace('3d', 10),
          thresholds.budgetPace3d,
        ])),
        'warning',
        'finops',
        'GPUs cost more than the budget of the month allows.',
        'At the pace of the last six hours the month costs {{ $value | humanizePercentage }} of its budget, and the last three '
        + 'days are over it, too.',
        wait='1h',
      ),
      alert(
        'GpuUnusedSpendHigh',
        if config.optionalAlerts.unusedSpend then ifMetered(fill('%s > %s\nand on (%s)\n%s > %s', [
          fill('%s\n/\n(%s > 0)', [
            promql.sum(['project', 'currency'], 'sum_over_time(project:gpu_unused_cost:increase5m[7d])'),
            promql.sum(['project', 'currency'], 'sum_over_time(project:gpu_cost:increase5m[7d])'),
          ]),
          thresholds.unusedPart,
          promql.level(['project', 'currency']),
          promql.sum(['project', 'currency'], 'sum_over_time(project:gpu_unused_cost:increase5m[7d])'),
          thresholds.unusedLeast,
        ])),
        'info',
        'finops',
        'Much of what a project pays for GPUs is for time in which they do nothing.',
        'Project {{ $labels.project }} has not used {{ $value | humanizePercentage }} of what it paid in seven days.',
        wait='6h',
      ),
    ], interval='5m'),
  ]
