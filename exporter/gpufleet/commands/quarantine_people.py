"""``gpufleet quarantine list|show|release|reset-breaker``: what people ask of the ledger, and tell it.

They need no running service: they read and write the ledger as it does. Exit status: 0 done, 1 there is nothing of that
name, 2 flags or policy are refused, 3 the ledger or the nodes cannot be reached.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from gpufleet.commands.flags import FlagParser
from gpufleet.commands.quarantine_flags import add_flags, audit_of, policy_of
from gpufleet.quarantine.told import as_json, listed, printable, shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpufleet.quarantine.audit import Audit
    from gpufleet.quarantine.book import Book
    from gpufleet.quarantine.committer import Committer
    from gpufleet.quarantine.decide import Session
    from gpufleet.quarantine.platform import Opened
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.record import Record

_NOTHING, _UNREACHABLE = 1, 3


class _UnreachableError(Exception):
    """The ledger or the nodes cannot be reached; says which and why."""


def show_list(argv: Sequence[str]) -> int:
    """Run ``gpufleet quarantine list``."""
    parser = _parser("list", "List the nodes that are out, and the incidents that wait for room.")
    parser.add_argument("--all", action="store_true", help="every incident that is remembered")
    parser.add_argument("--json", action="store_true", help="an object a line")
    arguments = parser.parse_args(argv)
    try:
        book = _book(arguments, parser.prog)
    except _UnreachableError as error:
        return _unreachable(parser.prog, error)
    if arguments.json:
        kept = [each for each in book.records.values() if arguments.all or each.takes_place]
        print(as_json(kept), end="")
    else:
        print(listed(book, everything=arguments.all), end="")
    return 0


def show(argv: Sequence[str]) -> int:
    """Run ``gpufleet quarantine show``."""
    parser = _parser("show", "Tell everything that is known of a node's incidents, or of one.")
    parser.add_argument("name", metavar="NODE|INCIDENT")
    parser.add_argument("--json", action="store_true", help="an object a line")
    arguments = parser.parse_args(argv)
    try:
        records = _named(_book(arguments, parser.prog), arguments.name)
    except _UnreachableError as error:
        return _unreachable(parser.prog, error)
    if not records:
        return _nothing(parser.prog, arguments.name)
    print((as_json if arguments.json else shown)(records), end="")
    return 0


def release(argv: Sequence[str]) -> int:
    """Run ``gpufleet quarantine release``."""
    parser = _parser(
        "release",
        "Give a node back: our mark comes off, what others did to it stays. Its incidents are remembered and do not\n"
        "take it out again; a new one does. kubectl uncordon, or scontrol's resume, is taken for the same.",
    )
    parser.add_argument("name", metavar="NODE|INCIDENT")
    arguments = parser.parse_args(argv)
    policy = policy_of(arguments, parser.prog)
    with audit_of(arguments, parser.prog, default=sys.stderr) as audit:
        try:
            return _release(arguments, policy, audit, parser.prog)
        except _UnreachableError as error:
            return _unreachable(parser.prog, error)


def reset_breaker(argv: Sequence[str]) -> int:
    """Run ``gpufleet quarantine reset-breaker``."""
    from gpufleet.quarantine.committer import NotRecordedError

    parser = _parser(
        "reset-breaker",
        "Close the breaker, once the cause of many faults at once is found: incidents that wait may then go out,\n"
        "within the budget.",
    )
    arguments = parser.parse_args(argv)
    policy = policy_of(arguments, parser.prog)
    with audit_of(arguments, parser.prog, default=sys.stderr) as audit:
        try:
            committer, _ = _opened(arguments, policy, audit)
            book = committer.apply(_reset)
        except (_UnreachableError, NotRecordedError) as error:
            return _unreachable(parser.prog, error)
        audit.note("breaker_reset", by=_who())
    print(
        "The breaker was closed before."
        if book is None
        else f"The breaker is closed. It was open for: {printable(book)}."
    )
    return 0


def _reset(session: Session) -> str | None:
    tripped = session.book.tripped
    session.reset_breaker()
    return None if tripped is None else tripped.detail


def _release(arguments: argparse.Namespace, policy: Policy, audit: Audit, program: str) -> int:
    from gpufleet.quarantine.committer import NotRecordedError
    from gpufleet.quarantine.worker import Worker

    committer, opened = _opened(arguments, policy, audit)
    name: str = arguments.name

    def let_go(session: Session) -> list[Record]:
        records = _named(session.book, name)
        session.release([record.key for record in records], _who())
        return records

    try:
        records: list[Record] = committer.apply(let_go)
    except NotRecordedError as error:
        raise _UnreachableError(str(error)) from error
    if not records:
        return _nothing(program, name)
    for record in records:
        audit.note("released", incident=str(record.key), by=_who())
    worker = Worker(
        committer, opened.actuator, opened.plan, policy, audit, clock=time.time, told=_untold, decided=_untold
    )
    worker.release([record.key for record in records])
    book = committer.book
    left = [record for record in _named(book, name) if record.takes_place] if book is not None else records
    for record in left:
        print(f"{program}: {record.node}: our mark is not off yet; the service tries again", file=sys.stderr)
    for node in sorted({record.node for record in records} - {record.node for record in left}):
        print(f"{node} is given back.")
    return _UNREACHABLE if left else 0


def _parser(word: str, summary: str) -> FlagParser:
    parser = FlagParser(f"quarantine {word}", summary, ())
    add_flags(parser)
    return parser


def _untold(*_: object) -> None:
    """What is done is in the audit; a command has no telemetry."""


def _opened(arguments: argparse.Namespace, policy: Policy, audit: Audit) -> tuple[Committer, Opened]:
    from gpufleet.quarantine.committer import Committer
    from gpufleet.quarantine.platform import PlatformError, open_platform

    try:
        opened = open_platform(policy, audit, kubeconfig=arguments.kubeconfig)
    except PlatformError as error:
        raise _UnreachableError(str(error)) from error
    committer = Committer(opened.store, opened.actuator.view, policy, clock=time.time, monotonic=time.monotonic)
    return committer, opened


def _book(arguments: argparse.Namespace, program: str) -> Book:
    from gpufleet.quarantine.platform import PlatformError, open_platform
    from gpufleet.quarantine.stores import StoreError

    policy = policy_of(arguments, program)
    with audit_of(arguments, program, default=sys.stderr) as audit:
        try:
            return open_platform(policy, audit, kubeconfig=arguments.kubeconfig).store.load().book
        except (PlatformError, StoreError) as error:
            raise _UnreachableError(str(error)) from error


def _named(book: Book, name: str) -> list[Record]:
    """Records of a node or of an incident, by what people call them."""
    found = [
        record
        for record in book.records.values()
        if name in {record.node, record.key.node, record.key.incident, str(record.key)}
    ]
    return sorted(found, key=lambda record: (record.decided_at, record.key))


def _nothing(program: str, name: str) -> int:
    print(f"{program}: no node or incident {name!r} is in the ledger; gpufleet quarantine list --all", file=sys.stderr)
    return _NOTHING


def _unreachable(program: str, error: Exception) -> int:
    print(f"{program}: {error}", file=sys.stderr)
    return _UNREACHABLE


def _who() -> str:
    """Who released it, for those who look later."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name} on {socket.gethostname()}"
