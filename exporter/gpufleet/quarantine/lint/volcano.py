"""Volcano Job (batch.volcano.sh): every Restart… action counts towards maxRetry, whatever it was for.

What costs nothing: restarts in place by the kubelet, a pod that is evicted and for which no policy is there (it is made
anew), and a maxRetry that nothing but faults can use up. A task's policies go first, then the job's; the first that
matches the event or the exit code decides. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Change, Judgement, Verdict, worst
from gpufleet.quarantine.lint.job import NO_GPU
from gpufleet.quarantine.lint.launcher import Start
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.pods import Container, bare, holders, how_started
from gpufleet.quarantine.lint.tree import Tree

_FAILED, _EVICTED, _ANY = "PodFailed", "PodEvicted", "*"
_RESTARTS = frozenset({"RestartJob", "RestartTask", "RestartPod", "RestartPartition"})
_DEFAULT_RETRIES = 3
_ENOUGH = 24
"""As many as the quarantine gives back to one job at most, by its default policy."""
_OWN = "maxRetry is spent by faults alone: errors of the program end the job at once"


def judge_volcano_job(document: Document, _: Facts) -> Judgement:
    """A Job of Volcano."""
    spec = document.tree.at("spec")
    parts = []
    for number, task in enumerate(spec.at("tasks").items()):
        held = holders(task.at("template"))
        name = task.at("name").text(f"task {number}")
        changes = _changes(spec, task, held) if held else ()
        parts += [_crash(spec, task, each, changes).under(name) for each in held]
        if held:
            parts.append(_moved(spec, task, changes).under(name))
    return worst(parts, NO_GPU)


def _crash(spec: Tree, task: Tree, each: Container, changes: tuple[Change, ...]) -> Judgement:
    restart = task.at("template", "spec", "restartPolicy")
    if restart.text("OnFailure") != "Never":
        reason = (
            f"restartPolicy {restart.text('OnFailure')}: the container is started again in place, which nothing counts"
        )
        notes = (
            "it starts on the broken GPU again until the quarantine moves the pod",
            "errors of the program restart it for ever, too",
        )
        return Judgement(Verdict.SAFE, reason, restart.path, notes=notes)
    code = each.command.code if each.command.start is Start.LAUNCHED else 1
    action, rule = _action(spec, task, _FAILED, code)
    path = rule.path if rule is not None else task.at("policies").path
    if action not in _RESTARTS:
        what = f"{action} is done" if rule is not None else "no policy restarts it"
        return Judgement(Verdict.LOST, f"when container {each.name} ends with {code}, {what}", path, changes)
    if each.command.start is Start.UNSEEN:
        return Judgement(Verdict.UNKNOWN, f"{how_started(each)}; it is safe if that is the launcher", path, changes)
    retries = _retries(spec)
    if each.command.start is Start.LAUNCHED and _for_faults_alone(spec, task) and retries >= _ENOUGH:
        how = f"the launcher's {code} is what restarts, up to {retries} times"
        return Judgement(Verdict.SAFE, how, path, notes=(_OWN,))
    if each.command.start is not Start.LAUNCHED:
        reason = f"{how_started(each)}: {action} counts towards maxRetry ({retries}) like an error of the program"
    elif _for_faults_alone(spec, task):
        reason = f"{action} counts towards maxRetry, which is {retries}: faults alone use it up, so it may be large"
    else:
        reason = f"{action} counts towards maxRetry ({retries}), which errors of the program use up, too"
    return Judgement(Verdict.COSTS if retries > 1 else Verdict.LOST, reason, path, changes)


def _moved(spec: Tree, task: Tree, changes: tuple[Change, ...]) -> Judgement:
    action, rule = _action(spec, task, _EVICTED, 0)
    if rule is None or action == "SyncJob":
        return Judgement(Verdict.SAFE, "a pod that is moved is made anew, and nothing counts it")
    if action in _RESTARTS:
        if _for_faults_alone(spec, task) and _retries(spec) >= _ENOUGH:
            return Judgement(Verdict.SAFE, f"{action} after a pod was moved comes out of a budget for faults alone")
        reason = f"{action} for a pod that is moved ({_EVICTED}) counts towards maxRetry ({_retries(spec)})"
        return Judgement(Verdict.COSTS, reason, rule.path, changes)
    return Judgement(Verdict.LOST, f"{action} is done when a pod is moved ({_EVICTED})", rule.path, changes)


def _retries(spec: Tree) -> int:
    number = spec.at("maxRetry").number()
    return _DEFAULT_RETRIES if number is None else number


def _policies(spec: Tree, task: Tree) -> list[Tree]:
    return [*task.at("policies").items(), *spec.at("policies").items()]


def _action(spec: Tree, task: Tree, event: str, code: int) -> tuple[str, Tree | None]:
    for policy in _policies(spec, task):
        events = _events(policy)
        if (event in events or _ANY in events) or (code and policy.at("exitCode").number() == code):
            return policy.at("action").text(), policy
    return "SyncJob", None


def _events(policy: Tree) -> Sequence[str]:
    event = policy.at("event").text()
    return [*policy.at("events").texts(), *([event] if event else [])]


def _for_faults_alone(spec: Tree, task: Tree) -> bool:
    """Whether an error of the program restarts nothing."""
    return all(_action(spec, task, _FAILED, code)[0] not in _RESTARTS for code in (1, 134, 139))


def _changes(spec: Tree, task: Tree, held: tuple[Container, ...]) -> tuple[Change, ...]:
    """The launcher's code restarts, everything else ends the job, and maxRetry is for faults alone."""
    code = held[0].command.code
    wanted = [{"exitCode": code, "action": "RestartJob"}, {"event": _FAILED, "action": "AbortJob"}]
    kept = []
    for policy in task.at("policies").items():
        rest = [event for event in _events(policy) if event not in {_FAILED, _EVICTED, _ANY}]
        if rest and policy.at("exitCode").number() is None:
            kept.append({"events": rest, "action": policy.at("action").text()})
    moved, rule = _action(spec, Tree(), _EVICTED, 0)
    if rule is not None and moved not in _RESTARTS:
        # The job's own policy would end it; a restart comes out of the budget that only faults use.
        wanted.append({"event": _EVICTED, "action": "RestartJob"})
    changes = [Change(task.at("policies").path, [*wanted, *kept])]
    if _retries(spec) < _ENOUGH:
        changes.append(Change(spec.at("maxRetry").path, 100))
    restart = task.at("template", "spec", "restartPolicy")
    if restart.text("OnFailure") != "Never":
        changes.append(Change(restart.path, "Never"))
    return (*changes, *(each.launched(code) for each in bare(held)))
