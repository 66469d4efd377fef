"""What a user installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

import gpufleet
from tests.project.tree import PACKAGE, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PERMISSIVE_RUNTIME = {
    "bcrypt",
    "h2",
    "msgspec",
    "nvidia-ml-py",
    "prometheus-client",
    "pyudev",
    "PyYAML",
    "requests",
    "stamina",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as built from the tree, without a network."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_is_pure_python(wheel: Path) -> None:
    """One wheel serves every architecture and Python: there is no compiled extension in it."""
    assert wheel.name == f"gpufleet-{gpufleet.__version__}-py3-none-any.whl"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every file of the package is in the wheel, and no test, capture or tool."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {
        f"gpufleet/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert inside == package
    assert "gpufleet/py.typed" in inside


def test_the_installed_program_runs_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    """The wheel is complete: its program starts where nothing but the wheel and its libraries are."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    where = "import gpufleet.cli; print(gpufleet.__file__)"
    run = [sys.executable, "-P", "-c", where], [sys.executable, "-P", "-m", "gpufleet", "--version"]
    place, version = (
        subprocess.run(each, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout.strip()
        for each in run
    )

    assert place == str(tmp_path / "gpufleet" / "__init__.py")
    assert version == f"gpufleet {gpufleet.__version__}"


def test_dependencies_are_the_agreed_ones() -> None:
    """A new runtime dependency is a decision: its licence, its memory and who else brings it have been looked at."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {str(re.match(r"[A-Za-z0-9-]+", each)[0]) for each in project["dependencies"]}  # type: ignore[index]

    assert names == PERMISSIVE_RUNTIME
    assert not any("nvitop" in each for extra in ("quarantine", "mixin", "dev") for each in extras[extra])
    assert project["license"] == "Apache-2.0"
    assert project["requires-python"] == ">=3.11"


def test_the_licence_is_apache_2() -> None:
    """The full text is there, as the licence itself asks."""
    text = (ROOT / "LICENSE").read_text()

    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
