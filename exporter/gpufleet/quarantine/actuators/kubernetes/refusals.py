"""How an API server refuses, in words and in types that callers tell apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.quarantine.actuators.kubernetes.grants import LEDGER, role_for
from gpufleet.quarantine.actuators.kubernetes.places import Place

RBAC_FILE = "deploy/kubernetes/quarantine-rbac.yaml"


class ApiError(Exception):
    """The API server did not do what it was asked; the text is for a person."""

    def __init__(self, text: str, status: int = 0, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        """HTTP's; 0 without an answer."""
        self.reason = reason
        """Kubernetes' own word, such as ``AlreadyExists``."""


class NotFoundError(ApiError):
    """There is no such object, or there can be none of such a name."""


class ConflictError(ApiError):
    """The object is not as the write supposed: another resourceVersion, another UID, or it exists."""

    @property
    def already_exists(self) -> bool:
        """An object was to be created that is there."""
        return self.reason == "AlreadyExists"


class InvalidError(ApiError):
    """The request itself is wrong, or a ``test`` of a JSON patch failed (which is answered 422, not 409)."""


class ForbiddenError(ApiError):
    """RBAC or an admission rule forbids it; says who lacks which verb on what, and the role that has it."""


class UnauthorizedError(ApiError):
    """The server does not know who we are."""


class TooManyRequestsError(ApiError):
    """Not now."""

    def __init__(self, text: str, *, disruption_budget: bool) -> None:
        super().__init__(text, 429, "TooManyRequests")
        self.disruption_budget = disruption_budget
        """A PodDisruptionBudget forbids it now; otherwise the server is busy."""


class UnavailableError(ApiError):
    """No answer in time, or one that says nothing of the request: a write may have been carried out all the same."""


def refusal(verb: str, place: Place, status: int, body: Mapping[str, Any]) -> ApiError:
    """The error for an answer with ``status`` (HTTP's, not of the 200s), whose ``body`` is Kubernetes' Status or empty.

    ``verb`` is RBAC's: get, list, create, update, patch.
    """
    reason = _text(body.get("reason"))
    text = f"{verb} {place}: {_text(body.get('message')) or f'HTTP {status}'}"
    kinds: dict[int, type[ApiError]] = {404: NotFoundError, 409: ConflictError}
    if status in kinds:
        return kinds[status](text, status, reason)
    if status == 401:
        return UnauthorizedError(f"{text}: look at the token of the service account", status, reason)
    if status == 403:
        # RBAC's own words; an admission rule has others, and no role helps against it.
        by_role = " cannot " in text and " resource " in text
        return ForbiddenError(f"{text}: {_remedy(verb, place)}" if by_role else text, status, reason)
    if status == 429:
        return TooManyRequestsError(text, disruption_budget=_is_disruption_budget(body))
    if status == 410:
        return UnavailableError(f"{text}: the list has expired under way, ask again", status, reason)
    if 400 <= status < 500:
        return InvalidError(text, status, reason)
    # A pod under two disruption budgets is answered 500; neither that nor a proxy's 502 says what was done.
    return UnavailableError(text, status, reason)


def _remedy(verb: str, place: Place) -> str:
    role = role_for(verb, place)
    asked = f"{verb} on {place.granted}{f'.{place.group}' if place.group else ''}"
    if role is None:
        return f"no role of {RBAC_FILE} has {asked}"
    kind = "Role" if role == LEDGER else "ClusterRole"
    return f"bind the {kind} {role} of {RBAC_FILE} to the service account: it has {asked}"


def _is_disruption_budget(body: Mapping[str, Any]) -> bool:
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(each, dict) and each.get("reason") == "DisruptionBudget" for each in causes
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
