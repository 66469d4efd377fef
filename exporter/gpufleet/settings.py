"""The exporter's settings: the options of the table, read from flags and a configuration file, refused or frozen.

A flag wins over the file. Everything wrong is refused at once: with its place, the value and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufleet.config_file import ConfigFileError, read_config
from gpufleet.durations import format_duration
from gpufleet.option_table import OPTIONS
from gpufleet.options import AlertLabel, Kind, NodeLabel, Option, UnacceptableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpufleet.web.addresses import ListenAddress

_LONGEST_DEFAULT_DEADLINE = 1.0

_SECTIONS = frozenset(option.path[:depth] for option in OPTIONS for depth in range(1, len(option.path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the exporter runs with. Times are in seconds; each field is an option of OPTIONS."""

    config_file: Path | None
    node_name: str
    node_label: tuple[NodeLabel, ...]
    web_listen_address: tuple[ListenAddress, ...]
    faults_listen_address: tuple[ListenAddress, ...]
    web_telemetry_path: str
    web_config_file: Path | None
    nvml_library: str
    poll_interval: float
    poll_deadline: float
    metrics_level: str
    metrics_nvlink: str
    quiesce_max: float
    path_procfs: Path
    path_sysfs: Path
    state_dir: Path
    control_socket: Path | None
    kmsg_path: Path
    kmsg_accept_userspace: bool
    owners_interval: float
    owners_max_age: float
    owners_processes: bool
    owners_config_file: Path | None
    podresources_socket: Path | None
    kubernetes_api_server: str | None
    slurm_dir: Path | None
    slurm_dcgm_dir: Path | None
    slurm_jobstats_dir: Path | None
    prices_file: Path | None
    cost_utilization: str
    alertmanager_url: tuple[str, ...]
    alertmanager_label: tuple[AlertLabel, ...]
    alertmanager_config_file: Path | None
    log_level: str
    log_format: str


class SettingsError(Exception):
    """Settings that are refused; ``refusals`` has one sentence for each problem, with its remedy."""

    def __init__(self, refusals: Sequence[str]) -> None:
        super().__init__("\n".join(refusals))
        self.refusals = tuple(refusals)


@dataclass(frozen=True, slots=True)
class _Given:
    """The texts of an option and where they were written, for messages."""

    texts: tuple[str, ...]
    where: str
    directory: Path | None = None
    """Where relative paths start; None: the working directory."""


def selected(*names: str) -> tuple[Option, ...]:
    """Options by name, or by the first part of their names: ``selected("web", "poll.interval")``."""
    return tuple(option for option in OPTIONS if option.name in names or option.path[0] in names)


def read_settings(flags: Mapping[str, Sequence[str]], *, environ: Mapping[str, str], host_name: str) -> Settings:
    """Settings from ``flags`` (option name to the texts given) and the file that ``config.file`` among them names.

    The file may set every option, also those that have no flag in the command at hand: all commands can share one file.
    SettingsError when anything is refused; the file is read, nothing else is touched.
    """
    refusals: list[str] = []
    given: dict[str, _Given] = {}
    files = flags.get("config.file", ())
    if len(files) == 1 and files[0]:
        try:
            given |= _from_file(Path(files[0]), refusals)
        except ConfigFileError as error:
            refusals.append(str(error))
    given |= {name: _Given(tuple(texts), f"--{name}") for name, texts in flags.items() if texts}
    given.setdefault("node.name", _default_node_name(environ.get("NODE_NAME", ""), host_name))
    values: dict[str, Any] = {option.field: _value(option, given.get(option.name), refusals) for option in OPTIONS}
    if not refusals:
        _across(values, given, refusals)
    if refusals:
        raise SettingsError(refusals)
    return Settings(**values)


def _default_node_name(in_environment: str, host_name: str) -> _Given:
    if in_environment:
        return _Given((in_environment,), "environment variable NODE_NAME")
    return _Given((host_name or "localhost",), "the host name")


def _from_file(file: Path, refusals: list[str]) -> dict[str, _Given]:
    """What the file gives; keys that are no options are refused."""
    accepted = {option.name: option for option in OPTIONS}
    given: dict[str, _Given] = {}
    for entry in read_config(file):
        name = ".".join(entry.path)
        where = f"{file}:{entry.line}: {name}"
        option = accepted.get(name)
        if entry.path in _SECTIONS and entry.values == ("",):
            continue  # all its keys are left out
        if option is None or not option.in_file:
            refusals.append(f"{where}: {_unknown_key(name, accepted)}")
        elif option.path != entry.path:
            refusals.append(f"{where}: dots are for flags; write it as {_nested(option.path, entry.values)}")
        elif entry.is_list and not option.repeatable:
            refusals.append(f"{where}: takes one value, not a list; write it behind the colon")
        elif not entry.values:
            refusals.append(f"{where}: the list is empty; name at least one value, or leave the key out")
        else:
            given[name] = _Given(entry.values, where, file.resolve().parent)
    return given


def _unknown_key(name: str, accepted: Mapping[str, Option]) -> str:
    if name in accepted:
        return f"can't be set in the file; use the flag --{name}"
    below = sorted(option for option in accepted if option.startswith(f"{name}."))
    if below:
        return f"is no option by itself; under it there can be {', '.join(key[len(name) + 1 :] for key in below)}"
    near = did_you_mean(name, (key for key, option in accepted.items() if option.in_file))
    return f"is no option{near or '; --help lists them'}"


def _nested(path: tuple[str, ...], values: tuple[str, ...]) -> str:
    value = values[0] if values else "…"
    return f"{path[0]}: {''.join(f'{{{key}: ' for key in path[1:])}{value}{'}' * (len(path) - 1)}"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """``; did you mean …?`` with the nearest of ``words``, or nothing when none is near."""
    import difflib  # only a mistake pays for it

    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _value(option: Option, given: _Given | None, refusals: list[str]) -> object:
    """The value of an option; a refusal is noted and gives None, and nobody sees that None."""
    if given is None:
        if option.default is None:
            return () if option.repeatable else None
        given = _Given((option.default,), f"--{option.name}")
    if len(given.texts) > 1 and not option.repeatable:
        refusals.append(f"{given.where}: is given {len(given.texts)} times; keep one of them")
        return None
    values: list[object] = []
    for text in given.texts:
        try:
            values.append(option.kind.parse(_located(option.kind, text, given.directory)))
        except UnacceptableError as error:
            refusals.append(f"{given.where}: {error}")
            return None
        if values[-1] in values[:-1]:
            refusals.append(f"{given.where}: {text!r} is given twice; keep one of them")
            return None
    return tuple(values) if option.repeatable else values[0]


def _located(kind: Kind, text: str, directory: Path | None) -> str:
    return str(directory / text) if directory is not None and kind.is_path(text) else text


def _across(values: dict[str, Any], given: Mapping[str, _Given], refusals: list[str]) -> None:
    """Complete and check what depends on more than one option."""
    interval, deadline = values["poll_interval"], values["poll_deadline"]
    if deadline is None:
        values["poll_deadline"] = min(interval, _LONGEST_DEFAULT_DEADLINE)
    elif deadline > interval:
        refusals.append(
            f"{given['poll.deadline'].where}: {format_duration(deadline)} is longer than the poll interval of "
            f"{format_duration(interval)}: shorten it, lengthen --poll.interval, or leave it out for "
            f"{format_duration(min(interval, _LONGEST_DEFAULT_DEADLINE))}"
        )
    for option in ("alertmanager.label", "node.label"):
        names = [label.name for label in values[option.replace(".", "_")]]
        refusals += [
            f"{given[option].where}: {name} has two values: keep one of them"
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
    if values["owners_max_age"] < 2 * values["owners_interval"]:
        where = given.get("owners.max-age") or given["owners.interval"]
        refusals.append(
            f"{where.where}: a maximal age of {format_duration(values['owners_max_age'])} is less than two intervals "
            f"of {format_duration(values['owners_interval'])}: lengthen --owners.max-age, or shorten --owners.interval"
        )
    if not values["alertmanager_url"]:
        refusals += [
            f"{given[name].where}: is of no use without --alertmanager.url: give that, too, or leave this out"
            for name in ("alertmanager.label", "alertmanager.config.file")
            if name in given
        ]


def effective(settings: Settings, options: Iterable[Option] = OPTIONS) -> dict[str, str]:
    """Option name to its value as one would write it; unset options are left out."""
    shown = {}
    for option in options:
        value = getattr(settings, option.field)
        if value is None or value == ():
            continue
        values = value if isinstance(value, tuple) else (value,)
        shown[option.name] = ",".join(map(_as_written, values))
    return shown


def _as_written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return format_duration(value) if isinstance(value, float) else str(value)
