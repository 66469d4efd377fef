"""Whatever a cgroup file says, parsing ends, never raises, and believes only the outer parts."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.claims import Cgroup
from gpufleet.sources.cgroups import parse_cgroup

UID = "6a4ce4a0-ba47-11ea-b2a7-0cc47ac5979e"
ID = "ab" * 32
PARTS = [
    *(
        "..",
        "kubepods",
        "kubepods.slice",
        f"pod{UID}",
        f"kubepods-pod{UID.replace('-', '_')}.slice",
        ID,
        f"crio-{ID}.scope",
    ),
    *("system.slice", "slurm", "slurm_gn1", "slurmstepd.scope", "gn1_slurmstepd.scope", "uid_0", "job_7", "step_0"),
    *("user.slice", "user@0.service", "session-1.scope", "x.service", "a:b", "(deleted)", "\x0b", "\r", "\u2028"),
]
names = st.one_of(st.sampled_from(PARTS), st.text(st.characters(exclude_characters="\n/"), max_size=12))
inner = st.lists(names, max_size=8).map("/".join)


@given(st.text())
def test_any_text_parses(text: str) -> None:
    """Nothing raises, and what is found has the form that it is promised in."""
    check(parse_cgroup(text))


@given(st.lists(st.tuples(st.sampled_from(["0::", "4:memory:", "1:name=systemd:", ""]), inner), max_size=4))
def test_any_paths_parse(lines: list[tuple[str, str]]) -> None:
    """Parts of real paths in any order."""
    check(parse_cgroup("\n".join(f"{head}/{path}" for head, path in lines)))


@given(inner)
def test_nothing_inside_a_container_changes_whose_it_is(path: str) -> None:
    """A process that may name groups of its own stays in its pod and container; it can only claim a job of Slurm."""
    found = parse_cgroup(f"0::/kubepods/burstable/pod{UID}/{'cd' * 32}/{path}")

    assert (found.pod_uid, found.container_id, found.unit) == (UID, "cd" * 32, None)


@given(inner)
def test_nothing_inside_a_step_changes_whose_it_is(path: str) -> None:
    """A process of a job stays in its job and step, and is in no pod."""
    found = parse_cgroup(f"0::/system.slice/slurmstepd.scope/job_9/step_batch/{path}")

    assert found == Cgroup(slurm_job="9", slurm_step="batch")


@given(inner)
def test_nothing_inside_a_users_session_is_believed(path: str) -> None:
    """A user names what is in the session."""
    found = parse_cgroup(f"0::/user.slice/user-7.slice/session-3.scope/{path}")

    assert found == Cgroup(unit="session-3.scope")


def check(found: Cgroup) -> None:
    """The forms that a Cgroup promises."""
    assert found.pod_uid is None or re.fullmatch(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", found.pod_uid
    )
    assert found.container_id is None or re.fullmatch(r"[0-9a-f]{64}", found.container_id)
    assert found.slurm_job is None or re.fullmatch(r"[0-9]{1,10}", found.slurm_job)
    assert found.slurm_job is not None or (found.slurm_step, found.slurm_node) == (None, None)
    assert found.unit is None or (found.pod_uid, found.container_id, found.slurm_job) == (None, None, None)
