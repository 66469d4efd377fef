// Every dashboard. A file is a function of the library and returns {'NAME.json': dashboard}.
function(lib) std.foldl(
  function(all, file) all + file(lib),
  [
    import 'capacity.libsonnet',
    import 'cost.libsonnet',
    import 'fleet.libsonnet',
    import 'gpu.libsonnet',
    import 'gpufleet.libsonnet',
    import 'health.libsonnet',
    import 'inference.libsonnet',
    import 'interconnect.libsonnet',
    import 'node.libsonnet',
    import 'run.libsonnet',
  ],
  {},
)
