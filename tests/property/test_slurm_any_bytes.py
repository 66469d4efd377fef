"""Whatever a file of a prolog holds, its reader gives jobs that can be shown, or refuses it in its own words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.claims import JobDevice
from gpufleet.sources.slurm.formats import FormatError, JobFile, jobstats_reader, read_dcgm, read_own

Reader = Callable[[str, bytes, float], tuple[JobFile, ...]]
READERS: list[Reader] = [read_own, read_dcgm, jobstats_reader(str)]
KEYS = [
    *("version", "device", "job", "user", "account", "partition", "name", "array_job", "array_task", "restart_count"),
    *("shards", "shared", "contained", "started_at", "unknown"),
]
names = st.sampled_from(["0", "0.1", "GPU-1.json", "GPU-1.4.json", "minor-1.json", "MIG-1", "x"]) | st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["42", "GPU-1", "minor:3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("read", READERS)
@given(name=names, content=st.binary() | st.text("0123456789 \n.ab", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(read: Reader, name: str, content: bytes) -> None:
    """No other error comes out."""
    with contextlib.suppress(FormatError):
        for file in read(name, content, 1.0):
            check(file.device)


@given(name=names, said=st.dictionaries(st.sampled_from(KEYS), values))
def test_any_object_is_read_or_refused(name: str, said: dict[str, object]) -> None:
    """Our own keys with values of any type."""
    with contextlib.suppress(FormatError):
        for file in read_own(name, json.dumps(said).encode(), 1.0):
            check(file.device)


def check(device: JobDevice) -> None:
    """What later stages rely on."""
    assert device.job_id
    assert device.device.startswith(("GPU-", "MIG-", "minor:", "index:"))
    assert device.started_at is not None
    assert device.started_at > 0
    assert device.shards is None or device.shards > 0
    for text in (device.user, device.account, device.partition, device.name, device.array_job_id, device.restart_count):
        assert len(text) <= 128
        assert text.encode().decode() == text
