// Every group of alerts. A file is a function of the library and returns a list of groups.
function(lib) std.flattenArrays([
  file(lib)
  for file in [
    import 'cost.libsonnet',
    import 'hardware.libsonnet',
    import 'health.libsonnet',
    import 'inference.libsonnet',
    import 'monitoring.libsonnet',
    import 'network.libsonnet',
    import 'runs.libsonnet',
  ]
])
