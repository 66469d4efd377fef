"""The import contracts of pyproject.toml: they hold, and each would notice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

BREACHES = {
    "facts flow one way: sources, snapshot, metrics, web": ("sources/__init__.py", "gpufleet.metrics.catalog"),
    "web is shared by both programs and knows no GPUs": ("web/server.py", "gpufleet.model.gpu"),
    "metrics see snapshots, not sources": ("metrics/catalog.py", "gpufleet.sources.nvml"),
    "sources know neither web nor settings: what they need is an argument": ("sources/nvml/calls.py", "gpufleet.web"),
    "pure modules touch nothing": ("model/gpu.py", "socket"),
    "the poller needs the standard library and pynvml only": ("sources/nvml/calls.py", "requests"),
    "the launcher needs the standard library only": ("launch/asking.py", "requests"),
    "NVML and udev have named doors": ("collect/__init__.py", "pynvml"),
    "the Kubernetes client has one door": ("quarantine/decide.py", "kubernetes"),
    "the exporter does not know the quarantine": ("collect/__init__.py", "gpufleet.quarantine"),
    "the quarantine does not know the exporter": ("quarantine/__init__.py", "gpufleet.collect"),
}


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of ``root``/pyproject.toml on the package in ``root``/exporter."""
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--config", root / "pyproject.toml"],
        cwd=root,
        # Its banner draws by the terminal's width and in colour; neither is wanted in what the test reads.
        env={**os.environ, "PYTHONPATH": str(root / "exporter"), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_contracts_hold() -> None:
    """Facts flow one way in the package as it is."""
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    for contract in BREACHES:
        assert f"{contract} KEPT" in done.stdout


@pytest.mark.parametrize("contract", BREACHES)
def test_a_breach_is_noticed(contract: str, tmp_path: Path) -> None:
    """One import against the flow fails its contract."""
    module, imported = BREACHES[contract]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "exporter" / "gpufleet"
    shutil.copytree(ROOT / "exporter" / "gpufleet", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("quarantine", "collect"):
        (package / folder).mkdir(exist_ok=True)
        (package / folder / "__init__.py").touch()
    with (package / module).open("a") as broken:
        broken.write(f"\nimport {imported}\n")

    done = lint_imports(tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


def test_a_new_module_must_be_given_its_place(tmp_path: Path) -> None:
    """The layers list every module of the package's top level."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "exporter" / "gpufleet"
    shutil.copytree(ROOT / "exporter" / "gpufleet", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "newcomer.py").touch()

    done = lint_imports(tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "newcomer" in done.stdout
