"""Whatever happens to the driver, a counter only counts up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.collect.synchronous import SynchronousNode
from gpufleet.metrics.catalog import READINGS
from gpufleet.metrics.family import Kind
from gpufleet.model.readings import Key, Number
from gpufleet.model.snapshot import Snapshot
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.health import Tally, Troubles
from gpufleet.simulate.mig import partition
from gpufleet.simulate.profiles import load_profile
from gpufleet.simulate.scripts import PATTERNS, gpu_script
from gpufleet.sources.nvml.calls import RETURN_NAMES, SIGNATURES
from tests.support.poller_rig import EPOCH, OPTIONS, HandClock, values

COUNTERS = frozenset(reading for reading, family in READINGS.items() if family.kind is Kind.COUNTER)
OWN = frozenset(
    {
        "busy_seconds",
        "sm_active_seconds",
        "tensor_active_seconds",
        "mig_sm_active_seconds",
        "mig_tensor_active_seconds",
        "xid_errors",
    }
)
"""Counted by the exporter: these go on when the driver that is loaded anew counts from zero."""
ERRORS = Troubles(
    tuple(
        Tally(kind, 0, per_hour=36_000, link=link)
        for kind, link in (("ecc_correctable_dram", 0), ("ecc_uncorrectable_sram", 0), ("nvlink_replay", 3))
    )
)
"""Ten a second, of every tier."""
PROFILES = ("h100-80gb-hbm3", "a100-80gb", "b200", "t4")
GPUS = len(PROFILES)
LAYOUTS = {
    0: (["1g.10gb"] * 7, ["3g.40gb", "3g.40gb"], ["1c.3g.40gb+2c.3g.40gb", "1g.10gb"]),
    1: (["1g.10gb"] * 7, ["3g.40gb", "3g.40gb"]),
}
FUNCTIONS = sorted(set(SIGNATURES) - {"nvmlShutdown", "nvmlEventSetFree", "nvmlGpmSampleFree"})
CODES = [*sorted(set(RETURN_NAMES) - {0}), 12345]


@dataclass(slots=True)
class World:
    """A scripted node, and who has been loaded anew since the last look."""

    clock: HandClock = field(default_factory=HandClock)
    driver: ScriptedDriver = field(init=False)
    node: SynchronousNode = field(init=False)
    reloaded: set[str] = field(default_factory=set)
    """UUIDs of GPUs whose counters in the driver begin anew."""
    generation: int = 0

    def __post_init__(self) -> None:
        scripts = []
        for number, name in enumerate(PROFILES):
            profile = load_profile(name)
            scripts.append(gpu_script(profile, "node", number, PATTERNS["train"](profile), troubles=ERRORS))
        self.driver = ScriptedDriver(scripts, clock=self.clock, started_at=EPOCH)
        self.node = SynchronousNode(self.driver, OPTIONS, self.clock, self.clock.wall)

    def uuid(self, gpu: int) -> str:
        """A GPU's UUID."""
        return self.driver.devices[gpu].gpu.script.uuid

    def load_anew(self, *gpus: int) -> None:
        """From here on the driver counts from zero."""
        self.reloaded |= {self.uuid(gpu) for gpu in gpus}

    def cut(self, gpu: int, layout: list[str] | None) -> None:
        """Cut a GPU, or make it whole."""
        self.generation += 1
        script = self.driver.devices[gpu].gpu.script
        if layout is None:
            self.driver.repartition(gpu, None)
            return
        instances = partition(
            script.profile, layout, [script.timeline] * len(layout), script.seed, generation=self.generation
        )
        self.driver.repartition(gpu, instances)


Act = Callable[[World], None]


def lose(gpu: int) -> Act:
    """It falls off the bus."""
    return lambda world: world.driver.lose(gpu)


def recover(gpu: int) -> Act:
    """It was reset."""

    def act(world: World) -> None:
        # One that is in use can't be reset.
        if world.driver.devices[gpu].lost:
            world.driver.recover(gpu)
            world.load_anew(gpu)

    return act


def take_out(gpu: int) -> Act:
    """It is removed."""
    return lambda world: world.driver.remove(gpu)


def put_in(gpu: int) -> Act:
    """It is there again."""

    def act(world: World) -> None:
        if not world.driver.devices[gpu].present:
            world.driver.add(gpu)
            world.load_anew(gpu)

    return act


def unload(world: World) -> None:
    """The driver goes."""
    world.driver.unload()


def load(world: World) -> None:
    """The driver comes."""
    if not world.driver._loaded:
        world.driver.load()
        world.load_anew(*range(GPUS))


def restart(world: World) -> None:
    """Both, with no poll in between."""
    world.driver.restart()
    world.load_anew(*range(GPUS))


gpus = st.integers(0, GPUS - 1)
acts: st.SearchStrategy[Act] = st.one_of(
    st.builds(lose, gpus),
    st.builds(recover, gpus),
    st.builds(take_out, gpus),
    st.builds(put_in, gpus),
    st.sampled_from([unload, load, load, restart]),
    st.builds(lambda gpu, code: lambda world: world.driver.set_down(gpu, code), gpus, st.sampled_from([0, 0, *CODES])),
    st.builds(
        lambda function, code, gpu: lambda world: world.driver.set_return(function, code, gpu),
        st.sampled_from(FUNCTIONS),
        st.sampled_from([None, None, *CODES]),
        st.one_of(st.none(), gpus),
    ),
    st.builds(
        lambda gpu, choice: lambda world: world.cut(gpu, [None, *LAYOUTS[gpu]][choice % (1 + len(LAYOUTS[gpu]))]),
        st.sampled_from(sorted(LAYOUTS)),
        st.integers(0, 11),
    ),
    st.builds(lambda gpu, xid: lambda world: world.driver.inject_xid(gpu, xid), gpus, st.sampled_from([13, 48, 79])),
)
steps = st.lists(
    st.tuples(st.one_of(st.none(), acts), st.sampled_from([0.0, 0.05, 0.5, 1.0, 1.0, 4.0, 70.0])), max_size=40
)


def counters(snapshot: Snapshot) -> Iterator[tuple[str, str, Key, Number]]:
    """GPU, GPU or slice, name and value of every counter that is shown."""
    for gpu in snapshot.gpus:
        for key, value in (values(gpu.parts) | values(gpu.standing)).items():
            if key.name in COUNTERS:
                yield gpu.identity.uuid, gpu.identity.uuid, key, value
        for one in gpu.slices:
            for key, value in values(one.parts).items():
                if key.name in COUNTERS:
                    yield gpu.identity.uuid, one.identity.mig_uuid, key, value


@settings(max_examples=60, deadline=None)
@given(steps)
def test_counters_never_go_down(script: list[tuple[Act | None, float]]) -> None:
    """Neither over losses, errors of any function, new cuts and restarts, nor when readings are missing in between.

    Only what the driver itself counts may begin anew, and only when it was loaded anew.
    """
    world = World()
    seen: dict[tuple[str, str, Key], Number] = {}
    errors: dict[str, int] = {}
    for act, seconds in [(None, 1.0), (None, 1.0), *script]:
        if act is not None:
            act(world)
        seen = {
            (gpu, whose, key): value
            for (gpu, whose, key), value in seen.items()
            if key.name in OWN or gpu not in world.reloaded
        }
        world.reloaded.clear()
        world.clock.now += seconds
        snapshot = world.node.poll()
        for gpu, whose, key, value in counters(snapshot):
            before = seen.get((gpu, whose, key), 0)
            assert value >= before, f"{key} of {whose} went from {before} to {value}"
            seen[gpu, whose, key] = value
        for name, count in snapshot.poll.nvml_errors:
            assert count >= errors.get(name, 0)
            errors[name] = count
