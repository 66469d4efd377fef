"""What each poll tells of faults: where the boards are, conditions that rise, and proof that something was cured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.faults import conditions, cures, incidents, showing
from gpufleet.faults.condition_rows import CONDITIONS, MISSING, STANDING
from gpufleet.faults.conditions import SETTLED_SECONDS, STARTED_SECONDS, Polled
from gpufleet.faults.readouts import Readouts
from gpufleet.faults.verdict import condition, recovery
from gpufleet.model.fault import FaultEvent, FaultKind
from gpufleet.model.state import GpuState, NvmlState

if TYPE_CHECKING:
    from gpufleet.faults.case import Case
    from gpufleet.faults.counts import Counts
    from gpufleet.faults.docket import Docket
    from gpufleet.model.snapshot import GpuSnapshot, Snapshot

MISSING_SECONDS = 60.0
"""A GPU that is not enumerated is missing after so long: drivers are reloaded, and GPUs reset, within less."""
RECOVERED_SECONDS = 5.0
"""A poll may have been on its way when the kernel's log told that an action is asked for."""
_MOST_BOARDS = 64
_POLL = "poll"


class Observer:
    """Reads snapshots. Its state is ``polled`` (by UUID); the rest begins anew with the process."""

    def __init__(self, docket: Docket, counts: Counts) -> None:
        self.polled: dict[str, Polled] = {}
        self.quiesced = False
        self._docket = docket
        self._counts = counts
        self._readouts = Readouts()
        self._gone_since: dict[str, float] = {}
        self._unbound: set[str] = set()
        self._let_go = False

    def observe(self, snapshot: Snapshot, now: float) -> None:
        """Take a poll in."""
        self.quiesced = snapshot.quiesced
        if snapshot.node.driver_version is not None:
            self._docket.world.driver = snapshot.node.driver_version
        present = [gpu for gpu in snapshot.gpus if gpu.state is not GpuState.GONE]
        for gpu in present:
            self.learn(gpu.identity.pci_bus_id, gpu.identity.uuid, gpu.number, now)
        if snapshot.quiesced:
            self._gone_since.clear()
            self._let_go = True
            return
        if self._let_go and snapshot.nvml_state is NvmlState.OK:
            # Somebody made this program let go of the driver: what is gone since then was taken away on purpose.
            self._let_go = False
            self._unbound.update(gpu.identity.pci_bus_id for gpu in snapshot.gpus if gpu.state is GpuState.GONE)
        for gpu in present:
            self._gpu(gpu, now)
        if snapshot.nvml_state is NvmlState.OK:
            self._missing(snapshot, now)
            self._left(present, now)
        else:
            self._gone_since.clear()

    def learn(self, address: str, uuid: str, gpu: int | None, now: float) -> None:
        """A board is at an address."""
        docket = self._docket
        before = docket.world.roster.learn(address, uuid, gpu)
        if before is not None:
            self._counts.exchange(address, before.uuid)
            self.polled.pop(before.uuid, None)
            cures.left(docket, before.uuid, now)
        for case in docket.open.values():
            if case.switch:
                continue
            if case.uuid == uuid and case.address != address:
                docket.move(case, address, gpu)
            elif case.address == address and (case.uuid is None or (case.uuid == uuid and case.gpu is None)):
                # The log told of it before anybody knew whose address that is.
                showing.identify(docket, case, uuid, gpu)

    def device(self, action: str, address: str, now: float) -> FaultEvent | None:
        """The kernel says that a driver let go of a GPU or took it, or that it is gone: the fault that this is, if any.

        ``action`` is udev's: ``unbind``, ``bind``, ``add``, ``remove``.
        """
        if action == "unbind":
            self._unbound.add(address)
        elif action in {"bind", "add"}:
            self._unbound.discard(address)
        elif action == "remove":
            # An unbinding comes before every removal, so that it says nothing.
            self._unbound.discard(address)
            # Whoever takes a GPU out on purpose has to make this program let go of it first.
            if not self.quiesced and self._docket.world.roster.at(address) is not None:
                return FaultEvent(
                    FaultKind.GPU_LOST, now, "udev", address, text="The kernel removed the GPU from the PCI bus"
                )
        return None

    def still_true(self, case: Case) -> float:
        """When a condition of the case was last seen to hold."""
        polled = self.polled.get(case.uuid or "")
        if polled is None:
            return 0.0
        return max((at for name, at in polled.true.items() if name in case.seen), default=0.0)

    def recount(self, counts: Counts) -> None:
        """Use these counts from now on."""
        self._counts = counts

    def start_boot(self) -> None:
        """The node was rebooted: the counters go on to prove resets, conditions that stand are known already."""
        self._gone_since.clear()
        for polled in self.polled.values():
            polled.recovery = polled.ok_since = polled.reset_seen_at = None
            polled.true = {name: at for name, at in polled.true.items() if name in STANDING}

    def _gpu(self, gpu: GpuSnapshot, now: float) -> None:
        uuid, address = gpu.identity.uuid, gpu.identity.pci_bus_id
        polled = self.polled.get(uuid)
        if polled is None:
            if len(self.polled) >= _MOST_BOARDS:
                return
            polled = self.polled[uuid] = Polled(address)
        polled.address = address
        readout = self._readouts.read(gpu.parts)
        changes = conditions.changes(polled, gpu, readout, now)
        docket = self._docket
        for name in changes.rose:
            event = self._event(name, address, now)
            incidents.add(docket, event, condition(name), now)
        for name, at in changes.fell:
            for case in docket.of(address):
                if name in case.seen:
                    case.last_at = max(case.last_at, at)  # its silence begins here
        if changes.asks is not None and not self._knows(address, changes.asks):
            event = self._event("recovery_action", address, now)
            incidents.ask(docket, event, recovery(changes.asks), now)
        if changes.usable_again:
            cures.recovered(docket, address, now)
        elif changes.asks_nothing:
            self._asks_nothing(gpu, address, now)
        if changes.remapped:
            because = "the GPU was reset: the rows that waited for it are replaced"
            cures.was_reset(docket, address, before=now, at=now, because=because)
        if gpu.state is GpuState.OK:
            self._ok(polled, address, now)

    def _ok(self, polled: Polled, address: str, now: float) -> None:
        docket = self._docket
        cases = docket.of(address)
        self._unbound.discard(address)
        if polled.true.pop(MISSING, None) is not None:
            cures.is_back(docket, address, now)
        if not cases:
            polled.reset_seen_at = None
            return
        cures.answers_after_reboot(docket, address, now)
        if polled.ok_since is not None and now - polled.ok_since >= STARTED_SECONDS:
            quiet = all(now - case.last_at >= STARTED_SECONDS for case in cases)
            if quiet:
                cures.started(docket, address, now)
        seen_at = polled.reset_seen_at
        if seen_at is None:
            return
        because = "the GPU was reset: its energy and ECC counters began anew"
        settled = now - seen_at >= SETTLED_SECONDS
        before = seen_at if settled else polled.reset_after
        cures.was_reset(docket, address, before=before, at=now, because=because)
        if settled:
            polled.reset_seen_at = None

    def _asks_nothing(self, gpu: GpuSnapshot, address: str, now: float) -> None:
        asked = [case.asking[address] for case in self._docket.of(address) if address in case.asking]
        if asked and (gpu.polled_at or now) >= max(asked) + RECOVERED_SECONDS:
            cures.recovered(self._docket, address, now)

    def _knows(self, address: str, code: int) -> bool:
        """Whether the kernel's log told already that the driver asks for this."""
        weight = recovery(code).weight
        return any(
            seen.verdict.weight >= weight
            for case in self._docket.of(address)
            if (seen := case.seen.get("recovery_action")) is not None
        )

    def _missing(self, snapshot: Snapshot, now: float) -> None:
        gone = {gpu.identity.pci_bus_id: gpu for gpu in snapshot.gpus if gpu.state is GpuState.GONE}
        here = {gpu.identity.pci_bus_id for gpu in snapshot.gpus}
        docket = self._docket
        # Found by the kernel and never enumerated: known by number only. What a case of another address explains is not
        # told twice.
        explained = sum(case.isolates and case.address not in {*here, ""} for case in docket.open.values())
        unknown = (snapshot.gpus_expected or 0) - len(snapshot.gpus) - explained
        now_gone = {address for address in gone if address not in self._unbound} | ({""} if unknown > 0 else set())
        for address in list(self._gone_since.keys() - now_gone):
            del self._gone_since[address]
        for address in now_gone:
            since = self._gone_since.setdefault(address, now)
            polled = self.polled.get(gone[address].identity.uuid) if address else None
            told = MISSING in polled.true if polled is not None else bool(docket.of(address))
            if now - since < MISSING_SECONDS or told:
                continue
            if polled is not None:
                polled.true[MISSING] = now
            event = self._event(MISSING, address, now)
            incidents.add(docket, event, condition(MISSING), now)
        if snapshot.gpus and snapshot.gpus_expected is not None and snapshot.gpus_expected <= len(snapshot.gpus):
            cures.is_back(docket, "", now)

    def _left(self, present: list[GpuSnapshot], now: float) -> None:
        """Boards of open cases that are not here any more, and whose place another one has taken."""
        uuids = {gpu.identity.uuid for gpu in present}
        by_address = {gpu.identity.pci_bus_id: gpu.identity.uuid for gpu in present}
        complete = 0 < len(self._docket.world.roster.earlier) <= len(present)
        for case in list(self._docket.open.values()):
            if case.uuid is None or case.uuid in uuids or case.switch:
                continue
            if (complete and case.earlier_boot) or by_address.get(case.address, case.uuid) != case.uuid:
                self.polled.pop(case.uuid, None)
                cures.left(self._docket, case.uuid, now)

    def _event(self, name: str, address: str, now: float) -> FaultEvent:
        entry = CONDITIONS.get(name)
        text = name if entry is None else f"{name}: {entry.name}"
        return FaultEvent(FaultKind.CONDITION, now, _POLL, address or None, condition=name, text=text)
