"""Flags of the commands: the options that a command takes, as an argument parser with near-miss suggestions."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from gpufleet import __version__
from gpufleet.option_table import OPTIONS
from gpufleet.settings import Settings, SettingsError, did_you_mean, read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpufleet.options import Option

USAGE = 2
"""Exit status of a command line or configuration that is refused."""


class FlagParser(argparse.ArgumentParser):
    """An ArgumentParser whose flags are options of :mod:`gpufleet.option_table`, beside any that the command adds.

    Prometheus's conventions: long flags with dots, no abbreviations (a new flag would change what one means).
    """

    def __init__(self, command: str, summary: str, options: Sequence[Option] = OPTIONS, *, examples: str = "") -> None:
        super().__init__(
            prog=f"gpufleet {command}",
            description=summary,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.options = tuple(options)
        self.add_argument("--version", action="version", version=f"gpufleet {__version__}")
        for option in self.options:
            shown = f"{option.help} (default {option.default})" if option.default else option.help
            self.add_argument(
                f"--{option.name}",
                dest=option.name,
                metavar=option.kind.metavar,
                nargs="?" if option.kind.is_switch else None,
                const="true" if option.kind.is_switch else None,
                action="append",
                default=[],
                help=shown.replace("%", "%%"),
            )

    def read(self, argv: Sequence[str]) -> tuple[argparse.Namespace, Settings]:
        """The command's own arguments and the settings; ends the process with status 2 and the reasons when refused."""
        arguments = self.parse_args(argv)
        flags = {option.name: getattr(arguments, option.name) for option in self.options}
        try:
            settings = read_settings(flags, environ=os.environ, host_name=os.uname().nodename)
        except SettingsError as error:
            for refusal in error.refusals:
                print(f"{self.prog}: {refusal}", file=sys.stderr)
            raise SystemExit(USAGE) from None
        return arguments, settings

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """As in argparse, but an unknown flag is answered with the near one."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
            hint = did_you_mean(word, flags) if word.startswith("-") else ""
            kind = "flag" if word.startswith("-") else "argument"
            self.error(f"{word} is no {kind} of {self.prog}{hint or f'; {self.prog} --help lists them'}")
        return found

    def error(self, message: str) -> NoReturn:
        """One line on standard error, without the synopsis that would push it off the screen."""
        remedy = f"; {self.prog} --help says what it takes" if message.startswith("argument ") else ""
        self.exit(USAGE, f"{self.prog}: {message}{remedy}\n")
