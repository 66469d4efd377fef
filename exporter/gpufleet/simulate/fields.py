"""Answers ``nvmlDeviceGetFieldValues``, a whole batch at a time.

A request of one shape is worked out once for a kind of GPU and kept; answering it again is then a template and two
strided copies, whatever the number of entries.
"""

from __future__ import annotations

import operator
import struct
from array import array

from gpufleet.simulate.buffers import Buffer
from gpufleet.simulate.columns import COLUMNS
from gpufleet.simulate.field_answers import Kind, answer_for
from gpufleet.simulate.gpu import Reading, ScriptedGpu
from gpufleet.sources.nvml.calls import NOT_SUPPORTED, SUCCESS

ENTRY_WORDS = 5
ENTRY_BYTES = 8 * ENTRY_WORDS
_ENTRY = struct.Struct("<IIqqIIQ")
_LATENCY_US = 3


class _Shape:
    """A request of one shape, worked out."""

    __slots__ = ("_all_written", "_computed", "_constants", "_link_errors", "_pick", "_written", "count", "template")

    def __init__(self, kind: Kind, ids: tuple[int, ...]) -> None:
        self.count = len(ids) // 2
        answers = [answer_for(kind, ids[2 * i], ids[2 * i + 1]) for i in range(self.count)]
        self.template = b"".join(
            _ENTRY.pack(ids[2 * i], ids[2 * i + 1], 0, 0, 0, NOT_SUPPORTED, 0)
            if answer is None
            else _ENTRY.pack(ids[2 * i], ids[2 * i + 1], 0, _LATENCY_US, answer.type, SUCCESS, 0)
            for i, answer in enumerate(answers)
        )
        self._written = array("Q", [answer is not None for answer in answers])
        self._all_written = all(self._written)
        computed = [answer for answer in answers if answer is not None and answer.computed is not None]
        self._computed = [a.computed for a in computed if a.computed is not None and not a.of_link_errors]
        self._link_errors = [a.computed for a in computed if a.computed is not None and a.of_link_errors]
        self._constants = [0 if answer is None else answer.constant for answer in answers]
        # One list is picked from: the columns, what is computed, the errors of links, the constants.
        computed_at = COLUMNS
        errors_at = computed_at + len(self._computed)
        constants_at = errors_at + len(self._link_errors)
        indices = []
        for i, answer in enumerate(answers):
            if answer is None or (answer.column is None and answer.computed is None):
                indices.append(constants_at + i)
            elif answer.column is not None:
                indices.append(answer.column)
            elif answer.of_link_errors:
                indices.append(errors_at)
                errors_at += 1
            else:
                indices.append(computed_at)
                computed_at += 1
        # itemgetter of a single index gives no tuple, so the first is asked for twice and dropped.
        self._pick = operator.itemgetter(indices[0], *indices)

    def fill(self, words: memoryview, gpu: ScriptedGpu, reading: Reading, timestamp: int) -> None:
        source = reading.values + [computed(gpu, reading) for computed in self._computed]
        if gpu.has_link_errors:
            source += [computed(gpu, reading) for computed in self._link_errors]
        else:
            source += [0] * len(self._link_errors)
        source += self._constants
        if self._all_written:
            stamps = array("Q", [timestamp]) * self.count
        else:
            stamps = array("Q", [timestamp * written for written in self._written])
        words[1::ENTRY_WORDS] = memoryview(stamps)
        words[4::ENTRY_WORDS] = memoryview(array("Q", self._pick(source)[1:]))


_MOST_SHAPES = 512


class FieldTable:
    """All request shapes met so far, for every kind of GPU of the process."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[Kind, tuple[int, ...]], _Shape] = {}
        self._readers: dict[int, struct.Struct] = {}

    def answer(
        self, kind: Kind, gpu: ScriptedGpu, reading: Reading, count: int, buffer: Buffer, timestamp: int
    ) -> None:
        """Fill ``count`` entries of ``buffer`` (nvmlFieldValue_t: 40 bytes each)."""
        reader = self._readers.get(count)
        if reader is None:
            reader = self._readers[count] = struct.Struct("<" + "II32x" * count)
        ids = reader.unpack_from(buffer)
        shape = self._shapes.get((kind, ids))
        if shape is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            shape = self._shapes[kind, ids] = _Shape(kind, ids)
        view = memoryview(buffer).cast("B")[: ENTRY_BYTES * count]
        view[:] = shape.template
        shape.fill(view.cast("Q"), gpu, reading, timestamp)


TABLE = FieldTable()
