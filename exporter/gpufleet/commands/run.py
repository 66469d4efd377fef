"""``gpufleet run [flags] -- PROGRAM [arguments]``. No argparse: it is a third of what this would cost to start."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpufleet.launch.child import Ended, StartError, leave, run, say, told_to_end
from gpufleet.launch.verdict import FAULT_CODE, Fault, exit_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpufleet.launch.asking import Asked

_USAGE = 2
_MOST_SECONDS = 20.0
_EXPORTER_PORT = 9839
_SOCKET = "/run/gpufleet/faults.sock"
_EXPORTER_PATIENCE = 3.0
"""Seconds: a poll, and the way of a line through the kernel's log."""
_SERVICE_PATIENCE = 10.0
"""Seconds in which a peer's fault comes through its exporter and Alertmanager to the quarantine."""
_LOWEST_CODE, _HIGHEST_CODE = 2, 254

HELP = f"""\
usage: gpufleet run [flags] -- PROGRAM [arguments]

Run a program exactly as without this word in front of it: its output, its signals, its exit status. When it fails, and
a hardware fault has hit its own GPUs (or a peer's of its run) since it was started, exit with {FAULT_CODE} instead:
the code that the framework is told to ignore, so that the fault costs no retry.

flags:
  --exporter=URL     the node's exporter (--faults.listen-address there): http://HOST:PORT or unix:PATH
                     (environment GPUFLEET_EXPORTER; default http://$NODE_IP:{_EXPORTER_PORT} where NODE_IP is set, else
                     {_SOCKET} where that is, as for jobs of Slurm)
  --quarantine=URL   the quarantine service, asked whether a peer of the run was hit (environment GPUFLEET_QUARANTINE)
  --project=NAME     of the run, as gpufleet shows it (environment GPUFLEET_PROJECT)
  --run=NAME         of the run (environment GPUFLEET_RUN, else as the exporter calls it, else Slurm's number)
  --exit-code=N      {_LOWEST_CODE} to {_HIGHEST_CODE} (default {FAULT_CODE}); the program's own use of it becomes 1
  --wait=SECONDS     most seconds to wait for a verdict (default {_MOST_SECONDS:g}, which is the most)

After SIGTERM, SIGINT, SIGHUP or SIGQUIT nothing is waited for. A program that cannot be started is 127 or 126.

examples:
  gpufleet run -- torchrun --nproc-per-node=8 train.py
  gpufleet run --exporter=unix:/run/gpufleet/faults.sock -- python train.py
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Flags, or what the environment says."""

    exporter: str = ""
    quarantine: str = ""
    project: str = ""
    run: str = ""
    slurm_run: str = ""
    """What the run is called if nobody says it otherwise."""
    fault_code: int = FAULT_CODE
    wait: float = _MOST_SECONDS
    program: tuple[str, ...] = ()


class UsageError(Exception):
    """The command line is refused; says what, and the remedy."""


def main(argv: Sequence[str]) -> int:  # noqa: RET503 - leave does not return
    """Run ``gpufleet run``; does not return once the program was started."""
    if argv and argv[0] in {"--help", "-h"}:
        print(HELP, end="")
        return 0
    try:
        options = parse(argv, os.environ)
    except UsageError as error:
        say(f"{error}; gpufleet run --help says more")
        return _USAGE
    started = time.monotonic()
    try:
        ended = run(options.program)
    except StartError as error:
        say(str(error))
        return error.status
    leave(ended, _code(ended, options, started))


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Flags before ``--``, and the program behind it. Raises UsageError."""
    get = environ.get
    node = get("NODE_IP", "")
    host = f"[{node}]" if ":" in node else node
    options = Options(
        exporter=get("GPUFLEET_EXPORTER", f"http://{host}:{_EXPORTER_PORT}" if node else ""),
        quarantine=get("GPUFLEET_QUARANTINE", ""),
        project=get("GPUFLEET_PROJECT", ""),
        run=get("GPUFLEET_RUN", ""),
        slurm_run=_slurm_run(environ),
    )
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            if not words:
                break
            return replace(options, program=tuple(words))
        if not word.startswith("-"):
            return replace(options, program=(word, *words))
        name, equals, value = word.partition("=")
        if name not in _FLAGS:
            raise UsageError(f"{name} is no flag; {', '.join(_FLAGS)} exist")
        if not equals:
            if not words or words[0] == "--":
                raise UsageError(f"{name} needs a value, as in {name}=…")
            value = words.pop(0)
        options = _with(options, name, value)
    raise UsageError("no program is named; write it behind --")


def _slurm_run(environ: Mapping[str, str]) -> str:
    """A job's name as the exporter gives it: a task of an array has that of the array before its own number."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID", "")


_FLAGS = ("--exporter", "--quarantine", "--project", "--run", "--exit-code", "--wait")


def _with(options: Options, name: str, value: str) -> Options:
    match name:
        case "--exit-code":
            if not value.isdecimal() or not _LOWEST_CODE <= int(value) <= _HIGHEST_CODE:
                raise UsageError(f"--exit-code={value} must be a number from {_LOWEST_CODE} to {_HIGHEST_CODE}")
            return replace(options, fault_code=int(value))
        case "--wait":
            try:
                seconds = float(value)
            except ValueError:
                seconds = -1.0
            if not 0 <= seconds <= _MOST_SECONDS:
                raise UsageError(f"--wait={value} must be seconds from 0 to {_MOST_SECONDS:g}")
            return replace(options, wait=seconds)
        case "--exporter":
            return replace(options, exporter=value)
        case "--quarantine":
            return replace(options, quarantine=value)
        case "--project":
            return replace(options, project=value)
        case _:
            return replace(options, run=value)


def _code(ended: Ended, options: Options, started: float) -> int:
    """What to exit with; asks only where the program has failed by itself."""
    fault = None
    if ended.failed and not ended.was_told_to:
        try:
            fault = _fault(options, started)
        except Exception as error:  # noqa: BLE001 - a flaw of ours is no reason for another exit status
            say(f"no verdict: {error!r}")
        if fault is not None:
            say(
                f"hardware fault {fault.fault} (incident {fault.incident}) has ended this program, which left with "
                f"{ended.code}: exit with {options.fault_code}"
            )
    return exit_code(ended.code, fault, options.fault_code)


def _fault(options: Options, started: float) -> Fault | None:
    # Whoever's program succeeds pays nothing for HTTP.
    from gpufleet.launch.asking import Limits, judged

    now = time.monotonic()
    places = _places(options)
    if not places:
        say("no verdict: nobody is named who could be asked: set NODE_IP (status.hostIP), or give --exporter")
    fault, silent = judged(places, Limits(started, now, now + options.wait), told_to_end)
    for reason in silent:
        say(f"no verdict: {reason}")
    return fault


def _places(options: Options) -> tuple[Asked, ...]:
    from pathlib import Path

    from gpufleet.launch.asking import Asked, Run

    places = []
    exporter = options.exporter or (f"unix:{_SOCKET}" if Path(_SOCKET).exists() else "")
    if exporter:
        places.append(Asked(exporter.rstrip("/"), "/v1/faults", patience=_EXPORTER_PATIENCE))
    if options.quarantine and (options.run or options.slurm_run or exporter):
        about = Run(options.project, options.run, options.slurm_run)
        places.append(Asked(options.quarantine.rstrip("/"), "/v1/verdict", about, _SERVICE_PATIENCE))
    return tuple(places)
