"""Whatever the values hold, a log line is one line and reads back as what was said."""

from __future__ import annotations

import json
import logging
import re

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.logs import JsonFormatter, LogfmtFormatter

PAIR = re.compile(r'([A-Za-z0-9_.\-]+)=("(?:[^"\\]|\\.)*"|[^ "]*)(?: |\Z)')
# Any code point: those of no character (lone surrogates) too.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10).filter(
    lambda key: key not in vars(logging.makeLogRecord({})) and key not in {"message", "asctime"}
)


def record(message: str, fields: dict[str, str]) -> logging.LogRecord:
    """A record with these fields."""
    return logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, message, (), None, extra=fields)


def parsed(line: str) -> list[tuple[str, str]]:
    """The pairs of a logfmt line; fails where something is left over."""
    pairs = []
    end = 0
    for pair in PAIR.finditer(line):
        assert pair.start() == end
        end = pair.end()
        value = pair[2]
        pairs.append((pair[1], json.loads(value) if value.startswith('"') else value))
    assert end == len(line)
    return pairs


@given(message=ANY_TEXT, fields=st.dictionaries(KEYS, ANY_TEXT, max_size=4))
def test_logfmt_is_one_line_and_reads_back(message: str, fields: dict[str, str]) -> None:
    """Message and values come back as they were, in order, and nothing else does."""
    line = LogfmtFormatter().format(record(message, fields))

    assert len(line.splitlines()) == 1
    pairs = parsed(line)
    assert [key for key, _ in pairs[:4]] == ["ts", "level", "logger", "msg"]
    assert pairs[3][1] == message
    assert [value for _, value in pairs[4:]] == list(fields.values())


@given(message=ANY_TEXT, fields=st.dictionaries(KEYS, ANY_TEXT, max_size=4))
def test_json_is_one_line_of_ascii_and_reads_back(message: str, fields: dict[str, str]) -> None:
    """Message and values come back as they were."""
    line = JsonFormatter().format(record(message, fields))

    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["msg"] == message
