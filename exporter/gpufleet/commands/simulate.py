"""``gpufleet simulate``: a whole fleet of scripted nodes from one process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from gpufleet import __version__, logs
from gpufleet.commands import footprint
from gpufleet.commands.demo import browsable
from gpufleet.commands.flags import FlagParser
from gpufleet.commands.scenarios import add_scenario_flags, scenario_of, whole_number
from gpufleet.metrics.family import Level
from gpufleet.settings import effective, selected
from gpufleet.simulate.fleet import Fleet, FleetOptions
from gpufleet.simulate.fleet_routes import FleetRoutes
from gpufleet.simulate.generate import DEFAULT_PROFILE, extend
from gpufleet.simulate.profiles import profile_names
from gpufleet.simulate.scenario_checks import MOST_GPUS
from gpufleet.simulate.staging import Stage
from gpufleet.web.addresses import ListenError
from gpufleet.web.app import App
from gpufleet.web.endpoint import Endpoint, open_endpoint
from gpufleet.web.server import ServerLimits
from gpufleet.web.webconfig import WebConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from gpufleet.settings import Settings
    from gpufleet.simulate.scenario import Scenario

log = logging.getLogger(__name__)

_EXAMPLES = """\
  gpufleet simulate --nodes 64
      64 nodes of 8 GPUs: http://localhost:9837/ lists them
  gpufleet simulate --nodes 2048 --metrics.level=core
      16,384 GPUs; in Prometheus:
          scrape_configs:
            - job_name: gpufleet
              scrape_interval: 30s
              honor_labels: true
              http_sd_configs: [{url: http://localhost:9837/sd}]
  gpufleet simulate --scenario.file=my.yaml"""

_OPTIONS = selected("config.file", "web.listen-address", "web.config.file", "metrics", "log")
_MOST_NODES = 16_384
_DEFAULT_GPUS = 8
_CONNECTIONS = 64
"""Most threads, that is. Of thousands of targets whose connections are kept alive the longest idle ones are closed, and
when all are busy (a Prometheus that was held up scrapes hundreds of nodes at once) the rest wait for their turn.
"""
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_RESPONSES_SECONDS = 2.0
_CANNOT_LISTEN = 1
_REFUSED = 2


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet simulate``."""
    parser = FlagParser(
        "simulate",
        "Serve a fleet of scripted nodes, each at /node/NAME/metrics, with HTTP service discovery at /sd.\n"
        "A node is computed when it is scraped, by the code of a real one. What is served says that it is simulated.",
        _OPTIONS,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--nodes",
        type=whole_number(1, _MOST_NODES),
        metavar="NUMBER",
        help="how many nodes; default: those of the scenario. More than it has are made up",
    )
    parser.add_argument(
        "--gpus-per-node",
        type=whole_number(1, MOST_GPUS),
        metavar="NUMBER",
        help=f"GPUs of each made-up node (default {_DEFAULT_GPUS})",
    )
    parser.add_argument(
        "--profile",
        choices=profile_names(),
        metavar="|".join(profile_names()),
        help=f"kind of GPU of made-up nodes (default {DEFAULT_PROFILE})",
    )
    add_scenario_flags(parser)
    arguments, settings = parser.read(argv)
    return run(settings, staged(arguments, parser), arguments)


def staged(arguments: argparse.Namespace, parser: FlagParser) -> Scenario:
    """The scenario of all nodes that were asked for.

    Whoever asks for a number or kind of GPUs gets only made-up nodes, unless the scenario is asked for as well.
    """
    uniform = arguments.scenario_file is None and (arguments.profile or arguments.gpus_per_node)
    scenario = None if uniform else scenario_of(arguments, parser)
    count = arguments.nodes or (len(scenario.nodes) if scenario is not None else 1)
    return extend(
        scenario,
        count,
        gpus=arguments.gpus_per_node or _DEFAULT_GPUS,
        profile=arguments.profile or DEFAULT_PROFILE,
        seed=arguments.seed,
    )


def run(settings: Settings, scenario: Scenario, arguments: argparse.Namespace) -> int:
    """Serve until a signal ends it; returns the exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    logs.setup(settings.log_level, settings.log_format, sys.stderr)
    log.info(
        "gpufleet simulates",
        extra={
            "version": __version__,
            "pid": os.getpid(),
            "nodes": len(scenario.nodes),
            "seed": arguments.seed,
            **effective(settings, _OPTIONS),
        },
    )
    options = FleetOptions(
        level=Level(settings.metrics_level),
        each_link=settings.metrics_nvlink == "links",
        speed=arguments.scenario_speed,
    )
    fleet = Fleet(Stage(scenario, arguments.seed), options)
    footprint.settle()
    # Opening a node makes ten thousand objects that stay: the collector's usual pace would look at all of them, again
    # and again, while the fleet fills up.
    gc.set_threshold(100_000, 50, 100)
    try:
        endpoint = _open(settings, fleet, scenario)
    except ListenError as error:
        log.error("can't serve", extra={"err": str(error)})  # noqa: TRY400 - the message says it all
        return _CANNOT_LISTEN
    except WebConfigError as error:
        log.error("the web configuration is refused", extra={"err": str(error)})  # noqa: TRY400 - as above
        return _REFUSED
    stopping = threading.Event()
    threading.Thread(target=_warm_up, args=(fleet, stopping), name="warm-up", daemon=True).start()
    _greet(scenario, endpoint)
    while (received := signal.sigwaitinfo(_SIGNALS)).si_signo == signal.SIGHUP:
        if endpoint.web_config is not None:
            endpoint.web_config.current()
    log.info("signal received", extra={"signal": signal.Signals(received.si_signo).name, "by_pid": received.si_pid})
    stopping.set()
    endpoint.server.stop(_RESPONSES_SECONDS)
    log.info("stopped")
    return 0


def _open(settings: Settings, fleet: Fleet, scenario: Scenario) -> Endpoint:
    opened: list[Endpoint] = []
    routes = FleetRoutes(
        fleet,
        scenario,
        address=lambda: browsable(opened[0].server.addresses[0]) if opened else "localhost",
        own_metrics=_own_metrics(),
    )
    endpoint = open_endpoint(
        App(routes.routes()),
        [str(address) for address in settings.web_listen_address],
        web_config_file=settings.web_config_file,
        limits=ServerLimits(max_connections=_CONNECTIONS, newcomers_wait=True),
    )
    opened.append(endpoint)
    return endpoint


def _own_metrics() -> Callable[[], bytes]:
    footprint.import_without("prometheus_client", footprint.UNUSED_BY_US)
    from gpufleet.metrics.selfmetrics import SelfMetrics

    metrics = SelfMetrics()
    lock = threading.Lock()

    def text() -> bytes:
        with lock:
            return metrics.text()

    return text


def _warm_up(fleet: Fleet, stopping: threading.Event) -> None:
    """Read every node once, so that scrapes do not meet a thousand that have to be opened first."""
    for name in fleet.names:
        if stopping.is_set():
            return
        try:
            fleet.text(name)
        except Exception as error:
            log.exception("a node can't be simulated", extra={"node": name, "err": repr(error)})
    log.info("every node has been read", extra={"nodes": len(fleet.names)})


def _greet(scenario: Scenario, endpoint: Endpoint) -> None:
    scheme = endpoint.scheme
    address = browsable(endpoint.server.addresses[0])
    print(
        f"\ngpufleet simulate: {len(scenario.nodes)} nodes ({scenario.name}). No real GPU is behind them.\n\n"
        f"  nodes      {scheme}://{address}/\n"
        f"  discovery  {scheme}://{address}/sd  (http_sd_configs)\n"
        f"  one node   {scheme}://{address}/node/{scenario.nodes[0].name}/metrics\n\n"
        "Ctrl-C ends it.\n",
        flush=True,
    )
