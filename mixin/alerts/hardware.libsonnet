// The one alert that quarantines.
function(lib)
  local labels = [
    'node',
    'gpu',
    'uuid',
    'pci_bus_id',
    'incident',
    'fault',
    'class',
    'action',
    'isolate',
    'refund',
    'project',
    'run',
    'task',
    'workload_namespace',
    'workload_pod',
    'workload_container',
  ];
  // Not by lib.promql.max: the labels are a contract with the exporter, which posts the same alert itself.
  local by = std.join(', ', [lib.config.clusterLabel] + labels);
  [
    lib.rules.group('gpufleet-hardware', [
      lib.rules.alert(
        'GpuHardwareIncident',
        |||
          max by (
            %s
          ) (
            %s
          ) > 0
        ||| % [
          std.strReplace(by, ', task, ', ',\n  task, '),
          lib.promql.metric('gpu_fault_active', ['isolate="true"']),
        ],
        severity='critical',
        team='infra',
        labels={ quarantine: 'node' },
        summary='A GPU or its node must get no work until it is reset, rebooted or replaced.',
        description=
        '{{ with $labels.gpu }}GPU {{ . }} of node{{ else }}Node{{ end }} {{ $labels.node }}'
        + '{{ with $labels.pci_bus_id }} (PCI {{ . }}){{ end }}: fault {{ $labels.fault }}, class {{ $labels.class }}, '
        + 'action {{ $labels.action }}.{{ with $labels.run }} Run: {{ . }}.{{ end }}'
        + '{{ with $labels.workload_pod }} Pod: {{ $labels.workload_namespace }}/{{ . }}.{{ end }} '
        + 'Incident: {{ $labels.incident }}.',
      ),
    ]),
  ]
