// RDMA by node and port, from gpufleet's or node_exporter's families.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local promql = lib.promql;
  local record = lib.rules.record;
  local words = (import '../sources/network.libsonnet')(lib.config);
  local word(name) = std.get(words, name);
  local level = promql.level(['node', 'nic', 'port']);
  [
    lib.rules.group('gpufleet-network', [
      record('node_port:rdma_receive_bytes:rate5m', word('receive')),
      record('node_port:rdma_transmit_bytes:rate5m', word('transmit')),
      record('node_port:rdma_speed_bytes_per_second:max', word('speed')),
      record('node_port:rdma_link_up:min', word('link_up')),
      // Down, though it was up before: a port without a cable is no fault. What this rule has recorded itself says
      // that it was up; a window of a day would be read in full for each port, every minute.
      record('node_port:rdma_link_lost:max', if !std.objectHas(words, 'link_up') then null else fill(
        '1 - (node_port:rdma_link_up:min == 0)\nand on (%s)\n(max_over_time(node_port:rdma_link_up:min[30m]) == 1\n'
        + 'or on (%s)\nlast_over_time(node_port:rdma_link_lost:max[1h]))',
        [level, level],
      )),
      record('node_port:rdma_link_downs:increase30m', word('link_downs')),
      record('node_port:rdma_retransmits:rate5m', word('retransmits')),
      record('node:rdma_receive_bytes:rate5m', promql.sum(['node'], 'node_port:rdma_receive_bytes:rate5m')),
      record('node:rdma_transmit_bytes:rate5m', promql.sum(['node'], 'node_port:rdma_transmit_bytes:rate5m')),
      record('node:rdma_retransmits:rate5m', promql.sum(['node'], 'node_port:rdma_retransmits:rate5m')),
      // For each gigabyte that the node moved, so that a busy node does not look ill.
      record(
        'node:rdma_retransmits_per_gigabyte:rate5m',
        'node:rdma_retransmits:rate5m\n/\n((node:rdma_receive_bytes:rate5m + node:rdma_transmit_bytes:rate5m) / 1e9 > 0)',
      ),
    ], interval=lib.config.evaluationInterval),
  ]
