"""What ``gpufleet exporter`` is made of before it serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.commands.exporter import main, missing_roots, real_node
from gpufleet.settings import Settings, read_settings

IMPORTS = """
import sys
import gpufleet.commands.exporter
from gpufleet.commands import footprint
footprint.import_without("prometheus_client", footprint.UNUSED_BY_US)
import gpufleet.metrics.selfmetrics
print(*sys.modules)
"""
HEAVY = {
    "asyncio",
    "bcrypt",
    "concurrent.futures",
    "email",
    "email.message",
    "h2",
    "http.server",
    "kubernetes",
    "msgspec",
    "pyudev",
    "requests",
    "ssl",
    "urllib.request",
    "xml",
    "yaml",
}


def settings(**paths: Path) -> Settings:
    """Settings with these paths."""
    flags = {f"path.{name}": [str(path)] for name, path in paths.items()}
    return read_settings(flags, environ={}, host_name="node-1")


def test_serving_plain_metrics_loads_nothing_heavy() -> None:
    """Each is loaded when something is configured that needs it; together they would double the process."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
    assert HEAVY.isdisjoint(done.stdout.split())


def test_a_mistyped_root_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would look exactly like a node without GPUs."""
    assert missing_roots(settings(procfs=tmp_path, sysfs=tmp_path)) is None
    with pytest.raises(SystemExit) as ended:
        main([f"--path.sysfs={tmp_path}/none"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"gpufleet exporter: --path.sysfs: '{tmp_path}/none' is no directory: name the place where the host's is "
        "mounted, or leave it out\n"
    )


def test_a_real_node_is_read_from_the_roots_that_were_named(tmp_path: Path) -> None:
    """In a container the host's /proc is somewhere else; what this process itself has open is not there."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("8c3e3f0e-7c1d-4f5e-9b52-0d6c3e2f1a00\n")
    (tmp_path / "driver/nvidia/gpus/0000:1B:00.0").mkdir(parents=True)
    node = real_node(settings(procfs=tmp_path, sysfs=tmp_path))
    assert node.boot_id == "8c3e3f0e-7c1d-4f5e-9b52-0d6c3e2f1a00"
    assert node.world.kernel_gpus() == {"0000:1b:00.0"}
    assert node.world.driver_loaded() is False
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun\n")
    assert node.world.driver_loaded() is True
    assert isinstance(node.world.open_device_files(), tuple)
    assert node.watch_devices
