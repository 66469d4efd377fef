"""Files as people have them, and as they are broken."""

from __future__ import annotations

import json

import pytest

from gpufleet.quarantine.lint.manifests import MOST_BYTES, SLURM, SLURM_CONFIGURATION, ManifestError, read

JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "n"}}


def test_documents_of_a_file_with_their_lines() -> None:
    """Empty ones are none; a byte order mark and Windows line ends are no matter."""
    text = (
        "\ufeff# first\napiVersion: batch/v1\r\nkind: Job\n---\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n"
    )

    found = read(text.encode(), "f.yaml")

    assert [(each.line, each.group, each.kind, each.name) for each in found] == [
        (2, "batch", "Job", ""),
        (6, "", "Pod", "b"),
    ]


def test_json_with_tabs() -> None:
    """Which YAML would refuse."""
    (found,) = read(json.dumps(JOB, indent="\t").encode(), "f.json")

    assert (found.kind, found.name) == ("Job", "n/a")


def test_a_list_is_taken_apart() -> None:
    """As ``kubectl get -o yaml`` writes it, and one within another."""
    inner = {"apiVersion": "batch/v1", "kind": "JobList", "items": [JOB]}
    found = read(json.dumps({"apiVersion": "v1", "kind": "List", "items": [JOB, inner]}).encode(), "f.json")

    assert [each.name for each in found] == ["n/a", "n/a"]


def test_anchors_are_read() -> None:
    """YAML's own way to say a thing twice."""
    (found,) = read(b"apiVersion: v1\nkind: Pod\nmetadata: &m {name: a}\nspec: {<<: *m, b: 1}\n", "f.yaml")

    assert found.tree.at("spec").mapping() == {"name": "a", "b": 1}


def test_a_bomb_of_aliases_is_refused() -> None:
    """A few lines that stand for gigabytes, and one that stands for itself; neither takes time."""
    lines = ["a: &a [x]"] + [
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]" for n in range(20)
    ]

    with pytest.raises(ManifestError, match=r"f:9: stands for more than 1000000 values"):
        read("\n".join(["apiVersion: v1", "kind: Pod", *lines]).encode(), "f")
    with pytest.raises(ManifestError, match=r"f:1: \*a stands within what it stands for"):
        read(b"a: &a [*a]", "f")


def test_scripts_and_slurms_configuration() -> None:
    """They are told by what is in them, whatever they are called."""
    assert read(b"#!/bin/bash\n#SBATCH -n 1\n", "a")[0].kind == SLURM
    assert read(b"ClusterName=c\nRequeueExit=250\n", "a")[0].kind == SLURM_CONFIGURATION


REFUSED = [
    (b"a: b: c\n", "f:1: is no YAML"),
    (b"apiVersion: v1\nkind: Pod\nspec:\n  a: [1\n  b: 2\n", "f:5: is no YAML"),
    (b"a: {{ .Values.a }}\nb: {{- c }}\n", "render the template first (helm template)"),
    (b'{"apiVersion": "v1",\n "kind": "Pod" "a"}', "f:2: is no JSON"),
    (b"kind: Pod\n", "f:1: has no apiVersion or kind"),
    (b"apiVersion: v1\nkind: Pod\n---\njust words\n", "f:4: is no object of Kubernetes"),
    (b"[1, 2]", "f:1: is no object of Kubernetes"),
    (b"a: \xff\n", "f:1: is no UTF-8 text"),
    (b"x\n" * 3 + b"\xff", "f:4: is no UTF-8 text"),
    (b"apiVersion: v1\nkind: Pod\na: !!python/object:os.system x\n", "f:3: is no YAML"),
    (b"apiVersion: v1\nkind: List\nitems: {}\n", "f:1: items must be a list"),
    (b"[" * 100_000, "f:1: is nested too deeply"),
    (b"a: " + b"[" * 200 + b"]" * 200, "f:1: is nested too deeply"),
    (b"a: \x00\n", "is no YAML"),
    (b"? [a]\n: b\n", "is no YAML"),
    (b" " * (MOST_BYTES + 1), "f: is larger than 4 MiB"),
]


@pytest.mark.parametrize(("content", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused_names_file_line_and_remedy(content: bytes, said: str) -> None:
    """One sentence, no traceback."""
    with pytest.raises(ManifestError) as refusal:
        read(content, "f")

    assert said in str(refusal.value)


def test_nothing_is_nothing() -> None:
    """An empty file, or comments alone, hold no workload."""
    assert read(b"", "f") == read(b"# nothing\n", "f") == []
