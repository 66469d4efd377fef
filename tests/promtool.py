"""promtool, as tests ask it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Promtool:
    """One promtool binary."""

    path: Path

    def check_metrics(self, exposition: bytes) -> str:
        """All that ``promtool check metrics`` says of an exposition in the text format: empty when it is content."""
        return self._complaints("check", "metrics", stdin=exposition)

    def check_config(self, config: Path) -> str:
        """What ``promtool check config`` has against a configuration: empty when nothing."""
        return self._complaints("check", "config", str(config))

    def check_rules(self, rules: Path) -> str:
        """What ``promtool check rules`` has against a rule file, lint included: empty when nothing."""
        return self._complaints("check", "rules", "--lint=all", "--lint-fatal", str(rules))

    def test_rules(self, cases: Path) -> str:
        """What ``promtool test rules`` finds wrong in a file of cases: empty when nothing."""
        return self._complaints("test", "rules", str(cases))

    def _complaints(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run([self.path, *arguments], input=stdin, capture_output=True, check=False, timeout=60)
        said = done.stderr.decode().strip()
        if done.returncode != 0:
            return said or done.stdout.decode().strip() or f"exit status {done.returncode}"
        return said
