"""What a quarantine service would say of itself: it takes out the nodes of the scenario whose GPUs are lost. Pure."""

from __future__ import annotations

from gpufleet.simulate.health import Window
from gpufleet.simulate.misfortune import outage_of
from gpufleet.simulate.scenario import DriverRestart, Scenario
from gpufleet.simulate.told import Told

_LARGEST_PART = 0.1
_DELAY = 2_000
"""Milliseconds from a fault to the cordon."""


class Quarantine:
    """Of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._period = scenario.repeat or 0
        self._budget = max(1, int(_LARGEST_PART * len(scenario.nodes)))
        first: dict[str, tuple[int, int]] = {}
        for event in sorted(scenario.events, key=lambda event: event.at):
            # A driver that is loaded anew is no fault of the hardware.
            if not isinstance(event, DriverRestart) and (outage := outage_of(event)) is not None:
                first.setdefault(event.node, (outage[0] + _DELAY, outage[1]))
        self._taken: list[Window] = []
        self._refused: list[Window] = []
        for start, end in first.values():
            full = sum(each.holds(start) for each in self._taken) >= self._budget
            (self._refused if full else self._taken).append(Window(start, end, self._period))

    def text(self, moment: int) -> bytes:
        """Its metrics as of ``moment``."""
        rounds, local = divmod(moment, self._period) if self._period else (0, moment)

        def begun(windows: list[Window]) -> float:
            return float(rounds * len(windows) + sum(each.start <= local for each in windows))

        held = sum(each.holds(moment) for each in self._taken)
        over = rounds * len(self._taken) + sum(each.end <= local for each in self._taken)
        told = Told("Simulated: no quarantine service is behind this")
        told.gauge("gpufleet_quarantine_nodes", "Nodes that are quarantined now.", [("", float(held))])
        told.gauge("gpufleet_quarantine_budget", "Nodes that may be quarantined at once.", [("", float(self._budget))])
        told.counter(
            "gpufleet_quarantine_decisions_total",
            "Decisions on incidents, refusals included.",
            [
                ('decision="quarantine",reason="isolate"', begun(self._taken)),
                ('decision="refuse",reason="budget"', begun(self._refused)),
                ('decision="refuse",reason="breaker"', 0.0),
            ],
        )
        told.counter(
            "gpufleet_quarantine_actions_total",
            "Changes made to nodes and workloads.",
            [
                ('action="cordon",outcome="done"', begun(self._taken)),
                ('action="evict",outcome="done"', begun(self._taken)),
                ('action="release",outcome="done"', float(over)),
            ],
        )
        told.gauge("gpufleet_quarantine_breaker_open", "1 while the breaker stops new quarantines.", [("", 0.0)])
        return told.text()
