// RDMA traffic and its health by node. Each word gives series with the labels cluster, node (and nic, port).
local fill = import '../lib/fill.libsonnet';
local promqlOf = import '../lib/promql.libsonnet';

function(config)
  local promql = promqlOf(config);
  local port = ['node', 'nic', 'port'];

  // nic_info knows the node; the others carry the adapter and its port only.
  local ours(expr, more=[]) =
    promql.max(port + more, promql.join(
      promql.max(['instance'] + port, promql.metric('nic_info')), expr, ['instance', 'nic', 'port']
    ));
  local rate(selector) = fill('rate(%s[%s])', [selector, config.rateInterval]);

  local theirs(name) = promql.metric('node_infiniband_' + name, [], config.nodeExporterSelector);
  local placed(expr, more=[]) = promql.max(port + more, fill(
    'label_replace(label_replace(%s, "nic", "$1", "device", "(.+)"), "node", "$1", "%s", "(.+?)(?::[0-9]+)?")',
    [expr, config.nodeExporterNodeLabel],
  ));

  local sources = {
    gpufleet: {
      receive: ours(rate(promql.metric('nic_receive_bytes_total'))),
      transmit: ours(rate(promql.metric('nic_transmit_bytes_total'))),
      speed: ours(promql.metric('nic_rate_bytes_per_second')),
      link_up: ours(promql.metric('nic_link_up')),
      // All kinds: they count what one loss made in different ways, so they are a measure, not a number of packets.
      retransmits: ours(promql.sum(
        ['instance', 'nic', 'port'], rate(promql.metric('nic_retransmits_total'))
      )),
    },
    node_exporter: {
      receive: placed(rate(theirs('port_data_received_bytes_total'))),
      transmit: placed(rate(theirs('port_data_transmitted_bytes_total'))),
      speed: placed(theirs('rate_bytes_per_second')),
      // 4 is active.
      link_up: placed(theirs('state_id') + ' == bool 4'),
      link_downs: placed(fill('increase(%s[30m])', theirs('link_downed_total'))),
      // Since node_exporter 1.11.
      retransmits: promql.sum(port, placed(std.join(' or ', [
        fill('label_replace(%s, "kind", "%s", "", "")', [rate(theirs(kind + '_total')), kind])
        for kind in [
          'local_ack_timeout_errors',
          'packet_sequence_errors',
          'out_of_sequence_packets_received',
          'roce_adp_retransmits',
        ]
      ]), ['kind'])),
    },
  };

  {
    [word]: std.join(
      fill('\nor on (%s)\n', promql.level(['node'])),
      [sources[name][word] for name in config.networkSources if std.objectHas(sources[name], word)],
    )
    for word in ['receive', 'transmit', 'speed', 'link_up', 'link_downs', 'retransmits']
    if std.length([n for n in config.networkSources if std.objectHas(sources[n], word)]) > 0
  }
