"""The policy's file: YAML with strict keys; what is left out keeps its default. The reading is in ``read_policy``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpufleet.config_file import ConfigFileError, parse_config
from gpufleet.durations import parse_duration
from gpufleet.quarantine.matchers import parse_matcher
from gpufleet.quarantine.policy import (
    AlertRules,
    Breaker,
    Budget,
    Ledger,
    Mode,
    Nodes,
    Owners,
    Platform,
    Policy,
    Retries,
)
from gpufleet.small_file import read_small_file
from gpufleet.web.fields import Field, FieldError, refuse_nested, section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpufleet.config_file import Entry

_Part = TypeVar("_Part", AlertRules, Nodes, Budget, Breaker, Owners, Retries, Ledger)
_Word = TypeVar("_Word", Mode, Platform)

_MAX_BYTES = 1 << 16
_EXAMPLE = "mode: dry-run"
_SECTIONS = ("alerts", "nodes", "budget", "breaker", "owners", "retries", "ledger")
_TOP = ("mode", "platform", "node_faults", *_SECTIONS)
_MOST_FAULTS = 64
_LONGEST_NAME = 253
"""Of a Kubernetes object or label, RFC 1123."""


class PolicyError(Exception):
    """The file can't be used; the message names file, line, key and remedy."""


def read_policy(file: Path) -> Policy:
    """Read and check the file; PolicyError when it is missing, unreadable or not acceptable."""
    try:
        content = read_small_file(file, _MAX_BYTES)
    except OSError as error:
        raise PolicyError(
            f"{file}: can't be read: {error.strerror}; check the path and who may read it, or leave --policy.file out"
        ) from error
    if len(content) > _MAX_BYTES:
        raise PolicyError(f"{file}: is larger than {_MAX_BYTES} bytes; this is no policy")
    return parse_policy(content, str(file))


def parse_policy(content: bytes, name: str) -> Policy:
    """The same of a file's content, which messages call ``name``."""
    try:
        entries = parse_config(content, name, _EXAMPLE)
        top = section(entries, (), _TOP)
        refuse_nested(entries, {(), *((part,) for part in _SECTIONS)})
        policy = _policy(entries, top)
    except ConfigFileError as error:
        raise PolicyError(str(error)) from error
    except FieldError as error:
        raise PolicyError(f"{name}:{error.line}: {error}") from error
    return policy


def _policy(entries: Iterable[Entry], top: Mapping[str, Field]) -> Policy:
    def part(default: _Part, above: str, readers: Mapping[str, Callable[[Field], object]]) -> _Part:
        fields = section(entries, (above,), readers)
        given: dict[str, Any] = {key: readers[key](field) for key, field in fields.items()}
        return replace(default, **given)

    default = Policy()
    return Policy(
        mode=_one_of(top, "mode", Mode, default.mode),
        platform=_one_of(top, "platform", Platform, default.platform),
        node_faults=_patterns(top["node_faults"]) if "node_faults" in top else default.node_faults,
        alerts=part(
            AlertRules(),
            "alerts",
            {
                "matchers": _matchers,
                "cluster_label": Field.text,
                "cluster": Field.text,
                "node_label": Field.text,
                "short_names": Field.flag,
                "stale_after": _duration,
            },
        ),
        nodes=part(
            Nodes(),
            "nodes",
            {"pool_label": _label, "gpu_label": _label, "opt_out_label": _label, "taint": _label},
        ),
        budget=part(
            Budget(),
            "budget",
            {
                "share": _share,
                "most": _number(1),
                "most_share": _share,
                "out_share": _share,
                "new": _number(1),
                "window": _duration,
            },
        ),
        breaker=part(Breaker(), "breaker", {"same_fault_nodes": _number(2), "pool_share": _share, "window": _duration}),
        owners=part(Owners(), "owners", {"most_nodes": _number(0), "window": _duration}),
        retries=part(
            Retries(),
            "retries",
            {
                "move": Field.flag,
                "strip_finalizer": Field.flag,
                "refund": Field.flag,
                "most_per_incident": _number(0),
                "most_per_job": _number(0),
                "peer_seconds": _duration,
            },
        ),
        ledger=part(Ledger(), "ledger", {"namespace": _label, "name": _label, "file": _absolute}),
    )


def _one_of(fields: Mapping[str, Field], key: str, kind: type[_Word], default: _Word) -> _Word:
    if key not in fields:
        return default
    try:
        return kind(fields[key].text())
    except ValueError:
        words = " or ".join(member.value for member in kind)
        raise fields[key].error(f"{fields[key].values[0]!r} must be {words}") from None


def _number(least: int) -> Callable[[Field], int]:
    def read(field: Field) -> int:
        number = field.whole_number()
        if number < least:
            raise field.error(f"{number} must be {least} or more")
        return number

    return read


def _share(field: Field) -> float:
    text = field.text().strip()
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise field.error(f"{text!r} must be a share such as 10% or 0.1")
    return value


def _duration(field: Field) -> float:
    try:
        seconds = parse_duration(field.text())
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise field.error(f"{field.values[0]!r} must be a duration such as 10m")
    return seconds


def _matchers(field: Field) -> tuple[object, ...]:
    items = field.items()
    if not items:
        raise field.error("must have a matcher, or every alert would take a node out")
    try:
        return tuple(map(parse_matcher, items))
    except ValueError as error:
        raise field.error(str(error)) from None


def _patterns(field: Field) -> tuple[str, ...]:
    items = field.items()
    if len(items) > _MOST_FAULTS:
        raise field.error(f"has {len(items)} patterns; {_MOST_FAULTS} are the most")
    return items


def _label(field: Field) -> str:
    text = field.text().strip()
    if len(text) > _LONGEST_NAME or any(character.isspace() or not character.isprintable() for character in text):
        raise field.error(f"{text[:80]!r} is no name that Kubernetes would accept")
    return text


def _absolute(field: Field) -> str:
    text = field.text()
    if not Path(text).is_absolute():
        raise field.error(f"{text!r} must be an absolute path, such as {Ledger().file}")
    return text
