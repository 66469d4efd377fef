"""Whether GPUs may get work: a pure function from the facts to findings and an exit status.

Unfit needs a reason that is known. What can't be told is degraded: a node is not taken from its users because somebody
could not look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from gpufleet.commands.check_facts import Facts, GpuFacts
from gpufleet.faults import catalogue, words
from gpufleet.faults.condition_rows import FABRIC, RECOVERY, REMAP_FAILURE, REMAP_PENDING, SRAM_THRESHOLD
from gpufleet.faults.readouts import RECOVERY_MEMBERS
from gpufleet.faults.telling import ECHO
from gpufleet.model.fault import Action, Blame
from gpufleet.model.incident import Incident, Scope
from gpufleet.model.state import NOT_ASKED, GpuState, NvmlState

_NO_NAMES = frozenset({"None", "", "/dev/None"})
_STALE_INTERVALS = 3
_STALE_SECONDS = 10.0


class Fitness(IntEnum):
    """The exit status."""

    HEALTHY = 0
    DEGRADED = 1
    """May get work, and somebody has to look at it."""
    UNFIT = 2
    """Must not get work."""

    @property
    def word(self) -> str:
        """In small letters."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, or that is good to know."""

    fitness: Fitness
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU, or what concerns the node as a whole."""

    subject: str
    findings: tuple[Finding, ...]
    gpu: int | None = None
    uuid: str = ""
    pci_bus_id: str = ""
    minor: int | None = None

    @property
    def fitness(self) -> Fitness:
        """That of its worst finding."""
        return max((finding.fitness for finding in self.findings), default=Fitness.HEALTHY)


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings."""

    node: Row
    gpus: tuple[Row, ...]

    @property
    def fitness(self) -> Fitness:
        """Of everything that was asked for."""
        return max(row.fitness for row in (self.node, *self.gpus))


def judge(facts: Facts, wanted: Collection[str] = (), *, missing_ok: bool = False) -> Verdict:
    """The verdict on the GPUs that are ``wanted``, and on what they depend on.

    ``wanted`` has numbers, UUIDs, PCI addresses or device files (``nvidia5``), and is empty for all GPUs. With
    ``missing_ok`` a node without any GPU or driver passes.
    """
    names = {name.lower() for name in wanted}
    incidents = _Incidents(facts)
    rows = [
        Row(
            f"GPU {gpu.number}",
            tuple(_gpu_findings(gpu, facts, incidents.of(gpu))),
            gpu.number,
            gpu.uuid,
            gpu.pci_bus_id,
            gpu.minor,
        )
        for gpu in facts.gpus
    ]
    rows += incidents.strangers()
    chosen = [row for row in rows if not names or names & _names(row)]
    if facts.gpus:
        found = {name for row in chosen for name in _names(row)}
        absent = [name for name in wanted if name.lower() not in found]
        chosen += [Row(f"GPU {name}", (Finding(Fitness.UNFIT, "no such GPU on this node"),)) for name in absent]
    node = Row("node", tuple(_node_findings(facts, incidents.shared, missing_ok=missing_ok)))
    return Verdict(node, tuple(chosen))


def _names(row: Row) -> set[str]:
    # Three numberings are about: this program's, the driver's and that of the device files, which differs from both.
    device = None if row.minor is None else f"nvidia{row.minor}"
    return {str(row.gpu), row.uuid.lower(), row.pci_bus_id.lower(), str(device), f"/dev/{device}"} - _NO_NAMES


# --- the node ---------------------------------------------------------------------------------------------------------
def _node_findings(facts: Facts, shared: Iterable[Finding], *, missing_ok: bool) -> Iterator[Finding]:
    yield from shared
    if facts.quiesced:
        yield Finding(
            Fitness.DEGRADED, "quiesced: the exporter has let go of the GPUs, for a reset or an upgrade of the driver"
        )
    elif facts.nvml_state is not NvmlState.OK:
        yield _driver(facts, missing_ok=missing_ok)
    elif facts.interval_seconds and facts.age_seconds > max(_STALE_SECONDS, _STALE_INTERVALS * facts.interval_seconds):
        yield Finding(Fitness.DEGRADED, f"the exporter's last poll was {facts.age_seconds:.0f} seconds ago")
    missing = (facts.expected or 0) - len(facts.gpus)
    if facts.nvml_state is NvmlState.OK and not facts.quiesced and missing > 0:
        gone = "1 GPU is" if missing == 1 else f"{missing} GPUs are"
        yield Finding(
            Fitness.UNFIT, f"{gone} missing: the kernel has {facts.expected}, the driver lists {len(facts.gpus)}"
        )
    for flaw in facts.flaws:
        yield Finding(Fitness.DEGRADED, flaw)


def _driver(facts: Facts, *, missing_ok: bool) -> Finding:
    reason = facts.nvml_state.value.replace("_", " ") + (f": {facts.reason}" if facts.reason else "")
    if facts.reason == NOT_ASKED:
        return Finding(Fitness.DEGRADED, f"the exporter has just started: {NOT_ASKED}")
    nothing_here = not facts.gpus and not facts.expected
    if (
        missing_ok
        and nothing_here
        and facts.nvml_state in {NvmlState.NO_LIBRARY, NvmlState.NO_DRIVER, NvmlState.NO_GPU}
    ):
        return Finding(Fitness.HEALTHY, f"no GPU here, as is allowed: {reason}")
    if facts.nvml_state is NvmlState.NO_PERMISSION:
        return Finding(Fitness.DEGRADED, f"the GPUs can't be looked at: {reason}")
    return Finding(Fitness.UNFIT, f"driver: {reason}")


# --- incidents --------------------------------------------------------------------------------------------------------
class _Incidents:
    """Incidents by the GPU that they are about."""

    def __init__(self, facts: Facts) -> None:
        self._by_name: dict[str, list[Incident]] = {}
        self._settling = {incident.id for incident in facts.settling}
        self.shared: list[Finding] = []
        known = {name for gpu in facts.gpus for name in (gpu.uuid, gpu.pci_bus_id)}
        self._strangers: dict[str, list[Incident]] = {}
        for incident in (*facts.active, *facts.settling):
            uuid, address = incident.uuid or "", incident.pci_bus_id or ""
            if incident.scope is Scope.SWITCH or not (uuid or address):
                finding = self._finding(incident)
                self.shared.append(Finding(finding.fitness, f"{words.place(incident)}: {finding.words}"))
            elif uuid in known or address in known:
                self._by_name.setdefault(uuid if uuid in known else address, []).append(incident)
            else:
                self._strangers.setdefault(uuid or address, []).append(incident)

    def of(self, gpu: GpuFacts) -> list[tuple[Incident, Finding]]:
        """Incidents of a GPU, and what each is to it."""
        found = [
            incident for name in dict.fromkeys((gpu.uuid, gpu.pci_bus_id)) for incident in self._by_name.get(name, ())
        ]
        return [(incident, self._finding(incident)) for incident in found]

    def strangers(self) -> Iterator[Row]:
        """GPUs that only incidents tell of: they are gone."""
        for incidents in self._strangers.values():
            first = incidents[0]
            yield Row(
                "GPU ?" if first.gpu is None else f"GPU {first.gpu}",
                tuple(self._finding(incident) for incident in incidents),
                first.gpu,
                first.uuid or "",
                first.pci_bus_id or "",
            )

    def _finding(self, incident: Incident) -> Finding:
        gist = words.gist(incident)
        if incident.id in self._settling:
            fitness = Fitness.DEGRADED if incident.isolate else Fitness.HEALTHY
            return Finding(fitness, f"not certain yet: {gist}")
        if incident.isolate:
            return Finding(Fitness.UNFIT, gist)
        # A program that crashed says nothing against the GPU that it ran on.
        needs_someone = incident.action not in {Action.NONE, Action.RESTART_APPLICATION}
        return Finding(Fitness.DEGRADED if needs_someone or incident.blame is Blame.HARDWARE else Fitness.HEALTHY, gist)


# --- one GPU ----------------------------------------------------------------------------------------------------------
def _gpu_findings(gpu: GpuFacts, facts: Facts, incidents: list[tuple[Incident, Finding]]) -> Iterator[Finding]:
    yield from (finding for _, finding in incidents)
    if not facts.quiesced and gpu.state is not GpuState.OK:
        unknown = gpu.state is GpuState.NO_PERMISSION
        said = gpu.state.value.replace("_", " ") + (f": {gpu.reason}" if gpu.reason else "")
        yield Finding(Fitness.DEGRADED if unknown else Fitness.UNFIT, said)
    told = {token.removeprefix(ECHO) for incident, _ in incidents for token, _ in incident.counts}
    yield from _driver_asks(gpu, told)
    yield from _memory(gpu, told)
    for issue in gpu.fabric:
        if f"{FABRIC}{issue}" not in told:
            yield Finding(Fitness.DEGRADED, f"NVLink fabric: {issue.replace('_', ' ')}")
    yield from _links(gpu, facts.gpus)
    yield from _slowed(gpu)


def _driver_asks(gpu: GpuFacts, told: set[str]) -> Iterator[Finding]:
    if gpu.recovery in {None, "none"} or RECOVERY in told:
        return
    asked = str(gpu.recovery)
    isolates = asked in RECOVERY_MEMBERS and catalogue.isolates(catalogue.recovery(RECOVERY_MEMBERS.index(asked)))
    yield Finding(
        Fitness.UNFIT if isolates else Fitness.DEGRADED,
        f"the driver asks for a recovery action: {asked.replace('_', ' ')}",
    )


def _memory(gpu: GpuFacts, told: set[str]) -> Iterator[Finding]:
    # The exporter opens an isolating incident for either; without one a person has cleared it, and work goes on.
    if gpu.remap_failure and REMAP_FAILURE not in told:
        yield Finding(Fitness.DEGRADED, "a row of memory could not be replaced, and its incident was cleared")
    if gpu.sram_threshold and SRAM_THRESHOLD not in told:
        yield Finding(Fitness.DEGRADED, "SRAM errors beyond the threshold, and their incident was cleared")
    if gpu.remap_pending and REMAP_PENDING not in told:
        yield Finding(Fitness.DEGRADED, "row remapping pending: reset the GPU when it is idle")
    if gpu.banks_empty:
        banks = "1 bank of memory has" if gpu.banks_empty == 1 else f"{gpu.banks_empty} banks of memory have"
        yield Finding(Fitness.DEGRADED, f"{banks} no spare row left")


def _links(gpu: GpuFacts, gpus: Iterable[GpuFacts]) -> Iterator[Finding]:
    """Links are left out of some boards and boxes on purpose; a GPU that has fewer than its equals has lost some."""
    others = [
        other.links_up for other in gpus if other is not gpu and other.name == gpu.name and other.links_up is not None
    ]
    most = max(others, default=0)
    if gpu.links_up is not None and gpu.links_down and gpu.links_up < most and (gpu.links_up or 0 not in others):
        yield Finding(Fitness.DEGRADED, f"{gpu.links_up} NVLinks are up, {most} of other GPUs here")
    width, widest = gpu.pcie_width, gpu.pcie_width_max
    # Generations go down when a GPU idles; widths never do.
    if width is not None and widest is not None and width < widest:
        yield Finding(Fitness.DEGRADED, f"PCIe link has {width} of {widest} lanes")


_SLOWDOWN_WORDS = {
    "hw_thermal_slowdown": "slowed down by heat (hardware)",
    "sw_thermal_slowdown": "slowed down by heat (driver)",
    "hw_power_brake_slowdown": "slowed down by the power brake: look at power supplies",
}


def _slowed(gpu: GpuFacts) -> Iterator[Finding]:
    named = [_SLOWDOWN_WORDS[reason] for reason in gpu.slowdowns if reason in _SLOWDOWN_WORDS]
    # The hardware's slowdown is the sum of its thermal one and the power brake, where the driver tells those apart.
    if not named and gpu.slowdowns:
        named = ["slowed down by hardware: heat or power"]
    yield from (Finding(Fitness.DEGRADED, said) for said in named)
