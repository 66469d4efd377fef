"""What an SXid of an NVSwitch means, by its number, the word Fatal in the line, and the driver that printed it.

A switch's error ends work on GPUs, but the switch names the port, not the cause: a GPU that is lost makes all switches
report its links. So most of them isolate only with a GPU that reports the same link (``Entry.needs_victim``).
"""

from __future__ import annotations

from functools import lru_cache

from gpufleet.faults.driver_version import parse_driver_version
from gpufleet.faults.entry import METRIC_CLASSES, Entry, FaultClass, Severity
from gpufleet.faults.sxid_rows import HEADER, RETIRED, ROWS, UNITS, Row, Way
from gpufleet.faults.xids import expand
from gpufleet.model.fault import Action

_RENUMBERED = (550, 40, 7)
"""Before, the multicast and reduction blocks had the numbers 28001 to 28006 and 29001 to 29006; then those became
29001 and 30001 and on, and a block for module temperatures took 28001."""

_OLD_BLOCKS = frozenset([*range(28001, 28007), *range(29001, 29007)])
_NOT_TAKEN = 28006
"""The one number of the old blocks that nothing has taken since."""

_FATAL_RANK = 11
_OTHER_RANK = 19
_ALWAYS_FATAL = frozenset({Way.FABRIC, Way.SERVICE})

_ROWS: dict[int, Row] = {code: row for row in (*ROWS, RETIRED) for code in expand(row.codes)}

_REMEDIES = {
    Way.WORD: "Look at the GPU and the cable at the other end of this link.",
    Way.WATCH: "Nothing at once. Look at jobs that hang or end with Xid 45, and at the GPU at the other end.",
    Way.IDLE: "Reset GPUs and switch when they are idle.",
    Way.COUNT: "Nothing to do.",
    Way.NOTE: "Nothing to do; look at the cooling when it is about heat.",
    Way.SERVICE: "Drain the node and reboot it; check cooling, cables and modules.",
    Way.FABRIC: "Drain the node and reboot it: the whole fabric has to be reset.",
}
_FATAL_REMEDY = "End the jobs on this link, then reset its GPUs together with the switch. Check both ends of the link."


@lru_cache(maxsize=256)
def lookup(code: int, fatal: bool | None = None, driver: str | None = None) -> Entry:  # noqa: FBT001 - as in the event
    """What an SXid means.

    ``fatal`` is the word of the line, ``None`` where it has none; the driver chooses it by what it did with the link,
    so it holds over the number's usual severity, but for errors of the whole switch, which are always fatal.
    """
    meaning = _meaning(code, driver)
    row = _ROWS.get(meaning)
    unit = UNITS.get(meaning // 1000, "switch")
    way = row.way if row is not None else Way.WORD
    fault_class = row.fault_class if row is not None else FaultClass.UNKNOWN
    always = way in _ALWAYS_FATAL
    link = fatal is True and not always
    idle = way is Way.IDLE and not link
    action = Action.DRAIN_AND_RESET if link else Action.REBOOT_NODE if always else Action.NONE
    return Entry(
        code=code,
        name=f"{unit} error" if row is not None else f"SXid {code}",
        summary=f"NVSwitch, {unit}: {row.words if row is not None else 'a number that is in no list'}.",
        fault_class=fault_class,
        action=Action.RESET_GPU if idle else action,
        severity=Severity.FATAL if link or always else Severity.DEGRADED,
        remedy=_FATAL_REMEDY if link else _REMEDIES[way],
        source=row.source if row is not None else HEADER,
        isolates=link or always,
        rank=_FATAL_RANK if link or always else None if fault_class is FaultClass.INFORMATIONAL else _OTHER_RANK,
        needs_repeat=not (link or always) and way in {Way.WORD, Way.WATCH, Way.IDLE},
        needs_victim=link,
    )


def sxid_class(code: int, driver: str | None = None) -> str:
    """Label ``class`` of ``nvswitch_errors_total``."""
    return METRIC_CLASSES[lookup(code, None, driver).fault_class]


def known() -> tuple[int, ...]:
    """Every number that has a row."""
    return tuple(sorted([*_ROWS, _NOT_TAKEN]))


def _meaning(code: int, driver: str | None) -> int:
    version = parse_driver_version(driver)
    old = version is not None and version < _RENUMBERED and code in _OLD_BLOCKS
    return code + 1000 if old or code == _NOT_TAKEN else code
