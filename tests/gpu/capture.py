"""Raw replies of a real driver: recorded with what each call cost, masked, kept as JSON, and given again.

A capture is made on a machine with GPUs and answers on machines without: ``Replay`` is a driver like any other to
``sources/nvml``. UUIDs, serial numbers and the fabric's cluster are replaced before anything is written.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpufleet.sources.nvml.calls import NOT_SUPPORTED, SUCCESS, Driver, NvmlFunction

T = TypeVar("T")

FIELDS = "nvmlDeviceGetFieldValues"
METRICS = "nvmlGpmMetricsGet"
_FIELD = struct.Struct("<IIqqIIQ")  # fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
_METRIC = struct.Struct("<IId24x")  # metricId, nvmlReturn, value; three pointers
_METRICS_HEAD = 24
_VERSIONED = frozenset(
    {
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlGpmQueryDeviceSupport",
    }
)
"""What these answer depends on the version that stands in the first word of what goes in."""
_CLUSTER = {"nvmlDeviceGetGpuFabricInfoV": 4, "nvmlDeviceGetGpuFabricInfo": 0}
"""Where the 16 bytes of the cluster's UUID stand."""
_NOT_KEPT = frozenset({"nvmlEventSetWait_v2"})


@dataclass(frozen=True, slots=True)
class Answer:
    """One call: scalar arguments (handles as numbers, None for a buffer), code, and what the buffers held before and
    after.
    """

    function: str
    arguments: tuple[int | str | None, ...]
    code: int
    requests: tuple[bytes, ...]
    replies: tuple[bytes, ...]


@dataclass(slots=True)
class Recorder:
    """A driver that notes every call and how long it took before it hands the answer on."""

    driver: Driver
    answers: list[Answer] = field(default_factory=list)
    nanoseconds: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    field_latency: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """Microseconds that the driver itself says it took for a field, by id and scope."""
    keeping: bool = True
    simulated: bool = field(init=False)

    def __post_init__(self) -> None:
        self.simulated = self.driver.simulated

    def function(self, name: str) -> NvmlFunction | None:
        """The driver's function, with a note taken at each call."""
        bound = self.driver.function(name)
        if bound is None:
            return None

        def call(*arguments: Any) -> int:  # noqa: ANN401 - as ctypes
            buffers = [argument for argument in arguments if isinstance(argument, ctypes.Array)]
            requests = tuple(bytes(buffer) for buffer in buffers)
            begin = time.perf_counter_ns()
            code = bound(*arguments)
            self.nanoseconds[name].append(time.perf_counter_ns() - begin)
            replies = tuple(bytes(buffer) for buffer in buffers)
            if name == FIELDS and code == SUCCESS:
                for field_id, scope, stamp, latency, _, entry, _ in _FIELD.iter_unpack(replies[0]):
                    if entry == SUCCESS and stamp:
                        self.field_latency[field_id, scope].append(latency)
            if self.keeping and name not in _NOT_KEPT:
                self.answers.append(Answer(name, _plain(arguments), code, requests, replies))
            return code

        return call


def _plain(arguments: Sequence[Any]) -> tuple[int | str | None, ...]:
    found: list[int | str | None] = []
    for argument in arguments:
        if isinstance(argument, ctypes.c_void_p):
            found.append(argument.value or 0)
        elif isinstance(argument, bytes):
            found.append(argument.decode("ascii", "replace"))
        else:
            found.append(argument if isinstance(argument, int) else None)
    return tuple(found)


# --- masking ----------------------------------------------------------------------------------------------------------
_UUID = re.compile(rb"(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def masks(answers: Iterable[Answer]) -> dict[bytes, bytes]:
    """What has to be replaced by what, of equal length: every UUID and serial number that the driver has given."""
    found: dict[bytes, bytes] = {}
    for answer in answers:
        for reply in answer.replies:
            for match in _UUID.finditer(reply):
                kind, known = match[1].decode(), len(found)
                found.setdefault(match[0], f"{kind}-{known:08x}-0000-4000-8000-000000000000".encode())
        if answer.function == "nvmlDeviceGetSerial" and answer.code == SUCCESS:
            serial = answer.replies[0].partition(b"\0")[0]
            if serial:
                found.setdefault(serial, str(len(found)).encode().rjust(len(serial), b"0")[-len(serial) :])
    return found


def masked(answer: Answer, replacements: Mapping[bytes, bytes]) -> Answer:
    """The same call without what identifies the machine."""

    def clean(data: bytes) -> bytes:
        for secret, stand_in in replacements.items():
            data = data.replace(secret, stand_in)
        if answer.function in _CLUSTER:
            at = _CLUSTER[answer.function]
            data = data[:at] + bytes(16) + data[at + 16 :]
        return data

    arguments = tuple(clean(each.encode()).decode() if isinstance(each, str) else each for each in answer.arguments)
    return Answer(
        answer.function,
        arguments,
        answer.code,
        tuple(clean(each) for each in answer.requests),
        tuple(clean(each) for each in answer.replies),
    )


# --- files ------------------------------------------------------------------------------------------------------------
def save(path: Path, answers: Sequence[Answer], **about: object) -> None:
    """Write a masked capture; the same call with the same answer is kept once in a row."""
    replacements = masks(answers)
    rows: list[object] = []
    last: Answer | None = None
    for answer in answers:
        clean = masked(answer, replacements)
        if clean != last:
            requests = [each.hex() for each in clean.requests]
            replies = [each.hex() for each in clean.replies]
            rows.append([clean.function, list(clean.arguments), clean.code, requests, replies])
        last = clean
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f'{{"about": {json.dumps(about)},\n"calls": [\n{lines}\n]}}\n')


def load(path: Path) -> list[Answer]:
    """Read a capture."""
    return [
        Answer(
            function,
            tuple(arguments),
            code,
            tuple(bytes.fromhex(each) for each in requests),
            tuple(bytes.fromhex(each) for each in replies),
        )
        for function, arguments, code, requests, replies in json.loads(path.read_text())["calls"]
    ]


# --- giving it again --------------------------------------------------------------------------------------------------
_Known = tuple[int, tuple[bytes, ...]]


class Replay:
    """A driver that answers what was recorded; the last answer to a question stays its answer.

    Fields and GPM metrics are answered one by one, so that a plan which asks for others, or in another order, still
    gets what the capture has; what it has not is NOT_SUPPORTED.
    """

    simulated = False

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._functions = {answer.function for answer in answers}
        self._known: defaultdict[tuple[object, ...], list[_Known]] = defaultdict(list)
        self._fields: defaultdict[tuple[object, int, int], list[bytes]] = defaultdict(list)
        self._field_calls: defaultdict[object, list[int]] = defaultdict(list)
        self._metrics: defaultdict[int, list[bytes]] = defaultdict(list)
        for answer in answers:
            self._learn(answer)

    def _learn(self, answer: Answer) -> None:
        if answer.function == FIELDS:
            device = answer.arguments[0]
            if answer.code != SUCCESS:
                self._field_calls[device].append(answer.code)
                return
            for at in range(0, len(answer.replies[0]), _FIELD.size):
                entry = answer.replies[0][at : at + _FIELD.size]
                field_id, scope = struct.unpack_from("<II", entry)
                self._fields[device, field_id, scope].append(entry)
        elif answer.function == METRICS and answer.code == SUCCESS:
            for at in range(_METRICS_HEAD, len(answer.replies[0]), _METRIC.size):
                entry = answer.replies[0][at : at + _METRIC.size]
                self._metrics[struct.unpack_from("<I", entry)[0]].append(entry)
        else:
            question = _question(answer.function, answer.arguments, answer.requests)
            self._known[question].append((answer.code, answer.replies))

    def function(self, name: str) -> NvmlFunction | None:
        """A function that answers as the recorded one did; None where the recorded driver was never asked it."""
        if name not in self._functions:
            return None

        def call(*arguments: Any) -> int:  # noqa: ANN401 - as ctypes
            buffers = [argument for argument in arguments if isinstance(argument, ctypes.Array)]
            if name == FIELDS:
                return self._answer_fields(arguments[0].value, buffers[0])
            if name == METRICS:
                return self._answer_metrics(buffers[0])
            question = _question(name, _plain(arguments), tuple(bytes(buffer) for buffer in buffers))
            code, replies = _next(self._known.get(question, [(NOT_SUPPORTED, ())]))
            for buffer, reply in zip(buffers, replies, strict=False):
                memoryview(buffer).cast("B")[: len(reply)] = reply[: ctypes.sizeof(buffer)]
            return code

        return call

    def _answer_fields(self, device: object, buffer: ctypes.Array[Any]) -> int:
        view = memoryview(buffer).cast("B")
        for at in range(0, len(view), _FIELD.size):
            field_id, scope = struct.unpack_from("<II", view, at)
            known = self._fields.get((device, field_id, scope))
            refused = _FIELD.pack(field_id, scope, 0, 0, 0, NOT_SUPPORTED, 0)
            view[at : at + _FIELD.size] = refused if known is None else _next(known)
        return SUCCESS

    def _answer_metrics(self, buffer: ctypes.Array[Any]) -> int:
        view = memoryview(buffer).cast("B")
        for at in range(_METRICS_HEAD, len(view), _METRIC.size):
            metric = struct.unpack_from("<I", view, at)[0]
            known = self._metrics.get(metric)
            view[at : at + _METRIC.size] = _METRIC.pack(metric, NOT_SUPPORTED, 0.0) if known is None else _next(known)
        return SUCCESS


def _question(function: str, arguments: Sequence[object], requests: Sequence[bytes]) -> tuple[object, ...]:
    version = requests[0][:4] if function in _VERSIONED else b""
    return (function, tuple(arguments), version)


def _next(answers: list[T]) -> T:
    return answers.pop(0) if len(answers) > 1 else answers[0]
