"""One rule of a price book: what it is for, and what it says."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from gpufleet.cost.node_facts import NodeFacts

SECONDS_OF_A_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Subject:
    """A GPU that is to be priced."""

    name: str
    """The model, as the driver calls it."""
    uuid: str = ""
    profiles: tuple[str, ...] = ()
    """Of its MIG slices; empty when it has none."""
    node: NodeFacts = field(default_factory=NodeFacts)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text with ``*``, ``?`` and ``[…]``, or a regular expression between slashes. Letters count as equal in either
    case.
    """

    text: str
    compiled: re.Pattern[str]

    def matches(self, value: str) -> bool:
        """Whether the whole of ``value`` is meant."""
        return self.compiled.fullmatch(value) is not None


def pattern(text: str) -> Pattern:
    """A pattern of its text. Raises re.error for a regular expression that is none."""
    is_regex = len(text) > 1 and text.startswith("/") and text.endswith("/")
    return Pattern(text, re.compile(text[1:-1] if is_regex else fnmatch.translate(text), re.IGNORECASE))


Patterns = tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What GPUs of one kind cost, from one day to another."""

    name: str
    line: int
    """Of the file, counted from 1."""
    per_hour: Decimal
    currency: str
    how: str
    """How the price was worked out, for a person."""
    gpu: Patterns = ()
    """Empty, as below: any."""
    mig_profile: Patterns = ()
    node: Patterns = ()
    instance_type: Patterns = ()
    capacity_type: tuple[str, ...] = ()
    node_labels: Mapping[str, Patterns] = field(default_factory=dict)
    begins: int | None = None
    """Unix time of the first second at which it counts."""
    ends: int | None = None
    """Unix time of the first second at which it does not count any more."""

    def mismatch(self, subject: Subject, at: float) -> str | None:
        """Why the rule is not for ``subject`` at the Unix time ``at``; ``None``: it is."""
        node = subject.node
        return (
            _differs("gpu", self.gpu, subject.name)
            or self._differs_in_slices(subject)
            or _differs("node", self.node, node.node)
            or _differs("instance_type", self.instance_type, node.instance_type)
            or self._differs_in_capacity(node.capacity_type)
            or self._differs_in_labels(node.labels)
            or self._differs_in_time(at)
        )

    def _differs_in_slices(self, subject: Subject) -> str | None:
        if not self.mig_profile:
            return None
        if not subject.profiles:
            return "mig_profile: it has no MIG slices"
        # A GPU has one price: a rule for a profile is for GPUs that are cut into slices of that profile alone.
        differ = (_differs("mig_profile", self.mig_profile, profile) for profile in subject.profiles)
        return next((why for why in differ if why is not None), None)

    def _differs_in_capacity(self, capacity_type: str | None) -> str | None:
        if not self.capacity_type or capacity_type in self.capacity_type:
            return None
        if capacity_type is None:
            wanted = self.capacity_type[0]
            set_it = f"set --node.label=gpufleet.io/capacity-type={wanted} if it is that"
            return f"capacity_type: it is not known here; {set_it}"
        return f"capacity_type: it is {capacity_type}, not {' or '.join(self.capacity_type)}"

    def _differs_in_labels(self, labels: Mapping[str, str]) -> str | None:
        differ = (
            _differs(f"node_labels.{name}", wanted, labels.get(name)) for name, wanted in self.node_labels.items()
        )
        return next((why for why in differ if why is not None), None)

    def _differs_in_time(self, at: float) -> str | None:
        if self.begins is not None and at < self.begins:
            return f"from: it counts from {day(self.begins)}"
        if self.ends is not None and at >= self.ends:
            return f"until: it counted until {day(self.ends)}"
        return None

    def covers(self, other: Rule) -> bool:
        """Whether everything that ``other`` is for is also what this rule is for, as far as their texts tell."""
        return (
            all(
                _covers(ours, theirs)
                for ours, theirs in (
                    (self.gpu, other.gpu),
                    (self.mig_profile, other.mig_profile),
                    (self.node, other.node),
                    (self.instance_type, other.instance_type),
                )
            )
            and (
                not self.capacity_type
                or (bool(other.capacity_type) and set(other.capacity_type) <= {*self.capacity_type})
            )
            and all(_covers(ours, other.node_labels.get(name, ())) for name, ours in self.node_labels.items())
            and (self.begins is None or (other.begins is not None and self.begins <= other.begins))
            and (self.ends is None or (other.ends is not None and other.ends <= self.ends))
        )


def day(at: int) -> str:
    """The UTC day of a Unix time, as price books write it."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _differs(key: str, wanted: Patterns, value: str | None) -> str | None:
    if not wanted or (value is not None and any(each.matches(value) for each in wanted)):
        return None
    texts = " or ".join(each.text for each in wanted)
    if not value:
        return f"{key}: it is not known here, and would have to be {texts}"
    return f"{key}: {value} is not {texts}"


def _covers(ours: Patterns, theirs: Patterns) -> bool:
    """Whether our patterns are for all that theirs are for. Only what is certain counts: a pattern of theirs without
    wildcards is a value, and two equal texts are equal patterns.
    """
    if not ours:
        return True
    if not theirs:
        return False
    return all(any(_includes(mine, each) for mine in ours) for each in theirs)


def _includes(mine: Pattern, other: Pattern) -> bool:
    if mine.text in {other.text, "*"}:
        return True
    is_value = not set(other.text) & set("*?[/")
    return is_value and mine.matches(other.text)
