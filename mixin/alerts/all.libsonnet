// Every group of alerts. A file is a function of the library and returns a list of groups;
// those of which no source has anything are left out.
function(lib) [
  group
  for file in [
    import 'cost.libsonnet',
    import 'hardware.libsonnet',
    import 'health.libsonnet',
    import 'inference.libsonnet',
    import 'monitoring.libsonnet',
    import 'network.libsonnet',
    import 'runs.libsonnet',
  ]
  for group in file(lib)
  if std.length(group.rules) > 0
]
