"""The file of a meter's totals: a header that names the accounts, and two slots of numbers that take turns. Pure.

The numbers change each second and the accounts seldom, so only a slot is written at most polls. A write that was cut
short (SIGKILL may end one between two pages, a power failure anywhere) spoils one slot; the other has the totals of the
write before. Sequence and checksum tell which is which.

Layout, numbers little-endian: 8 bytes of magic, then four uint32 (length and CRC-32 of the header, offset of the first
slot, size of a slot); the header as JSON; at the offset two slots. A slot: uint64 sequence, uint32 length of its
doubles, uint32 CRC-32 of all else in it; then doubles: monotonic, gaps, unbilled seconds, the columns of each account,
and for each when it is dropped. NaN stands for what there is none of.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from dataclasses import dataclass

from gpufleet.cost.meter_state import MOST_ACCOUNTS, MeterState, MeterStateError
from gpufleet.model.meter import COLUMNS, Account

MAX_BYTES = 8 << 20
"""No file of ``MOST_ACCOUNTS`` accounts with ordinary names is larger; a larger one is not read."""
_MAGIC = b"GPUMETR1"
_PREFIX = struct.Struct("<8sIIII")
_SLOT = struct.Struct("<QII")
_PAGE = 4096
"""Slots begin on pages, so that a write of one never touches the other's."""
_FIRST = 3
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the slots of one file are."""

    offset: int
    size: int

    def place(self, sequence: int) -> int:
        """Offset of the slot that the write of this number goes to."""
        return self.offset + (sequence & 1) * self.size


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file held."""

    state: MeterState
    boot_id: str | None
    sequence: int


def encode_file(state: MeterState, boot_id: str | None, sequence: int) -> tuple[bytes, Layout]:
    """A new file with one slot filled. Raises MeterStateError when it would be too large to be read again."""
    accounts = [[each.gpu, each.uuid, each.project, each.run, each.task, each.currency] for each in state.accounts]
    header = json.dumps({"boot_id": boot_id, "accounts": accounts}, separators=(",", ":")).encode()
    slot = encode_slot(state, sequence)
    layout = Layout(_pages(_PREFIX.size + len(header)), _pages(len(slot)))
    length = layout.offset + 2 * layout.size
    if length > MAX_BYTES or len(accounts) > MOST_ACCOUNTS:
        raise MeterStateError(f"{len(accounts)} accounts are too many to be kept")
    content = bytearray(length)
    _PREFIX.pack_into(content, 0, _MAGIC, len(header), zlib.crc32(header), layout.offset, layout.size)
    content[_PREFIX.size : _PREFIX.size + len(header)] = header
    place = layout.place(sequence)
    content[place : place + len(slot)] = slot
    return bytes(content), layout


def encode_slot(state: MeterState, sequence: int) -> bytes:
    """The numbers of ``state``, for the slot ``Layout.place(sequence)`` of a file with the same accounts."""
    first = (_NAN if state.monotonic is None else state.monotonic, float(state.gaps), state.unbilled_seconds)
    numbers = array("d", first)
    numbers.extend([_NAN if value is None else value for value in state.values])
    numbers.extend([_NAN if time is None else time for time in state.until])
    if sys.byteorder == "big":
        numbers.byteswap()
    payload = numbers.tobytes()
    return _SLOT.pack(sequence, len(payload), _checksum(sequence, payload)) + payload


def decode_file(content: bytes) -> Kept:
    """What a file holds, of the newest slot that is whole. Raises MeterStateError."""
    if len(content) < _PREFIX.size:
        raise MeterStateError("it is cut off")
    magic, length, checksum, offset, size = _PREFIX.unpack_from(content)
    if magic != _MAGIC:
        raise MeterStateError("it is no file of totals, or one of another version")
    header = content[_PREFIX.size : _PREFIX.size + length]
    if len(header) != length or zlib.crc32(header) != checksum:
        raise MeterStateError("its header is damaged")
    boot_id, accounts = _header(header)
    layout = Layout(offset, size)
    found = [slot for slot in (_slot(content, layout, which, len(accounts)) for which in (0, 1)) if slot is not None]
    if not found:
        raise MeterStateError("both of its slots are damaged")
    sequence, numbers = max(found, key=lambda slot: slot[0])
    return Kept(_state(numbers, accounts), boot_id, sequence)


def _header(header: bytes) -> tuple[str | None, tuple[Account, ...]]:
    try:
        table = json.loads(header)
        boot_id = table["boot_id"]
        accounts = [Account(*row) for row in table["accounts"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MeterStateError(f"its header can't be read: {error!r}") from error
    for each in accounts:
        texts = (each.uuid, each.project, each.run, each.task, each.currency)
        if type(each.gpu) is not int or not all(isinstance(text, str) for text in texts):
            raise MeterStateError("its header has an account that is none")
    if boot_id is not None and not isinstance(boot_id, str):
        raise MeterStateError("its header has a boot id that is no text")
    return boot_id, tuple(accounts)


def _slot(content: bytes, layout: Layout, which: int, accounts: int) -> tuple[int, list[float]] | None:
    place = layout.place(which)
    length = 8 * (_FIRST + accounts * (len(COLUMNS) + 1))
    payload = content[place + _SLOT.size : place + _SLOT.size + length]
    if len(payload) != length:
        return None
    sequence, told, checksum = _SLOT.unpack_from(content, place)
    if told != length or sequence & 1 != which or checksum != _checksum(sequence, payload):
        return None
    numbers = array("d", payload)
    if sys.byteorder == "big":
        numbers.byteswap()
    return sequence, numbers.tolist()


def _state(numbers: list[float], accounts: tuple[Account, ...]) -> MeterState:
    # Only NaN differs from itself.
    optional = tuple([None if number != number else number for number in numbers])  # noqa: PLR0124
    gaps, unbilled = numbers[1:_FIRST]
    if not (0.0 <= gaps < 1 << 53 and unbilled >= 0.0):
        raise MeterStateError("its count of gaps is none")
    middle = _FIRST + len(accounts) * len(COLUMNS)
    return MeterState(optional[0], int(gaps), unbilled, accounts, optional[_FIRST:middle], optional[middle:])


def _checksum(sequence: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_SLOT.pack(sequence, len(payload), 0)))


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
