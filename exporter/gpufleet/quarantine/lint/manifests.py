"""Files as documents: YAML of several documents, JSON, batch scripts. Pure.

Anchors and merge keys are YAML's own way to say a thing twice, so they are read; what is not plain data is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpufleet.quarantine.lint.tree import ShapeError, Tree

MOST_BYTES = 4 << 20
_DEEPEST = 64
_MOST_VALUES = 1_000_000
"""With every alias written out. A file of the most bytes has fewer."""
SLURM = "Slurm batch script"
SLURM_CONFIGURATION = "slurm.conf"


class ManifestError(Exception):
    """The file cannot be read as what it seems to be; the message names file, line and remedy."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file, or a script."""

    file: str
    line: int
    """Where it begins, counted from 1."""
    group: str
    """Of the API: ``batch``, empty for the core and for scripts."""
    kind: str
    tree: Tree = field(default_factory=Tree)
    script: str = ""
    """The text of a script."""

    @property
    def name(self) -> str:
        """``namespace/name``, what of it there is."""
        meta = self.tree.value.get("metadata") if isinstance(self.tree.value, dict) else None
        if not isinstance(meta, dict):
            return ""
        own = meta.get("name") or meta.get("generateName")
        return "/".join(str(part) for part in (meta.get("namespace"), own) if part)

    @property
    def own_name(self) -> str:
        """Without its namespace."""
        return self.tree.at("metadata", "name").text()


def read(content: bytes, file: str) -> list[Document]:
    """Documents of a file that messages call ``file``; a list of objects (``kind: List``) is taken apart.

    Raises:
        ManifestError: it is no text, no YAML or JSON, or holds something that is no object of Kubernetes.
    """
    if len(content) > MOST_BYTES:
        raise ManifestError(f"{file}: is larger than {MOST_BYTES >> 20} MiB; this is no manifest")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ManifestError(f"{file}:{line}: is no UTF-8 text; write it as such") from None
    if _is_script(text):
        return [Document(file, 1, "", SLURM, script=text)]
    if _is_slurm_configuration(text):
        return [Document(file, 1, "", SLURM_CONFIGURATION, script=text)]
    return [each for line, value in _values(text, file) for each in _documents(value, file, line)]


def _is_script(text: str) -> bool:
    """A script begins with its interpreter; one without directives is judged too, when it asks Slurm for something."""
    return text.startswith("#!") or any(line.startswith("#SBATCH") for line in text.splitlines()[:200])


def _is_slurm_configuration(text: str) -> bool:
    lines = [line.strip().lower() for line in text.splitlines()]
    words = ("clustername=", "slurmctldhost=", "requeueexit=", "requeueexithold=")
    return any(line.startswith(words) for line in lines)


def _values(text: str, file: str) -> Iterator[tuple[int, Any]]:
    if text.lstrip().startswith(("{", "[")):
        try:
            yield 1, json.loads(text)
        except json.JSONDecodeError as error:
            # A mapping in braces is YAML, too; what is neither gets JSON's message, for it looks like that.
            try:
                yield from list(_yaml_values(text, file))
            except ManifestError:
                raise ManifestError(f"{file}:{error.lineno}: is no JSON: {error.msg}; correct it there") from None
        except RecursionError:
            raise ManifestError(f"{file}:1: is nested too deeply; this is no manifest") from None
        return
    yield from _yaml_values(text, file)


def _yaml_values(text: str, file: str) -> Iterator[tuple[int, Any]]:
    import yaml

    loader_class: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _bounded(text, file, loader_class)
        loader = loader_class(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                yield node.start_mark.line + 1, loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        hint = "render the template first (helm template)" if "{{" in text else "correct it there"
        raise ManifestError(f"{file}:{line}: is no YAML: {error.problem or error.context}; {hint}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{file}:1: is no YAML: {str(error).splitlines()[0]}; write it as UTF-8 text") from error
    except (ValueError, TypeError) as error:
        # A date that is none, a key that is a list: PyYAML lets Python's own errors through.
        raise ManifestError(f"{file}:1: is no YAML that Kubernetes would take: {error}") from error


def _bounded(text: str, file: str, loader_class: Any) -> None:  # noqa: ANN401 - PyYAML's two loaders share no type
    """Refuse what is deeper than PyYAML, which recurses, can go, and a few lines that stand for gigabytes."""
    import yaml

    open_ones: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    values = 0
    for event in yaml.parse(text, Loader=loader_class):
        where = f"{file}:{event.start_mark.line + 1 if event.start_mark is not None else 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            values += 1
            open_ones.append((event.anchor, values))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_ones.pop()
            if anchor is not None:
                sizes[anchor] = values - before + 1
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_ones):
                raise ManifestError(
                    f"{where}: *{event.anchor} stands within what it stands for; write the value itself"
                )
            values += sizes.get(event.anchor or "", 1)
        if len(open_ones) > _DEEPEST:
            raise ManifestError(f"{where}: is nested too deeply; this is no manifest")
        if values > _MOST_VALUES:
            raise ManifestError(f"{where}: stands for more than {_MOST_VALUES} values; this is no manifest")


def _documents(value: Any, file: str, line: int) -> Iterator[Document]:  # noqa: ANN401 - whatever a file holds
    if value is None:
        return
    if not isinstance(value, dict):
        raise ManifestError(f"{file}:{line}: is no object of Kubernetes; write apiVersion, kind, metadata and spec")
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        raise ManifestError(f"{file}:{line}: has no apiVersion or kind, so nobody knows what it is; write both")
    if kind == "List" or (kind.endswith("List") and isinstance(value.get("items"), list)):
        try:
            items = Tree(value).at("items").items()
        except ShapeError as error:
            raise ManifestError(f"{file}:{line}: {error}") from None
        for item in items:
            yield from _documents(item.value, file, line)
        return
    group = version.rpartition("/")[0]
    yield Document(file, line, group, kind, Tree(value))
