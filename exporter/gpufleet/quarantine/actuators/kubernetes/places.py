"""Where an object lies at a Kubernetes API server. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# What every kind used here may be called (RFC 1123, at most 253 characters). It holds no slash, no percent sign and no
# lone dots, so a name out of an alert cannot lead to another path.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class Place:
    """An object, one of its subresources, or without a name all objects of a kind."""

    resource: str
    """The plural that URLs have: ``pods``."""
    name: str = ""
    namespace: str = ""
    api: str = "v1"
    """Group and version: ``batch/v1``; the core group has no name."""
    subresource: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.granted, self.namespace, self.name) if part)

    @property
    def group(self) -> str:
        """The group alone; empty for the core group."""
        return self.api.rpartition("/")[0]

    @property
    def granted(self) -> str:
        """What a role's rule calls it: ``pods/eviction``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    @property
    def can_be(self) -> bool:
        """Whether anything can lie there: no object has another kind of name."""
        return all(_NAME.match(name) for name in (self.name, self.namespace) if name)

    @property
    def path(self) -> str:
        """The path of the URL; only for a place that ``can_be``."""
        root = f"/apis/{self.api}" if self.group else f"/api/{self.api}"
        parts = [root]
        if self.namespace:
            parts += ["namespaces", self.namespace]
        parts += [self.resource, self.name, self.subresource]
        return "/".join(part for part in parts if part)

    def of(self, subresource: str) -> Place:
        """A subresource of the object: ``status``, ``eviction``."""
        return replace(self, subresource=subresource)


NODES = Place("nodes")
NAMESPACES = Place("namespaces")
PODS = Place("pods")


def node(name: str) -> Place:
    """A node."""
    return Place("nodes", name)


def pod(namespace: str, name: str) -> Place:
    """A pod."""
    return Place("pods", name, namespace)


def pods(namespace: str) -> Place:
    """The pods of a namespace."""
    return Place("pods", namespace=namespace)


def job(namespace: str, name: str) -> Place:
    """A Job."""
    return Place("jobs", name, namespace, "batch/v1")


def events(namespace: str) -> Place:
    """The events of a namespace, to create one; those about nodes lie in ``default``."""
    return Place("events", namespace=namespace)


def config_map(namespace: str, name: str = "") -> Place:
    """A ConfigMap; without a name those of the namespace, to create one."""
    return Place("configmaps", name, namespace)
