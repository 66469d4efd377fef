"""Claims put on the parts of GPUs: a part is a slice, or (the empty text) a whole GPU or what no slice covers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpufleet.owners.device_ids import Target
from gpufleet.owners.devices import Device

Claim = TypeVar("Claim")
Part = tuple[str, str]
"""(uuid of the GPU, uuid of the slice)."""


@dataclass(slots=True)
class Claimed(Generic[Claim]):
    """Who claims one part."""

    claims: list[Claim] = field(default_factory=list)
    """Together they claim all of it."""
    perhaps: list[tuple[Claim, float]] = field(default_factory=list)
    """Each with the chance that this part is the one that it claims."""


class Claims(Generic[Claim]):
    """The claims of one kind of witness. A claim with the key of one that is there is the same claim."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, dict[Hashable, Claim]]] = {}
        """By GPU and slice; the empty slice is the whole GPU."""
        self._any_of: dict[str, dict[tuple[str, ...], dict[Hashable, Claim]]] = {}

    def put(self, target: Target, key: Hashable, claim: Claim) -> None:
        """Note that ``claim`` is to ``target``."""
        if target.any_of:
            self._any_of.setdefault(target.uuid, {}).setdefault(target.mig_uuids, {}).setdefault(key, claim)
            return
        on = self._on.setdefault(target.uuid, {})
        for part in target.mig_uuids or ("",):
            on.setdefault(part, {}).setdefault(key, claim)

    def of(self, device: Device) -> Mapping[str, Claimed[Claim]]:
        """Who claims each part of one GPU.

        A claim to a slice comes before one to any slice of its kind, and that before one to the whole GPU, which gets
        what is left. Claims to any of several slices are spread over those that are free.
        """
        on = self._on.get(device.uuid, {})
        found = {part: Claimed(list(claims.values())) for part, claims in on.items() if part or not device.slices}
        for candidates, claims in sorted(
            self._any_of.get(device.uuid, {}).items(), key=lambda item: (len(item[0]), item[0])
        ):
            free = [part for part in candidates if part not in found]
            if not free:
                for part in candidates:
                    found[part].claims.extend(claims.values())
                continue
            chance = 1.0 / max(len(free), len(claims))
            for part in free:
                found[part] = Claimed(perhaps=[(claim, chance) for claim in claims.values()])
        whole = on.get("") if device.slices else None
        if whole:
            for part in ("", *(each.mig_uuid for each in device.slices)):
                if part not in found:
                    found[part] = Claimed(list(whole.values()))
        return found
