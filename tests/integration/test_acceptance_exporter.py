"""The whole exporter, over HTTP, while the driver does what drivers do to exporters."""

from __future__ import annotations

import re
import shutil
import signal
import threading
from pathlib import Path

import pytest

from tests.integration.exporter_process import ExporterProcess
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_profiles import H100, T4
from tests.waiting import until

__all__ = ["fake_nvml", "nvml_build"]

GPUS = 8
QUICK = ("--poll.interval=250ms", "--poll.deadline=250ms")


@pytest.fixture
def nvml(fake_nvml: FakeNvml) -> FakeNvml:
    """A driver with eight H100."""
    fake_nvml.set_gpus(GPUS, H100)
    return fake_nvml


def gpus_that_are(state: str, exposition: str) -> int:
    """How many GPUs are in a state."""
    return len(re.findall(rf'^gpu_state\{{.*state="{state}"\}} 1$', exposition, re.MULTILINE))


def with_activity(exposition: str) -> int:
    """How many GPUs show SM activity."""
    return len(re.findall(r"^gpu_sm_active_ratio\{", exposition, re.MULTILINE))


def all_whole(exporter: ExporterProcess, count: int = GPUS) -> str:
    """Wait until so many GPUs show everything."""

    def whole() -> str:
        text = exporter.metrics()
        return text if with_activity(text) == count else ""

    return until(whole, f"{count} GPUs are whole")


@pytest.mark.parametrize("function", ["nvmlDeviceGetFieldValues", "nvmlGpmSampleGet", "nvmlDeviceGetUtilizationRates"])
def test_scrapes_are_answered_while_a_call_never_returns_and_so_is_sigterm(
    nvml: FakeNvml, tmp_path: Path, function: str
) -> None:
    """Several servers at once; the GPU is named, the seven others are read on; the process ends though a thread is
    stuck in the driver, and shuts nothing down under it.
    """
    with ExporterProcess(nvml, tmp_path, *QUICK) as exporter:
        all_whole(exporter)
        nvml.hang(function, 3)
        exporter.wait_for(r'^gpu_state\{gpu="3",.*state="hung"\} 1$')

        answers: list[tuple[int, str]] = []
        servers = [threading.Thread(target=lambda: answers.extend(exporter.get() for _ in range(10))) for _ in range(3)]
        for server in servers:
            server.start()
        for server in servers:
            server.join(60)
        assert [status for status, _ in answers] == [200] * 30
        assert all(gpus_that_are("ok", text) == GPUS - 1 for _, text in answers)
        assert all(with_activity(text) == GPUS - 1 for _, text in answers)
        assert nvml.control.max_stuck[3] == 1
        # What a person is told who wants the GPU.
        refused = exporter.gpufleet("quiesce")
        assert refused.returncode == 1
        assert function in refused.stdout + refused.stderr
        assert "GPU 3" in refused.stdout + refused.stderr

        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(10) == 0
        assert nvml.counts().get(("nvmlShutdown", None), 0) == 0
    assert not nvml.misuse()


def test_a_lock_of_the_whole_driver_holds_neither_scrapes_nor_the_end(nvml: FakeNvml, tmp_path: Path) -> None:
    """Every GPU says so, the library's state too, and nothing is shown as if it were known."""
    with ExporterProcess(nvml, tmp_path, *QUICK) as exporter:
        all_whole(exporter)
        nvml.hold_all()
        text = exporter.wait_for(r'^gpufleet_nvml_state\{state="hung"\} 1$')
        assert gpus_that_are("driver_blocked", text) == GPUS
        assert with_activity(text) == 0
        assert exporter.get("/-/healthy")[0] == 200
        assert exporter.get("/-/ready")[0] == 503
        assert exporter.get("/")[0] == 200

        nvml.release_all()
        all_whole(exporter)
        nvml.hold_all()
        exporter.wait_for(r'^gpufleet_nvml_state\{state="hung"\} 1$')
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(10) == 0
    assert not nvml.misuse()


def test_a_hang_from_the_first_call_on_holds_nothing(nvml: FakeNvml, tmp_path: Path) -> None:
    """nvmlInit itself: the endpoint is up, says so, and ends when it is told to."""
    nvml.hang("nvmlInitWithFlags")
    with ExporterProcess(nvml, tmp_path, *QUICK) as exporter:
        exporter.wait_for(r'^gpufleet_nvml_state\{state="hung"\} 1$')
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(10) == 0


def test_one_gpu_that_is_lost_costs_one_gpu(nvml: FakeNvml, tmp_path: Path) -> None:
    """And comes back without a restart of anything, with its number and the counts of its faults."""
    with ExporterProcess(nvml, tmp_path, *QUICK) as exporter:
        all_whole(exporter)
        nvml.inject_xid(5, 48)
        exporter.wait_for(r'^gpu_xid_errors_total\{gpu="5",.*xid="48".*\} 1$')
        nvml.lose(5)
        text = exporter.wait_for(r'^gpu_state\{gpu="5",.*state="lost"\} 1$')
        assert gpus_that_are("ok", text) == GPUS - 1
        assert re.search(r'^gpu_up\{gpu="5",.*\} 0$', text, re.MULTILINE)
        assert re.search(r'^gpu_xid_errors_total\{gpu="5",.*xid="48".*\} 1$', text, re.MULTILINE)
        assert re.search(r"^gpu_count_expected 8$", text, re.MULTILINE)
        assert re.search(r"^gpu_count_visible 7$", text, re.MULTILINE)

        nvml.lose(5, 0)
        # Nobody waits for the half minute after which it would be tried again.
        assert exporter.gpufleet("quiesce").returncode == 0
        assert exporter.gpufleet("resume").returncode == 0
        text = all_whole(exporter)
        assert re.search(r'^gpu_xid_errors_total\{gpu="5",.*xid="48".*\} 1$', text, re.MULTILINE)


def series_of_gpus(exposition: str) -> set[str]:
    """Names and labels."""
    return {line.rpartition(" ")[0] for line in exposition.splitlines() if line.startswith("gpu_")}


def test_a_driver_that_restarts_is_taken_up_by_the_same_process(nvml: FakeNvml, tmp_path: Path) -> None:
    """Three times over, and all is there each time."""
    with ExporterProcess(nvml, tmp_path, *QUICK) as exporter:
        for code in (1, 15, 999):
            before = series_of_gpus(all_whole(exporter))
            nvml.restart_driver(code)
            # A driver that was away for long is a fault of its own, which leaves series of its own.
            until(lambda known=before: known <= series_of_gpus(exporter.metrics()), "all is there again", seconds=90)  # type: ignore[misc]
        assert exporter.process.poll() is None
    assert not nvml.misuse()


def test_activity_needs_no_capability(nvml: FakeNvml, tmp_path: Path) -> None:
    """The process has none at all; a part without activity is there without it."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not here: install util-linux")
    nvml.set_gpus(2, [H100, T4])
    exporter = ExporterProcess(nvml, tmp_path, *QUICK)
    exporter.arguments[:0] = [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    with exporter:
        text = all_whole(exporter, 1)
        assert gpus_that_are("ok", text) == 2
        status = Path(f"/proc/{exporter.process.pid}/status").read_text()
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
