"""Whatever a file holds, the linter answers: a verdict or one sentence that says what is wrong."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Finding, Verdict
from gpufleet.quarantine.lint.kinds import judge
from gpufleet.quarantine.lint.manifests import ManifestError, read
from gpufleet.quarantine.lint.shell import Status, launcher_status
from gpufleet.quarantine.lint.text import as_json, as_text
from tests.conftest import ROOT
from tests.support.lint_changes import document

SHIPPED: list[dict[str, Any]] = [
    each
    for file in sorted((ROOT / "deploy" / "retries").glob("*.yaml"))
    for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]
WORKFLOW = {
    "apiVersion": "flyte.lyft.com/v1alpha1",
    "kind": "FlyteWorkflow",
    "tasks": {"t": {"container": {"args": ["a"], "resources": {"limits": [{"name": "GPU", "value": "1"}]}}}},
}
MANIFESTS = [*SHIPPED, WORKFLOW]
SCALARS = (
    st.none() | st.booleans() | st.integers(-1, 300) | st.floats() | st.text(max_size=6) | st.just("gpufleet run --")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def paths(value: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a manifest, but for what says which kind it is."""
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, each in items:
        path = (*above, key)
        if path[0] not in {"apiVersion", "kind"}:
            yield path
            yield from paths(each, path)


@given(data=st.data(), manifest=st.sampled_from(MANIFESTS), value=VALUES, admission=st.booleans())
def test_anything_may_stand_anywhere(
    data: st.DataObject, manifest: dict[str, Any], value: object, admission: bool
) -> None:
    """One value of a good manifest is another one: there is a verdict, and it can be printed."""
    changed = copy.deepcopy(manifest)
    *above, last = data.draw(st.sampled_from(sorted(paths(manifest), key=str)))
    at: Any = changed
    for key in above:
        at = at[key]
    at[last] = value
    documents = tuple(map(document, (changed, *SHIPPED)))

    found = judge(documents[0], Facts(documents, admission=admission))

    assert isinstance(found, Finding)
    assert found.judgement.reason
    assert as_json([found])
    assert as_text([found])


@given(text=st.text(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"#% \t\n", max_size=60))
@example("? ? ?\n")
@example("--- !!binary |\n  a")
@example("a: 2026-99-99")
@example("a: !!int x")
@example('"\\ud800"')
def test_any_text_is_read_or_refused(text: str) -> None:
    """With the file's name; nothing else comes out."""
    refusal = ""
    found = []
    try:
        found = read(text.encode("utf-8", "surrogatepass"), "f")
    except ManifestError as error:
        refusal = str(error)
    assert refusal == "" or refusal.startswith("f:")
    for each in found:
        judge(each, Facts(tuple(found)))


WORDS = st.sampled_from(
    [
        *("gpufleet run -- a", "set -e", "exec ", "srun ", "if true; then", "fi", "for i in 1; do", "done", "|| true"),
        *("; b", "\n", " ", "# ", "'", '"', "\\", "<<E", "E", "exit $?", "s=$?", "exit $s", "&", "| c", "$(", ")", "{"),
    ]
)


@given(script=st.lists(WORDS, max_size=12).map("".join))
def test_any_script_has_a_status(script: str) -> None:
    """And one without the launcher has none."""
    found = launcher_status(script)

    assert found is Status.ABSENT or "gpufleet run" in script.replace("\\\n", " ")


def test_what_ships_is_what_is_changed() -> None:
    """All of it is safe as it is; with the webhook, the one without a launcher, too."""
    documents = tuple(map(document, SHIPPED))
    facts = Facts(documents, admission=True)

    assert {found.verdict for each in documents if isinstance(found := judge(each, facts), Finding)} == {Verdict.SAFE}


LINES = st.sampled_from(
    [
        *("gpufleet run -- a", "gpufleet run -- a", "exec gpufleet run -- a", "srun gpufleet run \\\n  -- a"),
        *(
            "gpufleet run -- a || b",
            "gpufleet run -- a && b",
            "gpufleet run -- a; b",
            "gpufleet run -- a | c",
            "b && srun",
        ),
        *("gpufleet run -- a &", "b || gpufleet run -- a", "b; gpufleet run -- a", "( gpufleet run -- a )"),
        *("set -e", "set +e", "b", "wait", "s=$?", "exit $s", "exit $?", 'exit "$s"', "! gpufleet run -- a", "exit"),
        *("if gpufleet run -- a; then", "if b; then", "else", "fi", "for i in 1 2; do", "done", "f() {", "}", "f"),
        *(
            "trap 'exit 7' EXIT",
            "echo 'gpufleet run -- a'",
            "# gpufleet run -- a",
            "cat <<E\ngpufleet run -- a\nE",
            "(",
            ")",
        ),
        *("{", "while gpufleet run -- a; do", "case x in x) gpufleet run -- a;; esac", "gpufleet run -- a # last"),
        *(
            "result=$(gpufleet run -- a)",
            "eval gpufleet run -- a",
            "set -e; gpufleet run -- a",
            "gpufleet run -- a >log 2>&1",
        ),
    ]
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, bool]]:
    """What a real shell ends with, and whether the launcher was run: one that always says 250."""
    folder = tmp_path_factory.mktemp("bin")
    mark = folder / "mark"
    for name, text in {
        "gpufleet": f": >>{mark}\nexit 250",
        "srun": 'exec "$@"',
        "b": "exit 0",
        "c": "exec cat >/dev/null",
        "cat": "exec /bin/cat",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
        (folder / name).chmod(0o755)

    def run(script: str) -> tuple[int, bool]:
        mark.unlink(missing_ok=True)
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            env={"PATH": str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        return done.returncode, mark.exists()

    return run


@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(lines=st.lists(LINES, min_size=1, max_size=5))
def test_a_status_that_is_called_passed_is_the_shells(
    shell: Callable[[str], tuple[int, bool]], lines: list[str]
) -> None:
    """Never the other way: a script of which it is said that it ends with the launcher's status does so."""
    script = "\n".join(lines)
    assume(launcher_status(script) is Status.PASSED)
    assume("while gpufleet" not in script)

    status, was_run = shell(script)

    # What a shell refuses (2) runs nowhere.
    assert status == 250 or not was_run or status == 2, script
