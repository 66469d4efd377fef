// Every group of recording rules. A file is a function of the library and returns a list of groups.
function(lib) std.flattenArrays([
  file(lib)
  for file in [
    import 'cost.libsonnet',
    import 'owners.libsonnet',
  ]
])
