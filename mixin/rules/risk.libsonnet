// Which GPU will be the next to break? Signs that say little each, weighed together. Only GPUs that show one have
// series here.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local gpu = lib.vocabulary.gpu;
  local record = lib.rules.record;
  local run = config.runLabels;
  local clocks = 'run_gpu:sm_clock:ratio_avg5m{run!=""}';
  // What is left of a condition counts for its weight.
  local part(name, weight, condition) = record(
    'gpu:risk_part:score', if condition == null then null else fill('0 * (%s) + %s', [condition, weight]), { part: name }
  );
  local banks(availability) =
    if !gpu.has('remap_banks') then null
    else promql.max(['uuid'], gpu.now('remap_banks', [fill('availability="%s"', availability)], '> 0'));
  // A day's difference of two samples: an increase over a day would read all of them. What has begun anew in between
  // is below nothing, and left out.
  local corrected = if !gpu.has('ecc_correctable') then null else promql.sum(['uuid'], fill('%s\n-\n%s > 0', [
    gpu.total('ecc_correctable'),
    gpu.before('ecc_correctable', '1d'),
  ]));

  [
    lib.rules.group('gpufleet-risk', [
      // Than the median GPU of its run, on whatever node: a run may have one node only. One that does nothing is slow
      // by design.
      record('gpu:problem:max', (
        if !gpu.has('sm_clock_max') then null else fill('%s\nunless on (%s)\n%s', [
          promql.max(['uuid'], fill('%s\nand on (%s)\nrun:gpu_share:sum >= 4', [
            promql.join(
              clocks, fill('%s * %s', [1 - thresholds.slowerThanPeers, promql.quantile(0.5, run, clocks)]), run, '<'
            ),
            promql.level(run),
          ])),
          promql.level(['uuid']),
          fill('run_gpu:gpu_busy:ratio_rate5m <= %s', thresholds.busy),
        ])
      ), { problem: 'slower_than_peers' }),
      part('corrected_errors', 1, if corrected == null then null else fill('%s > %s', [
        corrected,
        thresholds.correctedErrorsPerDay,
      ])),
      part('few_spare_rows', 1, banks('low')),
      part('no_spare_rows', 2, banks('none')),
      part('recurring_heat', 1, promql.max(
        ['uuid'], '5 * count_over_time(gpu:problem:max{problem="throttled_thermal"}[1d])'
      ) + fill(' > %s', thresholds.recurringMinutes)),
      part('slower_than_peers', 1, promql.max(
        ['uuid'], 'count_over_time(gpu:problem:max{problem="slower_than_peers"}[1d])'
      ) + fill(' > %s', (12 * thresholds.slowerHours))),
      part('repeated_incidents', 2, if !std.member(config.sources, 'gpufleet') then null else promql.count(
        ['uuid'],
        promql.max(
          ['uuid', 'incident'],
          fill('last_over_time(%s[7d])', promql.metric('gpu_fault_active', ['class!="application"', 'uuid!=""'])),
        )
      ) + ' > 1'),
      record('gpu:risk:sum', promql.sum(['uuid'], 'gpu:risk_part:score')),
    ], interval='5m'),
  ]
