"""Dataclasses as JSON and back, strictly: what was kept on disk is used whole or not at all.

Fields marked ``metadata={"stored": False}`` are left out. A value of another type, a missing or an unknown field, and a
number that is none (NaN) are refused with the place where they stand. No library does it within this program's memory.
"""

from __future__ import annotations

import math
import types
import typing
from collections import deque
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

MOST_ENTRIES = 4096
"""Of one list or table; more were not written by this program."""
LONGEST_TEXT = 1024


class StoredError(ValueError):
    """Kept state that can not be used; the message says what and where."""


def encode(value: object) -> Any:  # noqa: ANN401 -- JSON
    """Lists, dicts, texts, numbers, truth values and None that say the same."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: encode(getattr(value, each.name)) for each in _stored(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [encode(each) for each in value]
    return value


def decode(wanted: type[T], value: object, path: str = "state") -> T:
    """An instance of the dataclass ``wanted`` from what ``encode`` made of one.

    Raises:
        StoredError: it is not that.
    """
    return typing.cast("T", _decode(wanted, value, path))


def _decode(wanted: Any, value: object, path: str) -> object:  # noqa: ANN401 -- a type as typing has it
    origin = typing.get_origin(wanted)
    if origin in {typing.Union, types.UnionType}:
        return _decode_optional(wanted, value, path)
    if origin is not None:
        return _decode_many(origin, typing.get_args(wanted), value, path)
    if is_dataclass(wanted):
        return _decode_dataclass(wanted, value, path)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        try:
            return wanted(value)
        except ValueError as error:
            raise StoredError(f"{path} is no {wanted.__name__}") from error
    return _decode_plain(wanted, value, path)


def _decode_plain(wanted: Any, value: object, path: str) -> object:  # noqa: ANN401
    if wanted is float and type(value) in {int, float}:
        number = typing.cast("float", value)
        if not math.isfinite(number):
            raise StoredError(f"{path} is no number")
        return float(number)
    # bool is an int to Python, not here.
    if type(value) is not wanted:
        raise StoredError(f"{path} is no {getattr(wanted, '__name__', wanted)}")
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise StoredError(f"{path} is longer than {LONGEST_TEXT} characters")
    return value


def _decode_optional(wanted: Any, value: object, path: str) -> object:  # noqa: ANN401
    members = [member for member in typing.get_args(wanted) if member is not types.NoneType]
    return None if value is None else _decode(members[0], value, path)


def _decode_many(origin: Any, arguments: tuple[Any, ...], value: object, path: str) -> object:  # noqa: ANN401
    if not isinstance(value, dict if origin is dict else list):
        raise StoredError(f"{path} is no {'table' if origin is dict else 'list'}")
    if len(value) > MOST_ENTRIES:
        raise StoredError(f"{path} has more than {MOST_ENTRIES} entries")
    if origin is dict:
        table = typing.cast("dict[str, object]", value)
        return {
            _key(arguments[0], key, path): _decode(arguments[1], each, f"{path}.{key}") for key, each in table.items()
        }
    items = typing.cast("list[object]", value)
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(items) != len(arguments):
            raise StoredError(f"{path} has not {len(arguments)} entries")
        return tuple(
            _decode(each, item, f"{path}[{at}]") for at, (each, item) in enumerate(zip(arguments, items, strict=True))
        )
    made = [_decode(arguments[0], item, f"{path}[{at}]") for at, item in enumerate(items)]
    return deque(made, maxlen=8) if origin is deque else tuple(made) if origin is tuple else made


def _key(wanted: Any, key: str, path: str) -> object:  # noqa: ANN401
    if len(key) > LONGEST_TEXT:
        raise StoredError(f"{path} has a name that is too long")
    if wanted is not int:
        return key
    try:
        return int(key)
    except ValueError as error:
        raise StoredError(f"{path}.{key} is not named by a number") from error


def _decode_dataclass(wanted: Any, value: object, path: str) -> object:  # noqa: ANN401
    if not isinstance(value, dict):
        raise StoredError(f"{path} is no table")
    known = _stored(wanted)
    unknown = value.keys() - {each.name for each in known}
    if unknown:
        raise StoredError(f"{path}.{min(map(str, unknown))} is not known")
    hints = _hints(wanted)
    made: dict[str, object] = {}
    for each in known:
        if each.name in value:
            made[each.name] = _decode(hints[each.name], value[each.name], f"{path}.{each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise StoredError(f"{path}.{each.name} is missing")
    return wanted(**made)


@lru_cache(maxsize=64)
def _stored(wanted: Any) -> tuple[Field[Any], ...]:  # noqa: ANN401
    return tuple(each for each in fields(wanted) if each.metadata.get("stored", True))


@lru_cache(maxsize=64)
def _hints(wanted: Any) -> dict[str, Any]:  # noqa: ANN401
    return typing.get_type_hints(wanted)
