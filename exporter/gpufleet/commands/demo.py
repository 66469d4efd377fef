"""``gpufleet demo``: the whole exporter on a scripted node, on any machine."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.collect.numbers import Numbers
from gpufleet.collect.options import World
from gpufleet.commands.flags import FlagParser
from gpufleet.commands.owning import ScriptedOwners
from gpufleet.commands.scenarios import add_scenario_flags, scenario_of
from gpufleet.commands.service import Surroundings, run
from gpufleet.settings import selected
from gpufleet.simulate.driver import ScriptedDriver
from gpufleet.simulate.gpu import uuid_from
from gpufleet.simulate.holders import containers_of, pods_of
from gpufleet.simulate.prices import scripted_prices
from gpufleet.simulate.staging import NodeScript, Stage
from gpufleet.simulate.telling import runs_on, what_happens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpufleet.settings import Settings
    from gpufleet.simulate.scenario import Scenario
    from gpufleet.web.endpoint import Endpoint

_EXAMPLES = """\
  gpufleet demo
      an 8-GPU node of a training run of four; one of its GPUs gets hot and holds up the others
  gpufleet demo --node.name=gpu-node-05
      another node of the scenario: GPUs cut into MIG slices
  gpufleet demo --scenario.speed=20 --web.listen-address=127.0.0.1:9999"""

_HELP = {
    "node.name": "node of the scenario; default: its first",
    "state.dir": "what must outlive a restart is kept here; default: a directory that goes with the demo",
    "control.socket": "socket of `gpufleet quiesce`; default: one in that directory, which is printed",
}
"""Of options whose defaults are the demo's own: a real exporter may run beside it."""
_OPTIONS = tuple(
    replace(option, help=_HELP[option.name], default=None) if option.name in _HELP else option
    for option in selected(
        "config.file", "node.name", "web", "poll", "metrics", "quiesce", "control", "state", "prices", "cost", "log"
    )
)


def main(argv: Sequence[str]) -> int:
    """Run ``gpufleet demo``."""
    parser = FlagParser(
        "demo",
        "Run the exporter on a scripted node: no GPU, no driver, everything else as it is on a real one.\n"
        "What it serves says that it is simulated.",
        _OPTIONS,
        examples=_EXAMPLES,
    )
    add_scenario_flags(parser)
    arguments, settings = parser.read(argv)
    scenario = scenario_of(arguments, parser)
    stage = Stage(scenario, arguments.seed)
    # The host's name is no node of the scenario; only the flag chooses one.
    name = settings.node_name if getattr(arguments, "node.name") else stage.names[0]
    if name not in stage.names:
        parser.error(f"--node.name: the scenario has no node {name!r}; it has {', '.join(stage.names[:20])}")
    script = stage.node(name)
    driver = ScriptedDriver(
        script.gpus, speed=arguments.scenario_speed, driver_version=script.driver_version, restarts=script.restarts
    )
    with tempfile.TemporaryDirectory(prefix="gpufleet-demo-") as directory:
        settings = _apart(settings, arguments.__dict__, name, Path(directory))
        boot_id = uuid_from("", script.gpus[0].seed >> 32, 7)
        containers = containers_of(script.gpus, scenario, name)
        surroundings = Surroundings(
            World(open_driver=lambda: driver),
            Numbers(settings.state_dir, boot_id),
            boot_id=boot_id,
            owners=ScriptedOwners(containers, pods_of(containers, script.gpus, scenario, name)),
            prices=scripted_prices(),
        )
        return run(
            settings,
            surroundings,
            lambda endpoint: print("\n".join(_greeting(scenario, script, settings, endpoint)), flush=True),
        )


def _apart(settings: Settings, flags: dict[str, object], node: str, directory: Path) -> Settings:
    """The settings with a name, state and control socket of the demo's own: a real exporter may run beside it."""
    return replace(
        settings,
        node_name=node,
        state_dir=settings.state_dir if flags["state.dir"] else directory,
        control_socket=settings.control_socket if flags["control.socket"] else directory / "control.sock",
    )


def _greeting(scenario: Scenario, script: NodeScript, settings: Settings, endpoint: Endpoint) -> Iterator[str]:
    """What is printed once the exporter answers."""
    kinds = Counter(gpu.profile.name for gpu in script.gpus)
    gpus = ", ".join(f"{count} x {name}" for name, count in kinds.items())
    runs = ", ".join(run.name for run in runs_on(scenario, script.name)) or "no run"
    # As it was started: after `make demo` the command is not on PATH.
    program = sys.argv[0] if Path(sys.argv[0]).name == "gpufleet" else "gpufleet"
    yield ""
    yield f"gpufleet demo: {script.name}, {gpus} ({runs}). Simulated: no real GPU is behind it."
    yield ""
    for address in endpoint.server.addresses:
        yield f"  page     {endpoint.scheme}://{browsable(address)}/"
        yield f"  metrics  {endpoint.scheme}://{browsable(address)}{settings.web_telemetry_path}"
    yield ""
    yield "What happens, from the start:"
    for line in what_happens(scenario, script.name):
        yield f"  {line}"
    yield ""
    yield "Let go of the GPUs, and take them again with resume in place of quiesce:"
    yield f"  {program} quiesce --control.socket={settings.control_socket}"
    yield ""
    yield "Ctrl-C ends it."
    yield ""


def browsable(address: str) -> str:
    """An address that a browser on this machine can open, of one that is listened on."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("", "0.0.0.0", "[::]") else address
