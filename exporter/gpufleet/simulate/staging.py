"""Turns a scenario into scripts: what each GPU of a node does, given what its whole run goes through."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from gpufleet.simulate import patterns
from gpufleet.simulate.activities import Hindrance
from gpufleet.simulate.gpu import GpuScript, noise
from gpufleet.simulate.health import NO_TROUBLE, Window
from gpufleet.simulate.mig import blend, cut, layout_names, partition
from gpufleet.simulate.misfortune import Slowed, hindrance_at, outage_of, slowed_by, troubles_of
from gpufleet.simulate.profiles import Profile, load_profile
from gpufleet.simulate.scenario import DriverRestart, Event, Nic, Node, Overload, PowerBrake, Run, Scenario
from gpufleet.simulate.scenario_checks import kinds_of
from gpufleet.simulate.scripts import gpu_script, gpu_seed
from gpufleet.simulate.timeline import Cycle, Shifted, Story, Timeline

_WATCHDOG = 120_000
"""So long the ranks of a training run wait for a dead one before the run is ended."""
_VARIANTS = 8
"""Workloads that differ from GPU to GPU come in so many variants, which all nodes share."""
CALM, STALLED, OUT = "calm", "stalled", "out"

Chapter = tuple[int, str, Hindrance, float]
"""From when on, in what state, hindered how, at which pace of the run."""


@dataclass(frozen=True, slots=True)
class NodeScript:
    """All that a scripted driver of one node needs."""

    name: str
    gpus: tuple[GpuScript, ...]
    restarts: tuple[Window, ...]
    driver_version: str


class Stage:
    """A scenario with a seed; nodes are worked out one by one when they are asked for, and share what is alike."""

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        self.scenario = scenario
        self._seed = seed
        self._period = scenario.repeat or 0
        self._nodes = {node.name: node for node in scenario.nodes}
        self._events: dict[str, list[Event]] = defaultdict(list)
        for event in scenario.events:
            self._events[event.node].append(event)
        self._runs: dict[str, list[Run]] = defaultdict(list)
        for run in scenario.runs:
            for node in dict.fromkeys(run.nodes):
                self._runs[node].append(run)
        self._timelines: dict[tuple[str, str, int, tuple[Chapter, ...]], Timeline] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all nodes, in the scenario's order."""
        return tuple(self._nodes)

    def node(self, name: str) -> NodeScript:
        """The scripts of a node; KeyError when there is none of that name."""
        node = self._nodes[name]
        profiles = [load_profile(kind) for kind in kinds_of(node)]
        restarts = tuple(
            Window(event.at, event.at + event.lasts, self._period)
            for event in self._events.get(name, ())
            if isinstance(event, DriverRestart)
        )
        return NodeScript(
            name=name,
            gpus=tuple(self._gpu(node, number, profile) for number, profile in enumerate(profiles)),
            restarts=restarts,
            driver_version=node.driver_version or self.scenario.driver_version,
        )

    def _gpu(self, node: Node, number: int, profile: Profile) -> GpuScript:
        run = self._run_on(node.name, number)
        seed = gpu_seed(self._seed, node.name, number)
        events = self._happening(node.name, number)
        lifetime = _lifetime(profile, seed)
        troubles = troubles_of(events, profile, self._period, lifetime) if events or lifetime else NO_TROUBLE
        chapters = self.chapters(run, node.name, number)
        names = _layout(node, number)
        job = "" if run is None else run.name
        if names is None:
            timeline = self._timeline(run, profile, seed % _VARIANTS, chapters)
            return gpu_script(profile, node.name, number, timeline, seed=self._seed, troubles=troubles, run=job)
        timelines = [self._timeline(run, profile, (seed + i) % _VARIANTS, chapters) for i in range(len(names))]
        instances = partition(profile, names, timelines, seed)
        timeline = blend(profile, instances)
        script = gpu_script(profile, node.name, number, timeline, seed=self._seed, troubles=troubles, run=job)
        return cut(script, instances)

    def _run_on(self, node: str, number: int) -> Run | None:
        for run in self._runs.get(node, ()):
            if run.gpus is None or number in run.gpus:
                return run
        return None

    def _happening(self, node: str, number: int) -> list[Event]:
        """The events that one GPU has a part in."""
        return [event for event in self._events.get(node, ()) if _concerns(event, number)]

    def chapters(self, run: Run | None, node: str, number: int) -> tuple[Chapter, ...]:
        """What the GPU's work goes through: its own events, and in a training run those of all its GPUs."""
        own = self._happening(node, number)
        slowed = [each for event in own for each in slowed_by(event)]
        outages = [outage for event in own if (outage := outage_of(event))]
        peers: list[tuple[Slowed, ...]] = []
        peer_outages: list[tuple[int, int]] = []
        if run is not None and run.pattern == "train":
            for event in self._of_run(run, dict.fromkeys(run.nodes)):
                peers.append(slowed_by(event))
                if outage := outage_of(event):
                    peer_outages.append(outage)
        return self._told(slowed, outages, peers, peer_outages)

    def rank(self, run: Run, node: str) -> tuple[Chapter, ...]:
        """What the process of a training run on one node goes through: any of its GPUs that is out ends it."""
        events = self._of_run(run, dict.fromkeys(run.nodes))
        outages = [outage for event in self._of_run(run, (node,)) if (outage := outage_of(event))]
        peer_outages = [outage for event in events if (outage := outage_of(event))]
        return self._told([], outages, [slowed_by(event) for event in events], peer_outages)

    def _of_run(self, run: Run, nodes: Iterable[str]) -> list[Event]:
        return [event for node in nodes for event in self._events.get(node, ()) if self._in_run(run, event)]

    @staticmethod
    def _told(
        slowed: Sequence[Slowed],
        outages: Sequence[tuple[int, int]],
        peers: Sequence[tuple[Slowed, ...]],
        peer_outages: Sequence[tuple[int, int]],
    ) -> tuple[Chapter, ...]:
        moments = {0}
        for each in (*slowed, *(each for group in peers for each in group)):
            moments |= {each.start, each.end}
        for start, end in (*outages, *peer_outages):
            moments |= {start, min(start + _WATCHDOG, end), end}
        chapters: list[Chapter] = []
        for moment in sorted(moments):
            hindrance = hindrance_at(slowed, moment)
            pace = min((hindrance_at(group, moment).speed for group in peers), default=1.0)
            state = _state(moment, outages, peer_outages)
            chapter = (moment, state, hindrance, min(pace, hindrance.speed))
            if not chapters or chapters[-1][1:] != chapter[1:]:
                chapters.append(chapter)
        return tuple(chapters)

    @staticmethod
    def _in_run(run: Run, event: Event) -> bool:
        if isinstance(event, (Nic, Overload)):
            return False
        if run.gpus is None or isinstance(event, DriverRestart):
            return True
        return any(_concerns(event, number) for number in run.gpus)

    def _timeline(self, run: Run | None, profile: Profile, variant: int, chapters: Sequence[Chapter]) -> Timeline:
        if run is None:
            return patterns.idle(profile)
        alike = run.pattern in ("train", "data_bound", "sandbox")
        key = (run.name, profile.key, 0 if alike else variant, tuple(chapters))
        found = self._timelines.get(key)
        if found is None:
            found = self._timelines[key] = self._story(run, profile, key[2], chapters)
        return found

    def _story(self, run: Run, profile: Profile, variant: int, chapters: Sequence[Chapter]) -> Timeline:
        parts: list[tuple[int, Timeline]] = []
        for start, state, hindrance, pace in chapters:
            if state == CALM:
                parts.append((start, self._calm(run, profile, variant, hindrance, pace)))
            elif state == STALLED:
                parts.append((start, patterns.stalled(profile)))
            else:
                parts.append((start, patterns.idle(profile)))
        story: Timeline = parts[0][1] if len(parts) == 1 else Story(parts)
        return Cycle(((self._period, story),)) if self._period else story

    def _calm(self, run: Run, profile: Profile, variant: int, own: Hindrance, pace: float) -> Timeline:
        """The run's pattern, begun as long ago as its phase says."""
        rhythm: int
        if run.pattern == "train":
            rhythm = run.checkpoint_every
            timeline = patterns.train(
                profile,
                own,
                pace,
                step=run.step,
                communicate=run.communicate,
                checkpoint_every=run.checkpoint_every,
                checkpoint_takes=run.checkpoint_takes,
            )
        elif run.pattern == "inference":
            rhythm = run.day
            timeline = patterns.inference(profile, own, seed=variant, day=run.day)
        elif run.pattern == "data_bound":
            rhythm = 60_000
            timeline = patterns.data_bound(profile, own)
        elif run.pattern == "evals":
            rhythm = 20 * patterns.MINUTE
            timeline = patterns.evals(profile, own, seed=variant)
        else:
            return patterns.sandbox(profile)
        phase = self.phase(run, rhythm)
        return Shifted(timeline, phase) if phase else timeline

    def phase(self, run: Run, rhythm: int) -> int:
        """How many milliseconds a run is into a rhythm of that length when the script begins."""
        return noise(self._seed, crc32(run.name.encode())) % rhythm if run.phase is None else run.phase

    def runs_on(self, node: str) -> tuple[Run, ...]:
        """The runs that have GPUs of a node."""
        return tuple(self._runs.get(node, ()))

    def events_on(self, node: str) -> tuple[Event, ...]:
        """What happens on a node."""
        return tuple(self._events.get(node, ()))

    @property
    def period(self) -> int:
        """Milliseconds after which everything starts again; 0 for never."""
        return self._period


def _concerns(event: Event, number: int) -> bool:
    if isinstance(event, DriverRestart):
        return True
    if isinstance(event, PowerBrake):
        return event.gpus is None or number in event.gpus
    return not isinstance(event, (Nic, Overload)) and event.gpu == number


def _state(moment: int, own: Sequence[tuple[int, int]], peers: Sequence[tuple[int, int]]) -> str:
    if any(start <= moment < end for start, end in own):
        return OUT
    holding = [start for start, end in peers if start <= moment < end]
    if not holding:
        return CALM
    # The ranks that are left spin in the collective until the run is ended, then the node is empty until it can go on.
    return STALLED if moment < min(holding) + _WATCHDOG else OUT


def _layout(node: Node, number: int) -> list[str] | None:
    for mig in node.mig:
        if mig.gpus is None or number in mig.gpus:
            return layout_names(mig.layout)
    return None


def _lifetime(profile: Profile, seed: int) -> tuple[tuple[str, int], ...]:
    """Errors of earlier years: a few GPUs of a fleet have some."""
    bits = noise(seed, 9)
    if not profile.ecc or bits % 12:
        return ()
    counts = [("ecc_correctable_dram", 1 + (bits >> 8) % 40)]
    if (bits >> 16) % 5 == 0:
        counts.append(("remap_correctable" if profile.row_remapping else "retired_single", 1 + (bits >> 24) % 3))
    return tuple(counts)
