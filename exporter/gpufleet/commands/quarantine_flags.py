"""Flags that several words of ``gpufleet quarantine`` take, and what they open."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gpufleet.commands.flags import USAGE
from gpufleet.quarantine.audit import Audit
from gpufleet.quarantine.policy import Policy
from gpufleet.quarantine.policy_file import PolicyError, read_policy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def add_flags(parser: argparse.ArgumentParser) -> None:
    """--policy.file, --kubeconfig and --audit.file."""
    parser.add_argument(
        "--policy.file", dest="policy", metavar="FILE", type=Path, help="default: the built-in policy, a dry run"
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=Path,
        help="default: the pod's service account, else what kubectl takes",
    )
    parser.add_argument(
        "--audit.file",
        dest="audit",
        metavar="FILE",
        type=Path,
        help="a line of JSON before and after each write is appended to it (default: standard output)",
    )


def policy_of(arguments: argparse.Namespace, program: str) -> Policy:
    """The policy that was asked for; ends the process with status 2 where it is refused."""
    if arguments.policy is None:
        return Policy()
    try:
        return read_policy(arguments.policy)
    except PolicyError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(USAGE) from None


@contextmanager
def audit_of(arguments: argparse.Namespace, program: str, *, default: TextIO) -> Iterator[Audit]:
    """The audit; ends the process with status 2 where its file cannot be opened."""
    if arguments.audit is None:
        yield Audit(default, time.time)
        return
    try:
        # For the people who run the quarantine alone: it names users' runs.
        descriptor = _opened(arguments.audit)
    except OSError as error:
        print(f"{program}: --audit.file: {arguments.audit}: {error.strerror}", file=sys.stderr)
        raise SystemExit(USAGE) from None
    with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
        yield Audit(stream, time.time)


def _opened(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
