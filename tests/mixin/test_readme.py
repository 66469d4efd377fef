"""What the README says to do with the mixin works as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.conftest import ROOT, program
from tests.mixin.rendering import groups
from tests.promtool import Promtool

README = (ROOT / "README.md").read_text()


def test_the_jsonnet_path_renders(tmp_path: Path, promtool: Promtool) -> None:
    """With Debian's jsonnet, where jsonnet-bundler would have put the mixin."""
    (program_text,) = re.findall(r"```jsonnet\n// gpus\.jsonnet\n(.*?)```", README, re.DOTALL)
    (command,) = re.findall(r"^(jsonnet -J vendor -m out gpus\.jsonnet) ", README, re.MULTILINE)
    vendored = tmp_path / "vendor/github.com/gpufleet/gpufleet"
    vendored.mkdir(parents=True)
    (vendored / "mixin").symlink_to(ROOT / "mixin")
    (tmp_path / "gpus.jsonnet").write_text(program_text)
    (tmp_path / "out").mkdir()

    _, *arguments = command.split()
    subprocess.run([program("jsonnet"), *arguments], check=True, cwd=tmp_path, capture_output=True, timeout=60)

    rules = tmp_path / "out/rules.yaml"
    assert promtool.check_rules(rules) == ""
    assert "DCGM_FI_PROF_SM_UTIL_RATIO" in rules.read_text()
    dashboards = {file.name: json.loads(file.read_text()) for file in (tmp_path / "out").glob("*.json")}
    assert {f"dashboards/{name}" for name in dashboards} == {
        f"dashboards/{file.name}" for file in (ROOT / "dashboards").glob("*.json")
    }
    (cluster,) = [each for each in dashboards["fleet.json"]["templating"]["list"] if each["name"] == "cluster"]
    assert cluster["hide"] == 0


def test_every_file_that_it_names_is_there() -> None:
    """Links to files of the repository, and the files to copy."""
    linked = re.findall(r"\]\(((?:mixin|docs|deploy|dashboards|alerts)/[^)#]*)\)", README)
    named = re.findall(r"`((?:alerts|dashboards)/[^`]+)`", README)
    assert linked
    assert named
    for name in [*linked, *named]:
        assert list(ROOT.glob(name)), name


def spelt_out(name: str) -> set[str]:
    """``a:{b,c}_d`` as ``a:b_d`` and ``a:c_d``; a single word in braces at the end is a label."""
    found = re.search(r"\{([^{}]*)\}", name)
    if found is None:
        return {name}
    if "," not in found[1]:
        return {name[: found.start()]}
    return {
        each
        for word in found[1].split(",")
        for each in spelt_out(f"{name[: found.start()]}{word}{name[found.end() :]}")
    }


def test_every_recorded_series_that_the_guide_lists_is_recorded() -> None:
    """One that was renamed or dropped is no longer in the table."""
    guide = (ROOT / "mixin" / "README.md").read_text().partition("## Recorded series")[2].partition("\n## ")[0]
    listed = {name for text in re.findall(r"`([a-z_{][^` …]*:[^` …]*)`", guide) for name in spelt_out(text)}
    recorded = {rule["record"] for group in groups() for rule in group["rules"] if "record" in rule}

    assert len(listed) > 50
    assert listed - recorded == set()
