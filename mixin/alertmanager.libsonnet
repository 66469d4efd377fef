// alerts/alertmanager.example.yml: routes and inhibitions for the mixin's alerts, as text with comments for whoever
// copies from it.
local fill = import 'lib/fill.libsonnet';

function(config)
  local cluster = config.clusterLabel;
  std.strReplace(|||
    # Routes and inhibitions for gpufleet's alerts. Copy what you want into your own alertmanager.yml: put the routes
    # under your route, the inhibitions in your list, and your own receivers in place of the ones here.
    # Needs Alertmanager 0.22 or newer.

    route:
      receiver: nobody
      group_by: [CLUSTER, alertname]
      routes:
        # The quarantine hears of every incident at once and by itself: one alert a post, so that one that fails holds up
        # no other. It sees no other alert, and the next routes still see this one. The receiver remembers what it has
        # heard: a repetition heals what was lost.
        - matchers: [alertname="GpuHardwareIncident", quarantine="node"]
          receiver: quarantine
          group_by: ['...']
          group_wait: 0s
          group_interval: 1m
          repeat_interval: 30m
          continue: true

        # One fault is one page, on however many nodes a bad roll-out puts it.
        - matchers: [alertname="GpuHardwareIncident"]
          receiver: infra-page
          group_by: [CLUSTER, alertname, fault]
          group_wait: 15s
          group_interval: 5m
          repeat_interval: 4h

        # What is only context is shown where alerts are listed, and wakes and mails nobody.
        - matchers: [severity="info", team=~"infra|ml|serving|finops|monitoring"]
          receiver: nobody

        - matchers: [team="infra"]
          receiver: infra-ticket
          group_by: [CLUSTER, alertname, node]
          group_wait: 30s
          group_interval: 5m
          repeat_interval: 12h
          routes:
            - matchers: [severity="critical"]
              receiver: infra-page
              repeat_interval: 4h

        # Runs belong to people: a receiver for each project, by a route below this one, spares the others.
        - matchers: [team="ml"]
          receiver: ml-ticket
          group_by: [CLUSTER, alertname, project, run]
          group_wait: 30s
          group_interval: 5m
          repeat_interval: 12h
          routes:
            - matchers: [severity="critical"]
              receiver: ml-page
              repeat_interval: 4h

        - matchers: [team="serving"]
          receiver: serving-ticket
          group_by: [CLUSTER, alertname, model]
          group_wait: 30s
          group_interval: 5m
          repeat_interval: 12h
          routes:
            - matchers: [severity="critical"]
              receiver: serving-page
              repeat_interval: 1h

        - matchers: [team="finops"]
          receiver: finops
          group_by: [CLUSTER, alertname, project]
          repeat_interval: 24h

        - matchers: [team="monitoring"]
          receiver: monitoring-ticket
          group_by: [CLUSTER, alertname]
          repeat_interval: 12h
          routes:
            - matchers: [severity="critical"]
              receiver: monitoring-page
              repeat_interval: 4h

    # So that one cause is one page. Two alerts that both lack a label of `equal` count as equal in it: therefore each
    # rule also asks that the label is there.
    inhibit_rules:
      # The incident says it all of its GPU.
      - source_matchers: [alertname="GpuHardwareIncident", uuid!=""]
        target_matchers: [alertname=~"Gpu.*", alertname!="GpuHardwareIncident", uuid!=""]
        equal: [CLUSTER, uuid]
      # A node whose GPU is broken is slow, misses a GPU, and its links go down.
      - source_matchers: [alertname="GpuHardwareIncident", node!=""]
        target_matchers: [alertname=~"GpuRunStragglerNode|GpuRunPartialActivity|GpusMissing|RdmaPort.*|RdmaRetransmitsHigh", node!=""]
        equal: [CLUSTER, node]
      # And a run that such a node was part of loses processes, or stands still.
      - source_matchers: [alertname="GpuHardwareIncident", run!=""]
        target_matchers: [alertname=~"GpuRun(Stalled|NodeMissing|Restarts)", run!=""]
        equal: [CLUSTER, project, run]
      # A bad roll-out is one cause. The incidents themselves go on: the quarantine must hear of each, and stops itself.
      - source_matchers: [alertname="GpuFleetWideFault", driver_version!=""]
        target_matchers: [alertname=~"Gpu.*", alertname!="GpuFleetWideFault", driver_version!=""]
        equal: [CLUSTER, driver_version]
      # A GPU that is lost or hangs has every other trouble, too.
      - source_matchers: [alertname=~"GpuLost|GpuNotAnswering", uuid!=""]
        target_matchers: [alertname=~"Gpu.*", alertname!~"GpuLost|GpuNotAnswering|GpuHardwareIncident", uuid!=""]
        equal: [CLUSTER, uuid]
      - source_matchers: [alertname=~"GpuLost|GpuNotAnswering", node!=""]
        target_matchers: [alertname="GpusMissing", node!=""]
        equal: [CLUSTER, node]
      # What has broken is no longer at risk; what must be replaced needs no reset.
      - source_matchers: [alertname=~"GpuRowRemapFailed|GpuSramThresholdExceeded|GpuEccUncorrectable", uuid!=""]
        target_matchers: [alertname=~"GpuAtRisk|GpuRowRemapPending", uuid!=""]
        equal: [CLUSTER, uuid]
      # Heat explains a straggler: the node is named there, with the run that waits.
      - source_matchers: [alertname="GpuRunStragglerNode", node!=""]
        target_matchers: [alertname=~"GpuThermalThrottling|GpuPowerBrake", node!=""]
        equal: [CLUSTER, node]
      - source_matchers: [alertname="GpuRunStragglerNode", run!=""]
        target_matchers: [alertname=~"GpuRunPartialActivity|GpuRunEfficiencyDrop", run!=""]
        equal: [CLUSTER, project, run]
      # A run without some of its processes stands still, and then writes no checkpoint.
      - source_matchers: [alertname="GpuRunNodeMissing", run!=""]
        target_matchers: [alertname=~"GpuRun(Stalled|PartialActivity)", run!=""]
        equal: [CLUSTER, project, run]
      - source_matchers: [alertname="GpuRunStalled", run!=""]
        target_matchers: [alertname=~"GpuRun(CheckpointOverdue|EfficiencyDrop|PartialActivity)|GpuAllocatedIdle", run!=""]
        equal: [CLUSTER, project, run]
      # A model that makes no progress queues and is late.
      - source_matchers: [alertname="InferenceNoProgress", model!=""]
        target_matchers: [alertname=~"Inference.*", alertname!="InferenceNoProgress", model!=""]
        equal: [CLUSTER, model]
      - source_matchers: [alertname="InferenceQueueGrowing", model!=""]
        target_matchers: [alertname="InferenceKvCacheSaturated", model!=""]
        equal: [CLUSTER, model]
      # A link that flaps loses packets.
      - source_matchers: [alertname=~"RdmaPort(Down|Flapping)", node!=""]
        target_matchers: [alertname="RdmaRetransmitsHigh", node!=""]
        equal: [CLUSTER, node]
      # The power of a room is one alert, not one for each GPU in it.
      - source_matchers: [alertname="GpuPowerBrake", severity="critical"]
        target_matchers: [alertname="GpuPowerBrake", severity="warning"]
        equal: [CLUSTER]
      # Many exporters that are down are one alert, and the runs on their nodes may well go on.
      - source_matchers: [alertname="GpuExportersDown"]
        target_matchers: [alertname=~"GpuExporterDown|GpuRunNodeMissing"]
        equal: [CLUSTER]
      # What an exporter that comes and goes tells of itself in between; and a driver that hangs is why nothing is read.
      - source_matchers: [alertname=~"GpuExporterDown|GpuNotAnswering", node!=""]
        target_matchers: [alertname=~"GpuExporterPollStalled|GpuExporterQuiesced", node!=""]
        equal: [CLUSTER, node]
      # The same alert in two severities.
      - source_matchers: [alertname=~"(Gpu|Inference|Rdma).*", severity="critical"]
        target_matchers: [alertname=~"(Gpu|Inference|Rdma).*", severity=~"warning|info"]
        equal: [CLUSTER, alertname, node, uuid, nic, port, project, run, task, model, instance]
      - source_matchers: [alertname=~"(Gpu|Inference|Rdma).*", severity="warning"]
        target_matchers: [alertname=~"(Gpu|Inference|Rdma).*", severity="info"]
        equal: [CLUSTER, alertname, node, uuid, nic, port, project, run, task, model, instance]

    # Each webhook here stands for what you have: put your pager, chat or mail in its place, or give the names of your own
    # receivers to the routes.
    receivers:
      # Alerts are listed, and nobody is told.
      - name: nobody
      # gpufleet's quarantine: put in the address of its service, and a file with the token that it asks for.
      - name: quarantine
        webhook_configs:
          - url: https://gpufleet-quarantine.gpufleet.svc:9838/v1/alerts
            send_resolved: true
            max_alerts: 0
            http_config:
              authorization:
                type: Bearer
                credentials_file: /etc/alertmanager/secrets/gpufleet-quarantine-token
  |||, 'CLUSTER', cluster) + std.join('', [
    fill('  # %s\n  - name: %s\n    webhook_configs:\n      - url: http://localhost:9/%s # yours\n', [each[1], each[0], each[0]])
    for each in [
      ['infra-page', 'Wakes whoever looks after the nodes tonight.'],
      ['infra-ticket', 'Opens a ticket for whoever repairs nodes by day.'],
      ['ml-page', 'Wakes whoever looks after training runs.'],
      ['ml-ticket', "Tells the owners of runs, as in their project's channel."],
      ['serving-page', 'Wakes whoever looks after the models that are served.'],
      ['serving-ticket', 'Tells them by day.'],
      ['finops', 'Tells whoever answers for the money.'],
      ['monitoring-page', 'Wakes whoever looks after Prometheus.'],
      ['monitoring-ticket', 'Tells them by day.'],
    ]
  ])
