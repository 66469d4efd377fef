"""What the linter tells people to write, written: a manifest with its changes made."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import WHOLE, Change, Finding, Judgement
from gpufleet.quarantine.lint.kinds import judge
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.tree import Tree


def applied(manifest: dict[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """A copy with each change's key set; missing mappings above it are made."""
    made: dict[str, Any] = copy.deepcopy(manifest)
    for change in changes:
        assert change.path != WHOLE
        at: Any = made
        for key in change.path[:-1]:
            at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
        at[change.path[-1]] = change.value
    return made


def judged(manifest: dict[str, Any], *beside: dict[str, Any], admission: bool = False) -> Judgement:
    """What is found of a manifest that lies beside others."""
    documents = tuple(map(document, (manifest, *beside)))
    found = judge(documents[0], Facts(documents, admission=admission))
    assert isinstance(found, Finding)
    return found.judgement


def document(manifest: dict[str, Any]) -> Document:
    """A manifest as if it had been read."""
    group = str(manifest["apiVersion"]).rpartition("/")[0]
    return Document("manifest.yaml", 1, group, str(manifest["kind"]), Tree(manifest))
