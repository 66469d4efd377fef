"""``gpufleet check``: whether each GPU of this node may get work, for schedulers.

Exit status: 0 healthy, 1 degraded (may get work, somebody has to look), 2 must not get work, 3 the command line or the
configuration is refused and nothing was looked at: a typing error must not take every node of a cluster out of service.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.commands.asking import UnansweredError, ask_exporter, take
from gpufleet.commands.check_facts import Facts
from gpufleet.commands.check_text import as_object, text
from gpufleet.commands.check_verdict import judge
from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.durations import format_duration, parse_duration
from gpufleet.settings import selected
from gpufleet.standard_output import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpufleet.commands.check_driver import Look
    from gpufleet.settings import Settings

_OPTIONS = selected("config", "node", "nvml", "path", "state", "control")
_DEFAULT_TIMEOUT = "5s"
_REFUSED = 3
_SHORTEST, _LONGEST = 0.1, 300.0
_SHARE_OF_THE_EXPORTER = 0.6
"""… of the time: one that is there and doesn't answer must leave enough for a look through the driver."""

_SUMMARY = """\
Say whether this node's GPUs may get work: a line that says it all, then one line a GPU. Asks the exporter that runs
here. Without one it looks through the driver itself, takes open incidents from the exporter's --state.dir, and says so.

Exit status: 0 healthy; 1 degraded: may get work, but somebody has to look (a reset is due when the GPU is idle, a link
is down, it is slowed down by heat, the exporter is quiesced, or something could not be looked at); 2 must not get work;
3 the command line or the configuration is refused, and nothing was looked at. A crash that was the program's own fault
changes nothing."""
_EXAMPLES = """\
  gpufleet check
  gpufleet check --gpu=3 --gpu=nvidia5
  gpufleet check --json

  Slurm, HealthCheckProgram of slurm.conf, which has to drain the node itself:
      #!/bin/sh
      said=$(/opt/gpufleet/bin/gpufleet check --missing-ok)
      [ $? -ne 2 ] || scontrol update nodename="$(hostname -s)" state=drain reason="$(echo "$said" | head -n 1)"
  Slurm, Prolog and Epilog, whose failure drains the node (Prolog: and requeues the job):
      #!/bin/sh
      /opt/gpufleet/bin/gpufleet check --missing-ok; [ $? -ne 2 ]
  Kubernetes, custom plugin of node-problem-detector, to which 1 is a problem and 2 means that it can't be told; with
  max_output_length 80 its message is the first line:
      #!/bin/sh
      gpufleet check; [ $? -ne 2 ]"""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The command line."""

    settings: Settings
    seconds: float
    gpus: tuple[str, ...]
    missing_ok: bool
    as_json: bool


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet check``."""
    try:
        asked = _parse(argv)
    except SystemExit as ended:
        raise SystemExit(_REFUSED if ended.code == USAGE else ended.code) from None
    started = time.monotonic()
    try:
        facts = take(Facts, ask_exporter(asked.settings, "check", asked.seconds * _SHARE_OF_THE_EXPORTER), "facts")
    except UnansweredError as error:
        found = _look(asked.settings, asked.seconds - (time.monotonic() - started))
        facts, source, is_stuck = found.facts, "driver", found.is_stuck
        notes: tuple[str, ...] = (f"looked through the driver, since no exporter answers ({error})", *found.notes)
    else:
        source, notes, is_stuck = "exporter", (), False
    verdict = judge(facts, asked.gpus, missing_ok=asked.missing_ok)
    said = json.dumps(as_object(verdict, source, notes), indent=2) + "\n" if asked.as_json else text(verdict, notes)
    status = tell(said, int(verdict.fitness), "gpufleet check")
    if is_stuck:
        # The library's exit handlers could wait for the lock that the stuck call holds.
        os._exit(status)
    return status


def _parse(argv: Sequence[str]) -> _Asked:
    parser = FlagParser("check", _SUMMARY, _OPTIONS, examples=_EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print one object instead of lines")
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        action="append",
        default=[],
        help="look at this one only: its number in metrics, UUID, PCI address or device file (nvidia5, as "
        "SLURM_JOB_GPUS counts); repeat it or join with commas",
    )
    parser.add_argument(
        "--missing-ok", action="store_true", help="a node that has no NVIDIA GPU or driver at all is healthy"
    )
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        default=_DEFAULT_TIMEOUT,
        help=f"answer within this time, whatever hangs (default {_DEFAULT_TIMEOUT}); without exporter and persistence "
        "mode allow two seconds a GPU",
    )
    arguments, settings = parser.read(argv)
    seconds = _seconds(parser, arguments.timeout)
    wanted = [name for names in arguments.gpu for name in names.replace(" ", "").split(",") if name]
    if arguments.gpu and not wanted:
        parser.error("--gpu: is empty; name a GPU, or leave it out for all")
    return _Asked(settings, seconds, tuple(wanted), missing_ok=arguments.missing_ok, as_json=arguments.json)


def _seconds(parser: FlagParser, written: str) -> float:
    try:
        seconds = parse_duration(written)
    except ValueError:
        parser.error(f"--timeout: '{written}' is no duration; write it as 5s or 1m30s")
    if not _SHORTEST <= seconds <= _LONGEST:
        parser.error(
            f"--timeout: {written} is out of range; from {format_duration(_SHORTEST)} to {format_duration(_LONGEST)}"
        )
    return seconds


def _look(settings: Settings, seconds: float) -> Look:
    # Brings what an exporter needs; a check that an exporter answers does not pay for it.
    from gpufleet.commands.check_driver import look
    from gpufleet.commands.driver import DriverLibrary

    return look(settings, DriverLibrary(settings.nvml_library, settings.path_procfs), seconds)
