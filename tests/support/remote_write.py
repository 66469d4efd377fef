"""Prometheus's remote write, version 1, by hand: samples of any time go into a real Prometheus at once."""

from __future__ import annotations

import struct
import urllib.request
from collections.abc import Iterable, Mapping, Sequence

from tests.support.protobuf import delimited, varint

Series = tuple[Mapping[str, str], Sequence[tuple[float, float]]]
"""Labels (``__name__`` among them) and samples: time in seconds, value."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def write(url: str, series: Iterable[Series]) -> None:
    """Hand samples to the receiver of ``url``; OSError (HTTPError) where it refuses one."""
    body = b"".join([delimited(1, _series(*each)) for each in series])
    request = urllib.request.Request(
        f"{url}/api/v1/write",
        data=_snappy(body),
        headers={
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        },
    )
    with _DIRECT.open(request, timeout=60):
        pass


def _series(labels: Mapping[str, str], samples: Sequence[tuple[float, float]]) -> bytes:
    named = [
        delimited(1, delimited(1, name.encode()) + delimited(2, value.encode()))
        for name, value in sorted(labels.items())
    ]
    timed = [
        delimited(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(round(1000 * at))) for at, value in samples
    ]
    return b"".join(named + timed)


def _snappy(content: bytes) -> bytes:
    """Snappy's block format allows one literal of the whole: a length and the bytes as they are."""
    return varint(len(content)) + bytes([63 << 2]) + struct.pack("<I", len(content) - 1) + content
