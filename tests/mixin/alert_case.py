"""What a case of an alert is made of: series that rise and fall, and who is to be named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Series = Mapping[str, str]
"""Each series with its values, as promtool writes them, a minute apart."""
LONG = 600
"""Minutes of a value that stays."""


@dataclass(frozen=True, slots=True)
class Case:
    """One story, and the alerts of one name that fire at its end."""

    alert: str
    story: str
    series: Series
    at: str
    fires: Sequence[Mapping[str, str]] = ()
    """Labels of each alert that fires, as far as they matter; none: a near miss."""
    config: str = ""
    """Of which configuration: '' the default."""


def stays(value: float, minutes: int = LONG) -> str:
    """The same value all the time."""
    return f"{value:g}x{minutes}"


def rises(by: float, minutes: int = LONG, start: float = 0) -> str:
    """A counter that gets so much a minute."""
    return f"{start:g}+{by:g}x{minutes}"


def text(name: str, labels: Mapping[str, str]) -> str:
    """A series as it is written."""
    inside = ",".join([f'{label}="{value}"' for label, value in labels.items()])
    return f"{name}{{{inside}}}" if inside else name


def gpu(number: int = 0, node: str = "n1") -> dict[str, str]:
    """Labels of a GPU's own series."""
    return {"gpu": str(number), "uuid": f"GPU-{node}-{number}", "instance": f"{node}:9837"}


def of_gpu(readings: Mapping[str, str], number: int = 0, node: str = "n1") -> dict[str, str]:
    """Readings of one GPU: name, or name with labels between braces, and values."""
    made = {}
    for reading, values in readings.items():
        name, _, more = reading.partition("{")
        own = ",".join([f'{label}="{value}"' for label, value in gpu(number, node).items()])
        made[f"{name}{{{own}{',' + more if more else '}'}"] = values
    return made


def there(
    number: int = 0, node: str = "n1", run: str = "r", project: str = "p", values: str = stays(1)
) -> dict[str, str]:
    """A GPU with its identity and the one run that holds it."""
    known = {**gpu(number, node), "node": node}
    owner = {**known, "project": project, "run": run, "task": "t", "workload_namespace": "ns", "workload_pod": "pod"}
    return {
        text("gpu_info", {**known, "name": "H100", "driver_version": "580"}): values,
        text("gpu_owner_share", owner): values,
    }


BUSY = {"gpu_busy_seconds_total": rises(54)}
IDLE = {"gpu_busy_seconds_total": rises(0)}
