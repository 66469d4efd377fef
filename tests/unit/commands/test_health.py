"""What probes are told: healthy is about the process, ready about the readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.commands.health import Health
from gpufleet.model.snapshot import NodeIdentity, Snapshot
from gpufleet.model.state import NvmlState

AT = 1000.0
WELL = Snapshot(sequence=1, at=0.0, monotonic=AT, node=NodeIdentity("n"), nvml_state=NvmlState.OK)


def in_state(state: NvmlState, reason: str | None = None) -> Snapshot:
    """A fresh snapshot of a node whose library is in that state."""
    return replace(WELL, nvml_state=state, reason=reason)


def test_a_node_that_is_polled_is_healthy_and_ready() -> None:
    """The ordinary case."""
    health = Health(1.0)
    assert health.healthy(WELL, AT + 1).ok
    assert health.ready(WELL, AT + 1).ok


@pytest.mark.parametrize(
    "state", [NvmlState.NO_LIBRARY, NvmlState.NO_DRIVER, NvmlState.MISMATCH, NvmlState.HUNG, NvmlState.NO_PERMISSION]
)
def test_without_a_driver_a_node_is_healthy_and_not_ready(state: NvmlState) -> None:
    """No restart would help, so none is asked for; and nothing is served that a load balancer should send people to."""
    health = Health(1.0)
    snapshot = in_state(state, "because")
    health.observe(snapshot)
    assert health.healthy(snapshot, AT).ok
    verdict = health.ready(snapshot, AT)
    assert (verdict.ok, verdict.reason) == (False, f"{state.value}: because")


def test_a_driver_without_gpus_is_ready() -> None:
    """Everything that there is to read is served: nothing."""
    assert Health(1.0).ready(in_state(NvmlState.NO_GPU), AT).ok


def test_lost_permission_is_unhealthy_once_it_was_had() -> None:
    """A systemd reload took a container's devices away: only a new container has them again."""
    health = Health(1.0)
    lost = in_state(NvmlState.NO_PERMISSION, "this process may not open /dev/nvidiactl")
    health.observe(WELL)
    health.observe(lost)
    verdict = health.healthy(lost, AT)
    assert (verdict.ok, verdict.reason) == (False, "this process may not open /dev/nvidiactl")
    assert health.healthy(WELL, AT).ok


@pytest.mark.parametrize(("interval", "limit"), [(0.1, 15.0), (1.0, 15.0), (10.0, 50.0)])
def test_a_poll_loop_that_stands_still_is_unhealthy(interval: float, limit: float) -> None:
    """A process whose poll thread is dead serves nothing that is worth its restart."""
    health = Health(interval)
    assert health.healthy(WELL, AT + limit).ok
    verdict = health.healthy(WELL, AT + limit + 1)
    assert (verdict.ok, verdict.reason) == (False, f"no poll has ended for {limit + 1:.0f} seconds")


def test_an_old_snapshot_is_not_ready_as_it_is_not_shown() -> None:
    """The exposition leaves driver readings out after three intervals; readiness says the same."""
    health = Health(1.0)
    assert health.ready(WELL, AT + 3).ok
    assert not health.ready(WELL, AT + 3.1).ok


def test_a_quiesced_node_is_healthy_and_not_ready() -> None:
    """It was asked to be so; a restart would take the GPUs from the one who asked."""
    quiesced = replace(WELL, quiesced=True)
    health = Health(1.0)
    assert health.healthy(quiesced, AT).ok
    assert health.ready(quiesced, AT).reason == "quiesced: no GPU is held"
