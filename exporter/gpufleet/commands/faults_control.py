"""What the exporter answers to ``gpufleet faults list``, ``gpufleet faults clear`` and ``gpufleet check``.

Answers are made of what is at hand: no call of the driver, no wait for a poll.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpufleet import __version__
from gpufleet.commands.check_facts import MOST_INCIDENTS, facts_of
from gpufleet.faults.stored import encode
from gpufleet.model.incident import FaultsView
from gpufleet.model.snapshot import Snapshot

if TYPE_CHECKING:
    from gpufleet.collect.control import Handler, Reply, Request, RequestHandler

log = logging.getLogger(__name__)

_LONGEST_NAME = 64


class FaultCommands:
    """Give ``plain`` and ``with_arguments`` to the control socket."""

    def __init__(
        self,
        *,
        latest: Callable[[], Snapshot],
        faults: Callable[[], FaultsView],
        clear: Callable[[str], bool],
        interval: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``latest`` gives the newest snapshot, ``faults`` what is shown of faults, ``clear`` closes an incident and
        tells whether there was one, ``interval`` is the time between polls in seconds.
        """
        self._latest = latest
        self._faults = faults
        self._clear = clear
        self._interval = interval
        self._monotonic = monotonic

    @property
    def plain(self) -> Mapping[str, Handler]:
        """Commands without arguments."""
        return {"faults": self._list, "check": self._check}

    @property
    def with_arguments(self) -> Mapping[str, RequestHandler]:
        """Commands with arguments."""
        return {"clear": self._clear_one}

    def _list(self) -> Reply:
        view = self._faults()
        shown = FaultsView(
            active=view.active[:MOST_INCIDENTS],
            settling=view.settling[:MOST_INCIDENTS],
            closed=view.closed[-MOST_INCIDENTS:],
            xid_errors=None if view.xid_errors is None else (),
        )
        return {"ok": True, "version": __version__, "faults": encode(shown)}

    def _check(self) -> Reply:
        facts = facts_of(self._latest(), self._faults(), now=self._monotonic(), interval=self._interval)
        return {"ok": True, "version": __version__, "facts": encode(facts)}

    def _clear_one(self, request: Request) -> Reply:
        incident = request.get("incident")
        if not isinstance(incident, str) or not 0 < len(incident) <= _LONGEST_NAME:
            return {"ok": False, "error": 'name the incident: {"command": "clear", "incident": "…"}'}
        cleared = self._clear(incident)
        if cleared:
            log.info("an incident was cleared by a person", extra={"incident": incident})
        return {"ok": True, "version": __version__, "cleared": cleared}
