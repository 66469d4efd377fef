"""Log lines: logfmt or JSON, one line per event whatever the values hold, and each failure once.

Calls go to stdlib logging; what belongs to an event beside its sentence is passed as ``extra`` and comes out as fields:
``log.warning("GPU does not answer", extra={"gpu": 3, "uuid": uuid})``. A field that is None is left out. Stdlib logging
raises KeyError for a field named like an attribute of its own records (name, module, process, thread, args, …).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
FORMATS = ("logfmt", "json")

# Text from the kernel log, a pod's labels or a peer has no length of its own. A traceback of Python's deepest recursion
# that repeats no frame still fits.
_LONGEST_VALUE = 16_384
# Below this a value may stand without quotes; every character in it is printable ASCII that no reader takes for syntax.
_BARE = re.compile(r"[A-Za-z0-9_./:@%+,;\-\[\]()<>*#!?$&|~^]+\Z")
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.\-]")
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
# What stdlib logging itself puts on a record; everything else came in through ``extra``.
_RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# An ``extra`` of these names would put a second ``level`` or ``msg`` on the line; most readers keep the last.
_OWN_KEYS = frozenset({"ts", "level", "logger", "msg", "exception"})
_MAX_BMP = 0xFFFF


def logfmt_value(text: str) -> str:
    """Return text as a logfmt value: bare where nothing in it could be misread, else as a JSON string.

    Everything that is not printable is escaped: line feeds, the line separators that only Unicode knows (U+0085,
    U+2028), terminal control sequences, bidirectional overrides and lone surrogates. So a hostile text can neither
    begin a line of its own nor show a reader something else than it says.
    """
    if _BARE.match(text):
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    if character.isprintable():
        return character
    code = ord(character)
    if code <= _MAX_BMP:
        return f"\\u{code:04x}"
    # JSON knows four-digit escapes only: above the basic plane a character is its surrogate pair.
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _timestamp(created: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    # Rounded once, from the whole: rounding the fraction alone can give a 1000th millisecond.
    seconds, milliseconds = divmod(round(created * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def _level_name(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}… ({len(text)} characters)"


class _FieldsFormatter(logging.Formatter):
    """Turn a record into its fields, in the order in which they are written."""

    def fields(self, record: logging.LogRecord) -> Iterator[tuple[str, object]]:
        yield "ts", _timestamp(record.created)
        yield "level", _level_name(record.levelno)
        yield "logger", record.name
        yield "msg", _shortened(record.getMessage())
        for name, value in vars(record).items():
            if name in _RECORD_ATTRIBUTES or value is None:
                continue
            key = _NOT_IN_KEYS.sub("_", name) or "_"
            if key in _OWN_KEYS:
                key += "_"
            yield key, value if isinstance(value, bool | int | float) else _shortened(str(value))
        if record.exc_info:
            yield "exception", _shortened(self.formatException(record.exc_info))
        elif record.exc_text:
            yield "exception", _shortened(record.exc_text)


class LogfmtFormatter(_FieldsFormatter):
    """``ts=… level=warn logger=gpufleet.collect msg="GPU does not answer" gpu=3``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of logfmt, without its line feed."""
        return " ".join(f"{key}={logfmt_value(_plain(value))}" for key, value in self.fields(record))


class JsonFormatter(_FieldsFormatter):
    """One JSON object a line, pure ASCII, with the same keys as logfmt."""

    def __init__(self) -> None:
        super().__init__()
        import json

        self._dumps = json.dumps

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON, without its line feed."""
        # NaN and the infinities are no JSON: most collectors refuse the whole line for one of them.
        values = {
            key: _plain(value) if isinstance(value, float) and value - value != 0 else value
            for key, value in self.fields(record)
        }
        return self._dumps(values, allow_nan=False)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def setup(level: str, fmt: str, stream: TextIO) -> None:
    """Send the process's log to stream, at level (see LEVELS) and in format (see FORMATS). May be called again.

    Raises:
        ValueError: a level or format that does not exist; the message lists those that do.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: use one of {', '.join(LEVELS)}")
    if fmt not in FORMATS:
        raise ValueError(f"unknown log format {fmt!r}: use one of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if fmt == "json" else LogfmtFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, _FieldsFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    # A broken pipe on the log must not print a traceback per line into whatever is left of standard error.
    logging.raiseExceptions = False


def _safe_names(fields: dict[str, object]) -> dict[str, object]:
    # A KeyError in the middle of reporting an error would be the worse error.
    return {f"{name}_" if name in _RECORD_ATTRIBUTES else name: value for name, value in fields.items()}


class OnChange:
    """Log a repeated failure once, again only when its text changes, and one line when it is over.

    A failure that lasts for hours on a node that is polled each second is one line, not thousands. Safe to use from
    several threads.
    """

    def __init__(self, logger: logging.Logger, *, remembered: int = 256) -> None:
        self._logger = logger
        # Keys may come from outside (a path, a peer); the oldest is forgotten, at the cost of one repeated line.
        self._remembered = remembered
        self._failing: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._lock = threading.Lock()

    def failed(
        self,
        key: str,
        message: str,
        error: str,
        *,
        level: int = logging.WARNING,
        exc_info: BaseException | None = None,
        **fields: object,
    ) -> bool:
        """Log message with error as the field ``err``, unless the last failure under key said the same.

        Return whether a line was written. fields go beside it and do not count as a change.
        """
        with self._lock:
            if self._failing.get(key) == (message, error):
                return False
            self._failing[key] = (message, error)
            self._failing.move_to_end(key)
            if len(self._failing) > self._remembered:
                self._failing.popitem(last=False)
        self._logger.log(level, message, extra={"err": error, **_safe_names(fields)}, exc_info=exc_info)
        return True

    def over(self, key: str, message: str, **fields: object) -> bool:
        """Log message at info if key was failing; return whether a line was written."""
        if key not in self._failing:  # the ordinary case takes no lock: this runs on every poll and scrape
            return False
        with self._lock:
            if self._failing.pop(key, None) is None:
                return False
        self._logger.info(message, extra=_safe_names(fields))
        return True

    def forget(self, key: str) -> None:
        """Take key as not failing, without a line: for those who announce the end themselves."""
        with self._lock:
            self._failing.pop(key, None)

    def is_failing(self, key: str) -> bool:
        """Tell whether the last word on key was a failure."""
        return key in self._failing
