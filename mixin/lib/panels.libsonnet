// Panels as classic JSON (schemaVersion 42), every field explicit. A panel has a title, a description, a unit and a
// sentence for when it is empty; its size in the grid is `w` by `h` and its place is given by the dashboard's layout.
local colors = import 'colors.libsonnet';
local fill = import 'fill.libsonnet';

function(config) {
  local panels = self,

  // A query. A null expression (no source has the reading) makes it null, and a panel without queries is left out.
  // `name` is its refId where something refers to it.
  query(expr, legend='', instant=false, format='time_series', name=null, interval=null):: if expr == null
  then null else {
    datasource: { type: 'prometheus', uid: '${datasource}' },
    editorMode: 'code',
    // A trailing line break is for files of rules.
    expr: std.rstripChars(expr, '\n'),
    legendFormat: if legend == '' then '__auto' else legend,
    instant: instant,
    range: !instant,
    format: format,
    [if interval != null then 'interval']: interval,
    [if name != null then 'refId']: name,
  },
  // A query for a table: the present value with its labels as columns.
  row(expr, name=null):: panels.query(expr, instant=true, format='table', name=name),

  // Steps of a threshold: a list of [value, colour], the first with null.
  steps(list):: { mode: 'absolute', steps: [{ value: step[0], color: step[1] } for step in list] },
  // A colour for each named value: {ok: {text: 'fine', color: …}}.
  mapValues(values):: [{
    type: 'value',
    options: {
      [key]: { text: values[key].text, color: values[key].color, index: index }
      for index in std.range(0, std.length(values) - 1)
      for key in [std.objectFields(values)[index]]
    },
  }],
  // Properties of the series or column of this name.
  override(name, properties):: {
    matcher: { id: 'byName', options: name },
    properties: [{ id: id, value: properties[id] } for id in std.objectFields(properties)],
  },
  // The same for each that matches a regular expression.
  overrideMatching(pattern, properties):: panels.override(pattern, properties) + {
    matcher: { id: 'byRegexp', options: pattern },
  },
  // The same for what a query returns.
  overrideQuery(refId, properties):: panels.override(refId, properties) + {
    matcher: { id: 'byFrameRefID', options: refId },
  },
  fixedColor(color):: { mode: 'fixed', fixedColor: color },
  // A link that opens when a series or a cell is clicked.
  dataLink(title, url):: { title: title, url: url, targetBlank: false },

  local base(type, title, description, unit, queries, empty, opts) =
    local kept = std.filter(function(q) q != null, queries);
    if std.length(kept) == 0 && type != 'text' then null else {
      assert std.length(title) > 0 && std.endsWith(description, '.') : fill('panel %s: a sentence of description', title),
      assert std.length(empty) > 0 : fill('panel %s: say what it means when it is empty', title),
      type: type,
      title: title,
      description: description,
      transparent: false,
      datasource: { type: 'prometheus', uid: '${datasource}' },
      gridPos: { w: std.get(opts, 'w', 12), h: std.get(opts, 'h', 8), x: 0, y: 0 },
      [if std.objectHas(opts, 'repeat') then 'repeat']: opts.repeat,
      [if std.objectHas(opts, 'repeat') then 'repeatDirection']: 'h',
      [if std.objectHas(opts, 'maxPerRow') then 'maxPerRow']: opts.maxPerRow,
      links: std.get(opts, 'links', []),
      interval: std.get(opts, 'interval', config.scrapeInterval),
      [if std.objectHas(opts, 'maxDataPoints') then 'maxDataPoints']: opts.maxDataPoints,
      [if std.objectHas(opts, 'timeFrom') then 'timeFrom']: opts.timeFrom,
      targets: std.mapWithIndex(function(i, q) { refId: std.char(65 + i) } + q, kept),
      transformations: std.get(opts, 'transformations', []),
      fieldConfig: {
        defaults: {
          unit: unit,
          [if std.objectHas(opts, 'decimals') then 'decimals']: opts.decimals,
          [if std.objectHas(opts, 'min') then 'min']: opts.min,
          [if std.objectHas(opts, 'max') then 'max']: opts.max,
          color: std.get(opts, 'color', { mode: 'palette-classic' }),
          mappings: std.get(opts, 'mappings', []),
          thresholds: panels.steps(std.get(opts, 'thresholds', [[null, colors.neutral]])),
          noValue: empty,
          links: std.get(opts, 'dataLinks', []),
          [if std.objectHas(opts, 'displayName') then 'displayName']: opts.displayName,
          custom: {},
        },
        overrides: std.get(opts, 'overrides', []),
      },
      options: {},
    },

  local reduce(calc) = { calcs: [calc], fields: '', values: false },

  // Lines over time. opts beside the common ones (w h min max decimals thresholds overrides dataLinks links mappings
  // color transformations interval): stack, fill (0-100), legend ('list', 'table' or 'hidden'), calcs of a table
  // legend, showThresholds, lineWidth, points ('auto' or 'always'), axisLabel, logarithmic, spanNulls.
  timeseries(title, description, unit, queries, empty='No data in this time range.', opts={})::
    local panel = base('timeseries', title, description, unit, queries, empty, opts);
    local legend = std.get(opts, 'legend', 'list');
    if panel == null then null else panel {
      fieldConfig+: { defaults+: { custom: {
        drawStyle: std.get(opts, 'drawStyle', 'line'),
        lineInterpolation: std.get(opts, 'interpolation', 'linear'),
        lineWidth: std.get(opts, 'lineWidth', 1),
        fillOpacity: std.get(opts, 'fill', if std.get(opts, 'stack', false) then 70 else 8),
        gradientMode: 'none',
        showPoints: std.get(opts, 'points', 'auto'),
        pointSize: 4,
        spanNulls: std.get(opts, 'spanNulls', false),
        insertNulls: false,
        stacking: { mode: if std.get(opts, 'stack', false) then 'normal' else 'none', group: 'A' },
        axisPlacement: 'auto',
        axisLabel: std.get(opts, 'axisLabel', ''),
        axisColorMode: 'text',
        axisBorderShow: false,
        axisCenteredZero: false,
        scaleDistribution: if std.get(opts, 'logarithmic', false) then { type: 'log', log: 10 } else { type: 'linear' },
        hideFrom: { legend: false, tooltip: false, viz: false },
        thresholdsStyle: { mode: if std.get(opts, 'showThresholds', false) then 'line' else 'off' },
        barAlignment: 0,
      } } },
      options: {
        legend: {
          showLegend: legend != 'hidden',
          displayMode: if legend == 'table' then 'table' else 'list',
          placement: std.get(opts, 'legendPlacement', 'bottom'),
          calcs: std.get(opts, 'calcs', if legend == 'table' then ['lastNotNull', 'max'] else []),
        },
        tooltip: { mode: 'multi', sort: 'desc', hideZeros: false },
      },
    },

  // One number, or one for each series. opts: calc ('lastNotNull'), colorMode ('value', 'background', 'none'),
  // graph (true draws its course), textMode, orientation.
  stat(title, description, unit, queries, empty='No data.', opts={})::
    local panel = base('stat', title, description, unit, queries, empty, {
      color: { mode: 'thresholds' },
      w: 4,
      h: 4,
    } + opts);
    if panel == null then null else panel {
      options: {
        reduceOptions: reduce(std.get(opts, 'calc', 'lastNotNull')),
        orientation: std.get(opts, 'orientation', 'auto'),
        textMode: std.get(opts, 'textMode', 'auto'),
        wideLayout: true,
        colorMode: std.get(opts, 'colorMode', 'value'),
        graphMode: if std.get(opts, 'graph', false) then 'area' else 'none',
        justifyMode: 'auto',
        showPercentChange: false,
        percentChangeColorMode: 'standard',
      },
    },

  // A part of a whole; needs min and max.
  gauge(title, description, unit, queries, empty='No data.', opts={})::
    local panel = base('gauge', title, description, unit, queries, empty, {
      color: { mode: 'thresholds' },
      min: 0,
      max: 1,
      w: 4,
      h: 5,
    } + opts);
    if panel == null then null else panel {
      options: {
        reduceOptions: reduce(std.get(opts, 'calc', 'lastNotNull')),
        orientation: 'auto',
        showThresholdLabels: false,
        showThresholdMarkers: true,
        sizing: 'auto',
        minVizWidth: 75,
        minVizHeight: 75,
      },
    },

  // A bar for each series: for the top of something.
  bargauge(title, description, unit, queries, empty='No data.', opts={})::
    local panel = base('bargauge', title, description, unit, queries, empty, {
      color: { mode: 'thresholds' },
      min: 0,
    } + opts);
    if panel == null then null else panel {
      options: {
        reduceOptions: reduce(std.get(opts, 'calc', 'lastNotNull')),
        orientation: 'horizontal',
        displayMode: std.get(opts, 'displayMode', 'basic'),
        valueMode: 'color',
        namePlacement: 'auto',
        showUnfilled: true,
        sizing: 'auto',
        minVizWidth: 8,
        minVizHeight: 16,
        maxVizHeight: 300,
        legend: { showLegend: false, displayMode: 'list', placement: 'bottom', calcs: [] },
      },
    },

  // Bars of a table: by day, by project. opts: xField, stack, orientation ('auto', 'horizontal', 'vertical').
  barchart(title, description, unit, queries, empty='No data.', opts={})::
    local panel = base('barchart', title, description, unit, queries, empty, opts);
    if panel == null then null else panel {
      fieldConfig+: { defaults+: { custom: {
        lineWidth: 0,
        fillOpacity: 80,
        gradientMode: 'none',
        axisPlacement: 'auto',
        axisLabel: std.get(opts, 'axisLabel', ''),
        axisColorMode: 'text',
        axisBorderShow: false,
        axisCenteredZero: false,
        scaleDistribution: { type: 'linear' },
        hideFrom: { legend: false, tooltip: false, viz: false },
        thresholdsStyle: { mode: 'off' },
      } } },
      options: {
        [if std.objectHas(opts, 'xField') then 'xField']: opts.xField,
        orientation: std.get(opts, 'orientation', 'auto'),
        stacking: if std.get(opts, 'stack', true) then 'normal' else 'none',
        showValue: 'never',
        barWidth: 0.9,
        groupWidth: 0.7,
        barRadius: 0,
        fullHighlight: false,
        xTickLabelRotation: 0,
        xTickLabelSpacing: 100,
        legend: { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [] },
        tooltip: { mode: 'multi', sort: 'desc', hideZeros: true },
      },
    },

  // Rows of labels and values. `columns` is a list of {field, name, unit, width, decimals, link, color, mappings,
  // cell, min, max, thresholds, filterable}: in this order, renamed; what is not in it is hidden. Values of queries
  // are the fields 'Value #A', 'Value #B' and so on, or 'Value' with one query. opts: sortBy (a name), ascending,
  // filterByValue (transformations are put before ours).
  table(title, description, queries, columns, empty='Nothing to show.', opts={})::
    local panel = base('table', title, description, std.get(opts, 'unit', 'short'), queries, empty, opts);
    local one = std.length(std.filter(function(q) q != null, queries)) == 1;
    local name(column) = std.get(column, 'name', column.field);
    if panel == null then null else panel {
      transformations:
        std.get(opts, 'transformations', [])
        + (if one then [] else [{ id: 'merge', options: {} }])
        + [
          {
            id: 'filterFieldsByName',
            options: { include: { names: [column.field for column in columns] } },
          },
          {
            id: 'organize',
            options: {
              excludeByName: {},
              indexByName: { [columns[i].field]: i for i in std.range(0, std.length(columns) - 1) },
              renameByName: { [column.field]: name(column) for column in columns },
              includeByName: {},
            },
          },
        ],
      fieldConfig+: {
        defaults+: { custom: {
          align: 'auto',
          cellOptions: { type: 'auto' },
          inspect: false,
          filterable: std.get(opts, 'filterable', false),
        } },
        overrides: [
          panels.override(name(column), {
            [if std.objectHas(column, 'unit') then 'unit']: column.unit,
            [if std.objectHas(column, 'decimals') then 'decimals']: column.decimals,
            [if std.objectHas(column, 'min') then 'min']: column.min,
            [if std.objectHas(column, 'max') then 'max']: column.max,
            // Without it Grafana colours a cell by its series, thresholds or not.
            [if std.objectHas(column, 'color') || std.objectHas(column, 'thresholds') then 'color']:
              std.get(column, 'color', { mode: 'thresholds' }),
            [if std.objectHas(column, 'mappings') then 'mappings']: column.mappings,
            [if std.objectHas(column, 'thresholds') then 'thresholds']: panels.steps(column.thresholds),
            [if std.objectHas(column, 'width') then 'custom.width']: column.width,
            [if std.objectHas(column, 'cell') then 'custom.cellOptions']: column.cell,
            [if std.objectHas(column, 'link') then 'links']: [column.link],
            [if std.objectHas(column, 'empty') then 'noValue']: column.empty,
          })
          for column in columns
        ] + std.get(opts, 'overrides', []),
      },
      options: {
        showHeader: true,
        cellHeight: 'sm',
        footer: { show: false, reducer: ['sum'], countRows: false, fields: '' },
        sortBy: if std.objectHas(opts, 'sortBy')
        then [{ displayName: opts.sortBy, desc: !std.get(opts, 'ascending', false) }] else [],
      },
    },
  // Of a table's column: a bar in the cell, or a cell with a background.
  cells:: {
    bar: { type: 'gauge', mode: 'basic', valueDisplayMode: 'text' },
    background: { type: 'color-background', mode: 'basic' },
    text: { type: 'color-text' },
  },

  // A number for each series and time as a colour. Rows are series by their legend. opts: scheme, cellMin, cellMax.
  heatmap(title, description, unit, queries, empty='No data in this time range.', opts={})::
    local panel = base('heatmap', title, description, unit, queries, empty, opts);
    if panel == null then null else panel {
      fieldConfig+: { defaults+: { custom: {
        hideFrom: { legend: false, tooltip: false, viz: false },
        scaleDistribution: { type: 'linear' },
      } } },
      options: {
        calculate: false,
        yAxis: { axisPlacement: 'left', reverse: false, unit: std.get(opts, 'yUnit', 'short') },
        rowsFrame: { layout: 'auto' },
        color: {
          mode: 'scheme',
          scheme: std.get(opts, 'scheme', 'Viridis'),
          fill: 'dark-orange',
          scale: 'exponential',
          exponent: 0.5,
          steps: 64,
          reverse: false,
          [if std.objectHas(opts, 'cellMin') then 'min']: opts.cellMin,
          [if std.objectHas(opts, 'cellMax') then 'max']: opts.cellMax,
        },
        cellGap: 1,
        cellValues: { unit: unit },
        filterValues: { le: 1e-9 },
        showValue: 'never',
        exemplars: { color: 'rgba(255,0,255,0.7)' },
        legend: { show: true },
        tooltip: { mode: 'single', yHistogram: false, showColorScale: true },
      },
    },

  // The same as status history: one row a series, one cell a step, coloured by thresholds or mappings.
  statusHistory(title, description, unit, queries, empty='No data in this time range.', opts={})::
    local panel = base('status-history', title, description, unit, queries, empty, {
      color: { mode: 'thresholds' },
    } + opts);
    if panel == null then null else panel {
      fieldConfig+: { defaults+: { custom: {
        lineWidth: 0,
        fillOpacity: 90,
        hideFrom: { legend: false, tooltip: false, viz: false },
      } } },
      options: {
        rowHeight: std.get(opts, 'rowHeight', 0.9),
        colWidth: 1,
        showValue: 'never',
        legend: {
          showLegend: std.get(opts, 'legend', 'hidden') != 'hidden',
          displayMode: 'list',
          placement: 'bottom',
          calcs: [],
        },
        tooltip: { mode: 'single', sort: 'none', hideZeros: false },
      },
    },

  // States over time: neighbours of one value are one bar.
  stateTimeline(title, description, unit, queries, empty='No data in this time range.', opts={})::
    local panel = base('state-timeline', title, description, unit, queries, empty, {
      color: { mode: 'thresholds' },
    } + opts);
    if panel == null then null else panel {
      fieldConfig+: { defaults+: { custom: {
        lineWidth: 0,
        fillOpacity: 90,
        spanNulls: false,
        insertNulls: false,
        hideFrom: { legend: false, tooltip: false, viz: false },
      } } },
      options: {
        mergeValues: true,
        showValue: std.get(opts, 'showValue', 'auto'),
        alignValue: 'left',
        rowHeight: std.get(opts, 'rowHeight', 0.9),
        legend: { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [] },
        tooltip: { mode: 'single', sort: 'none', hideZeros: false },
      },
    },

  // Markdown.
  text(title, description, markdown, opts={}):: base('text', title, description, 'none', [], 'none', opts) + {
    targets:: [],
    options: { mode: 'markdown', code: { language: 'plaintext', showLineNumbers: false, showMiniMap: false }, content: markdown },
  },
}
