"""``gpufleet doctor``: what this node can report, what not, and why.

Exit status: 0 nothing is missing, 1 something is, with its remedy, 2 the command line is refused.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from gpufleet import __version__
from gpufleet.commands.diagnosis import Diagnosis
from gpufleet.commands.diagnosis_gpus import driver_report
from gpufleet.commands.diagnosis_node import node_checks
from gpufleet.commands.diagnosis_text import text
from gpufleet.commands.driver import DriverLibrary
from gpufleet.commands.flags import FlagParser
from gpufleet.standard_output import tell

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet doctor``."""
    parser = FlagParser(
        "doctor",
        "Say what this node can report, what not, and why: driver, permissions, each GPU's readings, sources.\n"
        "Give it the flags or the configuration file of the exporter, all of which it takes. It changes nothing and\n"
        "needs no driver.\n\n"
        "Exit status: 0 nothing is missing; 1 something is, and its remedy is printed.",
        examples="  gpufleet doctor\n  gpufleet doctor --config.file=/etc/gpufleet.yml --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    arguments, settings = parser.read(argv)
    library = DriverLibrary(settings.nvml_library, settings.path_procfs)
    driver = driver_report(library, settings.path_procfs)
    diagnosis = Diagnosis(
        version=__version__,
        node=settings.node_name,
        checks=(*driver.checks, *node_checks(settings, len(driver.gpus))),
        gpus=driver.gpus,
    )
    said = as_json(diagnosis) if arguments.json else text(diagnosis)
    status = tell(said, 0 if diagnosis.is_complete else 1, "gpufleet doctor")
    if driver.is_stuck:
        # The library's exit handlers could wait for the lock that the stuck call holds.
        os._exit(status)
    return status


def as_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON object; ``complete`` is the exit status as a word."""
    return json.dumps({"complete": diagnosis.is_complete, **asdict(diagnosis)}, indent=2) + "\n"
