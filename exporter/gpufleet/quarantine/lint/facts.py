"""What else is known while one document is judged. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.quarantine.lint.manifests import Document


@dataclass(frozen=True, slots=True)
class Facts:
    """What the command was given."""

    documents: tuple[Document, ...] = ()
    """All of this call: one may name another."""
    admission: bool = False
    """The cluster has the admission webhook of deploy/kubernetes/quarantine-admission.yaml."""

    def find(self, group: str, kind: str, name: str) -> Document | None:
        """The document of that name, in whatever namespace."""
        for each in self.documents:
            if (each.group, each.kind, each.own_name) == (group, kind, name):
                return each
        return None
