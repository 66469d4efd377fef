"""``gpufleet quarantine lint``: what it prints and how it ends; the manifests that ship are safe."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.cli import main as gpufleet
from gpufleet.quarantine.lint.command import main
from gpufleet.quarantine.lint.finding import Verdict
from gpufleet.quarantine.lint.kinds import KINDS
from tests.conftest import ROOT
from tests.support.lint_changes import judged

RETRIES = ROOT / "deploy" / "retries"
MANIFESTS = sorted(RETRIES.glob("*.yaml"))
ADMISSION = "job-with-admission.yaml"
PLAIN = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: research}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: main, image: i, command: [python, train.py], resources: {limits: {nvidia.com/gpu: 1}}}
---
apiVersion: v1
kind: Service
metadata: {name: other}
"""
SAID = """\
job.yaml:1: Job research/train: cannot be saved
  container main is not started by the launcher: what it ends with counts towards spec.backoffLimit (0)
  key: spec.template.spec.containers[0].command
  set spec.podFailurePolicy, below spec:
    podFailurePolicy:
      rules:
        - action: Ignore
          onExitCodes:
            containerName: main
            operator: In
            values: [250]
        - action: Ignore
          onPodConditions:
            - type: DisruptionTarget
  set spec.template.spec.containers[0].command, below spec.template.spec.containers[0]:
    command: [gpufleet, run, --, python, train.py]
job.yaml:12: Service other: skipped: no kind that is known here
1 cannot be saved, 1 skipped
"""


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Job that a fault would end, and something else."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(PLAIN, encoding="utf-8")
    return "job.yaml"


def test_it_says_what_is_missing(plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Verdict, reason, key and the YAML to add; 1 because something costs."""
    assert gpufleet(["quarantine", "lint", plain]) == 1
    assert capsys.readouterr().out == SAID


def test_standard_input_and_json(
    plain: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for a program."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(plain).read_bytes())))

    assert main(["--format=json", "-"]) == 1

    told = json.loads(capsys.readouterr().out)
    (workload,) = told["workloads"]
    assert (workload["file"], workload["verdict"]) == ("standard input", "cannot be saved")
    assert workload["changes"][1]["value"] == ["gpufleet", "run", "--", "python", "train.py"]
    assert [each["kind"] for each in told["skipped"]] == ["Service"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: FILE"),
        (["none.yaml"], "none.yaml: can't be read: No such file or directory"),
        (["broken.yaml"], "broken.yaml:2: is no YAML"),
        (["--format=xml", "job.yaml"], "invalid choice"),
    ],
)
def test_what_is_refused(plain: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """2, and a sentence on standard error."""
    assert plain
    Path("broken.yaml").write_text("a:\n  b: [1\n", encoding="utf-8")

    assert main(arguments) == 2

    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err.replace("broken.yaml:3", "broken.yaml:2")


def test_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """And ends well."""
    assert main(["--help"]) == 0

    told = capsys.readouterr().out
    assert [kind for _, kind in KINDS if kind not in told.replace("\n", " ")] == []


def test_other_kinds_alone_are_no_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are told, and cost nothing."""
    file = tmp_path / "a.yaml"
    file.write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n", encoding="utf-8")

    assert main([str(file)]) == 0
    assert capsys.readouterr().out == f"{file}:1: apps/Deployment web: skipped: no kind that is known here\n1 skipped\n"


@pytest.mark.parametrize(
    "file", [each for each in MANIFESTS if each.name != ADMISSION], ids=lambda file: str(file.name)
)
def test_each_manifest_that_ships_is_safe(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is."""
    assert main([str(file)]) == 0, capsys.readouterr().out


def test_the_one_for_the_admission_webhook_is_safe_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And is not without."""
    assert main(["--admission", str(RETRIES / ADMISSION)]) == 0
    assert main([str(RETRIES / ADMISSION)]) == 1
    assert "cannot be saved" in capsys.readouterr().out


def test_slurms_script_is_safe_beside_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Both ship."""
    assert main([str(RETRIES / "train.sbatch"), str(RETRIES / "requeue-exit.conf")]) == 0
    assert "requeue-exit.conf requeues it" in capsys.readouterr().out


def test_there_is_one_for_every_kind() -> None:
    """That runs something: what Flyte makes of a workflow is nobody's to write."""
    shipped = {each["kind"] for file in MANIFESTS for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))}

    assert {kind for group, kind in KINDS if group} - {"FlyteWorkflow", "TrainingRuntime"} <= shipped


def without(value: Any, *keys: str) -> Any:  # noqa: ANN401 - a manifest's values
    """A manifest without these keys, wherever they are."""
    if isinstance(value, dict):
        return {key: without(each, *keys) for key, each in value.items() if key not in keys}
    return [without(each, *keys) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["job", "indexed-job", "cronjob", "jobset", "pytorchjob", "volcano"])
def test_without_its_policy_each_says_what_is_missing(name: str) -> None:
    """The key is named, and what it must hold is what ships."""
    manifest = yaml.safe_load((RETRIES / f"{name}.yaml").read_text(encoding="utf-8"))

    policy = "restartPolicy" if name == "pytorchjob" else "podFailurePolicy"
    found = judged(without(manifest, policy, "rules", "policies"))

    assert found.verdict in {Verdict.COSTS, Verdict.LOST}
    assert found.changes
    for change in found.changes:
        at: Any = manifest
        for key in change.path:
            at = at[key]
        shipped = without(at, "name")
        assert without(change.value, "name") == shipped, change.where


def test_names_change_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever wrote the file."""
    file = tmp_path / "a.yaml"
    file.write_text('apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: "a\\e[2J\\nb"}\n', encoding="utf-8")

    assert main([str(file)]) == 0
    assert "apps/Deployment a\\x1b[2J\\nb: skipped" in capsys.readouterr().out


def test_values_that_json_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A date in a rule is told as text."""
    file = tmp_path / "a.yaml"
    rule = "podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: A, since: 2026-01-01}]}]}"
    file.write_text(PLAIN.partition("---")[0].replace("backoffLimit: 0", rule), encoding="utf-8")

    assert main(["--format=json", str(file)]) == 1
    assert '"since": "2026-01-01"' in capsys.readouterr().out
