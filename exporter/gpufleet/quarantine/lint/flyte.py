"""Flyte: a pod template that wraps every task, and workflows as far as they show their tasks.

Flyte takes an exit code of 137 that is no OOM kill for the system's failure, which costs the user no retry, and looks
at no condition. So the launcher has to end with that code. A task's container has arguments and no command, and Flyte
appends its lists to those of the template's container ``primary`` (or ``default``): the template's command wraps it.
Pure.
"""

from __future__ import annotations

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Change, Judgement, Verdict, worst
from gpufleet.quarantine.lint.job import NO_GPU
from gpufleet.quarantine.lint.launcher import Start, command, launched
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.pods import container
from gpufleet.quarantine.lint.tree import Tree

SYSTEM_CODE = 137
_NAMES = ("primary", "default")
_GPU = "GPU"
"""How Flyte's own resource list calls it; by its number in the interface where it is one."""
_DEFAULT = "Flyte uses it when its k8s plugin's default-pod-template-name, or a task's pod_template_name, names it"


def judge_pod_template(document: Document, _: Facts) -> Judgement:
    """A PodTemplate of the core: Flyte's, for nothing else in this table reads one."""
    containers = document.tree.at("template", "spec", "containers")
    named = {each.at("name").text(): each for each in containers.items()}
    found = next((named[name] for name in _NAMES if name in named), None)
    if found is None:
        reason = "no container is called primary or default, so that Flyte would start its tasks as they are"
        wanted = [
            *(each.value for each in containers.items()),
            {"name": "primary", "image": "docker.io/rwgrim/docker-noop"},
        ]
        wanted[-1]["command"] = launched([], SYSTEM_CODE)
        return Judgement(Verdict.COSTS, reason, containers.path, (Change(containers.path, wanted),), (_DEFAULT,))
    return _judge(found, "tasks").under("template") if found.at("command").is_set else _unwrapped(found)


def judge_workflow(document: Document, facts: Facts) -> Judgement:
    """A FlyteWorkflow, the object that Flyte makes of one for its engine."""
    tasks = document.tree.at("tasks")
    parts = [_task(name, tasks.at(name), facts) for name in tasks.mapping()]
    return worst(parts, NO_GPU)


def _task(name: str, task: Tree, facts: Facts) -> Judgement:
    box = task.at("container")
    if not box.is_set:
        return Judgement(Verdict.UNKNOWN, f"task {name} is of a type whose pods the file does not show", task.path)
    if not _asks_for_gpu(box):
        return NO_GPU
    given = command([*box.at("command").texts(), *box.at("args").texts()])
    if given.start is Start.LAUNCHED:
        return _judge(box, f"task {name}")
    templates = [each for each in facts.documents if (each.group, each.kind) == ("", "PodTemplate")]
    wanted = task.at("metadata", "pod_template_name").text() or task.at("metadata", "podTemplateName").text()
    for each in templates:
        if wanted in ("", each.own_name) and judge_pod_template(each, facts).verdict is Verdict.SAFE:
            return Judgement(Verdict.SAFE, f"the pod template {each.own_name} wraps task {name} with the launcher")
    reason = (
        f"task {name} is not started by the launcher, unless a pod template wraps it; name the file that has it, too"
    )
    return Judgement(Verdict.UNKNOWN, reason, box.path)


def _judge(box: Tree, what: str) -> Judgement:
    found = container(box).command
    words, path = box.at("command").texts(), box.at("command").path
    if found.start is Start.LAUNCHED and found.code == SYSTEM_CODE:
        how = f"the launcher ends {what} with {SYSTEM_CODE}, which Flyte takes for a failure of the system"
        return Judgement(Verdict.SAFE, how, path, notes=(_DEFAULT,))
    if found.start is Start.LAUNCHED:
        reason = f"the launcher ends {what} with {found.code}, which costs a retry: only {SYSTEM_CODE} is the system's"
        inner = words[words.index("--") + 1 :] if "--" in words else []
        return Judgement(Verdict.COSTS, reason, path, (Change(path, launched(inner, SYSTEM_CODE)),))
    reason = f"{what} are not started by the launcher: what they end with costs a retry"
    return Judgement(Verdict.COSTS, reason, path, (Change(path, launched(words, SYSTEM_CODE)),))


def _unwrapped(found: Tree) -> Judgement:
    path = found.at("command").path
    reason = "the template puts no launcher before the tasks: what they end with costs a retry"
    return Judgement(Verdict.COSTS, reason, path, (Change(path, launched([], SYSTEM_CODE)),), (_DEFAULT,))


def _asks_for_gpu(box: Tree) -> bool:
    for part in ("limits", "requests"):
        for each in box.at("resources", part).items():
            # Written as a name, or as the number of the enumeration.
            if each.at("name").value in (_GPU, 3) and str(each.at("value").value) != "0":
                return True
    return False
