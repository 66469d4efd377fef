"""The project's own files, as its rules are checked on them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "exporter" / "gpufleet"


def tracked_files() -> list[Path]:
    """The files that git tracks and that are there, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in map(Path, filter(None, listed.split("\0"))) if (ROOT / path).is_file()]


def modules() -> list[Path]:
    """The package's modules."""
    return sorted(PACKAGE.rglob("*.py"))


def text_of(path: Path) -> str | None:
    """A tracked file as text; None when it is none."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
