"""What Slurm's commands print, as facts. Pure; of Slurm 22.05 and newer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufleet.quarantine.incident import Incident

PREFIX = "gpufleet:"
"""What a reason of ours begins with. No other is ever written over or taken off."""
NODES_FORMAT = "%N|%P|%T|%G|%E"
"""For ``sinfo -h -N -o``; the reason stands last, because it may hold anything."""
_NO_REASON = frozenset({"", "none", "(null)"})
# By the beginning of the long form; flags behind it (*, ~, #, $, @, …) say that it does not answer, is powered down, …
_OUT = ("drain", "down", "fail", "maint", "error", "unknown", "future", "reboot", "inval", "perfctrs", "planned_down")
_HELD = ("drain",)
_SILENT = frozenset("*~#!%$@^-")
_PAIR = re.compile(r"(\w+)=(\S*)")
_LONGEST_REASON = 250


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node with GPUs."""

    name: str
    partition: str
    """The first that has it."""
    state: str
    reason: str
    """Empty where there is none."""

    @property
    def is_out(self) -> bool:
        """It takes no job."""
        return self.state.startswith(_OUT) or self.state[-1:] in _SILENT

    @property
    def is_held(self) -> bool:
        """Somebody has drained it."""
        return self.state.startswith(_HELD)

    @property
    def is_ours(self) -> bool:
        """We have."""
        return self.is_held and self.reason.startswith(PREFIX)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, as far as it concerns a fault."""

    number: str
    state: str
    restarts: int
    nodes: str
    """As Slurm writes them: ``gn[1-2]``; empty while it waits."""
    started: float | None
    """Unix time."""
    ended: float | None


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Nodes with GPUs, of ``sinfo -h -N -o NODES_FORMAT``: a line for each node and partition."""
    found: dict[str, SlurmNode] = {}
    for line in text.splitlines():
        parts = line.split("|", 4)
        if len(parts) < 5 or "gpu" not in parts[3]:
            continue
        name, partition, state, _, reason = (part.strip() for part in parts)
        reason = "" if reason.lower() in _NO_REASON else reason
        found.setdefault(name, SlurmNode(name, partition.rstrip("*"), state.lower(), reason))
    return tuple(found.values())


def parse_job(text: str) -> SlurmJob | None:
    """A job of ``scontrol -o show job``; None where there is none in it."""
    # Of an array several are told; the one that was asked for comes first.
    line = next((line for line in text.splitlines() if line.startswith("JobId=")), "")
    pairs: dict[str, str] = {}
    for name, value in _PAIR.findall(line):
        pairs.setdefault(name, value)
    if "JobId" not in pairs or "JobState" not in pairs:
        return None
    nodes = pairs.get("NodeList", "")
    return SlurmJob(
        number=pairs["JobId"],
        state=pairs["JobState"],
        restarts=int(pairs["Restarts"]) if pairs.get("Restarts", "").isdecimal() else 0,
        nodes="" if nodes in {"(null)", "None"} else nodes,
        started=_seconds(pairs.get("StartTime", "")),
        ended=_seconds(pairs.get("EndTime", "")),
    )


def reason_of(incident: Incident) -> str:
    """What a person reads beside the node."""
    gpu = f" gpu={incident.gpu}" if incident.gpu else ""
    uuid = f" {incident.uuid}" if incident.uuid else ""
    since = datetime.fromtimestamp(incident.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    key = re.sub(r"\s+", "_", str(incident.key))
    fault = re.sub(r"\s+", "_", incident.fault)
    return f"{PREFIX}{key} fault={fault}{gpu}{uuid} since={since}"[:_LONGEST_REASON]


def key_of(reason: str) -> str:
    """The incident that a reason of ours was written for."""
    return reason.removeprefix(PREFIX).partition(" ")[0]


def is_job_number(text: str) -> bool:
    """Whether it can be a job: a number, or one of an array's."""
    return re.fullmatch(r"[0-9]{1,10}(_[0-9]{1,10})?", text) is not None


def names(lines: Iterable[str]) -> frozenset[str]:
    """Host names, one a line."""
    return frozenset(line.strip() for line in lines if line.strip())


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None  # Unknown, N/A
