"""The exporter itself, polling far faster than its flags allow: a day's polls in minutes, for measuring memory.

Usage: fast_exporter.py INTERVAL FLAGS...

INTERVAL is in seconds. The slower tiers keep their ratio to it, so that they get the turns that so many polls have.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace

from gpufleet.collect.options import PollerOptions
from gpufleet.commands import service
from gpufleet.commands.exporter import real_node
from gpufleet.commands.flags import FlagParser
from gpufleet.sources.nvml import gpm


def main() -> int:
    """Run until a signal comes."""
    interval = float(sys.argv[1])
    _, settings = FlagParser("exporter", "The exporter, faster than it is allowed to be.").read(sys.argv[2:])
    # The stand-in driver is told to take samples that are this close.
    gpm.SHORTEST_SECONDS = 0.0
    tiers = functools.partial(PollerOptions, medium_seconds=10 * interval, slow_seconds=60 * interval)
    setattr(service, PollerOptions.__name__, tiers)
    return service.run(replace(settings, poll_interval=interval), real_node(settings))


if __name__ == "__main__":
    sys.exit(main())
