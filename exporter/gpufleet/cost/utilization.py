"""Which reading stands for the utilization of a GPU and of a slice, found in O(1) at each poll."""

from __future__ import annotations

from gpufleet.model.readings import Key, Readings

BASES = ("auto", "sm", "gpu", "tensor")
"""What ``--cost.utilization`` takes."""
_WHOLE = {"sm": "sm_active_ratio", "gpu": "utilization_ratio", "tensor": "tensor_active_ratio"}
_SLICE = {"sm": "mig_sm_active_ratio", "tensor": "mig_tensor_active_ratio"}
_MOST_LAYOUTS = 1024


class Ratio:
    """One reading between 0 and 1, wherever among a GPU's parts it is."""

    __slots__ = ("_key", "_places")

    def __init__(self, name: str) -> None:
        self._key = Key(name)
        # A layout is the same object from poll to poll. Keeping it here keeps its id from being given to another.
        self._places: dict[int, tuple[tuple[Key, ...], int]] = {}

    def of(self, parts: tuple[Readings, ...]) -> float | None:
        """Its value, clamped to 0..1; ``None`` when it was not reported this time."""
        places = self._places
        for part in parts:
            keys = part.keys
            place = places.get(id(keys))
            if place is None:
                place = self._learn(keys)
            at = place[1]
            if at >= 0:
                value = part.values[at]
                if value is not None:
                    if 0.0 <= value <= 1.0:
                        return value
                    return _clamped(value)
        return None

    def _learn(self, keys: tuple[Key, ...]) -> tuple[tuple[Key, ...], int]:
        if len(self._places) >= _MOST_LAYOUTS:
            self._places.clear()
        place = keys, keys.index(self._key) if self._key in keys else -1
        self._places[id(keys)] = place
        return place


def _clamped(value: float) -> float | None:
    if value < 0.0:
        return 0.0
    return 1.0 if value > 1.0 else None  # what is neither is NaN


class Ratios:
    """The readings of one setting of ``--cost.utilization``."""

    __slots__ = ("_setting", "_slice", "_whole")

    def __init__(self, setting: str) -> None:
        if setting not in BASES:
            raise ValueError(f"{setting!r} is no basis of utilization: use one of {', '.join(BASES)}")
        self._setting = setting
        self._whole = {basis: Ratio(name) for basis, name in _WHOLE.items()}
        self._slice = {basis: Ratio(name) for basis, name in _SLICE.items()}

    def whole(self, basis: str | None) -> Ratio | None:
        """What stands for a whole GPU that shows ``basis`` itself; ``None``: nothing does."""
        chosen = basis if self._setting == "auto" else self._setting
        return None if chosen is None else self._whole.get(chosen)

    def slice(self, basis: str | None) -> Ratio | None:
        """What stands for a slice. The driver has no utilization of its own for slices, only activity."""
        if self._setting == "auto":
            # A GPU in MIG mode may show its own utilization at most, while its slices measure their SM activity.
            return self._slice["tensor" if basis == "tensor" else "sm"]
        return self._slice.get(self._setting)
