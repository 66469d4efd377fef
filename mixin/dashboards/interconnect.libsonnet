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
  local limits = config.thresholds;
  local alarm = { cell: panels.cells.text, thresholds: [[null, 'text'], [1, colors.bad]] };
  local onNode = here + ['node=~"$node"'];
  local recorded(name, matchers=[]) = promql.metric(name, onNode + matchers, '');
  // Sums by node of what GPUs read.
  local byNode(expr) = if expr == null then null else promql.sum(['node'], promql.shared(expr, onNode));
  // Of a GPU's readings, each GPU once, with its node.
  local byGpu(expr) = if expr == null then null else promql.max(['node', 'gpu', 'uuid'], promql.attributed(expr, onNode));
  local missing(now, most) = if !gpu.has(now) || !gpu.has(most) then null else byNode(
    fill('(%s - %s)', [gpu.now(most, here), gpu.now(now, here)])
  );
  local ports = promql.max(['node', 'nic', 'port'], recorded('node_port:rdma_link_up:min'));
  // The higher of both directions over what the link can carry.
  local used = fill('(%s) / (%s > 0)', [
    promql.larger(recorded('node_port:rdma_transmit_bytes:rate5m'), recorded('node_port:rdma_receive_bytes:rate5m')),
    recorded('node_port:rdma_speed_bytes_per_second:max'),
  ]);
  // A link that was up and is not: what was 1 falls to 0.
  local lost(window) = fill('resets(%s[%s])', [recorded('node_port:rdma_link_up:min'), window]);
  local worst(n, expr) = if expr == null then null else fill('topk(%s, %s)', [n, expr]);
  local toNode = panels.dataLink('Open node', dashboards.url('node', { node: '${__field.labels.node}' }));
  local toGpu = panels.dataLink('Open GPU', dashboards.url(
    'gpu', { node: '${__field.labels.node}', gpu: '${__field.labels.uuid}' }
  ));
  local cellToNode = panels.dataLink('Open node', dashboards.url('node', { node: '${__value.text}' }));
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
              { w: 4, decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background' },
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
              { w: 4, graph: true },
            ),
            panels.stat(
              'Most sent again',
              'Packets sent again for each gigabyte, at the node where it is most.',
              'none',
              [panels.query(fill('max(%s)', recorded('node:rdma_retransmits_per_gigabyte:rate5m')), 'packets')],
              'No source counts them, or nothing moves.',
              {
                w: 4,
                decimals: 0,
                thresholds: [[null, colors.good], [limits.retransmitsPerGigabyte, colors.bad]],
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
              { w: 4, graph: true },
            ),
            panels.stat(
              'NVLinks down',
              'Links that are down on all GPUs of the chosen nodes; a link that sleeps is not. Boards of some models have links '
              + 'that are never connected.',
              'none',
              [panels.query(
                local down = byNode(gpu.now('nvlink_inactive', here));
                if down == null then null else fill('sum(%s)', down), 'down'
              )],
              'The GPUs have no NVLink, or no source reports it.',
              { w: 4, decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]] },
            ),
            panels.stat(
              'PCIe lanes missing',
              'Lanes that links could have and do not: reseat the board.',
              'none',
              [panels.query(
                local lanes = missing('pcie_width', 'pcie_width_max');
                if lanes == null then null else fill('sum(%s)', lanes), 'lanes'
              )],
              'No source reports the link.',
              { w: 4, decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]] },
            ),
            panels.table(
              'Nodes, worst first',
              'Each node on one line: what its network sends again and loses, what its links to GPUs and host lack, and what '
              + 'goes over them.',
              [
                panels.row(promql.max(['node'], recorded('node:rdma_retransmits_per_gigabyte:rate5m'))),
                panels.row(promql.sum(['node'], lost('6h'))),
                panels.row(promql.sum(['node'], fill('1 - %s', ports))),
                panels.row(promql.sum(['node'], fill('%s + %s', [
                  recorded('node:rdma_receive_bytes:rate5m'),
                  recorded('node:rdma_transmit_bytes:rate5m'),
                ]))),
                panels.row(byNode(gpu.now('nvlink_traffic', here))),
                panels.row(
                  if gpu.has('nvlink_errors') then byNode(promql.sum(['uuid'], gpu.events('nvlink_errors', '1h', here)))
                ),
                panels.row(byNode(gpu.now('pcie_receive', here))),
                panels.row(missing('pcie_width', 'pcie_width_max')),
              ],
              [
                { field: 'node', name: 'Node', link: cellToNode },
                {
                  field: 'Value #A',
                  name: 'RDMA resent per GB',
                  decimals: 1,
                  width: 165,
                  empty: '–',
                  cell: panels.cells.text,
                  thresholds: [[null, 'text'], [limits.retransmitsPerGigabyte, colors.bad]],
                },
                { field: 'Value #B', name: 'Lost in 6 h', decimals: 0, width: 110, empty: '–' } + alarm,
                { field: 'Value #C', name: 'Down now', decimals: 0, width: 105, empty: '–' } + alarm,
                { field: 'Value #D', name: 'RDMA', unit: 'Bps', width: 110, empty: '–' },
                { field: 'Value #E', name: 'NVLink', unit: 'Bps', width: 110, empty: '–' },
                { field: 'Value #F', name: 'NVLink errors in 1 h', decimals: 0, width: 160, empty: '–' },
                { field: 'Value #G', name: 'PCIe read', unit: 'Bps', width: 110, empty: '–' },
                { field: 'Value #H', name: 'Lanes missing', decimals: 0, width: 125, empty: '–' } + alarm,
              ],
              'No source reports networks, links or the bus.',
              { w: 24, h: 10, sortBy: 'RDMA resent per GB' },
            ),
          ],
        },
        {
          title: 'Between nodes: RDMA',
          panels: [
            panels.timeseries(
              'Use of RDMA ports',
              'What a port sends or receives, whichever is more, over what its link can carry. The table of ports has their names.',
              'percentunit',
              [
                panels.query(fill('max(%s)', used), 'busiest'),
                panels.query(fill('quantile(0.5, %s)', used), 'median'),
              ],
              'No source reports RDMA.',
              { w: 8, h: 8, min: 0, max: 1 },
            ),
            panels.timeseries(
              'Packets sent again for each gigabyte',
              'The ten nodes with most, for each gigabyte that they move, so that a busy node does not look ill.',
              'none',
              [panels.query(worst(10, recorded('node:rdma_retransmits_per_gigabyte:rate5m')), '{{node}}')],
              'No source counts them, or nothing moves.',
              { w: 8, h: 8, min: 0, fill: 0, dataLinks: [toNode] },
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
                rowHeight: 0.5,
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
              'Each port: what it sends again, whether its link is up, and how often it was lost.',
              [
                // Without their names, which would keep the rows of a port apart.
                panels.row(promql.max(['node', 'nic', 'port'], recorded('node_port:rdma_retransmits:rate5m')) + ' > 0'),
                panels.row(ports),
                panels.row(promql.max(['node', 'nic', 'port'], lost('6h'))),
                panels.row(promql.max(['node', 'nic', 'port'], used)),
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
                { field: 'Value #C', name: 'Lost in 6 h', decimals: 0, width: 120 },
                { field: 'Value #D', name: 'Used', unit: 'percentunit', decimals: 0, width: 70, empty: '–' },
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
              { w: 6, h: 8, min: 0, fill: 0, dataLinks: [toNode] },
            ),
            panels.bargauge(
              'NVLink traffic by GPU',
              'Bytes a second that each GPU sends and receives now: the eight highest. One of a run far below the others is who '
              + 'they wait for, or on a slow link.',
              'Bps',
              [panels.query(
                worst(8, byGpu(gpu.now('nvlink_traffic', here))), '{{node}} GPU {{gpu}}', instant=true
              )],
              'The GPUs have no NVLink, or no source reports it.',
              { w: 6, h: 8, dataLinks: [toGpu] },
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
              { w: 6, h: 8, min: 0 },
            ),
            panels.timeseries(
              'Links up by node',
              'NVLinks that are up on all GPUs of a node: a line below the others has lost some.',
              'none',
              [panels.query(byNode(gpu.now('nvlink_active', here)), '{{node}}')],
              'The GPUs have no NVLink, or no source reports it.',
              { w: 6, h: 8, min: 0, fill: 0, decimals: 0, dataLinks: [toNode] },
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
              'Packets sent again over PCIe',
              'By all GPUs of a node in the hour before each point: the five highest.',
              'none',
              [panels.query(worst(5, byNode(
                if gpu.has('pcie_replays') then gpu.events('pcie_replays', '1h', here)
              )), '{{node}}')],
              'No packet was sent again, or no source counts them.',
              { w: 8, h: 7, min: 0, decimals: 0, fill: 0, dataLinks: [toNode] },
            ),
          ],
        },
      ],
    ),
  }
