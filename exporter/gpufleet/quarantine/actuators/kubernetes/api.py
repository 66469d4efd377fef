"""What is asked of an API server: five verbs, JSON in and out. The tests stand in for it here."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from gpufleet.quarantine.actuators.kubernetes.places import Place

Json = dict[str, Any]
Shape = TypeVar("Shape")


class Patch(StrEnum):
    """How a patch is meant: its content type."""

    MERGE = "application/merge-patch+json"
    """RFC 7386: an object; null removes, and a list replaces the whole list."""
    JSON = "application/json-patch+json"
    """RFC 6902: a list of operations; a ``test`` that fails is an InvalidError."""
    STRATEGIC = "application/strategic-merge-patch+json"
    """Kubernetes' own: as MERGE, but lists that have a merge key (conditions: ``type``) are merged by it."""


class Api(Protocol):
    """An API server, as one account sees it.

    Every call raises an ApiError of ``refusals``; none is repeated. After UnavailableError a write may have been made.
    ``dry_run`` has the server check everything and change nothing.
    """

    def get(self, place: Place) -> Json:
        """The object."""
        ...

    def each(self, place: Place, shape: type[Shape], *, labels: str = "", fields: str = "") -> Iterator[Shape]:
        """All objects of a kind, read by pages and decoded as ``shape``: ``dict``, or a msgspec.Struct of what is used
        (a node has tens of kilobytes). ``labels`` and ``fields`` are selectors: ``spec.nodeName=gpu-1``.
        """
        ...

    def create(self, place: Place, body: Json, *, dry_run: bool = False) -> Json:
        """Create an object in a collection, or what a subresource takes (an eviction)."""
        ...

    def replace(self, place: Place, body: Json) -> Json:
        """Write the whole object; with ``metadata.resourceVersion`` only over that version."""
        ...

    def patch(self, place: Place, kind: Patch, body: Json | list[Json], *, dry_run: bool = False) -> Json:
        """Change an object. ``metadata.resourceVersion`` in the patch is a condition (ConflictError), and so is
        ``metadata.uid`` (InvalidError: it cannot be changed).
        """
        ...
