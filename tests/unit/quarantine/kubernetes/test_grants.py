"""The roles that the manifest gives and those that refusals name are the same."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import yaml

from gpufleet.quarantine.actuators.kubernetes.grants import LEDGER, ROLES
from gpufleet.quarantine.actuators.kubernetes.refusals import RBAC_FILE
from gpufleet.quarantine.stores.config_map import NAME, part_names
from tests.conftest import ROOT

MANIFEST: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / RBAC_FILE).read_text(encoding="utf-8")))
GIVEN = {each["metadata"]["name"]: each for each in MANIFEST if each["kind"] in {"Role", "ClusterRole"}}


def granted(rules: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """Verbs by group and resource."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in rules:
        for resource in rule["resources"]:
            found[rule["apiGroups"][0], resource].update(rule["verbs"])
    return dict(found)


def test_the_manifest_gives_what_the_code_knows() -> None:
    """Not a verb more, not one less."""
    known = {role: {(each.group, each.resource): set(each.verbs) for each in grants} for role, grants in ROLES.items()}

    assert {name: granted(role["rules"]) for name, role in GIVEN.items()} == known


def test_nothing_deletes_and_nothing_reads_secrets() -> None:
    """Whatever else is added: these two never."""
    for role in GIVEN.values():
        for (_, resource), verbs in granted(role["rules"]).items():
            assert not verbs & {"delete", "deletecollection", "*", "escalate", "bind", "impersonate"}
            assert resource not in {"secrets", "*"}


def test_the_ledger_is_a_role_of_one_namespace_for_its_own_config_maps() -> None:
    """No other ConfigMap can be read or written with it."""
    role = GIVEN[LEDGER]

    assert role["kind"] == "Role"
    assert role["rules"][0]["resourceNames"] == [NAME, *part_names()]
    assert role["rules"][1]["verbs"] == ["create"]


def test_each_role_is_bound_to_the_one_account() -> None:
    """The manifest can be applied as it is; who wants less leaves a binding out."""
    (account,) = [each["metadata"] for each in MANIFEST if each["kind"] == "ServiceAccount"]
    bindings = [each for each in MANIFEST if each["kind"].endswith("RoleBinding")]

    assert sorted(each["roleRef"]["name"] for each in bindings) == sorted(ROLES)
    for each in bindings:
        assert each["roleRef"]["kind"] == GIVEN[each["roleRef"]["name"]]["kind"]
        assert each["subjects"] == [{"kind": "ServiceAccount", **account}]
