"""The running quarantine: the parts put together, and the beat of its rounds."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from gpufleet.quarantine.actuators.kubernetes.jobs import HARDWARE_FAULT
from gpufleet.quarantine.admission import Admission, Rules
from gpufleet.quarantine.committer import Committer
from gpufleet.quarantine.receiver import BODY_LIMIT, Receiver
from gpufleet.quarantine.telemetry import Telemetry
from gpufleet.quarantine.verdict import PATH, Verdicts
from gpufleet.quarantine.worker import Worker
from gpufleet.web.app import App

if TYPE_CHECKING:
    from gpufleet.quarantine.actuators.kubernetes.pods import Pod
    from gpufleet.quarantine.audit import Audit
    from gpufleet.quarantine.incident import Key
    from gpufleet.quarantine.platform import Opened
    from gpufleet.quarantine.policy import Policy
    from gpufleet.quarantine.record import Decision, Record, Step

_log = logging.getLogger(__name__)

ROUND_SECONDS = 30.0
REVIEW_LIMIT = 8 << 20
"""Bytes of a review: two pods, each of which may be as large as etcd takes."""
_SOON_SECONDS = 5.0
"""Until what was refused for now (a disruption budget, a conflict) is tried again."""


class Quarantine:
    """Everything behind the web server, and ``app`` for it."""

    def __init__(self, opened: Opened, policy: Policy, audit: Audit) -> None:
        self.telemetry = Telemetry()
        self._audit = audit
        self._policy = policy
        self.committer = Committer(
            opened.store,
            opened.actuator.view,
            policy,
            clock=time.time,
            monotonic=time.monotonic,
            wrote=self.telemetry.wrote,
        )
        self.worker = Worker(
            self.committer,
            opened.actuator,
            opened.plan,
            policy,
            audit,
            clock=time.time,
            told=self._acted,
            decided=self._decided,
        )
        receiver = Receiver(
            self.committer,
            policy,
            self.telemetry,
            clock=time.time,
            decided=self._decided,
            received=self._wake,
        )
        self.app = App(receiver.routes(), body_limit=BODY_LIMIT)
        self.verdicts = App({("GET", PATH): Verdicts(lambda: self.committer.book, clock=time.time).answer})
        """For a listener of its own: those who ask have no token, and must not have Alertmanager's."""
        retries = policy.retries
        admission = Admission(
            lambda: self.committer.book,
            Rules(retries.strip_finalizer, retries.peer_seconds),
            opted_out=self._opted_out,
            marked=self._marked,
        )
        self.admission = App(admission.routes(), body_limit=REVIEW_LIMIT)
        """For another one, over TLS: the API server has no token either."""
        self._due = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)

    def start(self) -> None:
        """Begin with a round: whatever was cut off is gone on with."""
        self.committer.start()
        self._due.set()
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Refuse what comes, and let the present round end for so long."""
        self._stopping.set()
        self._due.set()
        self._thread.join(seconds)
        self.committer.stop()

    def _wake(self) -> None:
        self._due.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Cleared before the round: what comes during it has another one.
            self._due.clear()
            try:
                soon = self.worker.round()
            except Exception:  # noqa: BLE001 - a flaw costs its round, and never the thread that has them all
                _log.exception("a round failed")
                soon = True
            book, view = self.committer.book, self.committer.view
            if book is not None and view is not None:
                self.telemetry.seen(book, view, self._policy, time.time())
            self._due.wait(_SOON_SECONDS if soon else ROUND_SECONDS)

    def _opted_out(self) -> frozenset[str]:
        view = self.committer.view
        return frozenset() if view is None else view.opted_out_namespaces

    def _marked(self, pod: Pod, record: Record) -> None:
        self._audit.note("admission", target=pod.target, incident=str(record.key), condition=HARDWARE_FAULT)

    def _decided(self, key: Key, decision: Decision) -> None:
        if not self.telemetry.decided(key, decision):
            return
        facts = {"incident": str(key), "decision": str(decision.verdict), "reason": decision.reason}
        _log.info("an incident was decided", extra={**facts, "detail": decision.detail})
        self._audit.note("decision", **facts, detail=decision.detail)

    def _acted(self, record: Record, step: Step) -> None:
        self.telemetry.acted(record, step)
        _log.info(
            "an incident was acted on",
            extra={
                "incident": str(record.key),
                "action": step.action,
                "target": step.target,
                "outcome": str(step.outcome),
                "detail": step.detail or None,
            },
        )
