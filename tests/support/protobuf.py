"""Protobuf's wire format, written by hand: what no generated class would write."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """A number of up to 64 bits."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def delimited(number: int, content: bytes) -> bytes:
    """Field ``number`` with a text or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content
