"""The Xids that the mixin alerts on without gpufleet are those that gpufleet's own catalogue takes for as bad."""

from __future__ import annotations

import json

import _gojsonnet

from gpufleet.faults.xids import known, lookup, xid_class
from gpufleet.model.fault import Action
from tests.mixin.rendering import MIXIN

LISTS: dict[str, str] = json.loads(_gojsonnet.evaluate_snippet(str(MIXIN / "x.jsonnet"), "import 'lib/xids.libsonnet'"))


def test_a_page_is_what_takes_a_gpu_out_of_service() -> None:
    """Exactly the numbers for which the exporter isolates."""
    assert LISTS["fatal"].split("|") == [str(code) for code in known() if lookup(code).isolates]


def test_a_ticket_is_what_hardware_did_and_somebody_has_to_act_on() -> None:
    """What programs cause, and what is only told, is neither."""
    assert LISTS["degraded"].split("|") == [
        str(code)
        for code in known()
        if xid_class(code) == "hardware" and not lookup(code).isolates and lookup(code).action is not Action.NONE
    ]
