"""What Slurm's commands print, of 22.05 and newer."""

from __future__ import annotations

import pytest

from gpufleet.quarantine.actuators.slurm.reading import (
    PREFIX,
    SlurmNode,
    is_job_number,
    key_of,
    parse_job,
    parse_nodes,
    reason_of,
)
from tests.support.quarantine_records import incident

SINFO = """\
gn1|gpu*|draining|gpu:h100:4|gpufleet:c/gn1/i-1 fault=79 gpu=3 since=2026-11-30T19:50:03Z
gn1|long|draining|gpu:h100:4|gpufleet:c/gn1/i-1 fault=79 gpu=3 since=2026-11-30T19:50:03Z
gn2|gpu*|drained*|gpu:h100:4|firmware | ada
gn3|gpu*|mixed|gpu:h100:4(S:0-1),shard:8|none
gn4|gpu*|idle~|gpu:h100:4|none
gn5|gpu*|down*|gpu:h100:4|Not responding
cpu1|cpu|idle|(null)|none
"""
JOB = (
    "JobId=5 JobName=x y UserId=u(1) JobState=RUNNING Reason=None Requeue=1 Restarts=2 BatchFlag=1 "
    "StartTime=2026-11-30T19:52:04 EndTime=Unknown NodeList=gn[1-2] BatchHost=gn1\n"
    "JobId=6 JobState=PENDING\n"
)


def test_nodes_with_gpus() -> None:
    """Each once, with its first partition, and its reason whole."""
    found = {node.name: node for node in parse_nodes(SINFO)}

    assert list(found) == ["gn1", "gn2", "gn3", "gn4", "gn5"]
    assert found["gn1"].partition == "gpu"
    assert found["gn2"].reason == "firmware | ada"
    assert found["gn3"].reason == ""
    assert {name: (node.is_out, node.is_held, node.is_ours) for name, node in found.items()} == {
        "gn1": (True, True, True),
        "gn2": (True, True, False),
        "gn3": (False, False, False),
        "gn4": (True, False, False),
        "gn5": (True, False, False),
    }


def test_a_reason_of_ours_that_somebody_left_on_a_node_that_runs_is_none() -> None:
    """Ours is a drained node with our reason, and nothing else."""
    assert not SlurmNode("gn1", "gpu", "idle", f"{PREFIX}x").is_ours


def test_a_job() -> None:
    """The first of those that are told; what is Unknown is not known."""
    job = parse_job(JOB)

    assert job is not None
    assert (job.number, job.state, job.restarts, job.nodes, job.ended) == ("5", "RUNNING", 2, "gn[1-2]", None)
    assert job.started == 1796068324.0


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error: Invalid job id specified\n", "JobId=5\n", "No jobs in the system"]
)
def test_no_job(text: str) -> None:
    """Whatever is said instead."""
    assert parse_job(text) is None


def test_the_reason_names_the_incident_and_can_be_read_back() -> None:
    """In one line, whatever a label holds."""
    told = incident("gn1", "i 1\n2")
    reason = reason_of(told)

    assert reason.startswith("gpufleet:prod/gn1/i_1_2 fault=79 gpu=3 GPU-")
    assert reason.endswith("since=2023-11-14T22:13:20Z")
    assert key_of(reason) == "prod/gn1/i_1_2"
    assert len(reason_of(incident("n" * 300, "i"))) <= 250


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("5", True),
        ("123_4", True),
        ("", False),
        ("run-7", False),
        ("5,6", False),
        ("5 --x", False),
        ("123_[4-5]", False),
        ("-5", False),
    ],
)
def test_what_can_be_a_job(text: str, is_one: bool) -> None:
    """Nothing else reaches a command line."""
    assert is_job_number(text) is is_one
