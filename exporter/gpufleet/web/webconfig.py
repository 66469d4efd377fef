"""exporter-toolkit's web configuration file (``--web.config.file``): text to a checked WebConfig. Pure.

All Prometheus exporters share the format, so one file can serve them all. What this server cannot do is refused with
what to write instead; nothing is ignored in silence. The format's reference is exporter-toolkit's
docs/web-configuration.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.config_file import ConfigFileError, parse_config
from gpufleet.web.auth import HASH
from gpufleet.web.fields import Field, FieldError, refuse_nested, section
from gpufleet.web.tls_settings import TLS_KEYS, TlsSettings, tls_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Each header that may be set, with the values that it may have; () for any.
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
_TLS, _HTTP, _USERS, _RATE_LIMIT = (
    ("tls_server_config",),
    ("http_server_config",),
    ("basic_auth_users",),
    ("rate_limit",),
)
_HEADERS = ("http_server_config", "headers")
_SECTIONS = frozenset({(), _TLS, _HTTP, _USERS, _RATE_LIMIT, _HEADERS})
_TOP_KEYS = tuple(key for (key,) in (_TLS, _HTTP, _USERS, _RATE_LIMIT))
# bcrypt at cost 18 takes a quarter of a minute, longer than Prometheus waits for a scrape; each step doubles it.
_HIGHEST_COST = 18
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")


class WebConfigError(Exception):
    """A web configuration that is not used; the message names file, line, key and remedy."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket: burst requests at once, in the long run one per interval."""

    interval_seconds: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The whole file; users are names with bcrypt hashes.

    notes are sentences for the log, about what was accepted though it means less here than in Go.
    """

    tls: TlsSettings | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: tuple[tuple[str, str], ...] = ()
    rate_limit: RateLimit | None = None
    notes: tuple[str, ...] = ()


def parse_web_config(content: bytes, path: Path) -> WebConfig:
    """Parse the content of the file at path; relative paths in it are relative to the file. No other file is read.

    Raises:
        WebConfigError: anything that is not understood, contradictory or not possible here.
    """
    try:
        entries = parse_config(content, str(path), "tls_server_config: {cert_file: tls.crt, key_file: tls.key}")
        section(entries, (), _TOP_KEYS)
        refuse_nested(entries, _SECTIONS)
        tls, notes = tls_settings(section(entries, _TLS, TLS_KEYS), path.parent)
        http = section(entries, _HTTP, ("http2", "headers"))
        if "http2" in http and http["http2"].flag():
            notes += ("http_server_config.http2: this server speaks HTTP/1.1 only, and clients fall back to it",)
        headers = (_header(name, field) for name, field in section(entries, _HEADERS, HEADERS).items())
        return WebConfig(
            tls=tls,
            headers=tuple(header for header in headers if header is not None),
            users=tuple(_user(name, field) for name, field in section(entries, _USERS, None).items()),
            rate_limit=_rate_limit(section(entries, _RATE_LIMIT, ("interval", "burst"))),
            notes=notes,
        )
    except ConfigFileError as error:
        raise WebConfigError(str(error)) from error
    except FieldError as error:
        raise WebConfigError(f"{path}:{error.line}: {error}") from error


def parse_go_duration(text: str) -> float | None:
    """Return the seconds of a Go duration such as "1s", "1m30s" or "0"; None where it is none, or has a sign."""
    if text == "0":
        return 0.0
    seconds = 0.0
    end = 0
    for part in _DURATION_PART.finditer(text):
        if part.start() != end:
            return None
        seconds += float(part[1]) * _UNIT_SECONDS[part[2]]
        end = part.end()
    return seconds if text and end == len(text) else None


def _header(name: str, field: Field) -> tuple[str, str] | None:
    if field.is_blank():  # the format's way to say "unset"
        return None
    value = field.text()
    allowed = HEADERS[name]
    if allowed and value not in allowed:
        raise field.error(f"{value!r} is no value for this header; use {' or '.join(allowed)}")
    if not _PRINTABLE_ASCII.fullmatch(value):
        raise field.error("a header's value must be one line of printable ASCII")
    return name, value


def _user(name: str, field: Field) -> tuple[str, str]:
    if ":" in name or not name:  # RFC 7617 section 2: the first colon ends the name
        raise field.error("a user name must not be empty and must not contain a colon")
    hashed = field.text()
    found = HASH.fullmatch(hashed)
    # The value is not repeated: it may be a password in plain text.
    if found is None:
        raise field.error("must be a bcrypt hash, as `htpasswd -nBC 10 NAME` writes after the colon")
    if int(found["cost"]) > _HIGHEST_COST:
        raise field.error(f"a bcrypt cost above {_HIGHEST_COST} takes minutes a login; hash again with cost 10 to 12")
    return name, hashed


def _rate_limit(fields: Mapping[str, Field]) -> RateLimit | None:
    interval_field, burst_field = fields.get("interval"), fields.get("burst")
    burst = burst_field.whole_number() if burst_field is not None else 0
    if interval_field is None:
        if burst_field is not None:
            raise burst_field.error("a burst needs an interval; set rate_limit.interval, such as 1s")
        return None
    interval = parse_go_duration(interval_field.text())
    if interval is None:
        raise interval_field.error("must be a duration with a unit, such as 1s or 500ms, or 0 for no limit")
    if interval == 0:
        return None
    if burst < 1:
        raise (burst_field or interval_field).error(
            "a burst of 0 would refuse every request; set rate_limit.burst to 1 or more"
        )
    return RateLimit(interval, burst)
