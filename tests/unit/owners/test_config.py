"""The file with presets of one's own and the labels that are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpufleet.owners.config import OwnersConfig, OwnersConfigError, parse_owners_config, read_owners_config
from gpufleet.owners.presets import Key, Preset, Where

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
presets:
  ours:
    project: [label:example.com/team, namespace]
    run: label:example.com/run
    task: [annotation:example.com/step]
    rank: [label:rank]
    attempt: [label:try]
  fallback:
    place: after
    run: [label:app]
labels: [example.com/team, app.kubernetes.io/*, example.com/team]
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    """Presets in their order, and labels once each."""
    file = tmp_path / "owners.yaml"
    file.write_text(FILE)

    assert read_owners_config(file) == OwnersConfig(
        before=(
            Preset(
                "ours",
                run=(Key(Where.LABEL, "example.com/run"),),
                project=(Key(Where.LABEL, "example.com/team"), Key(Where.NAMESPACE)),
                task=(Key(Where.ANNOTATION, "example.com/step"),),
                rank=(Key(Where.LABEL, "rank"),),
                attempt=(Key(Where.LABEL, "try"),),
            ),
        ),
        after=(Preset("fallback", run=(Key(Where.LABEL, "app"),)),),
        labels=("example.com/team", "app.kubernetes.io/*"),
    )


@pytest.mark.parametrize("content", ["", "presets:\n", "presets: {}\n", "# nothing\n"])
def test_a_file_that_says_nothing_changes_nothing(content: str) -> None:
    """As without a file."""
    assert parse_owners_config(content.encode(), "owners.yaml") == OwnersConfig()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("preset: {}", "owners.yaml:1: preset: is not known; did you mean presets?"),
        ("zzz: 1", "owners.yaml:1: zzz: is not known; known are presets, labels"),
        (
            "presets:\n  a:\n    run: [label:x]\n    projct: namespace",
            "owners.yaml:4: presets.a.projct: is not known; did you mean project?",
        ),
        ("presets:\n  a:\n    task: [label:x]", "owners.yaml:3: presets.a: has no run; say which key names the run"),
        (
            "presets:\n  a:\n    run: [team]",
            "owners.yaml:3: presets.a.run: 'team' is no place of a value; write label:",
        ),
        ("presets:\n  a:\n    run: ['label:']", "owners.yaml:3: presets.a.run: 'label:' is no place of a value"),
        ("presets:\n  a:\n    run: [retry]", "owners.yaml:3: presets.a.run: 'retry' is no place of a value"),
        ("presets:\n  a:\n    run: []", "owners.yaml:3: presets.a.run: is empty"),
        ("presets:\n  a: label:x", "owners.yaml:2: presets.a: is no preset; write project, run,"),
        ("presets:\n  a:\n    run: {b: c}", "owners.yaml:3: presets.a.run.b: is no preset"),
        ("presets: [a]", "owners.yaml:1: presets: is no mapping"),
        ("presets: yes", "owners.yaml:1: presets: is no mapping"),
        (
            "presets:\n  a:\n    run: namespace\n    place: first",
            "owners.yaml:4: presets.a.place: is neither before nor",
        ),
        ("labels: ['*team']", "owners.yaml:1: labels: '*team' is no label's name"),
        ("labels: ''", "owners.yaml:1: labels: '' is no label's name"),
        ("labels:\n  team: x", "owners.yaml:2: labels.team: is not known"),
        ("labels: [a]\nlabels: [b]", "owners.yaml:2: labels: is there twice"),
        ("labels: [", "owners.yaml:"),
        ("- a", "owners.yaml:1: is no mapping; write keys and values, such as labels: [example.com/team]"),
    ],
)
def test_what_is_refused(content: str, message: str) -> None:
    """With file, line, key and what to write instead."""
    with pytest.raises(OwnersConfigError) as refused:
        parse_owners_config(content.encode(), "owners.yaml")

    assert str(refused.value).startswith(message)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """The message names the file and the flag."""
    with pytest.raises(OwnersConfigError, match=r"none\.yaml: can't be read: .*owners\.config\.file"):
        read_owners_config(tmp_path / "none.yaml")

    (tmp_path / "large.yaml").write_bytes(b"#" * 70_000)
    with pytest.raises(OwnersConfigError, match="larger than 65536 bytes"):
        read_owners_config(tmp_path / "large.yaml")


def test_too_many_presets_are_refused() -> None:
    """Each is tried for each pod."""
    content = "presets:\n" + "".join(f"  p{number}: {{run: namespace}}\n" for number in range(65))

    with pytest.raises(OwnersConfigError, match="presets: are 65; 64 are the most"):
        parse_owners_config(content.encode(), "owners.yaml")
