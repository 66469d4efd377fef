"""The ledger and the actuator of a policy: which of the worlds it is for, opened."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.quarantine.actuators.dry_run import DryRun
from gpufleet.quarantine.policy import Platform

if TYPE_CHECKING:
    from gpufleet.quarantine.actuators import Actuator
    from gpufleet.quarantine.audit import Audit
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.stores import Store


class PlatformError(Exception):
    """The platform cannot be used as it is; says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What the quarantine works on."""

    store: Store
    actuator: Actuator
    plan: DryRun
    """What the actuator would do."""


def open_platform(policy: Policy, audit: Audit, *, kubeconfig: Path | None = None) -> Opened:
    """Open the ledger's place and the actuator; nothing is asked of either yet. Raises PlatformError."""
    if policy.platform is Platform.SLURM:
        return _slurm(policy, audit)
    return _kubernetes(policy, audit, kubeconfig)


def _kubernetes(policy: Policy, audit: Audit, kubeconfig: Path | None) -> Opened:
    # Whoever runs Slurm needs no client of Kubernetes.
    from gpufleet.quarantine.actuators.kubernetes.actuator import KubernetesActuator
    from gpufleet.quarantine.actuators.kubernetes.client import CredentialsError, connect, own_namespace
    from gpufleet.quarantine.stores.config_map import ConfigMapStore

    try:
        api = connect(kubeconfig)
        namespace = policy.ledger.namespace or own_namespace()
    except CredentialsError as error:
        raise PlatformError(str(error)) from error
    actuator = KubernetesActuator(api, policy.nodes, policy.retries, audit, time.time)
    store = ConfigMapStore(api, namespace, time.time, policy.ledger.name)
    return Opened(store, actuator, DryRun(actuator, Platform.KUBERNETES, actuator.pods_on))


def _slurm(policy: Policy, audit: Audit) -> Opened:
    from gpufleet.quarantine.actuators.slurm.actuator import SlurmActuator
    from gpufleet.quarantine.actuators.slurm.commands import run
    from gpufleet.quarantine.stores.file import FileStore

    actuator = SlurmActuator(run, policy.retries, audit, time.time)
    return Opened(FileStore(Path(policy.ledger.file), time.time), actuator, DryRun(actuator, Platform.SLURM))
