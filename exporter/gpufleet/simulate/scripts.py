"""Makes the scripts of a node's GPUs: identities that look real, are unique and never change for a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from gpufleet.simulate import patterns
from gpufleet.simulate.gpu import GpuScript, noise, uuid_from
from gpufleet.simulate.health import NO_TROUBLE, Troubles
from gpufleet.simulate.mig import cut, partition
from gpufleet.simulate.profiles import Profile, load_profile
from gpufleet.simulate.timeline import Timeline

_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
"""Where an eight-GPU board has its GPUs."""
_MINORS = (2, 3, 0, 1, 6, 7, 4, 5)
"""The kernel numbers them in another order than NVML does."""

PATTERNS: dict[str, Callable[[Profile], Timeline]] = {
    "train": patterns.train,
    "inference": patterns.inference,
    "data_bound": patterns.data_bound,
    "evals": patterns.evals,
    "sandbox": patterns.sandbox,
    "idle": patterns.idle,
}


def gpu_seed(seed: int, node: str, number: int) -> int:
    """64 bits that are the GPU's own; the upper half is the node's."""
    of_node = noise(seed, crc32(node.encode())) & 0xFFFF_FFFF
    return of_node << 32 | noise(of_node, number) & 0xFFFF_FFFF


def gpu_script(
    profile: Profile,
    node: str,
    number: int,
    timeline: Timeline,
    *,
    seed: int = 0,
    troubles: Troubles = NO_TROUBLE,
    run: str = "",
) -> GpuScript:
    """The script of GPU ``number`` (from 0) of a node."""
    own = gpu_seed(seed, node, number)
    octet, place = divmod(number, len(_BUSES))
    return GpuScript(
        profile=profile,
        uuid=uuid_from("GPU-", own, 0),
        serial=f"165{noise(own, 3) % 10**10:010d}",
        bus=(_BUSES[place] + 3 * octet) & 0xFF,
        minor=8 * octet + _MINORS[place],
        seed=own,
        timeline=timeline,
        troubles=troubles,
        run=run,
    )


def uniform(
    profile: str, count: int = 8, *, pattern: str = "train", node: str = "node", seed: int = 0
) -> list[GpuScript]:
    """``count`` GPUs of one profile that all do the same; KeyError for a profile or pattern that there is not."""
    loaded = load_profile(profile)
    timeline = PATTERNS[pattern](loaded)
    return [gpu_script(loaded, node, number, timeline, seed=seed) for number in range(count)]


def sliced(
    profile: str,
    layout: Sequence[str],
    count: int = 1,
    *,
    pattern: str = "evals",
    node: str = "node",
    seed: int = 0,
    generation: int = 0,
) -> list[GpuScript]:
    """``count`` GPUs cut into the named MIG instances; names and errors are those of ``mig.partition``."""
    loaded = load_profile(profile)
    scripts = []
    for number in range(count):
        timeline = PATTERNS[pattern](loaded)
        script = gpu_script(loaded, node, number, timeline, seed=seed)
        instances = partition(loaded, layout, [timeline] * len(layout), script.seed, generation=generation)
        scripts.append(cut(script, instances))
    return scripts
