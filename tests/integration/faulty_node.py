"""A node whose faults a test writes: the stand-in driver, a file in the place of /dev/kmsg, and the exporter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.collect.control import ask
from tests.integration.exporter_process import ExporterProcess
from tests.support.fake_nvml import FakeNvml
from tests.support.kmsg_records import RecordFile, xid
from tests.waiting import until

FAST = "--poll.interval=200ms"


@dataclass(frozen=True, slots=True)
class Shown:
    """What one exposition says of faults."""

    incidents: Mapping[str, Mapping[str, str]]
    """Labels by incident."""
    xids: Mapping[tuple[str, str], float]
    """By number of the GPU and code."""
    switches: Mapping[tuple[str, str], float]
    """By address and code."""
    sources: Mapping[str, float]

    def roots(self) -> list[tuple[str, str]]:
        """Number of the GPU and root of each incident, in order."""
        return sorted((labels.get("gpu", ""), labels["fault"]) for labels in self.incidents.values())

    def of(self, fault: str) -> Mapping[str, str]:
        """Labels of the one incident with this root."""
        (labels,) = [labels for labels in self.incidents.values() if labels["fault"] == fault]
        return labels


def shown(exposition: str) -> Shown:
    """Read an exposition."""
    samples = [sample for family in parse_text(exposition) for sample in family.samples]

    def of(name: str, *labels: str) -> dict[tuple[str, ...], float]:
        return {tuple(each.labels[one] for one in labels): each.value for each in samples if each.name == name}

    active = [each.labels for each in samples if each.name == "gpu_fault_active"]
    incidents = {labels["incident"]: labels for labels in active}
    assert len(incidents) == len(active), "two series of one incident"
    return Shown(
        incidents,
        {(key[0], key[1]): value for key, value in of("gpu_xid_errors_total", "gpu", "xid").items()},
        {(key[0], key[1]): value for key, value in of("nvswitch_errors_total", "pci_bus_id", "sxid").items()},
        {key[0]: value for key, value in of("gpufleet_source_up", "source").items()},
    )


@dataclass
class FaultyNode:
    """``start`` gives an exporter each time, with the same state and the same log."""

    fake: FakeNvml
    directory: Path
    log: RecordFile
    flags: tuple[str, ...] = (FAST,)
    boot_id: str = field(default_factory=lambda: str(uuid4()))

    def start(self, *flags: str) -> ExporterProcess:
        """An exporter that is started by entering it."""
        exporter = ExporterProcess(self.fake, self.directory, f"--kmsg.path={self.log.path}", *self.flags, *flags)
        (self.fake.procfs / "sys/kernel/random/boot_id").write_text(f"{self.boot_id}\n")
        return exporter

    def reboot(self) -> None:
        """Another boot: its log begins at zero."""
        self.boot_id = str(uuid4())
        self.log.path.unlink()
        self.log.next = 0
        self.log.path.touch()

    def address(self, gpu: int) -> str:
        """PCI address of a GPU."""
        place = self.fake.gpus[gpu]
        return f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.0"

    def xid(self, code: int, gpu: int, text: str | None = None) -> int:
        """The kernel's log tells an Xid of a GPU; the record's number."""
        return self.log.say(xid(code, self.address(gpu), text))


def see(exporter: ExporterProcess) -> Shown:
    """What is shown of faults now."""
    return shown(exporter.metrics())


def wait_for_roots(exporter: ExporterProcess, *roots: tuple[str, str], seconds: float = 30.0) -> Shown:
    """Wait until exactly these are shown: number of the GPU and root."""
    seen: list[Shown] = []

    def found() -> bool:
        seen[:] = [see(exporter)]
        return seen[0].roots() == sorted(roots)

    try:
        until(found, f"{sorted(roots)} are shown", seconds=seconds, every=0.05)
    except TimeoutError as failure:
        raise TimeoutError(f"{failure}: {seen[0]}") from None
    return seen[0]


def wait_for_count(exporter: ExporterProcess, gpu: int, code: int, count: int) -> Shown:
    """Wait until a code of a GPU is counted so often."""
    key = (str(gpu), str(code))
    until(lambda: see(exporter).xids.get(key) == count, f"Xid {code} of GPU {gpu} counts {count}", every=0.05)
    return see(exporter)


def wait_for_replay(exporter: ExporterProcess, *, gpus: int = 8) -> Shown:
    """Wait until every GPU has been polled and the log has been read to its end, and for one more poll."""
    exporter.wait_for(rf'^gpu_power_watts\{{gpu="{gpus - 1}"')
    until(lambda: not is_replaying(exporter), "the log is replayed", every=0.05)
    polled = last_poll(exporter)
    until(lambda: last_poll(exporter) > polled, "another poll has shown it", every=0.05)
    return see(exporter)


def last_poll(exporter: ExporterProcess) -> float:
    """When the first GPU answered last, as Unix time."""
    (line,) = re.findall(
        r'^gpufleet_last_poll_timestamp_seconds\{gpu="0"[^}]*\} (\S+)', exporter.metrics(), re.MULTILINE
    )
    return float(line)


def is_replaying(exporter: ExporterProcess) -> bool:
    """Whether the exporter still reads what was in the log when it was started."""
    return known(exporter)["xid_errors"] is None


def known(exporter: ExporterProcess) -> dict[str, Any]:
    """What the exporter knows of faults, incidents that are not shown yet included."""
    faults = ask(exporter.control, "faults", seconds=10)["faults"]
    assert isinstance(faults, dict)
    return faults
