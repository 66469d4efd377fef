"""Reads scenario files; every refusal names file, key and remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from gpufleet.durations import parse_duration
from gpufleet.simulate import scenario as schema
from gpufleet.simulate.scenario import Duration, Scenario, ScenarioError
from gpufleet.simulate.scenario_checks import problems

if TYPE_CHECKING:
    import yaml

MOST_BYTES = 1 << 20
_MOST_DEPTH = 16
_SECTIONS = (schema.Scenario, schema.Node, schema.Mig, schema.Run, *get_args(schema.Event))


def default_scenario() -> Scenario:
    """The scenario that comes with gpufleet: a training run of four nodes and its neighbours."""
    content = resources.files(__package__).joinpath("data", "scenario.yaml").read_bytes()
    return parse_scenario(content, "scenario.yaml")


def read_scenario(file: Path) -> Scenario:
    """The scenario in ``file``; ScenarioError when it can't be read or used."""
    try:
        with file.open("rb") as handle:
            content = handle.read(MOST_BYTES + 1)
    except OSError as error:
        raise ScenarioError(
            f"{file}: can't be read: {error.strerror}; check the path, or leave --scenario.file out for the default"
        ) from error
    if len(content) > MOST_BYTES:
        raise ScenarioError(f"{file}: is larger than {MOST_BYTES} bytes; this is no scenario")
    return parse_scenario(content, str(file))


def parse_scenario(content: bytes, name: str) -> Scenario:
    """The scenario in a YAML document that messages call ``name``."""
    tree = _load(content, name)
    if not isinstance(tree, dict):
        raise ScenarioError(f"{name}: is no mapping; begin with `nodes:`")
    try:
        scenario = msgspec.convert(tree, Scenario, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{name}: {_explain(str(error))}") from error
    found = list(problems(scenario))
    if found:
        raise ScenarioError("\n".join(f"{name}: {problem}" for problem in found[:20]))
    return scenario


def _decode(wanted: type, value: object) -> object:
    if wanted is not Duration:
        raise NotImplementedError(wanted)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no duration; write it with a unit, such as 90s or 1h30m")  # noqa: TRY004 -- msgspec reports ValueError with its path
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise ValueError(f"{value!r} is no duration; write it like 90s or 1h30m") from None
    return Duration(round(seconds * 1000))


_LOCATED = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(?P<key>.*)`", re.DOTALL)
_MISSING_KEY = re.compile(r"Object missing required field `(?P<key>.*)`")


def _explain(message: str) -> str:
    located = _LOCATED.fullmatch(message)
    what, path = (located["what"], located["path"]) if located else (message, "")
    unknown = _UNKNOWN_KEY.fullmatch(what)
    if unknown:
        key = unknown["key"]
        close = difflib.get_close_matches(key, sorted(_keys()), n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "take it out"
        return f"{_join(path, key)}: is no key of a scenario here; {remedy}"
    missing = _MISSING_KEY.fullmatch(what)
    if missing:
        return f"{_join(path, missing['key'])}: is missing; add it"
    if path.endswith(".kind"):
        kinds = ", ".join(sorted(event.__struct_config__.tag for event in get_args(schema.Event)))
        return f"{path}: {what[0].lower()}{what[1:]}; it is one of {kinds}"
    for key, words in ((".pattern", schema.Pattern), (".server", schema.Server)):
        if path.endswith(key):
            return f"{path}: {what[0].lower()}{what[1:]}; it is one of {', '.join(get_args(words))}"
    return f"{path or 'the file'}: {what[0].lower()}{what[1:]}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _keys() -> Iterator[str]:
    for section in _SECTIONS:
        yield from section.__struct_encode_fields__
    yield "kind"


def _load(content: bytes, name: str) -> Any:  # noqa: ANN401 -- a YAML tree can be anything until it is converted
    import yaml

    try:
        _refuse_tricks(content, name)
        loader = yaml.SafeLoader(content)
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_duplicates(root, name)
        return loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = _line(error.problem_mark or error.context_mark)
        raise ScenarioError(f"{name}:{line}: is no YAML: {error.problem}; correct it there") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{name}: is no YAML: {str(error).splitlines()[0]}; write it as UTF-8 text") from error
    except ScenarioError:
        raise
    except ValueError as error:  # a number or date that Python can't hold
        raise ScenarioError(f"{name}: holds a value that can't be read: {error}; put it in quotes") from error


def _refuse_tricks(content: bytes, name: str) -> None:
    """No aliases (a few lines of those can stand for gigabytes), and no deeper than PyYAML, which recurses, can go."""
    import yaml

    depth = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        where = f"{name}:{_line(event.start_mark)}"
        if isinstance(event, yaml.AliasEvent):
            raise ScenarioError(f"{where}: *{event.anchor} is an alias; write the value itself")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MOST_DEPTH:
            raise ScenarioError(f"{where}: is nested too deeply; no key of a scenario is so deep")


def _line(mark: Any) -> int:  # noqa: ANN401 -- PyYAML has two classes of marks
    return mark.line + 1 if mark is not None else 1


def _refuse_duplicates(node: yaml.Node, name: str) -> None:
    """YAML keeps the last of two equal keys without a word; which one was meant is for the author to say."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(item, name)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = _line(key.start_mark)
                    raise ScenarioError(f"{name}:{line}: {key.value}: is there twice; keep one of them")
                seen.add(key.value)
            _refuse_duplicates(value, name)
