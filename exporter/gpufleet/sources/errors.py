"""The error that a source raises when it can't be used at all."""

from __future__ import annotations


class SourceError(Exception):
    """A source that is not there; the message says why and, where there is one, the remedy."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        """Value of the label ``source``."""
        self.reason = reason
