"""What a command loads before it does anything: memory that every node of the fleet pays for."""

from __future__ import annotations

import subprocess
import sys

from gpufleet.cli import COMMANDS

# Loaded only when configured, by what then needs them. (http.server, email and html come with prometheus_client.)
WHEN_CONFIGURED = {"bcrypt", "h2", "requests", "stamina", "yaml"}
# Never part of the exporter: its threads are its own, and what it simulates or actuates is another program's.
NEVER = {"asyncio", "concurrent.futures", "kubernetes", "multiprocessing", "gpufleet.simulate", "gpufleet.quarantine"}


def test_the_exporter_loads_only_what_it_runs() -> None:
    """The exporter's modules bring neither libraries of what is not configured nor other programs' machinery."""
    script = f"import sys, {COMMANDS['exporter'][0]}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert set(done.stdout.split()) & (WHEN_CONFIGURED | NEVER) == set()


def test_asking_for_the_version_loads_no_command() -> None:
    """`gpufleet --version` and a mistyped command answer at once: with what prints the answer, and nothing else."""
    script = "import sys; from gpufleet.cli import main; main(['--version']); print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert {name for name in done.stdout.split() if name.startswith("gpufleet.")} == {
        "gpufleet.cli",
        "gpufleet.standard_output",
    }
