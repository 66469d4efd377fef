// A dashboard: variables, links and the place of each panel.
local fill = import 'fill.libsonnet';

function(config) {
  local dashboards = self,
  local settings = config.dashboards,
  local cluster = config.clusterLabel,

  // Rows of panels: [{title, panels, collapsed (false)}]. Panels are placed from the left, each as wide and high as
  // it says, and go to the next line where 24 columns are full. A null panel is left out, and a row without panels.
  local place(rows) =
    local step(state, panel) =
      local wraps = state.x + panel.gridPos.w > 24;
      local x = if wraps then 0 else state.x;
      local y = if wraps then state.y + state.h else state.y;
      local h = if wraps then panel.gridPos.h else std.max(state.h, panel.gridPos.h);
      {
        id: state.id + 1,
        x: x + panel.gridPos.w,
        y: y,
        h: h,
        panels: state.panels + [panel { id: state.id, gridPos+: { x: x, y: y } }],
      };
    local row(state, one) =
      local kept = std.filter(function(p) p != null, one.panels);
      local collapsed = std.get(one, 'collapsed', false);
      local header = {
        type: 'row',
        id: state.id,
        title: one.title,
        collapsed: collapsed,
        gridPos: { x: 0, y: state.y, w: 24, h: 1 },
        panels: [],
      };
      if std.length(kept) == 0 then state else
        local placed = std.foldl(step, kept, { id: state.id + 1, x: 0, y: state.y + 1, h: 0, panels: [] });
        {
          id: placed.id,
          y: if collapsed then state.y + 1 else placed.y + placed.h,
          panels: state.panels + (
            if collapsed then [header { panels: placed.panels }] else [header] + placed.panels
          ),
        };
    std.foldl(row, rows, { id: 1, y: 0, panels: [] }).panels,

  // Variables. Their names are part of links and bookmarks: never rename one.
  variables:: {
    local query(name, label, expr, options={}) = {
      type: 'query',
      name: name,
      label: label,
      description: '',
      datasource: { type: 'prometheus', uid: '${datasource}' },
      definition: expr,
      query: { qryType: 1, query: expr, refId: 'PrometheusVariableQueryEditor-VariableQuery' },
      refresh: 2,
      sort: 1,
      multi: true,
      includeAll: true,
      allValue: '.*',
      current: { selected: true, text: ['All'], value: ['$__all'] },
      options: [],
      regex: '',
      hide: 0,
      skipUrlSync: false,
    } + options,
    local one = { multi: false, includeAll: false, current: {}, allValue: null },

    datasource: {
      type: 'datasource',
      name: 'datasource',
      label: 'Data source',
      description: 'The Prometheus to ask.',
      query: 'prometheus',
      regex: settings.datasourceFilterRegex,
      current: { selected: true, text: settings.datasource, value: settings.datasource },
      options: [],
      refresh: 1,
      multi: false,
      includeAll: false,
      hide: 0,
      skipUrlSync: false,
    },
    cluster: query('cluster', 'Cluster', fill('label_values(cluster:gpus:count, %s)', cluster), {
      hide: if config.showMultiCluster then 0 else 2,
    }),
    project: query('project', 'Project', fill('label_values(run:gpu_share:sum{%s=~"$cluster"}, project)', cluster)),
    run: query('run', 'Run', fill('label_values(run:gpu_share:sum{%s=~"$cluster",run!=""}, run)', cluster)),
    // For the page of one run, one node, one GPU.
    oneRun: query('run', 'Run', fill('label_values(run:gpu_share:sum{%s=~"$cluster",run!=""}, run)', cluster), one),
    node: query('node', 'Node', fill('label_values(node:gpus:count{%s=~"$cluster"}, node)', cluster)),
    oneNode: query('node', 'Node', fill('label_values(node:gpus:count{%s=~"$cluster"}, node)', cluster), one),
    // Nodes of the run, where the run is chosen first.
    nodeOfRun: query(
      'node', 'Node', fill('label_values(node_run:gpu_share:sum{%s=~"$cluster",run=~"$run"}, node)', cluster)
    ),
    gpu: query('gpu', 'GPU', fill('label_values(run_gpu:gpu_share:max{%s=~"$cluster",node=~"$node"}, uuid)', cluster)),
    oneGpu: query(
      'gpu', 'GPU', fill('label_values(run_gpu:gpu_share:max{%s=~"$cluster",node=~"$node"}, uuid)', cluster), one
    ),
    pod: query(
      'pod', 'Pod', fill('label_values(run_gpu:gpu_share:max{%s=~"$cluster",run=~"$run"}, workload_pod)', cluster)
    ),
    model: query('model', 'Model', fill('label_values(model:gpus:count{%s=~"$cluster"}, model)', cluster)),
    // One of your own.
    query:: query,
  },

  // Another dashboard, by its key in config.dashboards.uids: keeps the time and the data source, and sets the given
  // variables, {node: '${__data.fields.node}'}.
  url(key, values={}):: fill('%s/d/%s?${datasource:queryparam}&${__url_time_range}%s', [
    settings.linkPrefix,
    settings.uids[key],
    std.join('', [fill('&var-%s=%s', [name, values[name]]) for name in std.objectFields(values)]),
  ]),

  // key: its key in config.dashboards.uids; `variables` in the order in which they depend on each other, after
  // the data source and the cluster, which every dashboard has.
  dashboard(key, title, description, variables, rows, time={ from: 'now-6h', to: 'now' }, opts={}):: {
    uid: settings.uids[key],
    title: settings.titlePrefix + title,
    description: description,
    tags: settings.tags,
    timezone: settings.timezone,
    editable: false,
    graphTooltip: 1,
    schemaVersion: 42,
    version: 1,
    refresh: std.get(opts, 'refresh', settings.refresh),
    time: time,
    timepicker: {},
    fiscalYearStartMonth: 0,
    liveNow: false,
    weekStart: '',
    preload: false,
    links: [{
      type: 'dashboards',
      title: 'GPU dashboards',
      tags: [settings.tags[0]],
      asDropdown: true,
      includeVars: true,
      keepTime: true,
      targetBlank: false,
      icon: 'external link',
      tooltip: '',
      url: '',
    }] + std.get(opts, 'links', []),
    annotations: { list: [{
      builtIn: 1,
      datasource: { type: 'grafana', uid: '-- Grafana --' },
      enable: true,
      hide: true,
      iconColor: 'rgba(0, 211, 255, 1)',
      name: 'Annotations & Alerts',
      type: 'dashboard',
    }] + std.get(opts, 'annotations', []) },
    templating: { list: [dashboards.variables.datasource, dashboards.variables.cluster] + variables },
    panels: place(rows),
  },
}
