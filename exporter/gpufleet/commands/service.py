"""One node's exporter as a service: the parts wired together, and the loop that obeys signals.

What differs between a real node and a scripted one is an argument, so that both run the same code.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpufleet import __version__, logs
from gpufleet.collect.control import ControlError, ControlSocket, socket_paths
from gpufleet.collect.device_watch import DeviceWatch
from gpufleet.collect.options import PollerOptions, World
from gpufleet.collect.poller import Poller
from gpufleet.commands import footprint, reexec, signals
from gpufleet.commands.faulting import Faults, client_config_error
from gpufleet.commands.faults_control import FaultCommands
from gpufleet.commands.health import Health
from gpufleet.commands.owning import Owning, ScriptedOwners
from gpufleet.commands.routes import exporter_routes
from gpufleet.commands.systemd import Supervisor
from gpufleet.cost.prices import PriceBook, PriceBookError
from gpufleet.metrics.exposition import Exposition
from gpufleet.metrics.family import Level
from gpufleet.model.state import NvmlState
from gpufleet.owners.config import OwnersConfigError
from gpufleet.settings import effective
from gpufleet.web.addresses import ListenError
from gpufleet.web.app import App
from gpufleet.web.endpoint import Endpoint, open_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpufleet.collect.opening import Memory, Numbering
    from gpufleet.commands.driver import DriverLibrary
    from gpufleet.model.snapshot import SourceHealth
    from gpufleet.settings import Settings

log = logging.getLogger(__name__)

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
_TICK_SECONDS = 1.0
_RESPONSES_SECONDS = 2.0
"""Responses that are being sent when the process is stopped may take so long to end."""
_DRIVER_SECONDS = 3.0
"""A poll that is under way when the process is stopped is waited for so long."""
_CANNOT_LISTEN = 1
_REFUSED = 2


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an exporter runs on: a real node, or a scripted one."""

    world: World
    numbering: Numbering
    boot_id: str | None
    memory: Memory | None = None
    """Remembers the GPUs of this boot; None: as long as the process lives."""
    library: DriverLibrary | None = None
    """The library that may be replaced under the process; None: it can't."""
    watch_devices: bool = False
    """Whether the kernel tells of GPUs that come and go."""
    kmsg: Path | None = None
    """The kernel's log; None: it has nothing to say of these GPUs."""
    owners: ScriptedOwners | None = None
    """Who holds the GPUs of a scripted node; None: those of a real one are asked about."""
    prices: PriceBook | None = None
    """What the GPUs cost where no price book is given."""


def run(settings: Settings, surroundings: Surroundings, announce: Callable[[Endpoint], None] = lambda _: None) -> int:
    """Serve until a signal ends it; returns the exit status. ``announce`` gets the endpoint once it answers.

    Call it in the main thread, before others are started: they inherit its signal mask.
    """
    # Blocked in every thread and taken one by one by the loop below: no handler runs in the middle of anything, and
    # threads of the driver's library, which inherit the mask, never get a signal that is ours.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    footprint.share_one_heap()
    logs.setup(settings.log_level, settings.log_format, sys.stderr)
    log.info("gpufleet starts", extra={"version": __version__, "pid": os.getpid(), **effective(settings)})
    try:
        service = _Service(settings, surroundings)
        # Before the driver is touched: whatever it does, there is an endpoint that says so.
        endpoint = service.open_endpoint()
    except ListenError as error:
        log.error("can't serve", extra={"err": str(error)})  # noqa: TRY400 - the message says it all
        return _CANNOT_LISTEN
    except client_config_error() as error:
        log.error("the configuration for Alertmanager is refused", extra={"err": str(error)})  # noqa: TRY400 - as above
        return _REFUSED
    except (OwnersConfigError, PriceBookError) as error:
        log.error("the configuration is refused", extra={"err": str(error)})  # noqa: TRY400 - as above
        return _REFUSED
    except _web_config_error() as error:
        log.error("the web configuration is refused", extra={"err": str(error)})  # noqa: TRY400 - as above
        return _REFUSED
    service.start()
    announce(endpoint)
    return service.obey(endpoint)


def _web_config_error() -> type[Exception]:
    from gpufleet.web.webconfig import WebConfigError  # brings hashlib and libcrypto; loaded already when it is raised

    return WebConfigError


class _Service:
    """The parts of a running exporter."""

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        self._settings = settings
        self._library = surroundings.library
        self._supervisor = Supervisor(os.environ, os.getpid())
        self._watch: DeviceWatch | None = None
        self._watch_devices = surroundings.watch_devices
        self._control: ControlSocket | None = None
        self._own_faults: Endpoint | None = None
        options = PollerOptions(
            node=settings.node_name,
            interval=settings.poll_interval,
            deadline=settings.poll_deadline,
            each_link=settings.metrics_nvlink == "links",
            quiesce_max=settings.quiesce_max,
            utilization=settings.cost_utilization,
            boot_id=surroundings.boot_id,
        )
        self._owning = Owning(settings, surroundings.boot_id, surroundings.owners, built_in=surroundings.prices)
        self._faults = Faults(settings, surroundings.boot_id, surroundings.kmsg, self._owning.watch.owner_of)
        world = replace(
            surroundings.world,
            other_sources=self._other_sources,
            faults=self._faults.watch,
            accounting=self._owning.accounting,
        )
        self._poller = Poller(options, world, surroundings.numbering, surroundings.memory)
        self._health = Health(settings.poll_interval)
        self._poller.subscribe(self._health.observe)
        self._poller.subscribe(self._owning.watch.observe)
        self._poller.subscribe(self._faults.watch.observe)
        self._before = reexec.Installed(None, None)

    def _other_sources(self) -> tuple[SourceHealth, ...]:
        return (*self._faults.health(), *self._owning.health(), *(() if self._watch is None else (self._watch.health,)))

    def open_endpoint(self) -> Endpoint:
        """Serve metrics, page and probes. Raises ListenError and WebConfigError."""
        footprint.import_without("prometheus_client", footprint.UNUSED_BY_US)
        from gpufleet.metrics.selfmetrics import SelfMetrics

        settings, poller = self._settings, self._poller
        metrics = SelfMetrics()
        exposition = Exposition(poller, metrics, interval=settings.poll_interval, level=Level(settings.metrics_level))
        self._faults.expose(metrics)
        # What Prometheus asks for, so that its first scrape after a start waits for nothing.
        exposition.expect(openmetrics=True, gzip=True)
        routes = exporter_routes(
            poller,
            exposition,
            self._health,
            telemetry_path=settings.web_telemetry_path,
            interval=settings.poll_interval,
        )
        addresses = [str(address) for address in settings.web_listen_address]
        endpoint = open_endpoint(App(routes), addresses, web_config_file=settings.web_config_file)
        if settings.faults_listen_address:
            from gpufleet.commands.own_faults import serve_own_faults  # nodes where nobody may ask don't pay for it

            self._own_faults = serve_own_faults(
                settings.faults_listen_address, self._faults, self._owning, settings.path_procfs
            )
        return endpoint

    def start(self) -> None:
        """Begin to poll and to take commands."""
        self._control = self._open_control()
        self._faults.start()
        self._owning.start()
        self._poller.start()
        self._supervisor.ready()
        footprint.settle()

    def _open_control(self) -> ControlSocket | None:
        refusals = []
        faults = FaultCommands(
            latest=lambda: self._poller.latest,
            faults=lambda: self._faults.watch.view,
            clear=self._faults.watch.clear,
            interval=self._settings.poll_interval,
        )
        plain = {"quiesce": self._quiesce, "resume": self._resume, "status": self._status, **faults.plain}
        for path in socket_paths(self._settings.control_socket, self._settings.state_dir):
            try:
                control = ControlSocket(path, plain, faults.with_arguments)
            except ControlError as error:
                refusals.append(str(error))
                continue
            control.start()
            log.info("commands are taken", extra={"socket": str(path)})
            return control
        log.warning(
            "no control socket: gpufleet quiesce can't reach this process, SIGUSR1 (quiesce) and SIGUSR2 (resume) can",
            extra={"err": "; ".join(refusals)},
        )
        return None

    # --- commands -----------------------------------------------------------------------------------------------------
    def _quiesce(self) -> dict[str, object]:
        outcome = self._poller.quiesce()
        if not outcome.ok:
            log.warning("can't let go of the driver", extra={"blocked_by": outcome.blocked_by})
            return {"ok": False, "blocked_by": outcome.blocked_by}
        return {"ok": True, "resumes_after_seconds": self._settings.quiesce_max}

    def _resume(self) -> dict[str, object]:
        self._poller.resume()
        return {"ok": True}

    def _status(self) -> dict[str, object]:
        latest = self._poller.latest
        return {
            "ok": True,
            "pid": os.getpid(),
            "version": __version__,
            "node": latest.node.node,
            "nvml_state": latest.nvml_state.value,
            "reason": latest.reason,
            "quiesced": latest.quiesced,
        }

    # --- the loop -----------------------------------------------------------------------------------------------------
    def obey(self, endpoint: Endpoint) -> int:
        """Wait for signals, and once a second look after what has no thread of its own; returns the exit status."""
        watchdog = self._supervisor.watchdog_seconds
        wait = _TICK_SECONDS if watchdog is None else min(_TICK_SECONDS, watchdog / 3)
        arriving = signals.taken_from_now_on(_SIGNALS)
        while True:
            received = signals.next_of(arriving, wait)
            if received is not None:
                number = signal.Signals(received.si_signo)
                log.info("signal received", extra={"signal": number.name, "by_pid": received.si_pid})
                if number in {signal.SIGTERM, signal.SIGINT}:
                    return self._stop(endpoint)
                self._command(number, endpoint)
            self._look_after_devices()
            if self._health.healthy(self._poller.latest, time.monotonic()).ok:
                self._supervisor.alive()
            replaced = self._replaced()
            if replaced is not None:
                self._stop_serving(endpoint)
                self._faults.stop()
                self._owning.stop()
                return reexec.start_anew(replaced, sys.orig_argv[1:], os.environ)

    def _command(self, number: signal.Signals, endpoint: Endpoint) -> None:
        if number is signal.SIGUSR1:
            self._quiesce()
        elif number is signal.SIGUSR2:
            self._resume()
        elif endpoint.web_config is not None:
            # It is looked at with each connection anyhow; whoever sends SIGHUP wants to see its errors now.
            endpoint.web_config.current()

    def _look_after_devices(self) -> None:
        """Listen for GPUs once there is a driver: before that the poller tries each second by itself."""
        has_driver = self._poller.latest.nvml_state in (NvmlState.OK, NvmlState.NO_GPU)
        if self._watch_devices and self._watch is None and has_driver:
            self._watch = DeviceWatch(self._poller.devices_changed, told=self._faults.device_event)
            self._watch.start()

    def _replaced(self) -> reexec.Installed | None:
        """What the driver was replaced by, when this process has to start anew to use it."""
        if self._library is None or self._poller.latest.nvml_state is not NvmlState.MISMATCH:
            return None
        before, self._before = self._before, self._library.installed()
        anew = reexec.should_start_anew(self._library.loaded, before, self._before, os.environ.get(reexec.GUARD))
        return self._before if anew else None

    def _stop_serving(self, endpoint: Endpoint) -> None:
        if self._control is not None:
            self._control.stop()
        if self._watch is not None:
            self._watch.stop()
        endpoint.server.stop(_RESPONSES_SECONDS)
        if self._own_faults is not None:
            self._own_faults.server.stop(_RESPONSES_SECONDS)

    def _stop(self, endpoint: Endpoint) -> int:
        self._supervisor.stopping()
        self._stop_serving(endpoint)
        self._faults.stop()
        released = self._poller.stop(_DRIVER_SECONDS)
        # After the last poll, which bills the time until now.
        self._owning.stop()
        if released:
            log.info("stopped")
            return 0
        # The library's own exit handlers could wait for the lock that the stuck call holds.
        log.warning("a driver call is out: ending without waiting for it")
        logging.shutdown()
        os._exit(0)
