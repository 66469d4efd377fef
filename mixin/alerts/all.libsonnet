// Every group of alerts. A file is a function of the library and returns a list of groups.
function(lib) std.flattenArrays([
  file(lib)
  for file in [
    import 'hardware.libsonnet',
    import 'health.libsonnet',
    import 'runs.libsonnet',
  ]
])
