"""What a client accepts."""

from __future__ import annotations

import pytest

from gpufleet.web.negotiate import accepts_gzip, wants_openmetrics

PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;\
version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
TEXT_FIRST = "text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.4,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        ("", None),
        ("*/*", None),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", None),
        (PROMETHEUS_2, "1.0.0"),
        (PROMETHEUS_3, "1.0.0"),
        (TEXT_FIRST, None),
        ("application/openmetrics-text", "1.0.0"),
        ("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8", "1.0.0"),
        ('application/openmetrics-text; version="1.0.0"', "1.0.0"),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "0.0.1"),
        (
            "application/openmetrics-text; version=0.0.1; q=0.9, application/openmetrics-text; version=1.0.0; q=0.1",
            "0.0.1",
        ),
        ("application/openmetrics-text; version=2.0.0", None),
        ("application/openmetrics-text;q=0", None),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.5", "1.0.0"),
        ("application/openmetrics-text;q=2", None),
        ("application/openmetrics-text;q=", None),
        ("application/openmetrics-text;q=nan", None),
        (",,;;,=,q=1", None),
    ],
)
def test_openmetrics_is_served_to_those_who_name_it_first(accept: str, version: str | None) -> None:
    """A wildcard means the older format; a quality that is none is a refusal; unknown versions are not served."""
    assert wants_openmetrics(accept) == version


@pytest.mark.parametrize(
    ("accept_encoding", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br", True),
        ("gzip;q=0.001", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=1.5", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("notgzip", False),
        ("gzip;q=0, gzip", True),
    ],
)
def test_gzip_is_sent_to_those_who_take_it(accept_encoding: str, accepted: bool) -> None:
    """Named with a quality above zero, or covered by a wildcard that nothing contradicts."""
    assert accepts_gzip(accept_encoding) is accepted


def test_an_endless_header_costs_little() -> None:
    """Ranges beyond the first few dozen are not looked at."""
    assert wants_openmetrics(",".join(["a/b;q=0.1"] * 10_000) + ",application/openmetrics-text") is None
