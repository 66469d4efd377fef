"""Which board is at which PCI address: learnt while a GPU answers, kept when it does not any more."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_BOARDS = 64


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU of this node."""

    uuid: str
    gpu: int | None
    """Its number in the label ``gpu``; ``None`` when only the kernel's log has named it."""


@dataclass(slots=True)
class Roster:
    """Boards by PCI address, of this boot and of the one before."""

    boards: dict[str, Board] = field(default_factory=dict)
    earlier: dict[str, Board] = field(default_factory=dict)
    """Of the boot before, for a GPU that this boot never saw alive."""

    def at(self, address: str) -> Board | None:
        """The board at an address. One of the boot before counts unless it was seen elsewhere since."""
        board = self.boards.get(address)
        if board is not None:
            return board
        before = self.earlier.get(address)
        if before is None or any(each.uuid == before.uuid for each in self.boards.values()):
            return None
        return before

    def address_of(self, uuid: str) -> str | None:
        """Where a board is, as far as this boot knows."""
        return next((address for address, board in self.boards.items() if board.uuid == uuid), None)

    def learn(self, address: str, uuid: str, gpu: int | None) -> Board | None:
        """Keep who is where; the board that was there until now, if it was another one."""
        known = self.boards.get(address)
        if known is not None and known.uuid == uuid and (gpu is None or known.gpu == gpu):
            return None
        if known is None and len(self.boards) >= MOST_BOARDS:
            return None
        elsewhere = self.address_of(uuid)
        if elsewhere is not None and elsewhere != address:
            del self.boards[elsewhere]
        gpu = known.gpu if gpu is None and known is not None and known.uuid == uuid else gpu
        self.boards[address] = Board(uuid, gpu)
        return known if known is not None and known.uuid != uuid else None

    def start_boot(self) -> None:
        """The node was rebooted: boards may have been moved or exchanged."""
        self.earlier, self.boards = self.boards or self.earlier, {}
