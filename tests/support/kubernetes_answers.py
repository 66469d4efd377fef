"""What a real API server answered, request by request (1.20: what it refuses and how has not changed since)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parent.parent / "fixtures" / "quarantine" / "kubernetes_answers.jsonl"


@dataclass(frozen=True, slots=True)
class Answer:
    """A request and what came of it."""

    name: str
    method: str
    path: str
    content_type: str
    sent: Any
    status: int
    body: dict[str, Any]


def answers() -> dict[str, Answer]:
    """All that were recorded, by name."""
    found = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        asked = told["request"]
        found[told["name"]] = Answer(
            told["name"],
            asked["method"],
            asked["path"],
            asked["content_type"],
            asked["body"],
            told["status"],
            told["body"],
        )
    return found
