"""The files around the package: image, change log, make targets, line ends."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.project.tree import ROOT

PORT = "9837"
TARGETS = ("venv", "demo", "test", "lint", "bench", "generate", "clean")


def dockerfile() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, continued lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = filter(None, (line.strip() for line in re.sub(r"\\\n", " ", text).splitlines()))
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> dict[str, list[str]]:
    """The arguments of each instruction in the stage that becomes the image."""
    instructions = dockerfile()
    start = max(index for index, (word, _) in enumerate(instructions) if word == "FROM")
    stage: dict[str, list[str]] = {}
    for word, rest in instructions[start:]:
        stage.setdefault(word, []).append(rest)
    return stage


def test_the_image_copies_what_is_there_and_sent_to_the_builder() -> None:
    """Each path that COPY takes from the tree exists, and .dockerignore, which leaves out all else, names it."""
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE))
    copied = [
        source
        for word, rest in dockerfile()
        if word == "COPY" and "--from=" not in rest
        for source in shlex.split(rest)[:-1]
    ]

    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in sent


def test_the_image_does_not_run_as_root() -> None:
    """The user is a number other than 0, so that Kubernetes can tell, and owns the state folder."""
    stage = last_stage()
    (user,) = stage["USER"]

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    uid, gid = user.split(":")
    assert any(f"-o {uid} -g {gid}" in run and "/var/lib/gpufleet" in run for run in stage["RUN"])
    assert stage["VOLUME"] == ["/var/lib/gpufleet"]


def test_the_image_checks_its_health_on_the_port_it_serves() -> None:
    """The health check asks the path and port of the exporter, with Python alone: the image has no curl."""
    stage = last_stage()
    (check,) = stage["HEALTHCHECK"]

    assert stage["EXPOSE"] == [PORT]
    assert any(f"http://127.0.0.1:{PORT}/-/healthy" in each for each in stage["ENV"])
    assert "urllib.request" in check
    compile(re.findall(r'"([^"]*)"', check)[-1], "HEALTHCHECK", "exec")


def test_the_image_asks_for_every_gpu_and_nvml_only() -> None:
    """The container toolkit injects the driver by these two, and only on a glibc base."""
    stage = last_stage()
    environment = " ".join(stage["ENV"])

    assert "NVIDIA_VISIBLE_DEVICES=all" in environment
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in environment
    assert "slim" in stage["FROM"][0]
    assert "alpine" not in (ROOT / "Dockerfile").read_text()
    assert stage["ENTRYPOINT"] == ['["gpufleet"]']
    assert stage["CMD"] == ['["exporter"]']


def test_the_image_names_no_architecture() -> None:
    """The same file builds for every platform."""
    assert not re.search(r"amd64|x86_64|arm64|aarch64|--platform", (ROOT / "Dockerfile").read_text())


def test_the_change_log_has_room_for_the_next_change() -> None:
    """Keep a Changelog: an Unreleased section first, known kinds of changes, and an entry for what is there."""
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    kinds = re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)

    assert headings[0] == "[Unreleased]"
    assert kinds
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_target_and_says_what_it_does(target: str) -> None:
    """Each target is there, and `make` alone explains it."""
    said = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    dry = subprocess.run(["make", "-n", target], cwd=ROOT, check=False, capture_output=True, text=True)

    assert re.search(rf"^make {target} +\S", said, flags=re.MULTILINE)
    assert dry.returncode == 0, dry.stderr


def test_byte_for_byte_files_keep_their_line_ends() -> None:
    """Git changes no byte of golden and generated files, whatever the machine's settings."""
    files = [
        "tests/golden/any.prom",
        "docs/metrics.md",
        "dashboards/any.json",
        "alerts/any.yaml",
        "exporter/gpufleet/cli.py",
    ]
    asked = subprocess.run(
        ["git", "check-attr", "text", "eol", "--", *files], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    attributes = dict(line.rsplit(": ", 1) for line in asked.splitlines())

    for path in files[:-1]:
        assert attributes[f"{path}: text"] == "unset"
    assert attributes["exporter/gpufleet/cli.py: eol"] == "lf"


def test_generated_files_are_marked_as_such() -> None:
    """A reviewer's tool folds what `make generate` wrote."""
    assert "docs/metrics.md -text diff linguist-generated" in (ROOT / ".gitattributes").read_text()


@pytest.mark.parametrize("script", [".ci/run", "tools/make-venv", "tools/install-packages", "tools/build-prometheus"])
def test_scripts_run_strictly_and_parse(script: str) -> None:
    """Each script stops at its first failure, is executable and has no syntax error."""
    path = ROOT / script

    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", path], check=True)


def test_ci_runs_what_a_person_runs() -> None:
    """CI is `make test` with CI=true; nothing is checked there that a person can't check."""
    lines = [line for line in Path(ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]

    assert "export CI=true" in lines
    assert lines[-1] == "exec make test </dev/null"


def test_the_readme_answers_the_first_questions() -> None:
    """How to try it, how to run it, where the metrics are described, and what has not been proved yet."""
    readme = (ROOT / "README.md").read_text()

    for wanted in (
        "make demo",
        "make test",
        "gpufleet exporter",
        "gpufleet doctor",
        PORT,
        "docs/metrics.md",
        "tests/gpu",
    ):
        assert wanted in readme
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", readme):
        assert (ROOT / target).exists(), target
