// One GPU: what it does, who holds it and held it, and how well it is.
function(lib)
  local config = lib.config;
  local panels = lib.panels;
  local promql = lib.promql;
  local colors = lib.colors;
  local dashboards = lib.dashboards;
  local gpu = lib.vocabulary.gpu;
  local slice = lib.vocabulary.slice;
  local it = [[config.clusterLabel, '=~', '$cluster'], ['uuid', '=~', '$gpu']];
  local chart(title, description, unit, queries, empty, opts={}) =
    panels.timeseries(title, description, unit, queries, empty, { w: 8, h: 7, fill: 0 } + opts);
  local line(word, legend) = panels.query(gpu.panel(word, it), legend);
  local number(title, description, unit, word, empty, opts={}) =
    panels.stat(title, description, unit, [panels.query(gpu.now(word, it), title)], empty, opts);
  local raised = [[null, colors.good], [1, colors.bad]];

  {
    'gpu.json': dashboards.dashboard(
      'gpu',
      'GPU',
      'All about one GPU: what it does, who holds it and held it before, and how well it is.',
      [dashboards.variables.oneNode, dashboards.variables.oneGpu],
      [
        {
          title: 'Now',
          panels: [
            number(
              'Answers',
              'Whether it answered its last poll.',
              'none',
              'up',
              'The GPU is not reported.',
              {
                mappings: panels.mapValues({
                  '0': { text: 'no', color: colors.bad },
                  '1': { text: 'yes', color: colors.good },
                }),
                colorMode: 'background',
              },
            ),
            number(
              'Temperature',
              'Of the die.',
              'celsius',
              'temperature',
              'Not reported: the GPU does not answer.',
              { thresholds: [[null, colors.good], [80, colors.attention], [87, colors.bad]] },
            ),
            number(
              'Degrees to its limit',
              'Degrees left until the GPU slows itself down.',
              'celsius',
              'temperature_margin',
              'This kind of GPU, or its driver, does not report a margin.',
              { thresholds: [[null, colors.bad], [3, colors.attention], [10, colors.good]] },
            ),
            number(
              'Row waits for a reset',
              'A row of memory waits for a reset to be replaced.',
              'none',
              'remap_pending',
              'This kind of GPU does not replace rows.',
              { thresholds: raised, decimals: 0 },
            ),
            number(
              'Row could not be replaced',
              'A row of memory could not be replaced: the board goes back.',
              'none',
              'remap_failure',
              'This kind of GPU does not replace rows.',
              { thresholds: raised, decimals: 0 },
            ),
            number('Processes', 'Processes with a context on it.', 'none', 'processes', 'Not reported.', { decimals: 0 }),
          ],
        },
        {
          title: 'Who and what',
          panels: [
            panels.stateTimeline(
              'Holders',
              'Who held the GPU, or a share or slice of it, and when. The value is the share.',
              'percentunit',
              [panels.query(
                promql.sum(['project', 'run', 'workload_pod'], promql.owners(it)), '{{project}} {{run}} {{workload_pod}}'
              )],
              'No source says who holds it.',
              { w: 14, h: 8, decimals: 0, thresholds: [[null, colors.blue]] },
            ),
            panels.table(
              'Open incidents',
              'Incidents of this GPU that are not closed, and what to do.',
              [panels.row(promql.metric('gpu_fault_active', it))],
              [
                { field: 'fault', name: 'Fault' },
                { field: 'class', name: 'Class' },
                { field: 'action', name: 'Do' },
                { field: 'run', name: 'Run' },
              ],
              'No incident of this GPU is open.',
              { w: 10, h: 8 },
            ),
            chart(
              'Activity',
              'Part of the time in which multiprocessors, tensor cores and memory had work.',
              'percentunit',
              [line('sm_active', 'SM'), line('tensor_active', 'tensor cores'), line('dram_active', 'memory bandwidth')],
              'Not reported.',
              { min: 0, max: 1 },
            ),
            chart(
              'Activity of its slices',
              'SM activity of each MIG slice, relative to the slice.',
              'percentunit',
              [panels.query(slice.panel('sm_active', it), '{{mig_uuid}}')],
              'This GPU is not divided by MIG.',
              { min: 0, max: 1 },
            ),
            chart(
              'Memory',
              'Allocated memory, and all of it.',
              'bytes',
              [line('memory_used', 'used'), line('memory_total', 'in all')],
              'Not reported.',
              { min: 0 },
            ),
          ],
        },
        {
          title: 'Heat, power, clocks',
          panels: [
            chart(
              'Temperatures',
              'Of the die and of the memory, and the degrees left to the limit.',
              'celsius',
              [
                line('temperature', 'die'),
                line('memory_temperature', 'memory'),
                line('temperature_margin', 'left to the limit'),
              ],
              'Not reported.',
            ),
            chart(
              'Power',
              'Power drawn and the limit in effect.',
              'watt',
              [line('power', 'drawn'), line('power_limit', 'limit')],
              'Not reported.',
              { min: 0 },
            ),
            chart(
              'SM clock',
              'Clock of the multiprocessors and their highest.',
              'hertz',
              [line('sm_clock', 'now'), line('sm_clock_max', 'highest')],
              'Not reported.',
              { min: 0 },
            ),
            chart(
              'Clocks held back, by reason',
              'Seconds for which each reason held the clocks back in a second. Reasons overlap.',
              's',
              [panels.query(if gpu.has('clock_event') then gpu.panel('clock_event', it) + ' > 0', '{{reason}}')],
              'Nothing held the clocks back, or no source counts why.',
              { w: 24, min: 0 },
            ),
          ],
        },
        {
          title: 'Memory errors and links',
          panels: [
            chart(
              'ECC errors',
              'Memory errors in the hour before each point, by where. Corrected ones that rise announce worse.',
              'none',
              [
                panels.query(gpu.events('ecc_correctable', '1h', it), 'corrected {{location}}'),
                panels.query(gpu.events('ecc_uncorrectable', '1h', it), 'uncorrectable {{location}}'),
              ],
              'This kind of GPU has no ECC, or it is off.',
              { min: 0 },
            ),
            chart(
              'Replaced rows',
              'Rows of memory that were replaced, by cause.',
              'none',
              [line('remapped_correctable', 'corrected errors'), line('remapped_uncorrectable', 'uncorrectable errors')],
              'This kind of GPU does not replace rows.',
              { min: 0, decimals: 0 },
            ),
            chart(
              'Banks by spare rows left',
              'Banks of memory by how many of their spare rows are left.',
              'none',
              [line('remap_banks', '{{availability}}')],
              'This kind of GPU does not report its spare rows.',
              { min: 0, decimals: 0 },
            ),
            chart(
              'NVLink',
              'Bytes a second over NVLink.',
              'Bps',
              [line('nvlink_transmit', 'sent'), line('nvlink_receive', 'received')],
              'This GPU has no NVLink.',
              { min: 0 },
            ),
            chart(
              'PCIe',
              'Bytes a second over PCIe.',
              'Bps',
              [line('pcie_transmit', 'sent'), line('pcie_receive', 'received')],
              'No source reports PCIe traffic.',
              { min: 0 },
            ),
            chart(
              'NVLink errors',
              'Errors and recoveries a second over all links, by kind.',
              'cps',
              [line('nvlink_errors', '{{error}}')],
              'This GPU has no NVLink.',
              { min: 0 },
            ),
          ],
        },
      ],
    ),
  }
