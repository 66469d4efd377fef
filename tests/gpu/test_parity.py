"""The comparison as a whole: on the stand-in driver with an nvidia-smi made by hand, and on real GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import parity
from tests.support.fake_nvml import FakeNvml

SCRIPT = Path(parity.__file__)
HAND_MADE = SCRIPT.parent / "hand_made.xml"
FAKE_SMI = """#!{python}
import sys
arguments = " ".join(sys.argv[1:])
if arguments == "-q -x":
    sys.stdout.write(open({xml!r}).read())
elif arguments == "-L":
    print("GPU 0: NVIDIA H100 80GB HBM3")
elif "power.draw.average" in arguments:
    print('Field "power.draw.average" is not a valid field to query.')
    sys.exit(2)
else:
    fields = sys.argv[1].partition("=")[2].split(",")
    known = {{"uuid": "GPU-cefb55f9-7c30-5d8e-b162-491f41e36526", "power.draw": "499.50", "utilization.gpu": "80"}}
    print(", ".join(known.get(field, "[N/A]") for field in fields))
"""


def run(fake: FakeNvml, directory: Path, xml: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a person would, with an nvidia-smi that writes ``xml``."""
    fake.set_gpus(1)
    fake.set_latency(model=False)
    # The stand-in's energy does not grow while its readings stand still.
    fake.fail_field(0, 83, 3)
    (directory / "log.xml").write_text(xml)
    smi = directory / "nvidia-smi"
    smi.write_text(FAKE_SMI.format(python=sys.executable, xml=str(directory / "log.xml")))
    smi.chmod(0o755)
    command: list[str | Path] = [sys.executable, SCRIPT, "--seconds=3", f"--library={fake.library}", f"--smi={smi}"]
    command += [f"--device-prefix={fake.devices}/nvidia", *flags]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **fake.environment()}, timeout=120
    )


def test_a_machine_that_agrees(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Exit 0; every reading that the log has was compared, calls were timed, and a capture was written."""
    outcomes, capture = tmp_path / "outcomes.json", tmp_path / "captures" / "h100.json"
    done = run(fake_nvml, tmp_path, HAND_MADE.read_text(), f"--json={outcomes}", f"--capture={capture}")

    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {name: row["verdict"] for name, row in json.loads(outcomes.read_text()).items()}
    for reading in ("utilization_ratio", "memory_used_bytes", "ecc_errors(uncorrectable, sram)", "fabric_state"):
        assert verdicts[f"gpu0 {reading}"] == "agrees"
    assert verdicts["gpu0 clock_event_seconds(sync_boost)"] == "only gpufleet"
    assert verdicts["exporter device files open after quiesce"] == "agrees"
    assert "only nvidia-smi" not in verdicts.values()
    assert sum(verdict == "agrees" for verdict in verdicts.values()) > 60
    assert "nvmlDeviceGetFieldValues" in done.stdout
    assert "GPU-cefb55f9" not in capture.read_text()


def test_a_reading_that_differs_is_named(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Exit 1, with both values."""
    xml = HAND_MADE.read_text().replace("<gpu_temp>55 C</gpu_temp>", "<gpu_temp>75 C</gpu_temp>")
    done = run(fake_nvml, tmp_path, xml)

    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("differs")]
    assert "temperature_celsius" in line
    assert "ours 55 then 55, nvidia-smi 75" in line


def test_a_missing_nvidia_smi_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 with the remedy, before anything is asked of a driver."""
    assert parity.main(["--smi", "no-such-nvidia-smi"]) == 2
    assert "--smi" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.timeout(400)
def test_this_machine_agrees_with_its_nvidia_smi(tmp_path: Path) -> None:
    """Every reading that both have, on real GPUs."""
    flags = ["--seconds=60", f"--capture={tmp_path / 'capture.json'}"]
    done = subprocess.run([sys.executable, SCRIPT, *flags], check=False, capture_output=True, text=True)

    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
