"""Numbers in expressions, as people write them."""

from __future__ import annotations

import json

import _gojsonnet
import _jsonnet
import pytest

from tests.mixin.rendering import MIXIN

NUMBERS = {
    "0.07": "0.07",
    "7": "7",
    "2.5": "2.5",
    "100 * 0.72": "72",
    "0.1 + 0.2": "0.3",
    "1 - 1e-9": "1",
    "-0.5": "-0.5",
    "-0.07": "-0.07",
    "1000000": "1000000",
    "0.000001": "0.000001",
    "0": "0",
}


@pytest.mark.parametrize("engine", [_jsonnet, _gojsonnet], ids=["jsonnet", "gojsonnet"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_written_as_it_is_meant(number: str, engine: object) -> None:
    """At most six digits behind the point, and none that only a computer sees."""
    program = f"(import 'lib/fill.libsonnet')('%s > %s', ['a', {number}])"
    made = getattr(engine, "evaluate_snippet")(str(MIXIN / "x.jsonnet"), program)  # noqa: B009 - two modules, one name

    assert json.loads(made) == f"a > {NUMBERS[number]}"


def test_what_stands_in_a_template_stays() -> None:
    """Quotes, backslashes and line breaks."""
    program = r"""(import 'lib/fill.libsonnet')('a="%s" =~ "\\d"' + '\n%s', ['x', 'y'])"""
    assert json.loads(_gojsonnet.evaluate_snippet(str(MIXIN / "x.jsonnet"), program)) == 'a="x" =~ "\\d"\ny'
