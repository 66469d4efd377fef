"""``gpufleet report``: what each project, run or task cost, and what of it was not used, from the recorded series.

Exit status: 0 printed, 1 nothing was recorded in that time, 2 flags are refused or Prometheus gave no answer.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from gpufleet.commands.flags import USAGE, FlagParser
from gpufleet.commands.report_forms import csv_text, json_text, text
from gpufleet.commands.report_rows import LEVELS, Report, queries, report_of
from gpufleet.durations import format_duration, parse_duration

_NOTHING_RECORDED = 1
_SHORTEST, _LONGEST = 300.0, 86_400.0 * 3660
_LATEST = 253_370_764_800.0
"""The year 9999."""

_SUMMARY = """\
Say what the GPU time of each project, run or task cost and what of it was not used, from any Prometheus (or Thanos,
Mimir, VictoriaMetrics, ...) that holds the series recorded by alerts/gpufleet-cost.yaml.

unused is cost times one minus utilization, and all cost of a GPU that was down. Cost without a reading of utilization
is unmeasured: neither used nor unused. What nobody held is listed below the total. Currencies are never added up. In
CSV, a name that a spreadsheet would take for a formula begins with an apostrophe.

Exit status: 0 printed; 1 nothing was recorded in that time; 2 flags are refused, or Prometheus gave no answer."""
_EXAMPLES = """\
  gpufleet report --prometheus.url=http://prometheus:9090
  gpufleet report --prometheus.url=http://prometheus:9090 --by=run --last=7d --format=csv > runs.csv
  gpufleet report --prometheus.url=https://mimir.example/prometheus --prometheus.config.file=mimir.yml --by=task"""


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet report``."""
    parser = FlagParser("report", _SUMMARY, (), examples=_EXAMPLES)
    parser.add_argument("--prometheus.url", dest="url", metavar="URL", help="what comes before /api/v1")
    parser.add_argument(
        "--prometheus.config.file",
        dest="config",
        metavar="FILE",
        help="tls_config, basic_auth or authorization, with the keys of Prometheus's http_config",
    )
    parser.add_argument(
        "--prometheus.timeout", dest="timeout", metavar="DURATION", default="2m", help="of each query (default 2m)"
    )
    parser.add_argument("--by", choices=[*LEVELS], default="project", help="what a row is (default project)")
    parser.add_argument("--last", metavar="DURATION", default="30d", help="time to report on (default 30d)")
    parser.add_argument("--at", metavar="TIME", help="its end: 2026-07-01, 2026-07-01T06:00:00Z or a Unix time; now")
    parser.add_argument("--cluster", metavar="NAME", help="only what has this label cluster")
    parser.add_argument("--format", choices=["text", "csv", "json"], default="text", help="default text")
    given = parser.parse_args(argv)
    if given.url is None:
        parser.error("where is Prometheus? write --prometheus.url=http://prometheus:9090")
    try:
        url = prometheus_url(given.url)
        seconds = _duration("--last", given.last, _SHORTEST, _LONGEST)
        timeout = _duration("--prometheus.timeout", given.timeout, 0.001, 86_400.0)
        end = time.time() if given.at is None else moment(given.at)
    except ValueError as error:
        parser.error(str(error))

    # requests and the parser of its configuration are not needed for --help.
    from gpufleet.commands.report_prometheus import Prometheus, PrometheusError
    from gpufleet.notify.client_config import ClientConfigError
    from gpufleet.notify.credentials import read_client_config

    try:
        config = read_client_config(None if given.config is None else Path(given.config), "--prometheus.config.file")
        prometheus = Prometheus(
            url, config, timeout=timeout, warn=lambda said: print(f"{parser.prog}: warning: {said}", file=sys.stderr)
        )
        questions = queries(given.by, seconds, given.cluster)
        report = report_of(given.by, {about: prometheus.instant(query, end) for about, query in questions.items()})
    except (ClientConfigError, PrometheusError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE
    if not report.held and not report.nobodys:
        of_cluster = "" if given.cluster is None else f" of cluster {given.cluster!r}"
        print(
            f"{parser.prog}: nothing was recorded{of_cluster} in the last {format_duration(seconds)}: "
            "does this Prometheus evaluate alerts/gpufleet-cost.yaml, and scrape exporters with a source of owners?",
            file=sys.stderr,
        )
        return _NOTHING_RECORDED
    return _print(report, given.format, end - seconds, end)


def _print(report: Report, form: str, begin: float, end: float) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may have any letters, and a terminal knows some
    match form:
        case "csv":
            sys.stdout.write(csv_text(report))
        case "json":
            print(json_text(report, begin, end))
        case _:
            print(text(report))
    return 0


def prometheus_url(given: str) -> str:
    """What comes before ``/api``, without a slash at its end. Raises ValueError with a sentence."""
    # Before anything is quoted: there may be a password in it.
    if "@" in given.partition("//")[2].partition("/")[0]:
        raise ValueError("--prometheus.url has credentials in it: write basic_auth into --prometheus.config.file")
    remedy = f"--prometheus.url: {given!r} is no URL of a web server: write one such as http://prometheus:9090"
    try:
        url = urlsplit(given)
        right = url.scheme in {"http", "https"} and url.hostname and url.port != 0
    except ValueError as error:  # a port that is none, or half of an IPv6 address
        raise ValueError(remedy) from error
    if not right or " " in given or not given.isprintable():
        raise ValueError(remedy)
    if url.query or url.fragment:
        raise ValueError(f"--prometheus.url: {given!r} has a query or a fragment: write it without")
    if "/api/v" in url.path:
        raise ValueError(f"--prometheus.url: {given!r} names the API itself: write only what comes before /api")
    return given.rstrip("/")


def moment(given: str) -> float:
    """Unix time of a day, a time of RFC 3339 or a Unix time. Raises ValueError with a sentence."""
    remedy = f"--at: {given!r} is no time: write 2026-07-01, 2026-07-01T06:00:00Z or a Unix time"
    try:
        if given.replace(".", "", 1).isdecimal() and given.isascii():
            at = float(given)
        else:
            # A day begins at 00:00 UTC. A time of day without a zone could be anybody's.
            at = datetime.fromisoformat(given + "T00:00:00Z" if len(given) <= len("2026-07-01") else given).timestamp()
            if len(given) > len("2026-07-01") and datetime.fromisoformat(given).tzinfo is None:
                at = math.nan
    except (ValueError, OverflowError) as error:
        raise ValueError(remedy) from error
    if not 0.0 <= at < _LATEST:
        raise ValueError(remedy)
    return at


def _duration(flag: str, given: str, shortest: float, longest: float) -> float:
    try:
        seconds = parse_duration(given)
    except ValueError as error:
        raise ValueError(f"{flag}: {given!r} is no duration: write one such as 30d, 12h or 1h30m") from error
    if not shortest <= seconds <= longest:
        raise ValueError(f"{flag}: {given!r} is not between {format_duration(shortest)} and {format_duration(longest)}")
    return seconds
