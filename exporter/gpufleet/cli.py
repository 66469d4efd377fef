"""``gpufleet COMMAND``: imports only the command asked for, so that each pays for its own modules."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, cast

from gpufleet import __version__
from gpufleet.standard_output import interrupted, tell, written_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMMANDS: dict[str, tuple[str, str, str]] = {
    "exporter": ("gpufleet.commands.exporter", "main", "serve this node's GPUs as Prometheus metrics"),
    "doctor": ("gpufleet.commands.doctor", "main", "say what this node can report, what not, and why"),
    "check": ("gpufleet.commands.check", "main", "say whether each GPU may get work; for Slurm and Kubernetes"),
    "faults": ("gpufleet.commands.faults", "main", "explain a saved log; list and clear this node's incidents"),
    "prices": ("gpufleet.commands.prices", "main", "say which rule of the price book prices which GPU, and why"),
    "quiesce": (
        "gpufleet.commands.quiesce",
        "quiesce",
        "make the exporter let go of every GPU, for a reset or a driver upgrade",
    ),
    "resume": ("gpufleet.commands.quiesce", "resume", "let a quiesced exporter take the GPUs up again"),
    "report": ("gpufleet.commands.report", "main", "what each project, run or task cost, from Prometheus"),
    "quarantine": (
        "gpufleet.commands.quarantine",
        "main",
        "take nodes out for hardware faults, within a budget, and give retries back",
    ),
    "run": ("gpufleet.commands.run", "main", "run a program so that a hardware fault costs it no retry"),
    "demo": ("gpufleet.commands.demo", "main", "run the exporter on a scripted 8-GPU node; needs no GPU"),
    "simulate": (
        "gpufleet.commands.simulate",
        "main",
        "serve a whole simulated fleet, for trying rules and dashboards",
    ),
}
"""Name to the module and function that run it, and what it is for."""

_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names and return the process's exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    word = arguments[0] if arguments else "--help"
    if word in {"--help", "-h", "help"}:
        return tell(usage() + "\n", 0 if arguments else _USAGE, "gpufleet")
    if word == "--version":
        return tell(f"gpufleet {__version__}\n", 0, "gpufleet")
    if word not in COMMANDS:
        print(f"gpufleet: {_unknown(word)}", file=sys.stderr)
        return _USAGE
    module, function, _ = COMMANDS[word]
    command = cast("Callable[[Sequence[str]], int]", getattr(importlib.import_module(module), function))
    try:
        return written_out(command(arguments[1:]), f"gpufleet {word}")
    except OSError as error:
        return interrupted(error, f"gpufleet {word}")


def usage() -> str:
    """What ``gpufleet --help`` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {purpose}" for name, (_, _, purpose) in COMMANDS.items())
    return f"""\
usage: gpufleet COMMAND [flags]

See what your GPUs are actually doing: are they busy, are they healthy, are they worth what you pay.

commands:
{commands}

  gpufleet COMMAND --help says more; gpufleet --version prints the version.

examples:
  gpufleet demo                                  no GPU needed; prints what to open
  gpufleet exporter                              metrics on http://localhost:9837/metrics
  gpufleet exporter --poll.interval=500ms --web.listen-address=127.0.0.1:9837
  gpufleet doctor                                why is a reading missing here?
  dmesg | gpufleet faults                        what happened, to which GPU, whose fault, what to do
  gpufleet check                                 may this node's GPUs get work?"""


def _unknown(word: str) -> str:
    if word.startswith("-"):
        return f"a command comes before {word}; did you mean gpufleet exporter {word}?"
    import difflib  # only a mistake pays for it

    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean gpufleet {near[0]}?" if near else "gpufleet --help lists them"
    return f"{word} is no command; {hint}"
