"""A driver whose every answer is a line of Python."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from gpufleet.sources.nvml.calls import NOT_SUPPORTED, SUCCESS, Calls, NvmlFunction

HANDLE = ctypes.c_void_p(0x7F00_0000_1000)


@dataclass
class Answers:
    """Answers by function; one that is not there is not supported. ``asked`` notes who was asked, in order."""

    functions: dict[str, Callable[..., int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    lacking: frozenset[str] = frozenset()
    simulated: bool = False

    def function(self, name: str) -> NvmlFunction | None:
        """The function of that name."""
        if name in self.lacking:
            return None

        def call(*arguments: object) -> int:
            self.asked.append(name)
            answer = self.functions.get(name)
            return NOT_SUPPORTED if answer is None else answer(*arguments)

        return call

    def calls(self) -> Calls:
        """Every function, bound."""
        return Calls(self)


def number(value: int, code: int = SUCCESS) -> Callable[..., int]:
    """Writes 32 bits into the last buffer but a sampling period's."""

    def answer(*arguments: object) -> int:
        buffer = next(argument for argument in arguments if isinstance(argument, ctypes.Array))
        struct.pack_into("<I", buffer, 0, value)
        return code

    return answer


def returns(code: int) -> Callable[..., int]:
    """Writes nothing."""
    return lambda *_: code


Entry = tuple[int, int]
"""Return code and value."""


class FieldTable:
    """Answers nvmlDeviceGetFieldValues from a table of (field id, scope)."""

    def __init__(self, entries: dict[tuple[int, int], Entry] | None = None) -> None:
        self.entries: dict[tuple[int, int], Entry] = entries or {}
        self.code = SUCCESS
        self.asked: list[list[tuple[int, int]]] = []

    def __call__(self, _: ctypes.c_void_p, count: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
        wanted = [struct.unpack_from("<II", buffer, 40 * place) for place in range(count)]
        self.asked.append([(field_id, scope) for field_id, scope in wanted])
        if self.code:
            return self.code
        for place, (field_id, scope) in enumerate(wanted):
            code, value = self.entries.get((field_id, scope), (NOT_SUPPORTED, 0))
            struct.pack_into("<qqIIQ", buffer, 40 * place + 8, 1, 1, 0, code, value & 0xFFFF_FFFF_FFFF_FFFF)
        return SUCCESS
