"""``gpufleet quarantine check FILE``: what a policy means, in words, or what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.quarantine.policy_file import PolicyError, read_policy
from gpufleet.quarantine.policy_text import explain

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run it; 0: the file is good, 2: it is refused."""
    parser = FlagParser(
        "quarantine check",
        "Read a policy as the quarantine would, and say what it means on pools of some sizes.",
        (),
        examples="  gpufleet quarantine check policy.yaml",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the policy")
    arguments = parser.parse_args(argv)
    try:
        policy = read_policy(arguments.file)
    except PolicyError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    print(explain(policy), end="")
    return 0
