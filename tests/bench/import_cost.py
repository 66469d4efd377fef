"""What the exporter's imports cost in memory; prints JSON.

Usage: import_cost.py total FLAGS...      resident KiB once the exporter is wired and listens; no driver was touched
       import_cost.py modules FLAGS...    resident KiB and milliseconds that each module added, by its own name
"""

from __future__ import annotations

import builtins
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

_PAGE_KIB = resource.getpagesize() // 1024


def resident_kib() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - pathlib is one of the imports measured
        return int(file.read().split()[1]) * _PAGE_KIB


class Watch:
    """Stands in for ``__import__``: notes what each first import added, what it imported itself left out."""

    def __init__(self) -> None:
        self.own: dict[str, list[float]] = {}
        self._import = builtins.__import__
        self._inside: list[list[float]] = [[0.0, 0.0]]

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - __import__'s own name
        locals: Mapping[str, object] | None = None,  # noqa: A002 - as above
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:  # noqa: ANN401 - a module
        """Import as Python does."""
        known = len(sys.modules)
        kib, begin = resident_kib(), time.perf_counter()
        self._inside.append([0.0, 0.0])
        try:
            return self._import(name, globals, locals, fromlist, level)
        finally:
            added = [float(resident_kib() - kib), 1e3 * (time.perf_counter() - begin)]
            nested = self._inside.pop()
            if len(sys.modules) > known:
                own = self.own.setdefault(name, [0.0, 0.0])
                for place in (0, 1):
                    own[place] += added[place] - nested[place]
                    self._inside[-1][place] += added[place]


def wire(flags: Sequence[str]) -> None:
    """What ``gpufleet exporter`` does before it polls."""
    from gpufleet.commands.exporter import real_node
    from gpufleet.commands.flags import FlagParser
    from gpufleet.commands.service import _Service

    _, settings = FlagParser("exporter", "The exporter's imports.").read(flags)
    _Service(settings, real_node(settings)).open_endpoint()


def main() -> None:
    """Measure and print."""
    what, flags = sys.argv[1], sys.argv[2:]
    if what == "total":
        wire(flags)
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:  # noqa: PTH123 - as above
            exact = next(line for line in file if line.startswith("Rss:"))  # statm lags by up to a few hundred KiB
        json.dump({"total": int(exact.split()[1])}, sys.stdout)
        return
    begin = resident_kib()
    watch = Watch()
    builtins.__import__ = watch  # type: ignore[assignment] # its fromlist is what import statements give
    wire(flags)
    json.dump({"interpreter": begin, "total": resident_kib(), "modules": watch.own}, sys.stdout)


if __name__ == "__main__":
    main()
