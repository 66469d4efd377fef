"""House rules that a reader would otherwise have to notice."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.project.tree import PACKAGE, ROOT, modules, text_of, tracked_files

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_MODULE = 320
LONGEST_TEST_MODULE = 600
EMPTY_NAMES = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
POLLER_MAY_IMPORT = {"gpufleet", "pynvml"} | sys.stdlib_module_names


def imports(module: Path) -> Iterator[str]:
    """The top-level package of each import statement, wherever it stands in the module."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import hides from the contracts where it points"
            yield str(node.module).partition(".")[0]


def test_modules_stay_short() -> None:
    """A module that outgrows about 300 lines has more than one subject."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}

    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_test_modules_stay_readable() -> None:
    """A test module may hold a long table, not the tests of half the program."""
    tests = [ROOT / path for path in tracked_files() if path.parts[0] == "tests" and path.suffix == ".py"]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in tests}

    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_TEST_MODULE} == {}


def test_files_are_named_after_what_they_hold() -> None:
    """A name that fits everything says nothing."""
    words = {path: set(re.split(r"[-_./]", str(path).lower())) for path in tracked_files()}

    assert [path for path, found in words.items() if found & EMPTY_NAMES] == []


def test_classes_are_named_after_what_they_are() -> None:
    """A class named by an empty word hides what it is."""
    empty = re.compile(r"(Base|Common|Helper|Manager|Util)s?$")
    classes = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]

    assert [name for name in classes if empty.search(name)] == []


def test_every_package_says_what_belongs_there() -> None:
    """A package's docstring is the rule for what is put into it, and every folder of modules is a package."""
    folders = {path.parent for path in modules()}
    inits = [folder / "__init__.py" for folder in folders]

    assert [str(path.relative_to(ROOT)) for path in inits if not path.exists()] == []
    assert [str(path.relative_to(ROOT)) for path in inits if not ast.get_docstring(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize("part", ["model", "sources/nvml", "collect"])
def test_the_poller_imports_the_standard_library_and_pynvml_only(part: str) -> None:
    """What reads the driver runs wherever Python does: no compiled extension, no other library."""
    found = {f"{path.relative_to(ROOT)}: {name}" for path in (PACKAGE / part).rglob("*.py") for name in imports(path)}

    assert found
    assert {each for each in found if each.partition(": ")[2] not in POLLER_MAY_IMPORT} == set()


def test_importing_the_package_imports_nothing_else() -> None:
    """Each command pays for its own modules; the package itself costs nothing."""
    script = "import sys; before = set(sys.modules); import gpufleet; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "['gpufleet']"


def test_the_tree_speaks_of_the_project_alone() -> None:
    """No file names a package registry's host or a path of somebody's machine, and none leaves work for later."""
    # Put together here, so that this file passes its own test.
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "proxy.golang" + ".org", "crates" + ".io"]
    places = ["/work/" + "main", "/work/" + "shared", "../" + "shared", "/root" + "/", "/home" + "/"]
    later = [r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bHA" + r"CK\b", "simplified " + "for now", "for now, " + "we"]
    unwanted = re.compile("|".join([*map(re.escape, hosts + places), *later]))

    found = []
    for path in tracked_files():
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1):
            if match := unwanted.search(line):
                found.append(f"{path}:{number}: {match[0]}")

    assert found == []
