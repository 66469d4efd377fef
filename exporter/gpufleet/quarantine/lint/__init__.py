"""Would a hardware fault cost this workload a retry? Manifests and batch scripts in, a verdict and what to add out.

``manifests`` reads files into documents, ``kinds`` is the table of who judges which kind, one module a framework, all
pure; ``text`` says it to people and programs, ``command`` is ``gpufleet quarantine lint``.

The case that is judged is the hard one: the program on the broken GPU crashes by itself, before anybody can move it.
"""
