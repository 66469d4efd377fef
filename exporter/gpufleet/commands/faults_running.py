"""``gpufleet faults list`` and ``clear``: the incidents of the exporter that runs on this node.

Exit status of list: 0 no GPU has to be kept from work, 1 one has, 2 the exporter was not reached. Of clear: 0 cleared,
1 no such incident is open, 2 the exporter was not reached.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from gpufleet.commands.asking import NO_EXPORTER, UnansweredError, ask_exporter, take
from gpufleet.commands.faults_report import incident_object, named
from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.faults import words
from gpufleet.model.incident import FaultsView
from gpufleet.settings import Settings, selected

_ISOLATES = 1
_NOT_OPEN = 1
_ANSWER_SECONDS = 10.0
_OPTIONS = selected("config", "state", "control")


def show(argv: Sequence[str]) -> int:
    """Run ``gpufleet faults list``."""
    parser = FlagParser(
        "faults list",
        "Tell the incidents of the exporter that runs on this node: those that gpu_fault_active shows, and those that\n"
        "are so new that it isn't certain what they come down to.\n\n"
        "Exit status: 0 no GPU has to be kept from work; 1 at least one has to; 2 the exporter was not reached.",
        _OPTIONS,
        examples="  gpufleet faults list\n  gpufleet faults list --closed --json",
    )
    parser.add_argument("--json", action="store_true", help="print one object: active, settling, and closed")
    parser.add_argument("--closed", action="store_true", help="tell the last ones that are over, too")
    arguments, settings = parser.read(argv)
    view = _view(parser, settings)
    if arguments.json:
        shown = {"active": view.active, "settling": view.settling} | (
            {"closed": view.closed} if arguments.closed else {}
        )
        print(
            json.dumps({name: [incident_object(each) for each in listed] for name, listed in shown.items()}, indent=2)
        )
    else:
        print(as_text(view, with_closed=arguments.closed))
    return _ISOLATES if any(incident.isolate for incident in view.active) else 0


def as_text(view: FaultsView, *, with_closed: bool) -> str:
    """The incidents in words."""
    parts = [words.explain(incident) for incident in (view.closed if with_closed else ())]
    parts += [words.explain(incident) for incident in view.active]
    parts += [f"Not certain yet: {words.explain(incident)}" for incident in view.settling]
    if view.xid_errors is None:
        parts.append("The kernel's log is still being read: there may be more.")
    count = len(view.active)
    listed = f"{count or 'No'} incident{'s' if count > 1 else ''} open"
    closed = f"; {len(view.closed)} over, see --closed" if view.closed and not with_closed else ""
    isolating = [incident for incident in view.active if incident.isolate]
    needs = f"; must not get work: {named(isolating)}" if isolating else ""
    parts.append(f"{listed}{closed}{needs}.")
    return "\n\n".join(parts)


def clear(argv: Sequence[str]) -> int:
    """Run ``gpufleet faults clear``."""
    parser = FlagParser(
        "faults clear",
        "Tell the exporter on this node that an incident is over: somebody repaired or tested the GPU. Its series and\n"
        "its alert end. What is still true of the GPU is not told again until it has been untrue.\n\n"
        "Exit status: 0 cleared; 1 no incident of that name is open; 2 the exporter was not reached.",
        _OPTIONS,
        examples="  gpufleet faults clear 5f0c3a9d2b7e4c18\n  gpufleet faults clear --all",
    )
    parser.add_argument("incidents", metavar="INCIDENT", nargs="*", help="its name, as gpufleet faults list tells it")
    parser.add_argument("--all", action="store_true", help="every incident that is open")
    arguments, settings = parser.read(argv)
    named: list[str] = arguments.incidents
    if bool(named) == bool(arguments.all):
        parser.error("name an incident or say --all, one of both; gpufleet faults list tells their names")
    if arguments.all:
        view = _view(parser, settings)
        named = [incident.id for incident in (*view.active, *view.settling)]
        if not named:
            print("no incident is open")
    status = 0
    for name in named:
        try:
            reply = ask_exporter(settings, "clear", _ANSWER_SECONDS, incident=name)
        except UnansweredError as error:
            _give_up(parser, error)
        if reply.get("cleared") is True:
            print(f"cleared {name}")
        # One that took over from another goes with it.
        elif not arguments.all:
            print(f"{parser.prog}: no incident {name} is open; gpufleet faults list tells which are", file=sys.stderr)
            status = _NOT_OPEN
    return status


def _view(parser: FlagParser, settings: Settings) -> FaultsView:
    try:
        return take(FaultsView, ask_exporter(settings, "faults", _ANSWER_SECONDS), "faults")
    except UnansweredError as error:
        _give_up(parser, error)


def _give_up(parser: FlagParser, error: UnansweredError) -> NoReturn:
    for reason in (*error.reasons, *(() if error.is_there else (NO_EXPORTER,))):
        print(f"{parser.prog}: {reason}", file=sys.stderr)
    raise SystemExit(USAGE)
