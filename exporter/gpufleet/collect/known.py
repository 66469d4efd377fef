"""The GPUs that were seen in this boot, remembered across restarts of this process.

A GPU that is lost when the exporter starts has no name that the driver would tell. Remembering who was there keeps its
identity, its number and its place in the count: a fault must not disappear because somebody restarted the exporter.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from gpufleet.collect.state_file import StateError, read_state, replace_state
from gpufleet.logs import OnChange
from gpufleet.model.gpu import GpuIdentity

log = logging.getLogger(__name__)

_FILE = "gpus.json"
_MOST = 256
_LONGEST_TEXT = 128
_FIELDS = {field.name for field in fields(GpuIdentity)}


def parse(content: bytes, boot_id: str) -> dict[str, GpuIdentity]:
    """GPUs by UUID that were kept in this boot; empty when ``content`` is of another one.

    Raises StateError when the content is not what ``render`` writes.
    """
    try:
        state = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StateError("it is no JSON") from error
    if not isinstance(state, dict) or not isinstance(state.get("gpus"), list):
        raise StateError("it has no list of GPUs")
    if state.get("boot_id") != boot_id:
        return {}
    return {gpu.uuid: gpu for gpu in map(_identity, state["gpus"][:_MOST])}


def _identity(entry: object) -> GpuIdentity:
    if not isinstance(entry, dict) or not set(entry) <= _FIELDS:
        raise StateError("an entry of it is no GPU")
    for name, value in entry.items():
        fitting = isinstance(value, int) if name == "minor" else isinstance(value, str) and len(value) <= _LONGEST_TEXT
        if not fitting and value is not None:
            raise StateError(f"a GPU in it has no usable {name}")
    try:
        return GpuIdentity(**entry)
    except TypeError as error:
        raise StateError("a GPU in it lacks its name") from error


def render(gpus: Iterable[GpuIdentity], boot_id: str) -> bytes:
    """What is kept on disk."""
    entries = [asdict(gpu) for gpu in sorted(gpus, key=lambda gpu: gpu.uuid)]
    return json.dumps({"boot_id": boot_id, "gpus": entries}, indent=1, sort_keys=True).encode() + b"\n"


class KnownGpus:
    """Identities of this boot. Not thread-safe: one thread enumerates."""

    def __init__(self, directory: Path | None, boot_id: str | None) -> None:
        """Keep them in ``directory``; without it, or without a boot id, only as long as the process lives."""
        self._file = directory / _FILE if directory is not None and boot_id is not None else None
        self._boot_id = boot_id or ""
        self._gpus: dict[str, GpuIdentity] | None = None
        self._said = OnChange(log)

    def recall(self) -> tuple[GpuIdentity, ...]:
        """Every GPU that was seen in this boot."""
        return tuple(self._known().values())

    def remember(self, gpus: Iterable[GpuIdentity]) -> None:
        """Take these as seen, as they are now."""
        known = self._known()
        now = known | {gpu.uuid: gpu for gpu in gpus}
        if now != known:
            self._gpus = now
            self._write(now)

    def _known(self) -> dict[str, GpuIdentity]:
        if self._gpus is None:
            self._gpus = self._read()
        return self._gpus

    def _read(self) -> dict[str, GpuIdentity]:
        if self._file is None:
            return {}
        try:
            content = read_state(self._file)
            return parse(content, self._boot_id) if content is not None else {}
        except StateError as error:
            self._said.failed("read", "the kept list of GPUs can't be used", str(error), file=str(self._file))
            return {}

    def _write(self, gpus: dict[str, GpuIdentity]) -> None:
        if self._file is None:
            return
        try:
            replace_state(self._file, render(gpus.values(), self._boot_id))
        except StateError as error:
            self._said.failed(
                "write",
                "the list of GPUs can't be kept: one that is lost at the next start will have no name; "
                "make --state.dir writable",
                str(error),
                file=str(self._file),
            )
        else:
            self._said.over("write", "the list of GPUs is kept again", file=str(self._file))
