"""The mixin, rendered as a site would: with changes to its configuration, by either engine."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import _gojsonnet

from tests.conftest import ROOT

MIXIN = ROOT / "mixin"


def _loaded() -> Any:  # noqa: ANN401 - a script has no type
    loader = importlib.machinery.SourceFileLoader("generate_mixin", str(ROOT / "tools" / "generate-mixin"))
    spec = importlib.util.spec_from_loader("generate_mixin", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


generator = _loaded()
"""tools/generate-mixin as a module."""


@cache
def _rendered(config: str) -> dict[str, Any]:
    # Go's engine, which takes a tenth of the time; that both make the same has a test of its own.
    program = f"""
    local mixin = (import 'mixin.libsonnet') + {{ _config+:: {config} }};
    {{
      rules: mixin.prometheusRules.groups,
      alerts: mixin.prometheusAlerts.groups,
      dashboards: mixin.grafanaDashboards,
      config: mixin._config,
    }}
    """
    made: dict[str, Any] = json.loads(_gojsonnet.evaluate_snippet(str(MIXIN / "test.jsonnet"), program))
    return made


def rendered(config: Mapping[str, object] | None = None) -> dict[str, Any]:
    """``rules`` and ``alerts`` (lists of groups), ``dashboards`` by file name, and ``config`` as it came out."""
    return _rendered(json.dumps(config or {}))


def groups(config: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
    """All groups, those of recording rules first."""
    made = rendered(config)
    return [*made["rules"], *made["alerts"]]


def rule_expressions(config: Mapping[str, object] | None = None) -> dict[str, str]:
    """Expression of each rule by its name; several of one name are told apart by their labels."""
    return {
        f"{rule.get('record') or rule['alert']}{rule.get('labels', '') if 'record' in rule else ''}": rule["expr"]
        for group in groups(config)
        for rule in group["rules"]
    }


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels of a dashboard, those in closed rows included, without the rows."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", [])


def panel_expressions(config: Mapping[str, object] | None = None) -> dict[str, str]:
    """Expression of each query of each panel by dashboard, panel and query."""
    return {
        f"{name}: {panel['title']} {target['refId']}": target["expr"]
        for name, dashboard in rendered(config)["dashboards"].items()
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
    }


def expressions(config: Mapping[str, object] | None = None) -> dict[str, str]:
    """Every expression that the mixin makes."""
    return {**rule_expressions(config), **panel_expressions(config)}
