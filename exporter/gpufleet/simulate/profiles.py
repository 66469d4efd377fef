"""What kinds of GPU there are: one YAML file a part, with what it can report and the figures that it reports."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

ARCHITECTURES: dict[str, int] = {"turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
"""NVML's number of each (nvmlDeviceArchitecture_t)."""

MIB = 1 << 20


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all parts of a profile: immutable, and a key that is not known is refused."""


class Memory(_Part, frozen=True):
    """Frame buffer and BAR1, in MiB."""

    total_mib: int
    reserved_mib: int
    bar1_mib: int


class Clocks(_Part, frozen=True):
    """MHz; ``memory_*`` is null where the part does not report it."""

    sm_max: int
    sm_base: int
    sm_idle: int
    memory_max: int | None
    memory_idle: int | None
    video_max: int
    video_idle: int


class Power(_Part, frozen=True):
    """Watts."""

    limit: int
    idle: int
    min: int | None = None
    max: int | None = None
    average: bool = True
    """Whether the one-second mean has a field (not on GA100 nor before Ampere)."""
    limits_shown: bool = True
    memory: bool = False
    """Whether the memory's own power is reported (scope 2)."""


class Thresholds(_Part, frozen=True):
    """Absolute temperatures in degrees Celsius at which the part acts; null where it has none."""

    shutdown: int
    slowdown: int
    gpu_max: int
    memory_max: int | None = None


class LimitOffsets(_Part, frozen=True):
    """Distances from T.Limit in degrees at which the part acts, and T.Limit itself (which no driver tells)."""

    limit: int
    shutdown: int
    slowdown: int
    gpu_max: int
    memory_max: int | None = None


class Temperature(_Part, frozen=True):
    """Degrees Celsius at rest and at full power; a part has thresholds or offsets, never both."""

    idle: int
    full: int
    memory_above: int | None = None
    """How much hotter the memory is than the chip; null where the memory has no sensor."""
    thresholds: Thresholds | None = None
    limit_offsets: LimitOffsets | None = None


class Pcie(_Part, frozen=True):
    """The host link; ``bytes_per_second`` is what a direction carries in practice."""

    generation: int
    width: int
    bytes_per_second: float
    idle_generation: int | None = None
    """Boards that save power train the link down when idle."""


class Nvlink(_Part, frozen=True):
    """``bytes_per_second`` is one direction over all links."""

    version: int
    links: int
    link_mbps: int
    bytes_per_second: float


class Network(_Part, frozen=True):
    """The RDMA adapter that a node has for each of its GPUs."""

    link_layer: str
    """``InfiniBand`` or ``Ethernet`` (RoCE)."""
    gigabits_per_second: int


class Engines(_Part, frozen=True):
    """How many of each video engine there are."""

    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0


class MigProfile(_Part, frozen=True):
    """A kind of GPU instance; slices are sevenths of the compute, memory slices eighths of the memory."""

    profile: str
    slices: int
    multiprocessors: int
    memory_mib: int
    memory_slices: int
    bar1_mib: int
    decoders: int = 0
    jpeg: int = 0


class Profile(_Part, frozen=True):
    """One kind of GPU."""

    name: str
    architecture: str
    pci_device_id: int
    pci_subsystem_id: int
    vbios: str
    multiprocessors: int
    clocks: Clocks
    power: Power
    temperature: Temperature
    pcie: Pcie
    memory: Memory | None = None
    """Null for a part that answers NOT_SUPPORTED to every memory question."""
    nvlink: Nvlink | None = None
    network: Network | None = None
    engines: Engines = Engines()
    ecc: bool = False
    row_remapping: bool = False
    row_banks: int = 0
    page_retirement: bool = False
    sram_status: bool = True
    gpm: bool = False
    fabric: bool = False
    fans: int = 0
    serial: bool = True
    idle_performance_state: int = 0
    mig: tuple[MigProfile, ...] = ()
    key: str = ""
    """The file's name: what a scenario calls the profile."""

    @property
    def architecture_code(self) -> int:
        """NVML's number of the architecture."""
        return ARCHITECTURES[self.architecture]

    @property
    def clock_event_mask(self) -> int:
        """Clock-event reasons that the part can have, as NVML's bits; newer drivers know two more."""
        return 0x1FF

    def mig_profile(self, name: str) -> MigProfile:
        """The MIG profile of that name; KeyError when the part lacks it."""
        for profile in self.mig:
            if profile.profile == name:
                return profile
        raise KeyError(name)


@cache
def profile_names() -> tuple[str, ...]:
    """All profiles that ship with gpufleet, in alphabetical order."""
    files = resources.files(__package__).joinpath("data", "profiles").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


@cache
def load_profile(name: str) -> Profile:
    """The profile of that name, the same object each time; KeyError when there is none."""
    if name not in profile_names():
        raise KeyError(name)
    import msgspec.yaml

    content = resources.files(__package__).joinpath("data", "profiles", f"{name}.yaml").read_bytes()
    return msgspec.structs.replace(msgspec.yaml.decode(content, type=Profile), key=name)
