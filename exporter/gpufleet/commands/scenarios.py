"""Flags that the simulating commands have in common, and the scenario that they name."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.simulate.scenario import Scenario, ScenarioError
from gpufleet.simulate.scenario_file import default_scenario, read_scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.commands.flags import FlagParser

_SLOWEST, _FASTEST = 0.01, 3600.0


def add_scenario_flags(parser: FlagParser) -> None:
    """``--scenario.file``, ``--scenario.speed`` and ``--seed``."""
    parser.add_argument(
        "--scenario.file",
        dest="scenario_file",
        type=Path,
        metavar="PATH",
        help="scenario (YAML) in place of the default",
    )
    parser.add_argument(
        "--scenario.speed",
        dest="scenario_speed",
        type=_speed,
        default=1.0,
        metavar="FACTOR",
        help="how many times faster than real time the scenario runs, counters included (default 1)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        default=0,
        metavar="NUMBER",
        help="another number makes other UUIDs, mishaps and noise (default 0)",
    )


def scenario_of(arguments: argparse.Namespace, parser: FlagParser) -> Scenario:
    """The scenario that was asked for; ends the process with status 2 and the reasons when it is refused."""
    try:
        return default_scenario() if arguments.scenario_file is None else read_scenario(arguments.scenario_file)
    except ScenarioError as error:
        parser.error(f"--scenario.file: {error}")


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not _SLOWEST <= speed <= _FASTEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no speed: write a number from {_SLOWEST:g} to {_FASTEST:g}")
    return speed


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > len(str(high)) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted: write a whole number from {low} to {high}")
        return int(text)

    return parse
