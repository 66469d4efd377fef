// gpufleet itself: does each exporter answer, is what it serves fresh, and what could it not read.
local fill = import '../lib/fill.libsonnet';

function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local variables = dashboards.variables;
  local here = [[config.clusterLabel, '=~', '$cluster']];
  local metric(name, matchers=[]) = promql.metric(name, here + matchers);
  // Of the exporter's own series, which carry no node, those of the chosen nodes.
  local ofNodes(expr) = promql.join(
    promql.max(['instance', 'node'], metric('gpufleet_node_info', ['node=~"$node"'])), expr, ['instance']
  );
  local upDown = panels.mapValues({
    '0': { text: 'down', color: colors.bad },
    '1': { text: 'up', color: colors.good },
  });

  {
    'gpufleet.json': dashboards.dashboard(
      'exporter',
      'gpufleet itself',
      'Whether the exporters answer, how fresh what they serve is, and what they could not read.',
      [variables.node],
      [
        {
          title: 'Now',
          panels: [
            panels.stat(
              'Exporters',
              'Nodes whose gpufleet answered the last scrape.',
              'none',
              [panels.query(promql.aggregate('count', [], metric('gpufleet_node_info', ['node=~"$node"'])), 'nodes')],
              'No gpufleet is scraped: see the installation guide.',
              { decimals: 0 },
            ),
            panels.stat(
              'GPUs that do not answer',
              'GPUs that did not answer their last poll: hung, lost, or behind a driver that is blocked.',
              'none',
              [panels.query(fill('count(%s == 0) or vector(0)', ofNodes(metric('gpu_up'))), 'GPUs')],
              'No gpufleet is scraped.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.bad]], colorMode: 'background' },
            ),
            panels.stat(
              'Oldest poll',
              'Time since the last poll that a GPU answered, of the GPU where that is longest.',
              's',
              [panels.query(
                fill('max(time() - %s)', ofNodes(fill('(%s)', metric('gpufleet_last_poll_timestamp_seconds')))), 'age'
              )],
              'No gpufleet is scraped.',
              { thresholds: [[null, colors.good], [15, colors.attention], [60, colors.bad]] },
            ),
            panels.stat(
              'Simulated',
              'Nodes whose metrics are invented: a demo or a simulation. In production this must be 0.',
              'none',
              [panels.query(fill('count(%s == 1) or vector(0)', ofNodes(metric('gpufleet_simulated'))), 'nodes')],
              'No gpufleet is scraped.',
              { decimals: 0, thresholds: [[null, colors.good], [1, colors.attention]] },
            ),
          ],
        },
        {
          title: 'Polling',
          panels: [
            panels.timeseries(
              'Poll duration',
              'How long the last poll of all GPUs of a node took; the slowest nodes. It must stay well below the poll '
              + 'interval, which is one second unless you changed it.',
              's',
              [panels.query(
                fill('topk(10, %s)', promql.max(['node'], ofNodes(metric('gpufleet_poll_duration_seconds')))), '{{node}}'
              )],
              'No gpufleet is scraped.',
              { min: 0 },
            ),
            panels.timeseries(
              'Driver errors',
              'Driver calls that failed, by return code. What a GPU does not support is no error.',
              'cps',
              [panels.query(
                promql.sum(
                  ['return'],
                  fill('rate(%s[$__rate_interval])', metric('gpufleet_nvml_errors_total')),
                ) + ' > 0',
                '{{return}}',
              )],
              'No driver call has failed.',
              { min: 0 },
            ),
          ],
        },
        {
          title: 'Sources',
          panels: [
            panels.table(
              'Sources by exporter',
              'Whether each source of each exporter answered when it was last asked: the driver, the kernel log, the '
              + 'kubelet, and so on.',
              [panels.row(promql.join(
                metric('gpufleet_source_up'), metric('gpufleet_node_info', ['node=~"$node"']), ['instance']
              ))],
              [
                { field: 'instance', name: 'Exporter' },
                { field: 'source', name: 'Source' },
                { field: 'Value', name: 'State', mappings: upDown, cell: panels.cells.text },
              ],
              'No gpufleet is scraped.',
              { w: 24, h: 10, sortBy: 'State', ascending: true },
            ),
          ],
        },
      ],
    ),
  }
