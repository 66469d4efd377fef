"""Log lines: one per event, readable back, and each failure once."""

from __future__ import annotations

import io
import json
import logging
import threading

import pytest

from gpufleet import logs

LOGGER = logging.getLogger("test.logs")


@pytest.fixture
def stream() -> io.StringIO:
    """A log at info in logfmt."""
    stream = io.StringIO()
    logs.setup("info", "logfmt", stream)
    return stream


def record(message: str, **fields: object) -> logging.LogRecord:
    """A record as a call with ``extra`` makes it, at a fixed time."""
    made = LOGGER.makeRecord("test.logs", logging.WARNING, "f.py", 1, message, (), None, extra=fields)
    made.created = 1_700_000_000.9996
    return made


def test_a_line_has_time_level_logger_sentence_and_fields() -> None:
    """The order is fixed, time is UTC with milliseconds rounded once, and plain values stand without quotes."""
    line = logs.LogfmtFormatter().format(record("GPU does not answer", gpu=3, uuid="GPU-1", down=True, since=None))

    assert line == (
        'ts=2023-11-14T22:13:21.000Z level=warn logger=test.logs msg="GPU does not answer" gpu=3 uuid=GPU-1 down=true'
    )


def test_json_has_the_same_fields_with_their_types() -> None:
    """Numbers and booleans stay what they are; everything else is text."""
    line = logs.JsonFormatter().format(record("hot", gpu=3, down=False, ratio=0.5, path=["a"]))

    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:21.000Z",
        "level": "warn",
        "logger": "test.logs",
        "msg": "hot",
        "gpu": 3,
        "down": False,
        "ratio": 0.5,
        "path": "['a']",
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_lacks_are_text(value: float) -> None:
    """A collector that meets a bare NaN refuses the line."""
    assert json.loads(logs.JsonFormatter().format(record("odd", reading=value)))["reading"] == str(value)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", '""'),
        ("a b", '"a b"'),
        ("a=b", '"a=b"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("C:\\x", '"C:\\\\x"'),
        ("one\nlevel=error msg=forged", '"one\\nlevel=error msg=forged"'),
        ("one\r\ntwo", '"one\\r\\ntwo"'),
        ("\x85 \u2028", '"\\u0085 \\u2028"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        ("\u202egnp", '"\\u202egnp"'),
        ("\ud800", '"\\ud800"'),
        ("\U000e0001", '"\\udb40\\udc01"'),
        ("Grüße", '"Grüße"'),
    ],
)
def test_a_hostile_value_cannot_leave_its_field(text: str, written: str) -> None:
    """Line ends, quotes, terminal control, right-to-left overrides and what is no character are escaped as in JSON."""
    assert logs.logfmt_value(text) == written
    assert json.loads(written) == text


@pytest.mark.parametrize("text", ["/metrics?a[]", "GPU-1b2c", "12.5", "10:00:00", "[::1]:9837", "a,b;c"])
def test_plain_values_stand_without_quotes(text: str) -> None:
    """Paths, addresses and identifiers can be copied from the line as they are."""
    assert logs.logfmt_value(text) == text


def test_fields_cannot_pose_as_the_lines_own() -> None:
    """A field called level or msg, or one whose name holds syntax, gets another name."""
    line = logs.LogfmtFormatter().format(record("x", level="debug", ts="now", **{"a b=c": 1}))

    assert line.endswith("msg=x level_=debug ts_=now a_b_c=1")


def test_a_traceback_is_one_field_of_the_line() -> None:
    """An exception's lines do not become lines of the log."""
    with pytest.raises(ValueError, match="two") as raised:
        int("two\nlines")
    made = record("failed")
    made.exc_info = (raised.type, raised.value, raised.tb)
    for formatter in (logs.LogfmtFormatter(), logs.JsonFormatter()):
        line = formatter.format(made)
        assert "\n" not in line
        assert "Traceback" in line
        assert "two" in line


def test_an_endless_value_is_cut_and_says_how_long_it_was() -> None:
    """A megabyte from outside does not become a megabyte in the log."""
    line = logs.LogfmtFormatter().format(record("x", label="y" * 1_000_000))

    assert len(line) < 20_000
    assert "(1000000 characters)" in line


def test_the_level_decides_what_is_written(stream: io.StringIO) -> None:
    """At info there is no debug."""
    LOGGER.debug("not this")
    LOGGER.info("this")

    assert "msg=this" in stream.getvalue()
    assert "not this" not in stream.getvalue()


def test_set_up_again_replaces_and_does_not_double(stream: io.StringIO) -> None:
    """After a second set-up each line is written once, in the new format, to the new stream."""
    second = io.StringIO()
    logs.setup("debug", "json", second)
    LOGGER.debug("once")

    assert stream.getvalue() == ""
    assert [json.loads(line)["msg"] for line in second.getvalue().splitlines()] == ["once"]


@pytest.mark.parametrize(
    ("level", "fmt", "message"),
    [
        ("loud", "logfmt", "unknown log level 'loud': use one of debug, info, warn, error"),
        ("info", "xml", "unknown log format 'xml': use one of logfmt, json"),
    ],
)
def test_unknown_words_are_refused_with_those_that_there_are(level: str, fmt: str, message: str) -> None:
    """The message lists the choices."""
    with pytest.raises(ValueError, match="unknown log") as refused:
        logs.setup(level, fmt, io.StringIO())

    assert str(refused.value) == message


def test_a_broken_stream_does_not_raise(stream: io.StringIO) -> None:
    """A log that cannot be written costs its lines, not the work that wanted to write them."""
    stream.close()
    LOGGER.error("nobody reads this")


def test_a_repeated_failure_is_one_line(stream: io.StringIO) -> None:
    """The same words again are silent, other words are a line, and so is the end."""
    change = logs.OnChange(LOGGER)

    assert change.failed("gpu 3", "GPU does not answer", "timeout", gpu=3)
    assert not change.failed("gpu 3", "GPU does not answer", "timeout", gpu=3)
    assert change.failed("gpu 3", "GPU does not answer", "lost", gpu=3)
    assert change.is_failing("gpu 3")
    assert change.over("gpu 3", "GPU answers again", gpu=3)
    assert not change.over("gpu 3", "GPU answers again", gpu=3)
    assert not change.is_failing("gpu 3")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == [
        'level=warn logger=test.logs msg="GPU does not answer" err=timeout gpu=3',
        'level=warn logger=test.logs msg="GPU does not answer" err=lost gpu=3',
        'level=info logger=test.logs msg="GPU answers again" gpu=3',
    ]


def test_a_failure_that_came_back_is_a_line_again(stream: io.StringIO) -> None:
    """Over means over: the next failure is news, even with the same words. A forgotten one too, but says no end."""
    change = logs.OnChange(LOGGER)
    change.failed("k", "m", "e")
    change.forget("k")
    change.failed("k", "m", "e")

    assert len(stream.getvalue().splitlines()) == 2


def test_a_failure_is_reported_whatever_its_fields_are_called(stream: io.StringIO) -> None:
    """Stdlib logging refuses fields named like its own attributes; a report of a failure must not fail itself."""
    change = logs.OnChange(LOGGER)
    change.failed("k", "m", "e", name="n", process=1)
    change.over("k", "over", module="x")

    assert "err=e name_=n process_=1" in stream.getvalue()
    assert "module_=x" in stream.getvalue()


def test_keys_from_outside_cannot_fill_memory() -> None:
    """Only so many failures are remembered; the oldest is forgotten."""
    change = logs.OnChange(LOGGER, remembered=3)
    for number in range(10):
        change.failed(str(number), "m", "e")

    assert [number for number in range(10) if change.is_failing(str(number))] == [7, 8, 9]


def test_threads_that_see_one_failure_write_one_line(stream: io.StringIO) -> None:
    """A failure seen by many at once is still one."""
    change = logs.OnChange(LOGGER)
    threads = [threading.Thread(target=change.failed, args=("k", "m", "e")) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(stream.getvalue().splitlines()) == 1
