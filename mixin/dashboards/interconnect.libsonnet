// How data moves: between GPUs, between a GPU and its host, between nodes; worst first.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local onNode = here + ['node=~"$node"'];
  local recorded(name, matchers=[]) = promql.metric(name, onNode + matchers, '');
  // Sums by node of what GPUs read.
  local byNode(expr) = if expr == null then null else promql.sum(['node'], promql.shared(expr, onNode));
  local worst(n, expr) = if expr == null then null else fill('topk(%s, %s)', [n, expr]);
  local toNode = panels.dataLink('Open node', dashboards.url('node', { node: '${__field.labels.node}' }));
  local port = '{{node}} {{nic}}';

  {
    'interconnect.json': dashboards.dashboard(
      'interconnect',
      'Interconnect',
      'How data moves between GPUs, between a GPU and its host, and between nodes; worst first.',
      [dashboards.variables.node],
      [
        {
          title: 'Now',
          panels: [
            panels.stat(
              'RDMA ports down',
              'Ports whose link is down now.',
              'none',
              [panels.query(fill('count(%s == 0) or 0 * count(%s)', [
                recorded('node_port:rdma_link_up:min'),
                recorded('node_port:rdma_link_up:min'),
              ]), 'down')],
              'No source reports RDMA ports.',
              { w: 6, decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background' },
            ),
            panels.stat(
              'RDMA traffic',
              'Bytes a second that all chosen nodes send and receive.',
              'Bps',
              [panels.query(fill('sum(%s) + sum(%s)', [
                recorded('node:rdma_receive_bytes:rate5m'),
                recorded('node:rdma_transmit_bytes:rate5m'),
              ]), 'traffic')],
              'No source reports RDMA.',
              { w: 6, graph: true },
            ),
            panels.stat(
              'Most packets sent again',
              'For each gigabyte, at the node where it is most.',
              'none',
              [panels.query(fill('max(%s)', recorded('node:rdma_retransmits_per_gigabyte:rate5m')), 'packets')],
              'No source counts them, or nothing moves.',
              {
                w: 6,
                decimals: 0,
                thresholds: [[null, colors.good], [config.thresholds.retransmitsPerGigabyte, colors.bad]],
              },
            ),
            panels.stat(
              'NVLink traffic',
              'Bytes a second over all NVLinks of the chosen nodes.',
              'Bps',
              [panels.query(
                local moved = byNode(gpu.panel('nvlink_traffic', here));
                if moved == null then null else fill('sum(%s)', moved), 'traffic'
              )],
              'The GPUs have no NVLink, or no source reports it.',
              { w: 6, graph: true },
            ),
          ],
        },
        {
          title: 'Between nodes: RDMA',
          panels: [
            panels.timeseries(
              'Ports that are busiest',
              'What a port sends over what its link can carry: the five highest.',
              'percentunit',
              [panels.query(worst(5, fill('%s / %s', [
                recorded('node_port:rdma_transmit_bytes:rate5m'),
                fill('(%s > 0)', recorded('node_port:rdma_speed_bytes_per_second:max')),
              ])), port)],
              'No source reports RDMA.',
              { w: 8, h: 8, min: 0, max: 1, fill: 0, dataLinks: [toNode] },
            ),
            panels.timeseries(
              'Packets sent again for each gigabyte',
              'The ten nodes with most, for each gigabyte that they move, so that a busy node does not look ill.',
              'none',
              [panels.query(worst(10, recorded('node:rdma_retransmits_per_gigabyte:rate5m')), '{{node}}')],
              'No source counts them, or nothing moves.',
              { w: 8, h: 8, min: 0, fill: 0, logarithmic: true, dataLinks: [toNode] },
            ),
            panels.statusHistory(
              'Links that were down',
              'Ports that were down in the shown time. A port that is never up has no cable.',
              'none',
              [panels.query(fill('%s and on (%s) min_over_time(%s[$__range]) == 0', [
                recorded('node_port:rdma_link_up:min'),
                promql.level(['node', 'nic', 'port']),
                recorded('node_port:rdma_link_up:min'),
              ]), port)],
              'No link was down.',
              {
                w: 8,
                h: 8,
                maxDataPoints: 60,
                mappings: panels.mapValues({
                  '0': { text: 'down', color: colors.bad },
                  '1': { text: 'up', color: colors.good },
                }),
              },
            ),
            panels.timeseries(
              'RDMA received by node',
              'Bytes a second over all RDMA ports of a node: the ten highest.',
              'Bps',
              [panels.query(worst(10, recorded('node:rdma_receive_bytes:rate5m')), '{{node}}')],
              'No source reports RDMA.',
              { w: 12, h: 7, min: 0, fill: 0, dataLinks: [toNode] },
            ),
            panels.table(
              'Ports',
              'Each port: what it sends again, whether its link is up, and how often that changed.',
              [
                // Without their names, which would keep the rows of a port apart.
                panels.row(promql.max(['node', 'nic', 'port'], recorded('node_port:rdma_retransmits:rate5m')) + ' > 0'),
                panels.row(promql.max(['node', 'nic', 'port'], recorded('node_port:rdma_link_up:min'))),
                panels.row(fill('changes(%s[1h])', recorded('node_port:rdma_link_up:min'))),
              ],
              [
                {
                  field: 'node',
                  name: 'Node',
                  link: panels.dataLink('Open node', dashboards.url('node', { node: '${__value.text}' })),
                },
                { field: 'nic', name: 'Adapter' },
                { field: 'port', name: 'Port', width: 60 },
                { field: 'Value #A', name: 'Sent again', unit: 'cps', decimals: 1, empty: '0' },
                {
                  field: 'Value #B',
                  name: 'Link',
                  width: 80,
                  empty: 'unknown',
                  cell: panels.cells.text,
                  mappings: panels.mapValues({
                    '0': { text: 'down', color: colors.bad },
                    '1': { text: 'up', color: colors.good },
                  }),
                },
                { field: 'Value #C', name: 'Changes in 1 h', decimals: 0, width: 120 },
              ],
              'No source reports RDMA ports.',
              { w: 12, h: 7, sortBy: 'Sent again' },
            ),
          ],
        },
        {
          title: 'Between GPUs: NVLink',
          panels: [
            panels.timeseries(
              'NVLink traffic by node',
              'Bytes a second sent and received over all links: the ten highest.',
              'Bps',
              [panels.query(worst(10, byNode(gpu.panel('nvlink_traffic', here))), '{{node}}')],
              'The GPUs have no NVLink, or no source reports it.',
              { w: 8, h: 7, min: 0, fill: 0, dataLinks: [toNode] },
            ),
            panels.timeseries(
              'Errors and recoveries by kind',
              'On all links of the chosen nodes, a second.',
              'cps',
              [panels.query(
                if gpu.has('nvlink_errors') then promql.sum(['error'], fill('(%s) and on (%s) %s', [
                  gpu.panel('nvlink_errors', here),
                  promql.level(['uuid']),
                  promql.owners(onNode),
                ])) + ' > 0',
                '{{error}}',
              )],
              'No link has had an error.',
              { w: 8, h: 7, min: 0 },
            ),
            panels.timeseries(
              'Links up by node',
              'NVLinks that are up on all GPUs of a node: a line below the others has lost some.',
              'none',
              [panels.query(byNode(gpu.now('nvlink_active', here)), '{{node}}')],
              'The GPUs have no NVLink, or no source reports it.',
              { w: 8, h: 7, min: 0, fill: 0, decimals: 0, dataLinks: [toNode] },
            ),
          ],
        },
        {
          title: 'Between GPU and host: PCIe',
          panels: [
            panels.timeseries(
              'Read from the host, by node',
              'Bytes a second that the GPUs of a node read from their host: data and checkpoints. The ten highest.',
              'Bps',
              [panels.query(worst(10, byNode(gpu.now('pcie_receive', here))), '{{node}}')],
              'No source reports PCIe traffic.',
              { w: 8, h: 7, min: 0, fill: 0, dataLinks: [toNode] },
            ),
            panels.timeseries(
              'Written to the host, by node',
              'Bytes a second that the GPUs of a node write to their host. The ten highest.',
              'Bps',
              [panels.query(worst(10, byNode(gpu.now('pcie_transmit', here))), '{{node}}')],
              'No source reports PCIe traffic.',
              { w: 8, h: 7, min: 0, fill: 0, dataLinks: [toNode] },
            ),
            panels.timeseries(
              'PCIe generation and lanes',
              'The lowest of each over the GPUs of a node; an idle GPU lowers the generation by design.',
              'none',
              [
                panels.query(
                  if gpu.has('pcie_width') then promql.min(
                    ['node'], promql.attributed(gpu.now('pcie_width', here), onNode)
                  ), 'lanes {{node}}'
                ),
                panels.query(
                  if gpu.has('pcie_generation') then promql.min(
                    ['node'], promql.attributed(gpu.now('pcie_generation', here), onNode)
                  ), 'generation {{node}}'
                ),
              ],
              'No source reports the link.',
              { w: 8, h: 7, min: 0, fill: 0, decimals: 0, dataLinks: [toNode] },
            ),
          ],
        },
      ],
    ),
  }
