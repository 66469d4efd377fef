"""``gpufleet prices``: which rule of the price book prices which GPU, and whether the book is good.

Exit status of explain: 0 every GPU has a price, 1 one has none, 2 the price book is refused or no GPU could be asked.
Of check: 0 the price book is good, 1 a rule of it does nothing, 2 it is refused.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpufleet.commands.driver import DriverLibrary
from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.commands.prices_gpus import Asked, NoGpusError, gpus_here
from gpufleet.cost.amounts import canonical
from gpufleet.cost.node_facts import NodeFacts, node_facts
from gpufleet.cost.price_rule import day
from gpufleet.cost.prices import PriceBook, PriceBookError, PriceMatch, Subject, Tried
from gpufleet.settings import Settings, selected
from gpufleet.standard_output import written_out

_DOES_NOTHING = 1
_NO_PRICE = 1

_SUMMARY = """\
Say what GPUs cost and why: gpufleet prices explain tells which rule of the price book prices which GPU, and why those
before it do not; gpufleet prices check tries a price book before an exporter gets it. --help of each says more."""
_EXPLAIN = """\
Say which rule of the price book prices which GPU of this node, and why those before it do not. With --gpu nothing
here is asked: it tells of a model, on any machine. Give it the flags or the configuration file of the exporter. Labels
of the node that the exporter gets from the API server are not known here: give them with --node.label.

Exit status: 0 every GPU has a price; 1 one has none; 2 the price book is refused, or no GPU could be asked."""
_CHECK = """\
Try a price book: whether it is accepted, and whether a rule of it does nothing because one before it is for the same
GPUs. Rules whose time is over are told, too.

Exit status: 0 it is good; 1 a rule does nothing; 2 it is refused."""


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet prices``, or rather the word after it."""
    words = {"explain": explain, "check": check}
    if argv and argv[0] in words:
        return words[argv[0]](argv[1:])
    parser = FlagParser(
        "prices", _SUMMARY, (), examples="  gpufleet prices explain\n  gpufleet prices check --prices.file=prices.yml"
    )
    parser.add_argument("word", metavar="explain|check", nargs="?")
    given = parser.parse_args(argv).word
    said = "write explain or check after it" if given is None else f"{given} is not known here: explain and check are"
    print(f"{parser.prog}: {said}", file=sys.stderr)
    return USAGE


@dataclass(frozen=True, slots=True)
class Explained:
    """What the book says of one GPU."""

    subject: Subject
    label: str
    """What a person calls it."""
    tried: tuple[Tried, ...]
    match: PriceMatch | None


def explain(argv: Sequence[str]) -> int:
    """Run ``gpufleet prices explain``."""
    parser = FlagParser(
        "prices explain",
        _EXPLAIN,
        selected("config", "prices", "node", "nvml", "path"),
        examples="  gpufleet prices explain --prices.file=prices.yml\n"
        "  gpufleet prices explain --gpu='NVIDIA H100 80GB HBM3' \\\n"
        "    --node.label=node.kubernetes.io/instance-type=p5.48xlarge --at=2026-03-01",
    )
    parser.add_argument("--gpu", metavar="NAME", action="append", default=[], help="a model, as the driver calls it")
    parser.add_argument(
        "--mig-profile", metavar="PROFILE", action="append", default=[], help="with --gpu: it is cut into such slices"
    )
    parser.add_argument("--at", metavar="DAY", help="as of this day, such as 2026-03-01; default: now")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    arguments, settings = parser.read(argv)
    at = time.time() if arguments.at is None else _day(parser, arguments.at)
    book = _book(parser, settings)
    facts = node_facts(settings.node_name, {label.name: label.value for label in settings.node_label})
    profiles = tuple(arguments.mig_profile)
    asked = Asked(())
    try:
        if arguments.gpu:
            found = [(f"{name}", Subject(name, "", profiles, facts)) for name in arguments.gpu]
        else:
            asked = gpus_here(DriverLibrary(settings.nvml_library, settings.path_procfs))
            found = [
                (f"gpu {gpu.index} {gpu.uuid}  {gpu.name}", Subject(gpu.name, gpu.uuid, gpu.profiles, facts))
                for gpu in asked.gpus
            ]
    except NoGpusError as error:
        print(f"{parser.prog}: {error}; name a model with --gpu='NVIDIA H100 80GB HBM3'", file=sys.stderr)
        return _ended(USAGE, is_stuck=error.is_stuck)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A price book may have any letters, and a terminal may know only some.
        sys.stdout.reconfigure(errors="backslashreplace")
    explained = [
        Explained(subject, label, book.explain(subject, at), book.price(subject, at)) for label, subject in found
    ]
    print(as_json(explained, facts) if arguments.json else as_text(explained, book, facts), end="")
    return _ended(_NO_PRICE if any(each.match is None for each in explained) else 0, is_stuck=asked.is_stuck)


def check(argv: Sequence[str]) -> int:
    """Run ``gpufleet prices check``."""
    parser = FlagParser(
        "prices check",
        _CHECK,
        selected("config", "prices"),
        examples="  gpufleet prices check --prices.file=/etc/gpufleet/prices.yml",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    arguments, settings = parser.read(argv)
    book = _book(parser, settings)
    over = [
        f"{book.name}:{rule.line}: {rule.name}: its time is over since {day(rule.ends)}"
        for rule in book.rules
        if rule.ends is not None and rule.ends <= time.time()
    ]
    if arguments.json:
        found = {"file": book.name, "rules": len(book.rules), "warnings": book.warnings, "over": over}
        print(json.dumps(found, indent=2))
    else:
        for line in (*over, *book.warnings):
            print(line)
        print(f"{book.name}: {len(book.rules)} rule{'' if len(book.rules) == 1 else 's'}, accepted")
    return _DOES_NOTHING if book.warnings else 0


def as_text(explained: Sequence[Explained], book: PriceBook, facts: NodeFacts) -> str:
    """What was found, in words. GPUs of one model that are cut alike are told together."""
    instance = facts.instance_type or "of a type that is not known here"
    capacity = facts.capacity_type or "not known here"
    lines = [f"{book.name}; node {facts.node}; instance {instance}; capacity {capacity}"]
    lines += [f"warning: {warning}" for warning in book.warnings]
    groups: dict[tuple[str, tuple[str, ...]], list[Explained]] = {}
    for each in explained:
        groups.setdefault((each.subject.name, each.subject.profiles), []).append(each)
    for (_, profiles), several in groups.items():
        lines += ["", *(each.label for each in several)]
        if profiles:
            lines.append(f"  MIG slices: {', '.join(profiles)}")
        for tried in several[0].tried:
            if tried.mismatch is not None:
                lines.append(f"  not {tried.rule.name} (line {tried.rule.line}): {tried.mismatch}")
        match = several[0].match
        if match is None:
            lines.append(
                "  no rule is for it: no cost; write a rule without conditions at the end for all that is left"
            )
        else:
            lines.append(
                f"  {match.price.text} {match.price.currency} an hour by {match.rule.name} (line {match.rule.line})"
            )
            lines.append(f"    {match.why}")
    return "\n".join(lines) + "\n"


def as_json(explained: Sequence[Explained], facts: NodeFacts) -> str:
    """What was found, as one object."""
    node = {"node": facts.node, "instance_type": facts.instance_type, "capacity_type": facts.capacity_type}
    gpus = [
        {
            "uuid": each.subject.uuid or None,
            "name": each.subject.name,
            "mig_profiles": each.subject.profiles,
            "cost_per_hour": None if each.match is None else canonical(each.match.rule.per_hour),
            "currency": None if each.match is None else each.match.price.currency,
            "rule": None if each.match is None else each.match.rule.name,
            "line": None if each.match is None else each.match.rule.line,
            "why": None if each.match is None else each.match.why,
            "passed_over": [
                {"rule": tried.rule.name, "line": tried.rule.line, "why": tried.mismatch}
                for tried in each.tried
                if tried.mismatch is not None
            ],
        }
        for each in explained
    ]
    return json.dumps({**node, "gpus": gpus}, indent=2) + "\n"


def _book(parser: FlagParser, settings: Settings) -> PriceBook:
    """The price book; ends the process with status 2 and the reason when there is none that can be used."""
    if settings.prices_file is None:
        parser.error("no price book is given; name it with --prices.file, or with prices.file in --config.file")
    try:
        return PriceBook.load(settings.prices_file)
    except PriceBookError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        raise SystemExit(USAGE) from None


def _day(parser: FlagParser, text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        parser.error(f"argument --at: {text!r} is no day: write one such as 2026-03-01")


def _ended(status: int, *, is_stuck: bool) -> int:
    status = written_out(status, "gpufleet prices explain")
    if is_stuck:
        # The library's exit handlers could wait for the lock that the stuck call holds.
        os._exit(status)
    return status
