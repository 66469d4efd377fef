"""What each role of deploy/kubernetes/quarantine-rbac.yaml allows, so that a refusal can name the missing one. Pure.

No verb ``delete``, no secrets, nothing that is not used: an operator binds only the roles that he wants used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufleet.quarantine.actuators.kubernetes.places import Place

QUARANTINE = "gpufleet-quarantine"
"""Look at nodes and pods, take a node out, say so."""
EVICT = "gpufleet-quarantine-evict"
"""Move pods."""
REFUND = "gpufleet-quarantine-refund"
"""Give a Job a lost retry back."""
LEDGER = "gpufleet-quarantine-ledger"
"""Keep the ledger; a Role of the service's own namespace."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule of a role."""

    group: str
    resource: str
    verbs: tuple[str, ...]


ROLES: dict[str, tuple[Grant, ...]] = {
    QUARANTINE: (
        Grant("", "nodes", ("get", "list", "patch")),
        Grant("", "nodes/status", ("patch",)),
        Grant("", "pods", ("get", "list")),
        Grant("", "namespaces", ("list",)),
        Grant("", "events", ("create",)),
    ),
    EVICT: (
        Grant("", "pods/eviction", ("create",)),
        Grant("", "pods", ("patch",)),
        Grant("batch", "jobs", ("get",)),
    ),
    REFUND: (Grant("batch", "jobs", ("get", "patch")),),
    LEDGER: (Grant("", "configmaps", ("get", "create", "update")),),
}


def role_for(verb: str, place: Place) -> str | None:
    """The role that allows ``verb`` there, the smallest first; None where none of ours does."""
    for role, grants in ROLES.items():
        if any(verb in each.verbs and (each.group, each.resource) == (place.group, place.granted) for each in grants):
            return role
    return None
