"""What nvidia-smi says, read by pure functions: its XML (``-q -x``) and its CSV (``--query-gpu``)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

_NOTHING = re.compile(
    r"\[?(n/?a|not supported|requested functionality has been deprecated|insufficient permissions|unknown error|"
    r"gpu requires reset|gpu is lost|none reported|err!?)\]?",
    re.IGNORECASE,
)
_FACTORS = {
    "": 1.0,
    "%": 0.01,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "MHz": 1e6,
    "W": 1.0,
    "C": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "x": 1.0,
    "bank(s)": 1.0,
}
_TRUE = frozenset({"active", "enabled", "yes"})
_FALSE = frozenset({"not active", "disabled", "no"})
_QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?)\s*(\D*)")


@dataclass(frozen=True, slots=True)
class SmiGpu:
    """One GPU of a log."""

    uuid: str
    element: ET.Element

    def text(self, path: str) -> str | None:
        """The text at a path, None where nvidia-smi has nothing to say there."""
        return meaningful(self.element.findtext(path))

    def value(self, *paths: str) -> float | None:
        """The value in SI units at the first path that there is; a path of several joined by ``+`` is their sum."""
        for path in paths:
            parts = [self.text(part) for part in path.split("+")]
            numbers = [quantity(part) for part in parts if part is not None]
            known = [number for number in numbers if number is not None]
            if known and len(known) == len(parts):
                return sum(known)
        return None

    def word(self, path: str) -> str | None:
        """A word such as a state, in lower case with underscores."""
        text = self.text(path)
        return None if text is None else re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")

    def processes(self) -> int:
        """Processes with a compute context: of type C, C+G or M+C."""
        kinds = [each.findtext("type") or "" for each in self.element.findall("processes/process_info")]
        return sum("C" in kind for kind in kinds)

    def slices(self) -> dict[tuple[int, int], SmiGpu]:
        """MIG devices by GPU instance and compute instance."""
        found = {}
        for each in self.element.findall("mig_devices/mig_device"):
            gi, ci = each.findtext("gpu_instance_id"), each.findtext("compute_instance_id")
            if gi is not None and ci is not None:
                found[int(gi), int(ci)] = SmiGpu(self.uuid, each)
        return found


@dataclass(frozen=True, slots=True)
class SmiLog:
    """A whole ``nvidia-smi -q -x``."""

    driver_version: str
    gpus: dict[str, SmiGpu]


def parse_log(text: str) -> SmiLog:
    """Read ``nvidia-smi -q -x``. Raises ValueError when it is none."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"nvidia-smi -q -x wrote no XML ({error}): {text[:200]!r}") from error
    gpus = {}
    for element in root.findall("gpu"):
        uuid = (element.findtext("uuid") or "").strip()
        if uuid:
            gpus[uuid] = SmiGpu(uuid, element)
    return SmiLog((root.findtext("driver_version") or "").strip(), gpus)


def parse_query(text: str, fields: Sequence[str]) -> dict[str, dict[str, float]]:
    """Read ``--query-gpu=uuid,FIELDS --format=csv,noheader,nounits``: raw numbers by UUID and field.

    Raises ValueError when a line has another number of columns.
    """
    found: dict[str, dict[str, float]] = {}
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(fields) + 1:
            raise ValueError(f"{len(row)} columns for {len(fields) + 1} fields: {row}")
        values = {field: quantity(cell.strip()) for field, cell in zip(fields, row[1:], strict=True)}
        found[row[0].strip()] = {field: value for field, value in values.items() if value is not None}
    return found


def refused_field(message: str) -> str | None:
    """The field that nvidia-smi does not know, from its error message."""
    match = re.search(r'[Ff]ield "([^"]+)" is not a valid field', message)
    return match[1] if match else None


def meaningful(text: str | None) -> str | None:
    """The text, None where it stands for "nothing"."""
    text = (text or "").strip()
    return None if not text or _NOTHING.fullmatch(text) else text


def quantity(text: str) -> float | None:
    """A number with its unit in SI units; a yes or no as 1 or 0; a performance state as its number; else None."""
    if meaningful(text) is None:
        return None
    word = text.partition(" (")[0].strip().lower()
    if word in _TRUE or word in _FALSE:
        return float(word in _TRUE)
    if re.fullmatch(r"P\d+", text):
        return float(text[1:])
    if re.fullmatch(r"0x[0-9a-fA-F]+", text):
        return float(int(text, 16))
    match = _QUANTITY.fullmatch(text)
    factor = _FACTORS.get(match[2].strip()) if match else None
    return None if match is None or factor is None else float(match[1]) * factor
