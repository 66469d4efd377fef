// Every group of recording rules. A file is a function of the library and returns a list of groups;
// those of which no source has anything are left out.
function(lib) [
  group
  for file in [
    import 'capacity.libsonnet',
    import 'cost.libsonnet',
    import 'exporters.libsonnet',
    import 'inference.libsonnet',
    import 'network.libsonnet',
    import 'owners.libsonnet',
    import 'problems.libsonnet',
    import 'risk.libsonnet',
    import 'slices.libsonnet',
    import 'stragglers.libsonnet',
    import 'training.libsonnet',
  ]
  for group in file(lib)
  if std.length(group.rules) > 0
]
