"""JobSet (jobset.x-k8s.io): a child Job that fails restarts the set, within maxRestarts, unless a rule says otherwise.

The way that costs nothing: a rule of the child Job ends it by its podFailurePolicy, and a rule of the set restarts for
that reason and does not count. Both are immutable, so they have to be there from the start. Pure.
"""

from __future__ import annotations

import re
from typing import Any

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.failure_policy import (
    DISRUPTION,
    FAIL_JOB,
    IGNORE,
    Failure,
    Matched,
    matched,
    with_rules,
)
from gpufleet.quarantine.lint.finding import Change, Judgement, Verdict, worst
from gpufleet.quarantine.lint.job import (
    NO_GPU,
    codes,
    crashes,
    never_restart,
    replaced_when_failed,
    restarts_in_place,
)
from gpufleet.quarantine.lint.launcher import Start
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.pods import Container, bare, holders, how_started
from gpufleet.quarantine.lint.tree import Tree, dotted

_BY_POLICY, _BY_LIMIT = "PodFailurePolicy", "BackoffLimitExceeded"
_FREE = frozenset({"RestartJobSetAndIgnoreMaxRestarts", "RestartJobAndIgnoreMaxRestarts"})
_FAILS = "FailJobSet"
_RESTART = "RestartJobSet"


def judge_job_set(document: Document, facts: Facts) -> Judgement:
    """A JobSet."""
    spec = document.tree.at("spec")
    held = {child.at("name").text(): holders(job_spec(child).at("template")) for child in children(spec)}
    return judge_children(spec, held, facts)


def children(spec: Tree) -> list[Tree]:
    """The replicated jobs of a JobSet's spec. Raises ShapeError."""
    return spec.at("replicatedJobs").items()


def job_spec(child: Tree) -> Tree:
    """The Job's spec of a replicated job. Raises ShapeError."""
    return child.at("template", "spec")


def judge_children(spec: Tree, held: dict[str, tuple[Container, ...]], facts: Facts) -> Judgement:
    """A JobSet's spec, with the containers that hold GPUs by the name of their replicated job. Raises ShapeError."""
    parts = []
    for child in children(spec):
        name = child.at("name").text()
        changes = _changes(spec, child, held[name], facts) if held[name] else ()
        parts += [_crash(spec, child, each, facts, changes).under(name) for each in held[name]]
        if held[name]:
            parts.append(_moved(spec, child, changes).under(name))
    return worst(parts, NO_GPU)


def _crash(spec: Tree, child: Tree, each: Container, facts: Facts, changes: tuple[Change, ...]) -> Judgement:
    inner = job_spec(child)
    if restarts_in_place(inner):
        return Judgement(
            Verdict.COSTS,
            "restartPolicy is not Never: the container is started again on the broken GPU, and each time counts "
            "towards the Job's backoffLimit",
            inner.at("template", "spec", "restartPolicy").path,
            changes,
        )
    path = (*each.tree.path, "command")
    found = worst([_ends(spec, child, failure) for failure in crashes(each, facts)], NO_GPU)
    if found.verdict is Verdict.SAFE:
        return found
    if each.command.start is Start.LAUNCHED:
        return Judgement(found.verdict, found.reason, found.path, changes)
    as_if = worst([_ends(spec, child, failure) for failure in crashes(each, facts, launched=True)], NO_GPU)
    if each.command.start is Start.UNSEEN and as_if.verdict is Verdict.SAFE:
        return Judgement(Verdict.UNKNOWN, f"{how_started(each)}; it is safe if that is the launcher", path, changes)
    return Judgement(found.verdict, f"{how_started(each)}, so that {found.reason}", path, changes)


def _moved(spec: Tree, child: Tree, changes: tuple[Change, ...]) -> Judgement:
    """What an eviction costs."""
    inner = job_spec(child)
    failure = Failure(conditions=frozenset({DISRUPTION}))
    if matched(inner, failure).rule is None:
        return Judgement(Verdict.SAFE, "a pod that is moved is taken out of its Job's count before")
    found = _ends(spec, child, failure)
    return Judgement(found.verdict, found.reason, found.path, () if found.verdict is Verdict.SAFE else changes)


def _ends(spec: Tree, child: Tree, failure: Failure) -> Judgement:
    """What a failed pod of the child means for the set."""
    inner = job_spec(child)
    match = matched(inner, failure)
    how = f"code {failure.code}" if failure.code else f"the condition {DISRUPTION}"
    if match.action == IGNORE:
        return Judgement(Verdict.SAFE, f"rule {match.rule} of the Job ignores {how}")
    if match.action == FAIL_JOB:
        return _set_acts(
            spec, child, _BY_POLICY, _message(failure, match), f"rule {match.rule} of the Job ends it for {how}"
        )
    limit = inner.at("backoffLimit").number()
    if limit == 0:
        return _set_acts(spec, child, _BY_LIMIT, "Job has reached the specified backoff limit", f"{how} ends the Job")
    told = f"{how} counts towards {dotted(inner.at('backoffLimit').path)} ({6 if limit is None else limit})"
    return Judgement(Verdict.COSTS, told, inner.at("podFailurePolicy").path)


def _set_acts(spec: Tree, child: Tree, reason: str, message: str, how: str) -> Judgement:
    policy = spec.at("failurePolicy")
    action, number = _action(policy, child.at("name").text(), reason, message)
    rule = "no rule of the JobSet is about that" if number is None else f"rule {number} of the JobSet says {action}"
    path = policy.path if number is None else (*policy.path, "rules", number)
    if action in _FREE:
        note = ("errors of the program restart the set for ever, too: no rule tells them from a fault",)
        return Judgement(Verdict.SAFE, f"{how}, and {rule}", path, notes=note if reason == _BY_LIMIT else ())
    restarts = policy.at("maxRestarts").number() or 0
    if action == _FAILS or restarts == 0:
        why = "ends the set" if action == _FAILS else f"{dotted(policy.at('maxRestarts').path)} is 0"
        return Judgement(
            Verdict.LOST, f"{how}, {rule}, and that {why}" if action == _FAILS else f"{how}, {rule}, and {why}", path
        )
    return Judgement(Verdict.COSTS, f"{how}, {rule}: it counts towards maxRestarts ({restarts})", path)


def _action(policy: Tree, name: str, reason: str, message: str) -> tuple[str, int | None]:
    for number, rule in enumerate(policy.at("rules").items()):
        targets, reasons = rule.at("targetReplicatedJobs").texts(), rule.at("onJobFailureReasons").texts()
        patterns = rule.at("onJobFailureMessagePatterns").texts()
        if targets and name not in targets:
            continue
        if reasons and reason not in reasons:
            continue
        if patterns and not any(_matches(pattern, message) for pattern in patterns):
            continue
        return rule.at("action").text(), number
    return _RESTART, None


def _message(failure: Failure, match: Matched) -> str:
    """As the Job controller words it; the set's rules may look at it."""
    if failure.code:
        how = f"Container {failure.container} for pod namespace/pod failed with exit code {failure.code}"
    else:
        how = f"Pod namespace/pod has condition {DISRUPTION}"
    return f"{how} matching FailJob rule at index {match.rule}"


def _matches(pattern: str, message: str) -> bool:
    try:
        return re.search(pattern, message) is not None
    except re.error:
        # Go knows forms that Python does not; what cannot be read matches nothing, so that nobody is told it is safe.
        return False


def _changes(spec: Tree, child: Tree, held: tuple[Container, ...], facts: Facts) -> tuple[Change, ...]:
    inner = job_spec(child)
    wanted = [failure for each in held for failure in crashes(each, facts, launched=True)]
    wanted.append(Failure(conditions=frozenset({DISRUPTION})))
    changes = [*never_restart(inner)]
    if any(_ends(spec, child, failure).verdict is not Verdict.SAFE for failure in wanted):
        rules = with_rules(inner, FAIL_JOB, (each.name for each in held), codes(held))
        changes += [Change(inner.at("podFailurePolicy").path, {"rules": rules}), *replaced_when_failed(inner)]
        changes.append(_free_restart(spec, codes(held)))
    return (*changes, *(each.launched(each.command.code) for each in bare(held)))


def _free_restart(spec: Tree, wanted: list[int]) -> Change:
    policy = spec.at("failurePolicy")
    rule: dict[str, Any] = {
        "name": "HardwareFault",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": [_BY_POLICY],
    }
    if any(
        each.at("action").text() == FAIL_JOB
        for child in children(spec)
        for each in job_spec(child).at("podFailurePolicy", "rules").items()
    ):
        # Other rules end Jobs for the same reason; only the message tells them apart (JobSet 0.10 and newer).
        patterns = [f"failed with exit code {code} " for code in wanted]
        rule["onJobFailureMessagePatterns"] = [*patterns, f"has condition {DISRUPTION} "]
    theirs = [each.value for each in policy.at("rules").items() if each.at("name").text() != rule["name"]]
    return Change(policy.path, {**policy.mapping(), "rules": [rule, *theirs]})
