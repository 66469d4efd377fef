// RDMA that loses packets, and links that go down.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local thresholds = config.thresholds;
  local promql = lib.promql;
  local alert = lib.rules.alert;
  local recorded = lib.recorded.series;
  local retransmits = 'node:rdma_retransmits_per_gigabyte:rate5m';
  local up = 'node_port:rdma_link_up:min';
  local lost = 'node_port:rdma_link_lost:max';
  local downs = 'node_port:rdma_link_downs:increase30m';
  local has(name) = std.setMember(name, recorded);
  // Nodes of a run of several nodes: one that nobody waits for can be looked at tomorrow.
  local inRun = fill('node_run:gpu_share:sum{run!=""} and on (%s) run:nodes:count > 1', promql.level(config.runLabels));
  local port = 'Port {{ $labels.port }} of {{ $labels.nic }} on node {{ $labels.node }}';
  local flaps = if !has(up) then null else std.join('\nor\n', (
    if has(downs) then [fill('%s >= 2', downs)] else []
  ) + [
    // Each drop is a change down and one up.
    fill('changes(%s[30m]) >= 4', up),
  ]);
  local down = if has(lost) then lost + ' == 1' else null;
  local needed(expr, op) = if expr == null then null else fill('(%s)\n%s on (%s)\n(%s)', [
    expr,
    op,
    promql.level(['node']),
    inRun,
  ]);

  [
    lib.rules.group('gpufleet-interconnect', [
      alert(
        'RdmaRetransmitsHigh',
        // And not where so little is sent that a few packets are many for a gigabyte.
        if !has(retransmits) then null else promql.join(
          fill('(%s > %s)', [retransmits, thresholds.retransmitsPerGigabyte]),
          fill('%s * %s', [thresholds.retransmitsOverMedian, promql.quantile('0.5', [], retransmits)]),
          [],
          '>',
        ) + fill('\nand on (%s)\nnode:rdma_retransmits:rate5m > %s', [
          promql.level(['node']),
          thresholds.retransmitsPerSecond,
        ]),
        'warning',
        'infra',
        'A node sends far more packets again than others do.',
        'Node {{ $labels.node }} sends {{ printf "%.0f" $value }} packets again for each gigabyte that it moves.',
        wait='15m',
      ),
      alert(
        'RdmaPortFlapping',
        needed(flaps, 'and'),
        'critical',
        'infra',
        'An RDMA link goes down again and again.',
        port + ' went down again and again in half an hour, and a run of several nodes depends on it.',
        wait='5m',
      ),
      alert(
        'RdmaPortFlapping',
        needed(flaps, 'unless'),
        'warning',
        'infra',
        'An RDMA link goes down again and again.',
        port + ' went down again and again in half an hour.',
        wait='5m',
      ),
      alert(
        'RdmaPortDown',
        needed(down, 'and'),
        'critical',
        'infra',
        'An RDMA link that was up is down.',
        port + ' is down, and a run of several nodes depends on it.',
        wait='5m',
      ),
      alert(
        'RdmaPortDown',
        needed(down, 'unless'),
        'warning',
        'infra',
        'An RDMA link that was up is down.',
        port + ' is down.',
        wait='5m',
      ),
    ], interval=config.evaluationInterval),
  ]
