"""A ledger with a clock, fed with the driver's own text and with polls of invented GPUs."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpufleet.faults.ledger import Ledger
from gpufleet.faults.readouts import RECOVERY_MEMBERS
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.incident import NOBODY, Owner
from gpufleet.model.readings import Key, Readings
from gpufleet.model.snapshot import GpuSnapshot, NodeIdentity, Snapshot
from gpufleet.model.state import GpuState, NvmlState
from gpufleet.sources.kmsg_lines import parse_driver_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpufleet.model.incident import FaultsView, Incident

START = 1_790_000_000.0
DRIVER = "580.65.06"

FABRIC = ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery")
_KEYS = (
    *(Key("recovery_action", (member,)) for member in (*RECOVERY_MEMBERS, "unknown")),
    Key("row_remap_pending"),
    Key("row_remap_failure"),
    Key("ecc_sram_threshold_exceeded"),
    Key("energy_joules"),
    Key("ecc_errors", ("uncorrectable", "dram")),
    Key("ecc_errors", ("uncorrectable", "sram")),
    *(Key("fabric_health", (issue,)) for issue in FABRIC),
)


def address(gpu: int) -> str:
    """PCI address of an invented GPU."""
    return f"0000:{0x10 + gpu:02x}:00.0"


def uuid(gpu: int, generation: int = 0) -> str:
    """UUID of an invented GPU; another generation is another board in its slot."""
    return f"GPU-{generation:08d}-0000-0000-0000-{gpu:012d}"


@dataclass
class Gpu:
    """What the next poll of a GPU says; ``None`` is not reported."""

    number: int
    generation: int = 0
    state: GpuState = GpuState.OK
    recovery: str | None = "none"
    pending: int | None = 0
    failure: int | None = 0
    threshold: int | None = 0
    energy: float | None = 1_000_000.0
    dram: int | None = 0
    sram: int | None = 0
    fabric: dict[str, int] = field(default_factory=dict)

    def snapshot(self, at: float) -> GpuSnapshot:
        """The GPU as a poll of ``at`` shows it."""
        recovery: list[int | None] = [
            None if self.recovery is None else int(member == self.recovery) for member in (*RECOVERY_MEMBERS, "unknown")
        ]
        values = (
            *recovery,
            self.pending,
            self.failure,
            self.threshold,
            self.energy,
            self.dram,
            self.sram,
            *(self.fabric.get(issue) for issue in FABRIC),
        )
        is_ok = self.state is GpuState.OK
        return GpuSnapshot(
            number=self.number,
            identity=GpuIdentity(uuid(self.number, self.generation), "H100", address(self.number)),
            state=self.state,
            polled_at=at,
            parts=(Readings(_KEYS, values),) if is_ok else (),
        )


class FaultRig:
    """One node of ``gpus`` GPUs and its ledger."""

    def __init__(
        self, gpus: int = 8, *, boot: str | None = "boot-1", has_log: bool = True, replayed: bool = True
    ) -> None:
        self.now = START
        self.boot = boot
        self.owners: dict[int, Owner] = {}
        self.gpus = [Gpu(number) for number in range(gpus)]
        self.expected: int | None = None
        self.has_log = has_log
        self.record = 0
        self._ids = itertools.count(1)
        self.ledger = self._ledger()
        if replayed:
            self.ledger.replay_ended(self.now)
            self.poll()

    def _ledger(self) -> Ledger:
        return Ledger(
            node="node-1",
            boot_id=self.boot,
            random_id=lambda: f"{next(self._ids):016x}",
            owner_of=self._owner,
            has_log=self.has_log,
        )

    def _owner(self, wanted: str) -> Owner:
        return next((owner for gpu, owner in self.owners.items() if uuid(gpu) == wanted), NOBODY)

    # --- what happens -------------------------------------------------------------------------------------------------

    def say(self, text: str, after: float = 0.0) -> FaultEvent:
        """The kernel's log says ``text``, ``after`` seconds after what came before."""
        self.now += after
        self.record += 1
        event = parse_driver_text(text, at=self.now, source="kmsg", sequence=self.record)
        assert event is not None, text
        self.ledger.feed(event, self.now)
        self.ledger.tick(self.now)
        return event

    def xid(self, code: int, text: str = "", *, gpu: int = 0, after: float = 0.0) -> FaultEvent:
        """An Xid of an invented GPU, as the driver prints it."""
        where = address(gpu).removesuffix(".0")
        return self.say(f"NVRM: Xid (PCI:{where}): {code}{', ' if text else ''}{text}", after)

    def sxid(self, code: int, text: str, *, switch: int = 0, after: float = 0.0) -> FaultEvent:
        """An SXid of an invented switch."""
        return self.say(f"nvidia-nvswitch{switch}: SXid (PCI:0000:{0xC0 + switch:02x}:00.0): {code}, {text}", after)

    def recovery(self, before: int, now: int, *, gpu: int = 0, after: float = 0.0) -> FaultEvent:
        """The driver's verdict changes."""
        return self.xid(154, f"GPU recovery action changed from {before:#x} (x) to {now:#x} (y)", gpu=gpu, after=after)

    def nvml(self, code: int, *, gpu: int = 0, after: float = 0.0) -> FaultEvent:
        """The driver's own event of an Xid."""
        self.now += after
        event = FaultEvent(FaultKind.XID, self.now, "nvml", address(gpu), code)
        self.ledger.feed(event, self.now)
        self.ledger.tick(self.now)
        return event

    def wait(self, seconds: float) -> None:
        """Time passes without anything but ticks when they are due."""
        end = self.now + seconds
        for _ in range(1000):
            due = self.ledger.tick(self.now)
            if due is None or due > end:
                break
            self.now = max(self.now, due)
        self.now = end
        self.ledger.tick(end)

    def poll(self, after: float = 0.0, *, nvml: NvmlState = NvmlState.OK, quiesced: bool = False) -> None:
        """The GPUs are polled as they are now."""
        self.now += after
        snapshot = Snapshot(
            sequence=1,
            at=self.now,
            monotonic=self.now,
            node=NodeIdentity("node-1", self.boot, DRIVER),
            nvml_state=nvml,
            gpus=tuple(gpu.snapshot(self.now) for gpu in self.gpus),
            gpus_expected=self.expected if self.expected is not None else len(self.gpus),
            quiesced=quiesced,
        )
        self.ledger.observe(snapshot, self.now)
        self.ledger.tick(self.now)

    def polls(self, seconds: float, every: float = 10.0) -> None:
        """Time passes with polls."""
        end = self.now + seconds
        while self.now < end:
            self.poll(after=every)

    def restart(self, *, boot: str | None = None, replay: Iterable[FaultEvent] = (), lose_state: bool = False) -> None:
        """The exporter is killed and started; with ``boot`` the node is rebooted. The log has ``replay`` in it."""
        kept = json.loads(json.dumps(self.ledger.dump()))
        if boot is not None:
            self.boot, self.record = boot, 0
        self.ledger = self._ledger()
        if not lose_state:
            self.ledger.load(kept, self.now)
        for event in replay:
            self.ledger.feed(event, self.now)
        self.ledger.replay_ended(self.now)
        self.poll()

    # --- what is shown ------------------------------------------------------------------------------------------------

    @property
    def view(self) -> FaultsView:
        """Everything that is shown."""
        return self.ledger.view()

    def active(self) -> tuple[Incident, ...]:
        """The incidents that are shown."""
        return self.view.active

    @property
    def only(self) -> Incident:
        """The one incident that is shown, once everything has settled."""
        self.wait(35)
        (incident,) = self.active()
        return incident

    def count(self, code: int, gpu: int = 0) -> int:
        """How often a code was counted for a GPU."""
        assert self.view.xid_errors is not None
        return sum(row.count for row in self.view.xid_errors if (row.uuid, row.code) == (uuid(gpu), code))


def pids(rig: FaultRig) -> set[int | None]:
    """Pids among the victims of the one incident."""
    return {victim.pid for victim in rig.only.victims if victim.pid is not None}
