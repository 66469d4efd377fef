"""``gpufleet faults``: explain a saved log, or ask the running exporter for its incidents.

Exit status of explaining: 0 no GPU has to be kept from work, 1 one has, 2 a log could not be read to its end.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
from typing import TYPE_CHECKING

from gpufleet.commands.faults_input import STANDARD_INPUT, Source, UnreadableError
from gpufleet.commands.faults_log import Log, Told, node_of
from gpufleet.commands.faults_report import incident_object, isolating, line_object, report
from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.faults.driver_version import parse_driver_version
from gpufleet.standard_output import print_no_more

if TYPE_CHECKING:
    from collections.abc import Sequence

_ISOLATES = 1
_INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""
_MOST_NODES = 512

_SUMMARY = """\
Explain a saved kernel log to a person: what happened, to which GPU, whose fault it is, and what to do. Takes what
dmesg, journalctl, syslog, Talos and pstore write, compressed or not, of one node or of many. Needs no exporter and no
driver. Several lines of one fault are told as one incident.

gpufleet faults list and gpufleet faults clear ask the exporter that runs here; their --help says more.

Exit status: 0 no GPU has to be kept from work; 1 at least one has to, by the end of the log; 2 a log could not be read
to its end: what was read of it is told all the same."""
_EXAMPLES = """\
  dmesg | gpufleet faults
  gpufleet faults /var/log/kern.log*
  journalctl -k -b -1 -o short-iso | gpufleet faults
      the boot before this one, with dates
  gpufleet faults --json --incidents dmesg.txt
      one object a line that tells of a fault, then one an incident ("kind": "incident")
  gpufleet faults list; gpufleet faults clear 5f0c3a9d2b7e4c18"""


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet faults``, or the word after it."""
    if argv and argv[0] in {"list", "clear"}:
        from gpufleet.commands import faults_running

        return (faults_running.show if argv[0] == "list" else faults_running.clear)(argv[1:])
    parser = FlagParser("faults", _SUMMARY, (), examples=_EXAMPLES)
    parser.add_argument("files", metavar="FILE", nargs="*", help="a saved log, - for standard input, the default")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print an object for each line that tells of a fault: kind (xid, sxid, gpu_lost, rm_init_failed, nvlink), "
        "pci, code, pid, process, mig_gi, class",
    )
    parser.add_argument(
        "--incidents", action="store_true", help="with --json: print the incidents, too, after the lines"
    )
    parser.add_argument(
        "--driver-version",
        metavar="VERSION",
        help="the driver that wrote the log, such as 550.163.01: some numbers had another meaning before; "
        "default: what the log says of it, and for the class in --json today's meaning",
    )
    arguments = parser.parse_args(argv)
    driver: str | None = arguments.driver_version
    if driver is not None and parse_driver_version(driver) is None:
        parser.error(f"--driver-version: '{driver}' is no version of a driver; write it as nvidia-smi does: 550.163.01")
    names: list[str] = arguments.files
    if not names and sys.stdin.isatty():
        parser.error(
            "name a file, or pipe a log into it (dmesg | gpufleet faults); gpufleet faults list asks the exporter"
        )
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A process may have any name, and a terminal may know only some letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    reading = _Reading(driver, as_json=arguments.json)
    try:
        for name in names or [STANDARD_INPUT]:
            reading.read(Source(name))
        for error in reading.errors:
            print(f"{parser.prog}: {error}", file=sys.stderr)
        return reading.tell(with_incidents=arguments.incidents)
    except BrokenPipeError:
        # Whoever read it has seen enough; the interpreter must not try to write the rest at its end.
        print_no_more()
        return USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED


class _Reading:
    """Logs by node, as lines of all files come in."""

    def __init__(self, driver: str | None, *, as_json: bool) -> None:
        self.errors: list[str] = []
        self._driver = driver
        self._as_json = as_json
        self._logs: dict[tuple[str, bool], Log] = {}
        self._numbers = itertools.count(1)
        self._lines_read = 0
        self._has_driver = False

    def read(self, source: Source) -> None:
        """Take a whole source in."""
        log: Log | None = None
        node: str | None = None
        try:
            for text, written in source:
                named = node_of(text)
                # Lines that name nobody (the journal's own, a message's second line) are of the node before them.
                if log is None or (named is not None and named != node):
                    node = named
                    log = self._log(source, node)
                self._has_driver = self._has_driver or "NVRM" in text or "nvidia-nvswitch" in text
                event = log.line(text, written)
                if event is not None and self._as_json:
                    # At once: the log may be a pipe that has no end yet.
                    print(json.dumps(line_object(event, self._driver)), flush=source.is_live)
        except UnreadableError as error:
            self.errors.append(str(error))
        self._lines_read += source.lines_read

    def _log(self, source: Source, node: str | None) -> Log:
        key = (source.name, False) if node is None else (node, True)
        log = self._logs.get(key)
        if log is None and len(self._logs) >= _MOST_NODES:
            key, node = ("further nodes", False), None
            log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = Log(key[0], node or "", self._driver, self._numbers)
        return log

    def tell(self, *, with_incidents: bool) -> int:
        """Print what the logs come down to; returns the exit status."""
        told: list[Told] = [log.told() for log in self._logs.values()]
        told = [each for each in told if each.lines or each.held_back]
        if not self._as_json:
            print(report(told, self._lines_read, has_driver=self._has_driver), end="")
        elif with_incidents:
            for each in told:
                for incident in each.incidents:
                    print(json.dumps(incident_object(incident)))
        if self.errors:
            return USAGE
        return _ISOLATES if isolating(told) else 0
