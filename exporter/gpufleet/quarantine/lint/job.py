"""Job and CronJob of batch/v1: each failed pod counts towards backoffLimit, but for those that a rule ignores. Pure."""

from __future__ import annotations

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.failure_policy import (
    COUNT,
    CRASHES,
    DISRUPTION,
    FAIL_INDEX,
    FAIL_JOB,
    HARDWARE,
    IGNORE,
    Failure,
    matched,
    with_rules,
)
from gpufleet.quarantine.lint.finding import Change, Judgement, Verdict, worst
from gpufleet.quarantine.lint.launcher import Start
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.pods import Container, bare, holders, how_started
from gpufleet.quarantine.lint.tree import Tree, dotted

_DEFAULT_LIMIT = 6
_OWN_CONTROLLER = "kubernetes.io/job-controller"
NO_GPU = Judgement(Verdict.SAFE, "it asks for no GPU")
_MOVED = (
    f"no rule is about {DISRUPTION}: a pod that still runs is moved without cost only while the quarantine's policy has"
    " strip_finalizer"
)
_REFUND = "the quarantine gives the retry back afterwards, if its policy has refund; with the launcher it is never lost"


def judge_job(document: Document, facts: Facts) -> Judgement:
    """A Job."""
    return judge_spec(document.tree.at("spec"), facts)


def judge_cron_job(document: Document, facts: Facts) -> Judgement:
    """A CronJob: each of its Jobs."""
    return judge_spec(document.tree.at("spec", "jobTemplate", "spec"), facts)


def judge_spec(spec: Tree, facts: Facts) -> Judgement:
    """A Job's spec. Raises ShapeError."""
    held = holders(spec.at("template"))
    if not held:
        return NO_GPU
    controller = spec.at("managedBy").text(_OWN_CONTROLLER)
    if controller != _OWN_CONTROLLER:
        return Judgement(
            Verdict.UNKNOWN,
            f"{controller} runs it, not the Job controller of Kubernetes",
            spec.at("managedBy").path,
        )
    changes = _changes(spec, held, facts)
    parts = [_crash(spec, each, facts, changes) for each in held]
    parts.append(_moved(spec, changes))
    return worst(parts, NO_GPU)


def crashes(each: Container, facts: Facts, *, launched: bool = False) -> list[Failure]:
    """How the container may end on a broken GPU; ``launched``: as if by the launcher."""
    conditions = frozenset({HARDWARE}) if facts.admission else frozenset[str]()
    known = launched or each.command.start is Start.LAUNCHED
    return [Failure(each.name, code, conditions) for code in ([each.command.code] if known else CRASHES)]


def restarts_in_place(spec: Tree) -> bool:
    """Whether the kubelet starts a container again where it is; then no rule is asked."""
    return spec.at("template", "spec", "restartPolicy").text() != "Never"


def never_restart(spec: Tree) -> list[Change]:
    """What makes rules be asked."""
    if not restarts_in_place(spec):
        return []
    return [Change(spec.at("template", "spec", "restartPolicy").path, "Never")]


def replaced_when_failed(spec: Tree) -> list[Change]:
    """An API server takes a podFailurePolicy with no other podReplacementPolicy than this."""
    policy = spec.at("podReplacementPolicy")
    return [Change(policy.path, "Failed")] if policy.text("Failed") != "Failed" else []


def codes(held: tuple[Container, ...]) -> list[int]:
    """Codes that tell of a fault."""
    return sorted({each.command.code for each in held})


def _changes(spec: Tree, held: tuple[Container, ...], facts: Facts) -> tuple[Change, ...]:
    wanted = [failure for each in held for failure in crashes(each, facts, launched=True)]
    wanted.append(Failure(conditions=frozenset({DISRUPTION})))
    changes = [*never_restart(spec)]
    if any(matched(spec, failure).action != IGNORE for failure in wanted):
        rules = with_rules(spec, IGNORE, (each.name for each in held), codes(held))
        changes += [Change(spec.at("podFailurePolicy").path, {"rules": rules}), *replaced_when_failed(spec)]
    if not facts.admission or any(
        matched(spec, failure).action != IGNORE for each in held for failure in crashes(each, facts)
    ):
        changes += [each.launched(each.command.code) for each in bare(held)]
    return tuple(changes)


def _crash(spec: Tree, each: Container, facts: Facts, changes: tuple[Change, ...]) -> Judgement:
    limit, verdict, notes = _budget(spec)
    if restarts_in_place(spec):
        return Judgement(
            verdict,
            f"restartPolicy is not Never: the container is started again on the broken GPU, and each time counts "
            f"towards {limit}",
            spec.at("template", "spec", "restartPolicy").path,
            changes,
            notes,
        )
    found = [matched(spec, failure) for failure in crashes(each, facts)]
    actions = {match.action for match in found}
    policy = spec.at("podFailurePolicy")
    if actions == {IGNORE}:
        if each.command.start is Start.LAUNCHED:
            how = (
                f"the launcher ends container {each.name} with {each.command.code}, which rule {found[0].rule} ignores"
            )
        else:
            how = f"the admission webhook marks the pod, and rule {found[0].rule} ignores it"
        return Judgement(Verdict.SAFE, how, policy.at("rules").path)
    unseen = [matched(spec, failure) for failure in crashes(each, facts, launched=True)]
    if each.command.start is Start.UNSEEN and {match.action for match in unseen} == {IGNORE}:
        reason = f"{how_started(each)}; it is safe if that is the launcher"
        return Judgement(Verdict.UNKNOWN, reason, (*each.tree.path, "command"), changes)
    ending = {FAIL_JOB, FAIL_INDEX} & actions
    if ending:
        rule = next(match.rule for match in found if match.action in ending)
        return Judgement(
            Verdict.LOST,
            f"rule {rule} of podFailurePolicy ends the Job when container {each.name} ends as on a broken GPU",
            (*policy.path, "rules", rule or 0),
            changes,
        )
    if each.command.start is Start.LAUNCHED:
        rule_there = next((match.rule for match in found if match.rule is not None), None)
        what = (
            f"rule {rule_there} of podFailurePolicy counts it"
            if rule_there is not None
            else "no rule ignores that code"
        )
        reason = (
            f"the launcher ends container {each.name} with {each.command.code}, and {what}: it counts towards {limit}"
        )
        return Judgement(verdict, reason, policy.path, changes, notes)
    reason = f"{how_started(each)}: what it ends with counts towards {limit}"
    return Judgement(verdict, reason, (*each.tree.path, "command"), changes, notes)


def _moved(spec: Tree, changes: tuple[Change, ...]) -> Judgement:
    """What an eviction costs, by which the quarantine moves a pod that still runs."""
    if not spec.at("podFailurePolicy", "rules").items():
        return Judgement(Verdict.SAFE, "a pod that is moved is taken out of the Job's count before")
    found = matched(spec, Failure(conditions=frozenset({DISRUPTION})))
    policy = spec.at("podFailurePolicy", "rules")
    if found.action == IGNORE:
        return Judgement(Verdict.SAFE, f"rule {found.rule} ignores a pod that is moved")
    if found.rule is None:
        return Judgement(Verdict.SAFE, "a pod that is moved is taken out of the Job's count before", notes=(_MOVED,))
    if found.action == COUNT:
        limit, verdict, notes = _budget(spec)
        reason = f"rule {found.rule} counts a pod that is moved ({DISRUPTION}) towards {limit}"
        return Judgement(verdict, reason, (*policy.path, found.rule), changes, notes)
    reason = f"rule {found.rule} ends the Job when a pod is moved ({DISRUPTION})"
    return Judgement(Verdict.LOST, reason, (*policy.path, found.rule), changes)


def _budget(spec: Tree) -> tuple[str, Verdict, tuple[str, ...]]:
    """The budget in words, what a failure that counts means for it, and what is to be said of that."""
    per_index, whole = spec.at("backoffLimitPerIndex"), spec.at("backoffLimit")
    tree, default = (per_index, 0) if per_index.is_set else (whole, _DEFAULT_LIMIT)
    number = tree.number()
    limit = default if number is None else number
    told = f"{dotted(tree.path)} ({limit}{', the default' if number is None else ''})"
    if limit == 0:
        return told, Verdict.LOST, ()
    notes = ("a retry of an index cannot be given back afterwards",) if per_index.is_set else (_REFUND,)
    return told, Verdict.COSTS, notes
