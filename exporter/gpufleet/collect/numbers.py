"""The number that a GPU has in the label ``gpu``: kept per UUID for the boot, across restarts of this process.

The driver's own index closes up when a GPU is lost or removed, and every series after it would change its identity. So
numbers are given once:

* When nothing is known yet for this boot, a GPU takes the driver's index, the number that nvidia-smi shows.
* Whoever comes later takes the first free number. The driver's index is no guide then: it is another GPU's number.
* The number of a GPU that went away stays reserved until the next boot; it gets the same one when it returns.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from gpufleet.collect.state_file import StateError, read_state, replace_state
from gpufleet.logs import OnChange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

_FILE = "gpu-numbers.json"
_HIGHEST = 65_535
"""No node has as many GPUs; a larger number comes from a damaged file."""
_LONGEST_UUID = 96


def assign(known: Mapping[str, int], present: Sequence[tuple[str, int | None]]) -> dict[str, int]:
    """``known`` with a number for each of ``present``, pairs of UUID and the driver's index (None: it has none)."""
    numbers = dict(known)
    taken = set(numbers.values())
    if not numbers:
        for uuid, index in present:
            if index is not None and 0 <= index <= _HIGHEST and index not in taken and uuid not in numbers:
                numbers[uuid] = index
                taken.add(index)
    free = 0
    for uuid, _ in present:
        if uuid in numbers:
            continue
        while free in taken:
            free += 1
        numbers[uuid] = free
        taken.add(free)
    return numbers


def parse_state(content: bytes, boot_id: str) -> dict[str, int]:
    """Numbers that were kept in this boot; empty when ``content`` is of another one.

    Raises:
        StateError: the content is not what :func:`render_state` writes.
    """
    try:
        state = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StateError("it is no JSON") from error
    if not isinstance(state, dict) or not isinstance(state.get("numbers"), dict):
        raise StateError("it has no table of numbers")
    if state.get("boot_id") != boot_id:
        return {}
    numbers: dict[str, int] = {}
    for uuid, number in state["numbers"].items():
        if type(number) is not int or not 0 <= number <= _HIGHEST or len(uuid) > _LONGEST_UUID:
            raise StateError("a number in it can't be one")
        if number in numbers.values():
            raise StateError("two GPUs have the same number in it")
        numbers[uuid] = number
    return numbers


def render_state(numbers: Mapping[str, int], boot_id: str) -> bytes:
    """What is kept on disk."""
    return json.dumps({"boot_id": boot_id, "numbers": numbers}, indent=1, sort_keys=True).encode() + b"\n"


class Numbers:
    """The numbers of this boot. Not thread-safe: one thread enumerates."""

    def __init__(self, directory: Path | None, boot_id: str | None) -> None:
        """Keep numbers in ``directory``; without it, or without a boot id, only as long as the process lives.

        Numbers of an unknown boot could be another machine's: the directory may be part of a disk image.
        """
        self._file = directory / _FILE if directory is not None and boot_id is not None else None
        self._boot_id = boot_id or ""
        self._numbers: dict[str, int] | None = None
        self._unwritten = False
        self._said = OnChange(log)

    def recall(self) -> Mapping[str, int]:
        """Numbers that have been given in this boot. Writes nothing."""
        if self._numbers is None:
            self._numbers = self._read()
        return self._numbers

    def assign(self, present: Sequence[tuple[str, int | None]]) -> Mapping[str, int]:
        """Number for each UUID of this boot, those of ``present`` (UUID, driver's index) included."""
        numbers = assign(self.recall(), present)
        if numbers != self._numbers or self._unwritten:
            self._numbers = numbers
            self._write(numbers)
        return numbers

    def _read(self) -> dict[str, int]:
        if self._file is None:
            return {}
        try:
            content = read_state(self._file)
            return parse_state(content, self._boot_id) if content is not None else {}
        except StateError as error:
            self._said.failed(
                "read", "kept GPU numbers can't be used: numbering anew", str(error), file=str(self._file)
            )
            return {}

    def _write(self, numbers: Mapping[str, int]) -> None:
        if self._file is None:
            return
        try:
            replace_state(self._file, render_state(numbers, self._boot_id))
        except StateError as error:
            self._unwritten = True
            self._said.failed(
                "write",
                "GPU numbers can't be kept: after a restart of gpufleet they may differ; make --state.dir writable",
                str(error),
                file=str(self._file),
            )
        else:
            self._unwritten = False
            self._said.over("write", "GPU numbers are kept again", file=str(self._file))
