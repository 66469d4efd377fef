"""The three kinds of patch that an API server applies, as far as the fake one needs them. Pure."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

# Lists that Kubernetes merges by a key when a patch is strategic; it replaces all others (taints among them).
_MERGE_KEYS = {"conditions": "type", "containers": "name", "ownerReferences": "uid"}


class PatchError(Exception):
    """A patch that cannot be applied, or whose test did not hold: a real server answers both alike."""


def merge(target: Any, patch: Any) -> Any:  # noqa: ANN401 - JSON
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic(target: Any, patch: Any) -> Any:  # noqa: ANN401 - JSON
    """Kubernetes' strategic merge, with the directive ``$patch: delete`` for members of a list."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif key in _MERGE_KEYS and isinstance(value, list):
            merged[key] = _merged_list(merged.get(key) or [], value, _MERGE_KEYS[key])
        else:
            merged[key] = strategic(merged.get(key), value)
    return merged


def _merged_list(target: list[Json], patch: list[Json], key: str) -> list[Json]:
    merged = list(target)
    new: list[Json] = []  # a real server puts what is new before what was there
    for each in patch:
        at = next((index for index, old in enumerate(merged) if old.get(key) == each[key]), None)
        if each.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            new.append(copy.deepcopy(each))
        else:
            merged[at] = strategic(merged[at], each)
    return [*new, *merged]


def operations(target: Json, patch: list[Json]) -> Json:
    """RFC 6902 with add, remove, replace and test. Raises PatchError."""
    document = copy.deepcopy(target)
    for operation in patch:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = document
        for part in parents:
            place = _member(place, part)
        match operation["op"]:
            case "test":
                if not _has(place, last) or _member(place, last) != operation["value"]:
                    raise PatchError(f"testing path {operation['path']} failed")
            case "add" | "replace" as op:
                _put(place, last, copy.deepcopy(operation["value"]), insert=op == "add")
            case "remove":
                _member(place, last)
                del place[int(last) if isinstance(place, list) else last]
            case other:
                raise PatchError(f"unexpected operation {other}")
    return document


def _has(place: Any, part: str) -> bool:  # noqa: ANN401 - JSON
    return part in place if isinstance(place, dict) else part.isdecimal() and int(part) < len(place)


def _member(place: Any, part: str) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(place, dict | list) or not _has(place, part):
        raise PatchError(f"there is no {part}")
    return place[int(part)] if isinstance(place, list) else place[part]


def _put(place: Any, part: str, value: Any, *, insert: bool) -> None:  # noqa: ANN401 - JSON
    if isinstance(place, dict):
        if not insert:
            _member(place, part)
        place[part] = value
    elif insert:
        place.insert(len(place) if part == "-" else int(part), value)
    else:
        _member(place, part)
        place[int(part)] = value
