"""The kinds of values that options take: text in, value out, or a refusal that says what to write instead.

Pure: nothing here looks at the machine. Flags and configuration files give the same texts to the same kinds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpufleet.durations import format_duration, parse_duration
from gpufleet.web.addresses import ListenAddress, ListenError, parse_listen_address

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_NODE_NAME = 253
"""Characters of a DNS name, the longest that Kubernetes gives a node."""
FIXED_ALERT_LABELS = frozenset(
    {"alertname", "quarantine", "node", "incident", "fault", "class", "action", "isolate", "refund"}
)
"""What every alert of an incident has. An external label of such a name would have no effect, as in Prometheus."""
IN_CLUSTER = "in-cluster"
NO_API_SERVER = "none"
LONGEST_NODE_LABEL = 512
"""Characters of name and value; Kubernetes allows 253 + 1 + 63 and 63."""
_NODE_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")
_LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


class UnacceptableError(ValueError):
    """A value that a kind does not take; the message names the value, what is wrong and the remedy."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value."""

    metavar: str
    """What stands for the value in a synopsis."""
    parse: Callable[[str], object]
    """The value of a text. Raises :class:`UnacceptableError`."""
    is_switch: bool = False
    """Whether the flag alone, without a value, means true."""
    is_path: Callable[[str], bool] = lambda _: False
    """Whether the text names a file, so that a relative one in a configuration file starts at that file's directory."""


@dataclass(frozen=True, slots=True)
class AlertLabel:
    """A label that an option adds to alerts."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class NodeLabel:
    """A label of the node, as Kubernetes writes it."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: the flag ``--NAME`` and, in the configuration file, a key for each part of NAME between dots."""

    name: str
    kind: Kind
    help: str
    default: str | None = None
    """As it would be written; None: the option may be unset."""
    repeatable: bool = False
    in_file: bool = True

    @property
    def field(self) -> str:
        """The option's attribute of Settings."""
        return self.name.replace(".", "_").replace("-", "_")

    @property
    def path(self) -> tuple[str, ...]:
        """The option's keys in the configuration file."""
        return tuple(self.name.split("."))


def duration(low: float, high: float) -> Kind:
    """Seconds from ``low`` to ``high``."""
    between = f"from {format_duration(low)} to {format_duration(high)}"

    def parse(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError:
            raise UnacceptableError(
                f"{text!r} is no duration: write a number with its unit, such as 500ms, 1s or 1m30s"
            ) from None
        if not low <= seconds <= high:
            side = "shorter" if seconds < low else "longer"
            limit = low if seconds < low else high
            raise UnacceptableError(f"{text!r} is {side} than {format_duration(limit)}: write a duration {between}")
        return seconds

    return Kind("DURATION", parse)


def choice(*words: str) -> Kind:
    """One of ``words``."""

    def parse(text: str) -> str:
        if text not in words:
            raise UnacceptableError(f"{text!r} is not known: write {' or '.join((', '.join(words[:-1]), words[-1]))}")
        return text

    return Kind("|".join(words), parse)


def _plain(text: str) -> str:
    if not text:
        raise UnacceptableError("the value is empty: write one, or leave the option out")
    if not text.isprintable():
        raise UnacceptableError(f"{text!r} has characters that can't be printed: write it without them")
    return text


def _node_name(text: str) -> str:
    if len(_plain(text)) > LONGEST_NODE_NAME:
        raise UnacceptableError(
            f"{text[:20] + '…'!r} has {len(text)} characters: write at most {LONGEST_NODE_NAME}, as in a DNS name"
        )
    return text


def _url_path(text: str) -> str:
    if text == "/":
        raise UnacceptableError("'/' is the landing page: write a path of its own, such as /metrics")
    if not _URL_PATH.fullmatch(text):
        raise UnacceptableError(f"{text!r} is no path that a URL can have as it is: write one such as /metrics")
    if text == "/-" or text.startswith("/-/"):
        raise UnacceptableError(f"{text!r} is where /-/healthy and /-/ready are: write another path, such as /metrics")
    return text


def _any_address(text: str) -> ListenAddress:
    try:
        return parse_listen_address(text)
    except ListenError as error:
        raise UnacceptableError(str(error)) from error


def _listen_address(text: str) -> object:
    address = _any_address(text)
    if address.path:
        raise UnacceptableError(f"{text!r} is a unix socket, which Prometheus cannot scrape: write HOST:PORT or :PORT")
    return address


def _alertmanager_url(text: str) -> str:
    # Before anything is quoted: a refusal is printed, and there may be a password in it.
    if "@" in text.partition("//")[2].partition("/")[0]:
        raise UnacceptableError(
            "has credentials in it, which would show in logs and metrics: write basic_auth into "
            "--alertmanager.config.file"
        )
    _plain(text)
    remedy = f"{text!r} is no URL of a web server: write one such as http://alertmanager:9093"
    try:
        url = urlsplit(text)
        right = url.scheme in {"http", "https"} and url.hostname and url.port != 0 and " " not in text
    except ValueError as error:  # a port that is none, or half of an IPv6 address
        raise UnacceptableError(remedy) from error
    if not right:
        raise UnacceptableError(remedy)
    if url.query or url.fragment:
        raise UnacceptableError(f"{text!r} has a query or a fragment: write it without")
    if "/api/v" in url.path:
        raise UnacceptableError(f"{text!r} names the API itself: write only what comes before /api")
    return text.rstrip("/")


def _alert_label(text: str) -> AlertLabel:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise UnacceptableError(f"{text!r} is no label with a value: write one such as cluster=east-1")
    _plain(value)
    if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
        raise UnacceptableError(f"{name!r} is no name of a label: write letters, digits and _, such as cluster=east-1")
    if name in FIXED_ALERT_LABELS:
        raise UnacceptableError(f"{name!r} is a label that the alert itself always has: leave it out")
    return AlertLabel(name, value)


def _node_label(text: str) -> NodeLabel:
    name, equals, value = text.partition("=")
    if not equals or not _NODE_LABEL_NAME.fullmatch(name) or len(text) > LONGEST_NODE_LABEL:
        raise UnacceptableError(
            f"{text[:40]!r} is no label of a node: write one such as node.kubernetes.io/instance-type=p5.48xlarge"
        )
    return NodeLabel(name, _plain(value))


def _api_server(text: str) -> str:
    if text in (IN_CLUSTER, NO_API_SERVER):
        return text
    remedy = f"write {IN_CLUSTER}, {NO_API_SERVER}, or a URL such as http://127.0.0.1:8001"
    if "@" in text.partition("//")[2].partition("/")[0]:
        raise UnacceptableError(f"has credentials in it, which would show in logs: {remedy}")
    _plain(text)
    try:
        url = urlsplit(text)
        right = url.scheme in {"http", "https"} and url.hostname and url.port != 0 and " " not in text
    except ValueError as error:
        raise UnacceptableError(f"{text!r} is no API server: {remedy}") from error
    if not right or url.query or url.fragment:
        raise UnacceptableError(f"{text!r} is no API server: {remedy}")
    return text.rstrip("/")


def _path(text: str) -> Path:
    return Path(_plain(text))


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise UnacceptableError(f"{text!r} is neither true nor false")
    return text == "true"


SWITCH = Kind("true|false", _switch, is_switch=True)
ALERTMANAGER_URL = Kind("URL", _alertmanager_url)
ALERT_LABEL = Kind("NAME=VALUE", _alert_label)
API_SERVER = Kind("URL", _api_server)
NODE_LABEL = Kind("NAME=VALUE", _node_label)
NODE_NAME = Kind("NAME", _node_name)
URL_PATH = Kind("PATH", _url_path)
LISTEN_ADDRESS = Kind("ADDRESS", _listen_address)
ANY_ADDRESS = Kind("ADDRESS", _any_address)
PATH = Kind("PATH", _path, is_path=bool)
LIBRARY = Kind("LIBRARY", _plain, is_path=lambda text: "/" in text)
