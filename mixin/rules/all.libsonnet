// Every group of recording rules. A file is a function of the library and returns a list of groups.
function(lib) std.flattenArrays([
  file(lib)
  for file in [
    import 'capacity.libsonnet',
    import 'cost.libsonnet',
    import 'inference.libsonnet',
    import 'network.libsonnet',
    import 'owners.libsonnet',
    import 'problems.libsonnet',
    import 'risk.libsonnet',
    import 'slices.libsonnet',
    import 'stragglers.libsonnet',
    import 'training.libsonnet',
  ]
])
