"""``gpufleet quarantine WORD``: imports only the word asked for."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, cast

from gpufleet.standard_output import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORDS: dict[str, tuple[str, str, str]] = {
    "serve": ("gpufleet.commands.quarantine_serve", "main", "take alerts from Alertmanager, and act on them"),
    "check": ("gpufleet.commands.quarantine_check", "main", "say what a policy file means, and what is wrong with it"),
    "simulate": (
        "gpufleet.commands.quarantine_simulate",
        "main",
        "say what a policy would have done with last month's incidents, or with a payload",
    ),
    "lint": (
        "gpufleet.quarantine.lint.command",
        "main",
        "say whether a hardware fault would cost a workload a retry, and what to add",
    ),
    "list": ("gpufleet.commands.quarantine_people", "show_list", "list the nodes that are out, and those that wait"),
    "show": ("gpufleet.commands.quarantine_people", "show", "tell everything that is known of a node or an incident"),
    "release": ("gpufleet.commands.quarantine_people", "release", "give a node back"),
    "reset-breaker": (
        "gpufleet.commands.quarantine_people",
        "reset_breaker",
        "let new nodes be taken out again, after too many faults at once",
    ),
}
"""Name to the module and function that run it, and what it is for."""

_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Run the word that comes first."""
    word = argv[0] if argv else "--help"
    if word in {"--help", "-h", "help"}:
        return tell(usage() + "\n", 0 if argv else _USAGE, "gpufleet quarantine")
    if word not in WORDS:
        import difflib

        near = difflib.get_close_matches(word, WORDS, n=1)
        hint = f"did you mean gpufleet quarantine {near[0]}?" if near else "gpufleet quarantine --help lists them"
        print(f"gpufleet quarantine: {word} is no word of it; {hint}", file=sys.stderr)
        return _USAGE
    module, function, _ = WORDS[word]
    command = cast("Callable[[Sequence[str]], int]", getattr(importlib.import_module(module), function))
    return command(argv[1:])


def usage() -> str:
    """What ``gpufleet quarantine --help`` prints."""
    width = max(map(len, WORDS))
    words = "\n".join(f"  {name:<{width}}  {purpose}" for name, (_, _, purpose) in WORDS.items())
    return f"""\
usage: gpufleet quarantine WORD [flags]

One bad GPU stays one bad GPU: a hardware fault takes its node out, within a budget; what held the GPU is moved, and
gets its retry back; people decide when the node returns.

words:
{words}

  gpufleet quarantine WORD --help says more.

examples:
  gpufleet quarantine check policy.yaml
  gpufleet quarantine simulate --policy.file=policy.yaml --prometheus.url=http://localhost:9090 --last=30d
  gpufleet quarantine serve --policy.file=policy.yaml
  gpufleet quarantine list
  gpufleet quarantine release gpu-node-0017"""
