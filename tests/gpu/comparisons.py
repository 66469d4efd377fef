"""Which reading of gpufleet's is which of nvidia-smi's, how close they must be, and the verdict. Pure.

nvidia-smi takes a second and GPUs do not stand still. So gpufleet reads before and after it, and its value has to lie
between those two, give or take the tolerance. Readings that jump back and forth within that time need to agree in most
rounds only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpufleet.model.readings import Key
from tests.gpu.smi import SmiGpu

MIB = float(1 << 20)
MOST_ROUNDS = 0.7
"""Of a reading that moves, what is to agree."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One reading: where nvidia-smi has it (the first path that there is counts), and how close it has to be."""

    key: Key
    paths: tuple[str, ...]
    absolute: float = 0.0
    relative: float = 0.0
    share: float = 1.0
    """Of all rounds that have both, those that must agree."""
    query: tuple[tuple[str, float], ...] = ()
    """Fields of --query-gpu, which answers faster, and the factor to SI units; the first known one counts."""

    def agrees(self, before: float | None, theirs: float, after: float | None) -> bool:
        """Whether nvidia-smi's value fits between ours of before and after."""
        return self.distance(before, theirs, after) <= self.absolute + self.relative * abs(theirs)

    def distance(self, before: float | None, theirs: float, after: float | None) -> float:
        """How far it is outside of ours; 0 when it is between them."""
        ours = [value for value in (before, after) if value is not None]
        return max(min(ours) - theirs, theirs - max(ours), 0.0)


def _at(
    name: str,
    *paths: str,
    members: tuple[str, ...] = (),
    absolute: float = 0.0,
    relative: float = 0.0,
    share: float = 1.0,
    query: tuple[tuple[str, float], ...] = (),
) -> Comparison:
    return Comparison(Key(name, members), paths, absolute, relative, share, query)


def _engine(name: str, element: str, *query: tuple[str, float]) -> Comparison:
    # Means over the driver's own last second or sixth of one: of a bursty load no two readers see the same.
    return _at(name, f"utilization/{element}", absolute=0.1, share=MOST_ROUNDS, query=query)


def _clock(name: str, element: str, query: str) -> Comparison:
    return _at(name, f"clocks/{element}", absolute=30e6, share=MOST_ROUNDS, query=((query, 1e6),))


def _power_limit(name: str, *elements: str) -> Comparison:
    paths = [f"{block}/{each}" for block in ("gpu_power_readings", "power_readings") for each in elements]
    return _at("power_limit_watts", *paths, members=(name,), absolute=0.01)


def _reason(reason: str, element: str) -> Comparison:
    paths = [f"clocks_{word}_reasons/clocks_{word}_reason_{element}" for word in ("event", "throttle")]
    return _at("clock_event_active", *paths, members=(reason,), share=MOST_ROUNDS)


def _reason_seconds(reason: str, element: str) -> Comparison:
    path = f"clocks_event_reasons_counters/clocks_event_reasons_counters_{element}"
    return _at("clock_event_seconds", path, members=(reason,), absolute=0.02)


def _errors(kind: str, location: str, *elements: str) -> tuple[Comparison, Comparison]:
    return (
        _at("ecc_errors", *_within("ecc_errors/volatile", elements), members=(kind, location)),
        _at("ecc_aggregate_errors", *_within("ecc_errors/aggregate", elements), members=(kind, location)),
    )


def _within(block: str, elements: tuple[str, ...]) -> list[str]:
    return ["+".join(f"{block}/{part}" for part in each.split("+")) for each in elements]


def _threshold(name: str, element: str) -> tuple[Comparison, Comparison]:
    return (
        _at("temperature_threshold_celsius", f"temperature/gpu_temp_{element}_threshold", members=(name,)),
        _at(
            "temperature_margin_threshold_celsius", f"temperature/gpu_temp_{element}_tlimit_threshold", members=(name,)
        ),
    )


_LINK = "pci/pci_gpu_link_info"

COMPARISONS: tuple[Comparison, ...] = (
    _engine("utilization_ratio", "gpu_util", ("utilization.gpu", 0.01)),
    _engine("memory_utilization_ratio", "memory_util", ("utilization.memory", 0.01)),
    _engine("encoder_utilization_ratio", "encoder_util"),
    _engine("decoder_utilization_ratio", "decoder_util"),
    _engine("jpeg_utilization_ratio", "jpeg_util"),
    _engine("ofa_utilization_ratio", "ofa_util"),
    _clock("sm_clock_hertz", "sm_clock", "clocks.current.sm"),
    _clock("memory_clock_hertz", "mem_clock", "clocks.current.memory"),
    _clock("graphics_clock_hertz", "graphics_clock", "clocks.current.graphics"),
    _clock("video_clock_hertz", "video_clock", "clocks.current.video"),
    _at("sm_clock_max_hertz", "max_clocks/sm_clock"),
    _at("memory_clock_max_hertz", "max_clocks/mem_clock"),
    _at("performance_state", "performance_state", share=MOST_ROUNDS, query=(("pstate", 1.0),)),
    _reason("gpu_idle", "gpu_idle"),
    _reason("applications_clocks_setting", "applications_clocks_setting"),
    _reason("sw_power_cap", "sw_power_cap"),
    _reason("hw_slowdown", "hw_slowdown"),
    _reason("hw_thermal_slowdown", "hw_thermal_slowdown"),
    _reason("hw_power_brake_slowdown", "hw_power_brake_slowdown"),
    _reason("sync_boost", "sync_boost"),
    _reason("sw_thermal_slowdown", "sw_thermal_slowdown"),
    _reason("display_clock_setting", "display_clocks_setting"),
    _reason_seconds("sw_power_cap", "sw_power_cap"),
    _reason_seconds("sync_boost", "sync_boost"),
    _reason_seconds("sw_thermal_slowdown", "sw_therm_slowdown"),
    _reason_seconds("hw_thermal_slowdown", "hw_therm_slowdown"),
    _reason_seconds("hw_power_brake_slowdown", "hw_power_brake"),
    _at("temperature_celsius", "temperature/gpu_temp", absolute=2.0, query=(("temperature.gpu", 1.0),)),
    _at("memory_temperature_celsius", "temperature/memory_temp", absolute=2.0, query=(("temperature.memory", 1.0),)),
    _at("temperature_margin_celsius", "temperature/gpu_temp_tlimit", absolute=2.0),
    *_threshold("shutdown", "max"),
    *_threshold("slowdown", "slow"),
    *_threshold("gpu_max", "max_gpu"),
    *_threshold("memory_max", "max_mem"),
    _at(
        "power_watts",
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
        absolute=5.0,
        relative=0.05,
        share=MOST_ROUNDS,
        query=(("power.draw.average", 1.0), ("power.draw", 1.0)),
    ),
    _power_limit("enforced", "current_power_limit", "enforced_power_limit", "power_limit"),
    _power_limit("requested", "requested_power_limit"),
    _power_limit("default", "default_power_limit"),
    _power_limit("min", "min_power_limit"),
    _power_limit("max", "max_power_limit"),
    # Whole MiB; how the last one is rounded is nvidia-smi's affair.
    _at("memory_total_bytes", "fb_memory_usage/total", absolute=MIB),
    _at("memory_reserved_bytes", "fb_memory_usage/reserved", absolute=MIB),
    _at("memory_used_bytes", "fb_memory_usage/used", absolute=2 * MIB, query=(("memory.used", MIB),)),
    _at("memory_free_bytes", "fb_memory_usage/free", absolute=2 * MIB, query=(("memory.free", MIB),)),
    _at("bar1_total_bytes", "bar1_memory_usage/total", absolute=MIB),
    _at("bar1_used_bytes", "bar1_memory_usage/used", absolute=2 * MIB),
    _at("ecc_enabled", "ecc_mode/current_ecc"),
    *_errors("correctable", "dram", "dram_correctable"),
    *_errors("uncorrectable", "dram", "dram_uncorrectable"),
    *_errors("correctable", "sram", "sram_correctable"),
    *_errors("uncorrectable", "sram", "sram_uncorrectable", "sram_uncorrectable_parity+sram_uncorrectable_secded"),
    _at("ecc_sram_threshold_exceeded", "ecc_errors/aggregate/sram_threshold_exceeded"),
    _at("remapped_rows", "remapped_rows/remapped_row_corr", members=("correctable",)),
    _at("remapped_rows", "remapped_rows/remapped_row_unc", members=("uncorrectable",)),
    _at("row_remap_pending", "remapped_rows/remapped_row_pending"),
    _at("row_remap_failure", "remapped_rows/remapped_row_failure"),
    *(
        _at(
            "row_remap_banks",
            f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{banks}",
            members=(banks,),
        )
        for banks in ("max", "high", "partial", "low", "none")
    ),
    _at("retired_pages", "retired_pages/multiple_single_bit_retirement/retired_count", members=("single_bit",)),
    _at("retired_pages", "retired_pages/double_bit_retirement/retired_count", members=("double_bit",)),
    # The link may train down while idle, between one read and the next.
    _at(
        "pcie_link_generation",
        f"{_LINK}/pcie_gen/current_link_gen",
        members=("current",),
        share=MOST_ROUNDS,
    ),
    _at("pcie_link_width", f"{_LINK}/link_widths/current_link_width", members=("current",), share=MOST_ROUNDS),
    _at("pcie_link_generation", f"{_LINK}/pcie_gen/max_link_gen", members=("max",)),
    _at("pcie_link_width", f"{_LINK}/link_widths/max_link_width", members=("max",)),
    _at("pcie_replays", "pci/replay_counter"),
    _at("fan_speed_ratio", "fan_speed", members=("0",), absolute=0.05),
    _at("mig_enabled", "mig_mode/current_mig"),
)

SLICE_COMPARISONS: tuple[Comparison, ...] = (
    _at("mig_memory_total_bytes", "fb_memory_usage/total", absolute=MIB),
    _at("mig_memory_used_bytes", "fb_memory_usage/used", absolute=2 * MIB),
    _at("mig_memory_free_bytes", "fb_memory_usage/free", absolute=2 * MIB),
)

WORDS: dict[str, tuple[str, dict[str, str]]] = {
    "fabric_state": ("fabric/state", {}),
    "recovery_action": (
        "gpu_recovery_action",
        {"reset": "gpu_reset", "reboot": "node_reboot", "gpu_reset": "gpu_reset", "node_reboot": "node_reboot"},
    ),
}
"""State sets: where nvidia-smi has the word, and our names for those that it says otherwise."""

Values = dict[Key, float]


@dataclass(slots=True)
class Outcome:
    """All rounds of one reading of one GPU or slice."""

    rounds: int = 0
    agreed: int = 0
    furthest: float = 0.0
    example: str = ""
    only_ours: int = 0
    only_theirs: int = 0
    share: float = 1.0

    @property
    def verdict(self) -> str:
        """``agrees``, ``differs``, ``only gpufleet`` or ``only nvidia-smi``."""
        if self.rounds:
            return "agrees" if self.agreed >= self.share * self.rounds else "differs"
        return "only gpufleet" if self.only_ours else "only nvidia-smi"


@dataclass(slots=True)
class Report:
    """Outcomes by GPU (or slice) and reading."""

    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    def _outcome(self, subject: str, name: str, share: float) -> Outcome:
        return self.outcomes.setdefault((subject, name), Outcome(share=share))

    def compare(
        self, subject: str, comparison: Comparison, before: Values, theirs: float | None, after: Values
    ) -> None:
        """Take one round of one reading."""
        first, last = before.get(comparison.key), after.get(comparison.key)
        if first is None and last is None and theirs is None:
            return
        outcome = self._outcome(subject, spoken(comparison.key), comparison.share)
        if theirs is None:
            outcome.only_ours += 1
        elif first is None and last is None:
            outcome.only_theirs += 1
            outcome.example = f"nvidia-smi says {theirs:g}"
        else:
            distance = comparison.distance(first, theirs, last)
            agrees = comparison.agrees(first, theirs, last)
            outcome.rounds += 1
            outcome.agreed += agrees
            if distance > outcome.furthest or (not agrees and not outcome.example):
                outcome.furthest = max(distance, outcome.furthest)
                outcome.example = f"ours {_shown(first)} then {_shown(last)}, nvidia-smi {theirs:.10g}"

    def same(self, subject: str, name: str, ours: object, theirs: object) -> None:
        """Take a fact that has to be equal (an identity, a state's word); None is "not reported"."""
        if ours is None and theirs is None:
            return
        outcome = self._outcome(subject, name, 1.0)
        if theirs is None:
            outcome.only_ours += 1
        elif ours is None:
            outcome.only_theirs += 1
            outcome.example = f"nvidia-smi says {theirs}"
        else:
            outcome.rounds += 1
            outcome.agreed += ours == theirs
            if ours != theirs:
                outcome.example = f"ours {ours}, nvidia-smi {theirs}"

    def of_gpu(self, gpu: SmiGpu, subject: str, before: Values, after: Values) -> None:
        """Take one round of everything in nvidia-smi's log of one GPU."""
        for comparison in COMPARISONS:
            self.compare(subject, comparison, before, gpu.value(*comparison.paths), after)
        for name, (path, names) in WORDS.items():
            word = gpu.word(path)
            self.same(subject, name, active_member(before, name), names.get(word, word) if word else None)
        processes = Comparison(Key("processes"), ())
        self.compare(subject, processes, before, float(gpu.processes()), after)

    def of_query(self, subject: str, found: dict[str, float], before: Values, after: Values) -> None:
        """Take one round of what --query-gpu answered for one GPU."""
        for comparison in COMPARISONS:
            for name, factor in comparison.query:
                if name in found:
                    self.compare(subject, comparison, before, found[name] * factor, after)
                    break

    def differing(self) -> dict[tuple[str, str], Outcome]:
        """What does not agree; what nvidia-smi does not report is no difference."""
        return {name: outcome for name, outcome in self.outcomes.items() if outcome.verdict == "differs"}

    def lines(self) -> list[str]:
        """The report for a person."""
        text = []
        for (subject, name), outcome in sorted(self.outcomes.items(), key=lambda item: (item[1].verdict, item[0])):
            counts = f"{outcome.agreed}/{outcome.rounds}" if outcome.rounds else ""
            text.append(f"{outcome.verdict:15}  {subject:8}  {name:52}  {counts:8}  {outcome.example}".rstrip())
        return text


def active_member(values: Values, name: str) -> str | None:
    """The member of a state set that is 1."""
    return next((key.members[0] for key, value in values.items() if key.name == name and value == 1), None)


def spoken(key: Key) -> str:
    """A key for a person."""
    return key.name + (f"({', '.join(key.members)})" if key.members else "")


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.10g}"
