"""``gpufleet exporter``: this node's GPUs as Prometheus metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.collect.known import KnownGpus
from gpufleet.collect.numbers import Numbers
from gpufleet.collect.options import World
from gpufleet.commands.driver import DriverLibrary, can_open_control_device
from gpufleet.commands.flags import FlagParser
from gpufleet.commands.service import Surroundings, run
from gpufleet.sources import node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpufleet.settings import Settings

_EXAMPLES = """\
  gpufleet exporter
      metrics on http://localhost:9837/metrics, a page on http://localhost:9837/
  gpufleet exporter --poll.interval=500ms --metrics.level=core --web.listen-address=127.0.0.1:9837
  gpufleet exporter --config.file=/etc/gpufleet.yml --web.config.file=/etc/gpufleet-web.yml
      the file has a key for each part of a flag's name:
          poll:
            interval: 500ms

signals: SIGTERM and SIGINT stop, SIGUSR1 releases every GPU as gpufleet quiesce does, SIGUSR2 takes them up again,
SIGHUP reads a changed web configuration now. Exit status: 0 stopped, 1 the address can't be had, 2 the configuration
is refused, 70 the driver was replaced and starting anew failed."""


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet exporter``."""
    parser = FlagParser(
        "exporter",
        "Serve this node's GPUs as Prometheus metrics: /metrics, a page for people, /-/healthy and /-/ready.\n"
        "It starts without a driver, says so, and recovers when one comes.",
        examples=_EXAMPLES,
    )
    _, settings = parser.read(argv)
    missing = missing_roots(settings)
    if missing:
        parser.error(missing)
    return run(settings, real_node(settings))


def missing_roots(settings: Settings) -> str | None:
    """Why the host's /proc and /sys can't be read, if they can't; a path that was mistyped would look like no GPU."""
    for flag, path in (("--path.procfs", settings.path_procfs), ("--path.sysfs", settings.path_sysfs)):
        if not path.is_dir():
            return f"{flag}: '{path}' is no directory: name the place where the host's is mounted, or leave it out"
    return None


def real_node(settings: Settings) -> Surroundings:
    """This machine and its driver."""
    library = DriverLibrary(settings.nvml_library, settings.path_procfs)
    boot_id = node.read_boot_id(settings.path_procfs)
    world = World(
        open_driver=library.open,
        can_open_devices=can_open_control_device,
        kernel_gpus=lambda: frozenset(node.read_driver_gpus(settings.path_procfs)),
        driver_loaded=lambda: node.read_kernel_driver(settings.path_procfs) is not None,
        # Its own, not the host's: /proc/self of another PID namespace is nobody.
        open_device_files=lambda: node.read_open_devices(Path("/proc")),
    )
    directory = settings.state_dir
    numbers, memory = Numbers(directory, boot_id), KnownGpus(directory, boot_id)
    return Surroundings(world, numbers, boot_id, memory, library, watch_devices=True, kmsg=settings.kmsg_path)
