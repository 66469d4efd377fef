"""What `make generate` writes: present, current, the same by every engine, and quickly made."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import _jsonnet
import pytest
import yaml

from tests.conftest import ROOT, program
from tests.mixin.rendering import MIXIN, generator, groups, rendered
from tests.promtool import Promtool

STYLE = ("-n", "2", "--max-blank-lines", "2", "--string-style", "s", "--comment-style", "s")
SOURCES = sorted(str(path.relative_to(ROOT)) for path in MIXIN.rglob("*.libsonnet"))
RULE_FILES = sorted(path.name for path in (ROOT / "alerts").glob("gpufleet-*.yaml"))


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """Text of each file as it is rendered now."""
    made: dict[str, str] = generator.render()
    return made


def test_committed_files_are_those_that_are_rendered(files: dict[str, str]) -> None:
    """A change of the mixin is committed with what comes of it, and nothing is left from before: `make generate`."""
    there = {str(path.relative_to(ROOT)) for pattern in generator.OURS for path in ROOT.glob(pattern)}

    assert there <= set(files)
    assert {name for name, text in files.items() if (ROOT / name).read_text(encoding="utf-8") != text} == set()


def test_go_jsonnet_renders_the_same_bytes(files: dict[str, str]) -> None:
    """Whoever renders with jb and Go's jsonnet gets what is committed."""
    assert generator.render("gojsonnet") == files


def test_a_second_writing_changes_nothing_and_removes_what_is_no_longer_made(files: dict[str, str]) -> None:
    """A group that was renamed does not leave its old file behind."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "alerts").mkdir()
        (root / "alerts" / "gpufleet-gone.yaml").write_text("groups: []\n")
        (root / "alerts" / "mine.yaml").write_text("groups: []\n")
        generator.write(files, root)

        assert not (root / "alerts" / "gpufleet-gone.yaml").exists()
        assert (root / "alerts" / "mine.yaml").exists()
        assert {name: (root / name).read_text(encoding="utf-8") for name in files} == files


def test_yaml_is_in_the_form_that_jsonnet_writes(files: dict[str, str]) -> None:
    """std.manifestYamlDoc, which users call, and the quicker writer here make the same bytes."""
    for name in ("alerts/gpufleet-hardware.yaml", "alerts/gpufleet-training.yaml"):
        content = json.dumps(yaml.safe_load(files[name]))
        snippet = f"std.manifestYamlDoc({content}, indent_array_in_object=false, quote_keys=false) + '\\n'"

        assert json.loads(_jsonnet.evaluate_snippet(name, snippet)) == files[name]


def test_yaml_and_json_hold_what_the_mixin_has(files: dict[str, str]) -> None:
    """The writer loses nothing."""
    written = [group for name in files if "gpufleet-" in name for group in yaml.safe_load(files[name])["groups"]]
    manifest = yaml.safe_load(files["alerts/prometheusrule.yaml"])

    assert sorted(written, key=lambda group: str(group["name"])) == sorted(groups(), key=lambda each: str(each["name"]))
    assert manifest["spec"]["groups"] == groups()
    for name, dashboard in rendered()["dashboards"].items():
        assert json.loads(files[f"dashboards/{name}"]) == dashboard


def test_the_mixin_has_exactly_the_four_fields_of_a_mixin() -> None:
    """What wraps mixins (kube-prometheus, mixtool, the generator of their site) finds what it looks for."""
    snippet = "std.objectFieldsAll(import 'mixin.libsonnet')"

    assert json.loads(_jsonnet.evaluate_snippet(str(MIXIN / "test.jsonnet"), snippet)) == [
        "_config",
        "grafanaDashboards",
        "prometheusAlerts",
        "prometheusRules",
    ]


def test_jsonnet_bundler_finds_no_dependency() -> None:
    """The mixin installs without fetching anything else."""
    wanted: dict[str, Any] = {"version": 1, "dependencies": [], "legacyImports": False}

    assert json.loads((MIXIN / "jsonnetfile.json").read_text()) == wanted


def test_every_key_of_the_configuration_says_when_to_change_it() -> None:
    """A comment stands in front of each key; the dashboards' addresses share one."""
    lines = (MIXIN / "config.libsonnet").read_text().splitlines()
    bare = [
        line.strip()
        for before, line in itertools.pairwise(lines)
        if re.match(r" {4,6}\w+: ", line) and not before.strip().startswith("//")
    ]

    assert bare == []


@pytest.mark.parametrize("name", SOURCES)
def test_jsonnet_is_formatted(name: str) -> None:
    """The formatter's word is final, as with Python."""
    formatter = program("jsonnetfmt")
    done = subprocess.run([formatter, *STYLE, ROOT / name], capture_output=True, check=True)

    assert done.stdout == (ROOT / name).read_bytes()


@pytest.mark.parametrize("name", RULE_FILES)
def test_promtool_has_nothing_against_any_rule(name: str, promtool: Promtool) -> None:
    """Debian's and the newest accept each file, lint included."""
    assert promtool.check_rules(ROOT / "alerts" / name) == ""


def test_groups_are_small_and_evaluated_often_enough() -> None:
    """At most 20 rules; an interval above five minutes leaves gaps for whoever looks back that far."""
    for group in groups():
        assert len(group["rules"]) <= 20
        assert len(group["name"]) <= 40
        assert group.get("interval", "1m") in {"1m", "2m", "5m"}
