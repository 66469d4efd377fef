"""What a Job's podFailurePolicy makes of a pod that failed: the first rule that matches decides. Pure.

As in kube-controller-manager since 1.31; conditions may be of any type, reasons are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpufleet.quarantine.lint.tree import Tree

IGNORE, COUNT, FAIL_JOB, FAIL_INDEX = "Ignore", "Count", "FailJob", "FailIndex"
DISRUPTION = "DisruptionTarget"
"""The condition of a pod that was evicted: what the quarantine does to one that still runs."""
HARDWARE = "gpufleet.io/GPUHardwareFault"
"""The condition that the admission webhook adds to a pod that a fault has ended."""
CRASHES = (1, 134, 139)
"""What a program exits with on a broken GPU, without a launcher: an exception, an abort, a segmentation fault."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a pod failed."""

    container: str = ""
    code: int = 0
    """0: no container failed by itself."""
    conditions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Matched:
    """The rule that decides."""

    action: str
    """COUNT where no rule matches."""
    rule: int | None
    """Its number in the list."""


def matched(spec: Tree, failure: Failure) -> Matched:
    """The rule of a Job's spec that decides. Raises ShapeError."""
    for number, rule in enumerate(spec.at("podFailurePolicy", "rules").items()):
        if _by_code(rule.at("onExitCodes"), failure) or _by_condition(rule, failure):
            return Matched(rule.at("action").text(), number)
    return Matched(COUNT, None)


def with_rules(spec: Tree, action: str, containers: Iterable[str], codes: Iterable[int]) -> list[dict[str, Any]]:
    """The rules that a Job needs, before those that it has."""
    names = list(dict.fromkeys(containers))
    on_codes: dict[str, Any] = {"operator": "In", "values": sorted(set(codes))}
    if len(names) == 1:
        # Another container may end with that code for reasons of its own.
        on_codes = {"containerName": names[0], **on_codes}
    ours: list[dict[str, Any]] = [
        {"action": action, "onExitCodes": on_codes},
        {"action": action, "onPodConditions": [{"type": DISRUPTION}]},
    ]
    theirs = [rule.value for rule in spec.at("podFailurePolicy", "rules").items()]
    return [*ours, *(rule for rule in theirs if rule not in ours)]


def _by_code(pattern: Tree, failure: Failure) -> bool:
    if not pattern.is_set or failure.code == 0:
        return False
    name = pattern.at("containerName").text()
    if name and name != failure.container:
        return False
    inside = failure.code in pattern.at("values").numbers()
    return inside if pattern.at("operator").text() == "In" else not inside


def _by_condition(rule: Tree, failure: Failure) -> bool:
    return any(
        each.at("type").text() in failure.conditions and each.at("status").text("True") == "True"
        for each in rule.at("onPodConditions").items()
    )
