"""Model servers of a node: a replica on each GPU of an inference run, all of a node behind one address. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from gpufleet.simulate import sglang, vllm
from gpufleet.simulate.gpu import noise
from gpufleet.simulate.health import FOR_EVER, Window
from gpufleet.simulate.replica import MOST_AT_ONCE, Replica
from gpufleet.simulate.requests import NONE, Demand, Lots, between, together
from gpufleet.simulate.scenario import Overload, Run
from gpufleet.simulate.scenario_checks import kinds_of
from gpufleet.simulate.staging import OUT, Stage

SERVERS = ("vllm", "sglang")
_REQUESTS_PER_SECOND = {"vllm": 6.0, "sglang": 5.0}
"""Of a replica at full load."""
_MOST_WAITING = 400
# Seconds that a request takes, calm and busy.
_CALM_SECONDS, _BUSY_SECONDS = 4.0, 8.0


class NodeServer:
    """All replicas of one kind of server on a node."""

    def __init__(self, stage: Stage, node: str, kind: str) -> None:
        """KeyError when the node has no run that is served by ``kind``."""
        runs = [run for run in stage.runs_on(node) if run.server == kind]
        if not runs or kind not in SERVERS:
            raise KeyError(f"{node} {kind}")
        self._kind = kind
        gpus = [(run, number) for run in runs for number in _gpus(stage, run, node)]
        self._replicas = [_Serving(stage, run, node, place, number) for place, (run, number) in enumerate(gpus)]

    def text(self, moment: int) -> bytes | None:
        """Metrics as of ``moment``; None while there is no replica."""
        replicas = [replica.at(moment) for replica in self._replicas if replica.there(moment)]
        if not replicas:
            return None
        return vllm.text(replicas) if self._kind == "vllm" else sglang.text(replicas, self._answered(moment))

    def _answered(self, moment: int) -> dict[str, Lots]:
        """All requests by model, those of replicas that are gone included."""
        by_model: dict[str, list[Lots]] = {}
        for replica in self._replicas:
            by_model.setdefault(replica.model, []).append(replica.answered(moment))
        return {model: together(lots) for model, lots in by_model.items()}


def _gpus(stage: Stage, run: Run, node: str) -> Sequence[int]:
    (count,) = [len(kinds_of(each)) for each in stage.scenario.nodes if each.name == node]
    return range(count) if run.gpus is None else sorted(set(run.gpus))


class _Serving:
    """One replica over time."""

    __slots__ = ("_demand", "_number", "_outages", "_period", "_seed", "_up", "model")

    def __init__(self, stage: Stage, run: Run, node: str, place: int, number: int) -> None:
        self.model = run.model
        self._number = place
        self._seed = crc32(f"{run.name} {node} {number}".encode())
        overloads = [
            (event.at, event.at + event.lasts, event.factor)
            for event in stage.events_on(node)
            if isinstance(event, Overload)
        ]
        self._demand = Demand(
            _REQUESTS_PER_SECOND[run.server or "vllm"],
            day=run.day,
            phase=stage.phase(run, run.day),
            overloads=overloads,
            period=stage.period,
        )
        chapters = stage.chapters(run, node, number)
        ends = [start for start, *_ in chapters[1:]] + [stage.period or FOR_EVER]
        times = [(start, end, state == OUT) for (start, state, *_), end in zip(chapters, ends, strict=True)]
        self._outages = [Window(start, end, stage.period) for start, end, out in times if out]
        self._up = [(start, end) for start, end, out in times if not out]
        self._period = stage.period

    def there(self, moment: int) -> bool:
        """Whether its process runs."""
        return not any(window.holds(moment) for window in self._outages)

    def answered(self, moment: int) -> Lots:
        """Requests of all its processes from 0 to ``moment``."""
        rounds, local = divmod(moment, self._period) if self._period else (0, moment)
        now = self._answered(local)
        whole = self._answered(self._period) if rounds else NONE
        return rounds * whole[0] + now[0], rounds * whole[1] + now[1], rounds * whole[2] + now[2]

    def _answered(self, local: int) -> Lots:
        # Not all less those of outages: while it is out this must not change, not even by a rounding.
        lots = self._demand.lots
        return together([between(lots(min(local, end)), lots(start)) for start, end in self._up if start < local])

    def at(self, moment: int) -> Replica:
        """Itself at a moment in which it runs."""
        began = max([end for window in self._outages if (end := window.last_end(moment)) is not None], default=0)
        load, overload = self._demand.load(moment), self._demand.overloaded_for(moment)
        per_second = min(self._demand.per_second(moment), self._demand.per_second(moment) / max(1.0, load))
        seconds = _CALM_SECONDS + (_BUSY_SECONDS - _CALM_SECONDS) * min(1.0, load)
        # A few more or less from scrape to scrape.
        wobble = (noise(self._seed, moment) & 0xFF) / 0xFF - 0.5
        running = min(MOST_AT_ONCE, max(0, round(per_second * seconds + 3 * wobble)))
        waiting = 0
        if load > 1:
            waiting = min(_MOST_WAITING, round((load - 1) * per_second * min(overload, 60_000) / 1000))
        return Replica(
            model=self.model,
            number=self._number,
            lots=between(self._demand.lots(moment), self._demand.lots(began)),
            running=running,
            waiting=waiting,
            per_second=per_second,
        )
