"""gpufleet: what the GPUs of a node are actually doing, as Prometheus metrics.

This file holds the version and imports nothing, so that ``import gpufleet`` costs nothing: the exporter is one light
process per node, and each command pays only for the modules that it needs.
"""

__version__ = "0.1.0"
