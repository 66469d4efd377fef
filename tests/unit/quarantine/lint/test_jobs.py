"""Job, CronJob, JobSet and TrainJob: what a crash on a broken GPU costs, and that the changes asked for save it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.quarantine.actuators.kubernetes import jobs
from gpufleet.quarantine.actuators.kubernetes.jobs import HARDWARE_FAULT
from gpufleet.quarantine.lint.failure_policy import HARDWARE, IGNORE, Failure, matched
from gpufleet.quarantine.lint.finding import Verdict
from gpufleet.quarantine.lint.tree import Tree
from tests.support.lint_changes import applied, judged

GPU = {"limits": {"nvidia.com/gpu": 1}}
CODE = {"action": "Ignore", "onExitCodes": {"containerName": "main", "operator": "In", "values": [250]}}
MOVED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
MARKED = {"action": "Ignore", "onPodConditions": [{"type": "gpufleet.io/GPUHardwareFault"}]}
LAUNCHED = ["gpufleet", "run", "--", "python", "train.py"]
BARE = ["python", "train.py"]


def job(
    command: list[str] | None = None,
    rules: list[Any] | None = None,
    pod: dict[str, Any] | None = None,
    **spec: Any,  # noqa: ANN401 - whatever a Job has
) -> dict[str, Any]:
    """A Job with one container and one GPU."""
    main: dict[str, Any] = {"name": "main", "image": "i", "resources": GPU}
    if command is not None:
        main["command"] = command
    told: dict[str, Any] = {
        "template": {"spec": {"restartPolicy": "Never", "containers": [main], **(pod or {})}},
        **spec,
    }
    if rules is not None:
        told["podFailurePolicy"] = {"rules": rules}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": told}


def job_set(child: dict[str, Any], rules: list[Any] | None = None, restarts: int | None = 2) -> dict[str, Any]:
    """A JobSet of one kind of Job."""
    policy: dict[str, Any] = {}
    if restarts is not None:
        policy["maxRestarts"] = restarts
    if rules is not None:
        policy["rules"] = rules
    spec = {"failurePolicy": policy, "replicatedJobs": [{"name": "w", "template": {"spec": child["spec"]}}]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "train"}, "spec": spec}


FREE = {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
FAIL_CODE = {**CODE, "action": "FailJob"}
FAIL_MOVED = {**MOVED, "action": "FailJob"}
OWN = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}
SAFE, COSTS, LOST, UNKNOWN = Verdict.SAFE, Verdict.COSTS, Verdict.LOST, Verdict.UNKNOWN

CASES = {
    "all is there": (job(LAUNCHED, [CODE, MOVED], backoffLimit=0), SAFE, "rule 0 ignores"),
    "any container": (
        job(LAUNCHED, [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [250]}}]),
        SAFE,
        "",
    ),
    "plain": (job(BARE), COSTS, "spec.backoffLimit (6, the default)"),
    "plain, no retries": (job(BARE, backoffLimit=0), LOST, "spec.backoffLimit (0)"),
    "launcher, no policy": (job(LAUNCHED, backoffLimit=2), COSTS, "no rule ignores that code"),
    "launcher, no policy, no retries": (job(LAUNCHED, backoffLimit=0), LOST, "no rule ignores that code"),
    "policy, no launcher": (job(BARE, [CODE, MOVED], backoffLimit=2), COSTS, "not started by the launcher"),
    "another container": (
        job(LAUNCHED, [{"action": "Ignore", "onExitCodes": {"containerName": "b", "operator": "In", "values": [250]}}]),
        COSTS,
        "no rule ignores that code",
    ),
    "a rule before it counts": (
        job(LAUNCHED, [{"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [0, 1]}}, CODE]),
        COSTS,
        "rule 0 of podFailurePolicy counts it",
    ),
    "a rule before it ends the Job": (
        job(LAUNCHED, [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}, CODE]),
        LOST,
        "rule 0 of podFailurePolicy ends the Job",
    ),
    "a crash ends the Job": (
        job(BARE, [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]),
        LOST,
        "rule 0 of podFailurePolicy ends the Job",
    ),
    "restarts in place": (job(LAUNCHED, pod={"restartPolicy": "OnFailure"}), COSTS, "started again on the broken GPU"),
    "moved pods count": (job(LAUNCHED, [CODE, {**MOVED, "action": "Count"}]), COSTS, "counts a pod that is moved"),
    "moved pods end it": (job(LAUNCHED, [CODE, FAIL_MOVED]), LOST, "ends the Job when a pod is moved"),
    "per index": (job(BARE, backoffLimitPerIndex=1), COSTS, "spec.backoffLimitPerIndex (1)"),
    "per index, none": (job(BARE, backoffLimitPerIndex=0), LOST, "spec.backoffLimitPerIndex (0)"),
    "an entry point": (job(None, [CODE, MOVED]), UNKNOWN, "is in its image"),
    "an entry point, no policy": (job(None, backoffLimit=1), COSTS, "is in its image"),
    "the shell swallows it": (job(["sh", "-c", "gpufleet run -- a; true"], [CODE]), COSTS, "another exit status"),
    "its own code": (job(["gpufleet", "run", "--exit-code=42", "--", "a"], [CODE, MOVED]), COSTS, "with 42"),
    "another condition": (job(BARE, [MARKED, MOVED]), COSTS, "not started by the launcher"),
    "JobSet": (job_set(job(LAUNCHED, [FAIL_CODE, FAIL_MOVED], backoffLimit=0), [FREE]), SAFE, "w: rule 0 of the Job"),
    "JobSet, pods replaced": (job_set(job(LAUNCHED, [CODE, MOVED])), SAFE, "ignores code 250"),
    "JobSet, a rule for one Job": (
        job_set(
            job(LAUNCHED, [FAIL_CODE, FAIL_MOVED]),
            [{**FREE, "targetReplicatedJobs": ["w"], "action": "RestartJobAndIgnoreMaxRestarts"}],
        ),
        SAFE,
        "RestartJobAndIgnoreMaxRestarts",
    ),
    "JobSet, by message": (
        job_set(
            job(LAUNCHED, [OWN, FAIL_CODE, FAIL_MOVED]),
            [{**FREE, "onJobFailureMessagePatterns": ["exit code 250 matching", "condition DisruptionTarget"]}],
        ),
        SAFE,
        "rule 1 of the Job",
    ),
    "JobSet, another message": (
        job_set(
            job(LAUNCHED, [FAIL_CODE, FAIL_MOVED]), [{**FREE, "onJobFailureMessagePatterns": ["exit code 3", "("]}]
        ),
        COSTS,
        "counts towards maxRestarts (2)",
    ),
    "JobSet, another Job's rule": (
        job_set(job(LAUNCHED, [FAIL_CODE, FAIL_MOVED]), [{**FREE, "targetReplicatedJobs": ["x"]}]),
        COSTS,
        "no rule of the JobSet is about that",
    ),
    "JobSet, plain": (job_set(job(BARE, backoffLimit=0)), COSTS, "maxRestarts (2)"),
    "JobSet, no restarts": (job_set(job(BARE, backoffLimit=0), restarts=None), LOST, "maxRestarts is 0"),
    "JobSet, ends": (
        job_set(job(LAUNCHED, [FAIL_CODE]), [{"action": "FailJobSet"}, FREE]),
        LOST,
        "ends the set",
    ),
    "JobSet, restarts for anything": (
        job_set(job(BARE, backoffLimit=0), [{"action": "RestartJobSetAndIgnoreMaxRestarts"}]),
        SAFE,
        "",
    ),
    "JobSet, restarts in place": (job_set(job(LAUNCHED, pod={"restartPolicy": "OnFailure"})), COSTS, "broken GPU"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict(name: str) -> None:
    """With a reason that names what decides."""
    manifest, verdict, said = CASES[name]

    found = judged(manifest)

    assert found.verdict is verdict, found.reason
    assert said in found.reason


@pytest.mark.parametrize("name", CASES)
def test_the_changes_save_it(name: str) -> None:
    """Written as they are told, they leave nothing to be said; what is safe needs none."""
    manifest, verdict, _ = CASES[name]
    before = copy.deepcopy(manifest)

    found = judged(manifest)
    after = judged(applied(manifest, found.changes))

    assert manifest == before
    assert (found.changes == ()) is (verdict is SAFE)
    assert after.verdict is SAFE, after.reason


def test_a_cron_job_is_judged_by_its_jobs() -> None:
    """And paths are those of the CronJob."""
    manifest = {"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {"spec": job(BARE)["spec"]}}}

    found = judged(manifest)

    assert found.verdict is COSTS
    assert found.changes[0].where == "spec.jobTemplate.spec.podFailurePolicy"
    assert judged(applied(manifest, found.changes)).verdict is SAFE


def test_who_holds_no_gpu_is_safe() -> None:
    """A Job without one, a share of one, a claim of one, one of a side car."""
    without = job(BARE)
    del without["spec"]["template"]["spec"]["containers"][0]["resources"]
    shared = copy.deepcopy(without)
    shared["spec"]["template"]["metadata"] = {"annotations": {"gpu-fraction": "0.5"}}
    claimed = copy.deepcopy(without)
    claimed["spec"]["template"]["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    side = copy.deepcopy(without)
    side["spec"]["template"]["spec"]["initContainers"] = [
        {"name": "s", "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}
    ]
    none = job(BARE)
    none["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "0", "cpu": 1}}

    assert [judged(each).verdict for each in (without, none)] == [SAFE, SAFE]
    assert [judged(each).verdict for each in (shared, claimed, side)] == [COSTS] * 3


def test_a_job_of_another_controller() -> None:
    """Whoever runs it counts by rules of its own."""
    found = judged(job(BARE, managedBy="kueue.x-k8s.io/multikueue"))

    assert found.verdict is UNKNOWN
    assert "kueue.x-k8s.io/multikueue" in found.reason


def test_a_policy_wants_pods_replaced_when_they_have_failed() -> None:
    """An API server refuses it with another podReplacementPolicy."""
    found = judged(job(BARE, podReplacementPolicy="TerminatingOrFailed"))

    assert {each.where: each.value for each in found.changes}["spec.podReplacementPolicy"] == "Failed"


def test_the_admission_webhook_needs_no_launcher() -> None:
    """Where the cluster has it, a rule for its condition is enough, unless an earlier one catches the crash."""
    marked = job(BARE, [MARKED, MOVED], backoffLimit=0)
    caught = job(BARE, [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}, MARKED])

    assert judged(marked).verdict is LOST
    assert judged(marked, admission=True).verdict is SAFE
    assert judged(caught, admission=True).verdict is LOST
    assert HARDWARE == HARDWARE_FAULT


def test_a_restart_that_is_free_is_told_apart_where_it_must_be() -> None:
    """Other rules end the Job for the same reason: only the message tells."""
    plain = judged(job_set(job(LAUNCHED)))
    mixed = judged(job_set(job(LAUNCHED, [OWN])))

    rules = [
        {each.where: each.value for each in found.changes}["spec.failurePolicy"]["rules"][0] for found in (plain, mixed)
    ]
    assert "onJobFailureMessagePatterns" not in rules[0]
    assert rules[1]["onJobFailureMessagePatterns"] == ["failed with exit code 250 ", "has condition DisruptionTarget "]


def runtime(child: dict[str, Any], rules: list[Any] | None, command: list[str] | None = None) -> dict[str, Any]:
    """A ClusterTrainingRuntime whose trainer holds no GPU of its own: how many there are is the TrainJob's."""
    spec = copy.deepcopy(job_set(child, rules)["spec"])
    (main,) = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    main.pop("resources")
    main.pop("command", None)
    if command is not None:
        main["command"] = command
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    spec["replicatedJobs"][0]["template"]["metadata"] = {"labels": labels}
    kind = "ClusterTrainingRuntime"
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": kind,
        "metadata": {"name": "r"},
        "spec": {"template": {"spec": spec}},
    }


def train_job(command: list[str] | None, name: str = "r") -> dict[str, Any]:
    """A TrainJob."""
    trainer = {} if command is None else {"command": command}
    spec = {"runtimeRef": {"name": name}, "trainer": trainer}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "t"}, "spec": spec}


GOOD = runtime(job(rules=[FAIL_CODE, FAIL_MOVED], backoffLimit=0), [FREE])
POOR = runtime(job(backoffLimit=0), None)


@pytest.mark.parametrize(
    ("manifest", "beside", "verdict", "said"),
    [
        (GOOD, (), SAFE, ""),
        (POOR, (), COSTS, "w: code 250 ends the Job"),
        (train_job(LAUNCHED), (GOOD,), SAFE, "restarts without counting"),
        (train_job(BARE), (GOOD,), COSTS, "does not begin with the launcher"),
        (train_job(LAUNCHED), (POOR,), COSTS, "ClusterTrainingRuntime r is not safe"),
        (train_job(LAUNCHED), (), UNKNOWN, "name the file that has it, too"),
        (train_job(LAUNCHED, "other"), (GOOD,), UNKNOWN, "ClusterTrainingRuntime other holds the policy"),
        (train_job(None), (GOOD,), UNKNOWN, "neither it nor ClusterTrainingRuntime r says"),
        (train_job(None), (runtime(job(rules=[FAIL_CODE, FAIL_MOVED]), [FREE], LAUNCHED),), SAFE, "both the launcher"),
    ],
)
def test_a_train_job_is_judged_with_its_runtime(
    manifest: dict[str, Any], beside: tuple[dict[str, Any], ...], verdict: Verdict, said: str
) -> None:
    """The runtime has the policy, the TrainJob the command."""
    found = judged(manifest, *beside)

    assert found.verdict is verdict, found.reason
    assert said in found.reason


def test_runtime_and_train_job_are_saved_by_their_changes() -> None:
    """First the one, then the other."""
    better = applied(POOR, judged(POOR).changes)
    started = applied(train_job(BARE), judged(train_job(BARE), better).changes)

    assert judged(better).verdict is SAFE
    assert judged(started, better).verdict is SAFE


@pytest.mark.parametrize(
    "spec",
    [
        {"template": []},
        {"template": {"spec": {"containers": {"a": 1}}}},
        {"template": {"spec": {"containers": ["a"]}}},
        {"template": {"spec": {"containers": [{"name": "a", "command": "python", "resources": GPU}]}}},
        {"template": {"spec": {"containers": [{"name": 7, "resources": GPU}]}}},
        {
            "template": {"spec": {"containers": [{"name": "a", "resources": GPU}], "restartPolicy": "Never"}},
            "backoffLimit": "x",
        },
        [],
        "text",
    ],
)
def test_what_an_api_server_would_refuse_is_told(spec: Any) -> None:  # noqa: ANN401 - anything may stand there
    """With the key that is wrong; never a traceback."""
    found = judged({"apiVersion": "batch/v1", "kind": "Job", "spec": spec})

    assert found.verdict is UNKNOWN
    assert "an API server would refuse it" in found.reason


CODES = st.lists(st.sampled_from([1, 3, 134, 139, 250]), min_size=1, max_size=3, unique=True)
ON_CODES = st.fixed_dictionaries(
    {"operator": st.sampled_from(["In", "NotIn"]), "values": CODES},
    optional={"containerName": st.sampled_from(["main", "b"])},
)
ON_CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["DisruptionTarget", HARDWARE, "Ready"])},
        optional={"status": st.sampled_from(["True", "False"])},
    ),
    min_size=1,
    max_size=2,
)
RULES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"action": st.sampled_from(["Ignore", "Count", "FailJob"]), "onExitCodes": ON_CODES}),
        st.fixed_dictionaries(
            {"action": st.sampled_from(["Ignore", "Count", "FailJob"]), "onPodConditions": ON_CONDITIONS}
        ),
    ),
    max_size=5,
)


@given(rules=RULES, command=st.sampled_from([LAUNCHED, BARE, None]), limit=st.integers(0, 3), whole=st.booleans())
def test_whatever_the_rules_are_the_changes_save_it(
    rules: list[Any], command: list[str] | None, limit: int, whole: bool
) -> None:
    """Of a Job, and of a JobSet of it."""
    one = job(command, rules, backoffLimit=limit)
    manifest = job_set(one, restarts=limit) if whole else one

    after = judged(applied(manifest, judged(manifest).changes))

    assert after.verdict is SAFE, after.reason


@given(rules=RULES, code=st.sampled_from([1, 3, 250]), marked=st.booleans())
def test_linter_and_refunds_read_rules_alike(rules: list[Any], code: int, marked: bool) -> None:
    """What the linter calls ignored is what the quarantine takes to have cost nothing."""
    import msgspec

    from gpufleet.quarantine.actuators.kubernetes.pods import Pod

    spec = job(rules=rules)["spec"]
    conditions = [{"type": HARDWARE, "status": "True"}] if marked else []
    ended = [{"name": "main", "state": {"terminated": {"exitCode": code}}}]
    pod = msgspec.convert(
        {"metadata": {"name": "p", "uid": "u"}, "status": {"conditions": conditions, "containerStatuses": ended}}, Pod
    )
    its = msgspec.convert({"metadata": {"name": "train", "uid": "j"}, "spec": spec}, jobs.Job)
    failure = Failure("main", code, frozenset({HARDWARE} if marked else ()))

    assert (matched(Tree(spec), failure).action != IGNORE) is its.counts(pod)
