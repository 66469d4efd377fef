"""The file of totals: exact, and refused whole when it is not what was written."""

from __future__ import annotations

import math
import struct

import pytest

from gpufleet.cost.meter_bytes import MAX_BYTES, decode_file, encode_file, encode_slot
from gpufleet.cost.meter_state import MOST_ACCOUNTS, MeterState, MeterStateError
from gpufleet.model.meter import Account

STATE = MeterState(
    monotonic=12345.678901234567,
    gaps=3,
    unbilled_seconds=math.pi,
    accounts=(Account(0, "GPU-0", "p", "r", "t", "USD"), Account(1, "GPU-1", "ünïcode \n", "", "", "")),
    values=(0.1 + 0.2, 1e-300, None, 0.0, 5e17, None, None, None, None, None),
    until=(None, 99.9),
)


def test_every_number_comes_back_to_the_last_bit() -> None:
    """Absent ones as absent ones, the boot and the sequence with them."""
    kept = decode_file(encode_file(STATE, "boot", 7)[0])

    assert (kept.state, kept.boot_id, kept.sequence) == (STATE, "boot", 7)


def test_nothing_comes_back_as_nothing() -> None:
    """Before the first poll there are no accounts and no time."""
    kept = decode_file(encode_file(MeterState(), None, 1)[0])

    assert (kept.state, kept.boot_id) == (MeterState(), None)


def test_the_newest_whole_slot_counts() -> None:
    """A slot that is damaged anywhere leaves the one before."""
    content, layout = encode_file(STATE, "boot", 1)
    newer = MeterState(STATE.monotonic, 4, 1.0, STATE.accounts, (9.0,) * 10, STATE.until)
    slot = encode_slot(newer, 2)
    file = bytearray(content)
    file[layout.place(2) : layout.place(2) + len(slot)] = slot

    assert decode_file(bytes(file)).state == newer
    for at in range(len(slot)):
        damaged = bytearray(file)
        damaged[layout.place(2) + at] ^= 0x40
        assert decode_file(bytes(damaged)).state == STATE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        bytes(100),
        b"GPUMETR1" + bytes(16),
        struct.pack("<8sIIII", b"GPUMETR1", 2, 2745614147, 4096, 4096) + b"{}",
        struct.pack("<8sIIII", b"GPUMETR1", 0xFFFFFFFF, 0, 0xFFFFFFFF, 0xFFFFFFFF),
        encode_file(STATE, "boot", 1)[0][:4096],
        encode_file(STATE, "boot", 1)[0].replace(b"GPU-0", b"GPU-9"),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes) -> None:
    """With one kind of error, whatever it is."""
    with pytest.raises(MeterStateError):
        decode_file(content)


def test_any_cut_is_refused_or_read_as_it_was() -> None:
    """A file that ends early never gives other numbers."""
    content, _ = encode_file(STATE, "boot", 1)
    for length in range(0, len(content), 61):
        try:
            assert decode_file(content[:length]).state == STATE
        except MeterStateError:
            continue


def test_what_could_not_be_read_again_is_not_written() -> None:
    """Too many accounts, or too long ones."""
    account = Account(0, "GPU-0", "p" * 1024, "r" * 1024, "t" * 1024)
    many = MeterState(accounts=(account,) * (MOST_ACCOUNTS + 1), values=(None,) * 5 * 8193, until=(None,) * 8193)
    assert len(many.accounts) * 3072 > MAX_BYTES

    with pytest.raises(MeterStateError, match="too many"):
        encode_file(many, None, 1)
