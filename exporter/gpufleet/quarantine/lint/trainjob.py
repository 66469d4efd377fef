"""TrainJob and its runtimes (trainer.kubeflow.org): a JobSet whose policy only the runtime can hold.

The runtime carries the template, the TrainJob the command; a verdict needs both. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.failure_policy import Failure, matched
from gpufleet.quarantine.lint.finding import Change, Judgement, Verdict
from gpufleet.quarantine.lint.jobset import children, job_spec, judge_children
from gpufleet.quarantine.lint.launcher import ENTRY_POINT, Command, Start, command, launched
from gpufleet.quarantine.lint.manifests import Document
from gpufleet.quarantine.lint.pods import Container, container, holders
from gpufleet.quarantine.lint.tree import Tree

GROUP = "trainer.kubeflow.org"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_TRAINER, _NODE = "trainer", "node"
_OWN_COMMAND = "the command comes from its TrainJobs, which are judged for themselves"


def judge_runtime(document: Document, facts: Facts) -> Judgement:
    """A TrainingRuntime or ClusterTrainingRuntime."""
    spec = document.tree.at("spec", "template", "spec")
    found = judge_children(spec, _held(spec), facts)
    missing = any(not each.tree.at("command").is_set for each in _trainers(spec))
    return replace(found, notes=(*found.notes, _OWN_COMMAND)) if missing else found


def judge_train_job(document: Document, facts: Facts) -> Judgement:
    """A TrainJob, by what its runtime says if that is among the files."""
    spec = document.tree.at("spec")
    reference = spec.at("runtimeRef")
    kind, name = reference.at("kind").text("ClusterTrainingRuntime"), reference.at("name").text()
    trainer = spec.at("trainer")
    words = trainer.at("command").texts()
    given = command([*words, *trainer.at("args").texts()], whole=bool(words))
    change = Change(trainer.at("command").path, launched(words or [ENTRY_POINT], given.code))
    runtime = facts.find(GROUP, kind, name)
    if runtime is None:
        changes = () if given.start is Start.LAUNCHED else (change,)
        reason = f"its {kind} {name} holds the policy; name the file that has it, too"
        return Judgement(Verdict.UNKNOWN, reason, reference.path, changes)
    policy = judge_runtime(runtime, facts)
    if policy.verdict is not Verdict.SAFE:
        reason = f"its {kind} {name} is not safe ({policy.reason}); the policy is immutable, so change that first"
        changes = () if given.start is Start.LAUNCHED or not words else (change,)
        return Judgement(policy.verdict, reason, reference.path, changes)
    template = runtime.tree.at("spec", "template", "spec")
    if not trainer.at("command").is_set:
        return _by_runtime(document, template, kind, name, change)
    taken = _held(template, given)
    found = judge_children(template, taken, facts)
    if found.verdict is Verdict.SAFE:
        return Judgement(Verdict.SAFE, f"the launcher is in its command, and {kind} {name} restarts without counting")
    path = trainer.at("command").path
    return Judgement(found.verdict, f"its command does not begin with the launcher: {found.reason}", path, (change,))


def _by_runtime(document: Document, template: Tree, kind: str, name: str, change: Change) -> Judgement:
    """A TrainJob without a command runs that of its runtime."""
    path = document.tree.at("spec", "trainer", "command").path
    starts = {each.command.start for each in _trainers(template)}
    if starts == {Start.LAUNCHED}:
        return Judgement(Verdict.SAFE, f"{kind} {name} brings both the launcher and the policy")
    reason = f"neither it nor {kind} {name} says what is started; it is safe if that is the launcher"
    return Judgement(Verdict.UNKNOWN, reason, path, (change,))


def _held(spec: Tree, given: Command | None = None) -> dict[str, tuple[Container, ...]]:
    """Containers with GPUs by replicated job.

    The trainer's container counts as one in any case: how many GPUs it has is in the TrainJob. Its command is the given
    one; while none is given and the runtime has none, it is taken to be the launcher, with the code that is ignored.
    """
    found = {}
    for child in children(spec):
        inner = job_spec(child)
        held = {each.tree.path: each for each in holders(inner.at("template"))}
        for each in _trainers_of(child):
            taken = given
            if taken is None and not each.tree.at("command").is_set:
                taken = Command(Start.LAUNCHED, _told_code(inner, each))
            held[each.tree.path] = each if taken is None else replace(each, command=taken)
        found[child.at("name").text()] = tuple(held.values())
    return found


def _told_code(inner: Tree, each: Container) -> int:
    """The code that a rule of the runtime is about; the launcher's own where none is."""
    for rule in inner.at("podFailurePolicy", "rules").items():
        for code in rule.at("onExitCodes", "values").numbers():
            if rule.at("onExitCodes", "operator").text() == "In" and code >= 128:  # noqa: SIM102 - one question each
                if matched(inner, Failure(each.name, code)).rule is not None:
                    return code
    return each.command.code


def _trainers(spec: Tree) -> list[Container]:
    return [each for child in children(spec) for each in _trainers_of(child)]


def _trainers_of(child: Tree) -> list[Container]:
    """The containers whose command a TrainJob gives."""
    step = child.at("template", "metadata", "labels").mapping().get(_STEP)
    if step != _TRAINER and (step is not None or child.at("name").text() != _NODE):
        return []
    found = job_spec(child).at("template", "spec", "containers").items()
    named = [each for each in found if each.at("name").text() == _NODE]
    return [container(each) for each in named or found]
