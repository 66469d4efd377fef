"""Compares every reading that nvidia-smi also has with nvidia-smi's, on a machine with a real driver.

Usage: python tests/gpu/parity.py [--seconds 120] [--capture tests/captures/NAME.json] [--json FILE]

It also says what each driver call and each field really costs, checks that ``gpufleet quiesce`` leaves no device file
open, and records the driver's raw replies, masked, for tests on machines without a GPU. Exit status: 0 everything
agrees, 1 something differs, 2 it could not be run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, the folder of the project is not there

from gpufleet.model.gpu import GpuIdentity
from gpufleet.model.readings import Key, Readings
from gpufleet.sources.nvml import gpm
from gpufleet.sources.nvml.device import Device, DeviceOptions
from gpufleet.sources.nvml.identity import sysfs_bus_id
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session, SessionError, open_library
from tests.gpu.capture import Recorder, save
from tests.gpu.comparisons import COMPARISONS, SLICE_COMPARISONS, Report, Values
from tests.gpu.smi import SmiGpu, SmiLog, parse_log, parse_query, refused_field
from tests.waiting import until

LONGEST_SECONDS = 300.0
TURNS = 6
"""Polls after which every tier has had its turn, at the pace below."""
PACE = Pace(1.0, 1.0, 1.0)
SMI_LIMIT_SECONDS = 60.0
CAPTURED_ROUNDS = 3
EXPENSIVE_MICROSECONDS = 1000


class CannotRun(Exception):
    """Something that this script needs is not here; the text says what."""


class Smi:
    """The nvidia-smi of the machine."""

    def __init__(self, program: str) -> None:
        found = shutil.which(program)
        if found is None:
            raise CannotRun(f"{program} is not here: it comes with the driver; name another with --smi")
        self._program = found
        self._fields = list(dict.fromkeys(name for each in COMPARISONS for name, _ in each.query))

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._program, *arguments]
        try:
            return subprocess.run(command, check=False, capture_output=True, text=True, timeout=SMI_LIMIT_SECONDS)
        except subprocess.TimeoutExpired as hang:
            raise CannotRun(f"{' '.join(command)} did not end in {SMI_LIMIT_SECONDS:g} s") from hang

    def log(self) -> SmiLog:
        """Everything, which takes it a second."""
        done = self._run("-q", "-x")
        if done.returncode:
            raise CannotRun(f"nvidia-smi -q -x: {done.stdout.strip()} {done.stderr.strip()}")
        return parse_log(done.stdout)

    def query(self) -> dict[str, dict[str, float]]:
        """What moves, by UUID and field; fields that this release does not know are left out from then on."""
        while self._fields:
            done = self._run(f"--query-gpu={','.join(['uuid', *self._fields])}", "--format=csv,noheader,nounits")
            if not done.returncode:
                return parse_query(done.stdout, self._fields)
            unknown = refused_field(done.stdout + done.stderr)
            if unknown not in self._fields:
                raise CannotRun(f"nvidia-smi --query-gpu: {done.stdout.strip()} {done.stderr.strip()}")
            self._fields.remove(unknown)
        return {}

    def works(self) -> bool:
        """Whether it lists GPUs."""
        done = self._run("-L")
        return done.returncode == 0 and "GPU " in done.stdout


@dataclass(slots=True)
class Ours:
    """One GPU, read as the exporter reads it, with a clock that brings every tier to its turn."""

    number: int
    device: Device
    now: float = 0.0
    activity: dict[str, float] = field(default_factory=dict)

    def everything(self) -> tuple[Values, dict[tuple[int, int], Values]]:
        """All readings of the GPU and, by GPU and compute instance, of its slices, each asked just now."""
        for _ in range(TURNS - 1):
            self.now += 1.0
            self.device.read(self.now)
        self.now += 1.0
        reading = self.device.read(self.now)
        slices = {
            (identity.gpu_instance, identity.compute_instance): _values(parts) for identity, parts in reading.slices
        }
        return _values(reading.parts), slices

    def fast(self) -> Values:
        """One poll."""
        self.now += 1.0
        return _values(self.device.read(self.now).parts)

    def sample(self) -> None:
        """GPM means since the call before; nvidia-smi has nothing to compare them with."""
        own = self.device.sample(time.monotonic()).own
        if own is not None:
            self.activity = {str(key.name) + str(key.members or ""): value for key, value in _values([own[0]]).items()}


def _values(parts: Sequence[Readings]) -> Values:
    return {
        key: float(value)
        for part in parts
        for key, value in zip(part.keys, part.values, strict=True)
        if value is not None
    }


def compare_identity(report: Report, subject: str, ours: GpuIdentity, theirs: SmiGpu) -> None:
    """Who the GPU is."""
    report.same(subject, "name", ours.name, theirs.text("product_name"))
    report.same(subject, "serial", ours.serial, theirs.text("serial"))
    report.same(subject, "vbios_version", ours.vbios_version, theirs.text("vbios_version"))
    bus = theirs.text("pci/pci_bus_id")
    report.same(subject, "pci_bus_id", ours.pci_bus_id, None if bus is None else sysfs_bus_id(bus))
    minor = theirs.value("minor_number")
    report.same(subject, "minor", ours.minor, None if minor is None else int(minor))
    architecture = theirs.word("product_architecture")
    report.same(subject, "architecture", ours.architecture, architecture and architecture.partition("_")[0])


def one_round(report: Report, gpus: Sequence[Ours], smi: Smi, driver_version: str | None) -> None:
    """Ours, nvidia-smi's, ours again; in full, and then once more the quick ones."""
    before = {gpu.device.uuid: gpu.everything() for gpu in gpus}
    log = smi.log()
    after = {gpu.device.uuid: gpu.everything() for gpu in gpus}
    report.same("node", "driver_version", driver_version, log.driver_version or None)
    report.same("node", "gpus", len(gpus), len(log.gpus))
    for gpu in gpus:
        subject, uuid = f"gpu{gpu.number}", gpu.device.uuid
        theirs = log.gpus.get(uuid)
        if theirs is None:
            report.same(subject, "uuid", uuid, "no GPU of that UUID")
            continue
        compare_identity(report, subject, gpu.device.identity, theirs)
        report.of_gpu(theirs, subject, before[uuid][0], after[uuid][0])
        for place, slice_log in theirs.slices().items():
            for comparison in SLICE_COMPARISONS:
                first, last = before[uuid][1].get(place, {}), after[uuid][1].get(place, {})
                value = slice_log.value(*comparison.paths)
                # Only one compute instance of a GPU instance shows what the GPU instance shares.
                if comparison.key in first:
                    report.compare(f"{subject}/{place[0]}.{place[1]}", comparison, first, value, last)
    quick = {gpu.device.uuid: gpu.fast() for gpu in gpus}
    answered = smi.query()
    for gpu in gpus:
        gpu.sample()
        report.of_query(f"gpu{gpu.number}", answered.get(gpu.device.uuid, {}), quick[gpu.device.uuid], gpu.fast())


def check_energy(report: Report, gpus: Sequence[Ours], seconds: float) -> None:
    """nvidia-smi shows no energy: its counter has to grow by what the power readings say, within a tenth."""
    key, power = Key("energy_joules"), Key("power_watts")
    for gpu in gpus:
        first, begin, watts = gpu.fast(), time.monotonic(), []
        while time.monotonic() - begin < seconds:
            time.sleep(0.2)
            watts.append(gpu.fast().get(power, 0.0))
        last, took = gpu.fast(), time.monotonic() - begin
        if key in first and key in last and watts:
            mean, measured = (last[key] - first[key]) / took, statistics.fmean(watts)
            close = abs(mean - measured) <= 5.0 + 0.1 * measured
            told = f"{mean:.1f} W by the energy counter, {measured:.1f} W by power"
            report.same(f"gpu{gpu.number}", "energy_joules against power_watts", close or told, True)


# --- cost -------------------------------------------------------------------------------------------------------------
def cost_lines(recorder: Recorder) -> list[str]:
    """What calls take as we see them, and what fields take as the driver says, the dearest first."""
    lines = ["call                                          calls   median µs      p99 µs"]
    rows = []
    for name, taken in recorder.nanoseconds.items():
        ordered = sorted(taken)
        rows.append((statistics.median(ordered) / 1e3, name, len(ordered), ordered[(len(ordered) * 99) // 100] / 1e3))
    for median, name, count, high in sorted(rows, reverse=True):
        lines.append(f"{name:44} {count:6} {median:11.1f} {high:11.1f}")
    lines.append("field (id, scope)                             reads   median µs     most µs   as the driver says")
    dear = [(statistics.median(taken), key, taken) for key, taken in recorder.field_latency.items()]
    for median, (field_id, scope), taken in sorted(dear, reverse=True):
        mark = "   expensive" if median > EXPENSIVE_MICROSECONDS else ""
        lines.append(f"{f'{field_id}, {scope}':44} {len(taken):6} {median:11.1f} {max(taken):11.1f}{mark}")
    return lines


# --- the exporter itself ----------------------------------------------------------------------------------------------
def open_devices(pid: int, prefix: str) -> list[str]:
    """Device files that a process has open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith(prefix):
                found.append(target)
    return sorted(found)


@contextlib.contextmanager
def running_exporter(library: str, directory: Path, log: Path) -> Iterator[tuple[int, str, str]]:
    """An exporter of this node: its process id, its address and its control socket."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    control = str(directory / "control.sock")
    command = [sys.executable, "-m", "gpufleet", "exporter", f"--web.listen-address=127.0.0.1:{port}"]
    command += [f"--nvml.library={library}", f"--state.dir={directory}", f"--control.socket={control}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process.pid, f"http://127.0.0.1:{port}/metrics", control
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def scrape(address: str) -> str:
    """The metrics as text; empty while nothing answers."""
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
        return bytes(answer.read()).decode()
    return ""


def check_exporter(report: Report, smi: Smi, library: str, gpus: int, prefix: str, seconds: float) -> None:
    """The exporter answers for every GPU, misses no deadline, and lets go of every device file when told to."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-parity-") as name:
        directory = Path(name)
        log = directory / "exporter.log"
        with running_exporter(library, directory, log) as (pid, address, control):

            def all_up() -> bool:
                return (
                    sum(line.startswith("gpu_up{") and line.endswith(" 1") for line in scrape(address).splitlines())
                    == gpus
                )

            try:
                until(all_up, "the exporter shows every GPU", seconds=60, every=0.2)
            except TimeoutError:
                raise CannotRun(f"the exporter does not show {gpus} GPUs:\n{log.read_text()[-3000:]}") from None
            end = time.monotonic() + seconds
            states = 0
            while time.monotonic() < end:
                lines = scrape(address).splitlines()
                states += sum('state="ok"' in line and line.endswith(" 0") for line in lines if "gpu_state{" in line)
                time.sleep(1.0)
            report.same("exporter", "GPUs that were not ok in a scrape", states, 0)
            report.same("exporter", "device files open before quiesce", bool(open_devices(pid, prefix)), True)
            command = [sys.executable, "-m", "gpufleet", "quiesce", f"--control.socket={control}"]
            told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
            report.same("exporter", "quiesce's answer", told.stderr.strip() if told.returncode else "", "")
            report.same("exporter", "device files open after quiesce", open_devices(pid, prefix), [])
            report.same("exporter", "nvidia-smi works while quiesced", smi.works(), True)
            report.same("exporter", "gpufleet_quiesced", "gpufleet_quiesced 1" in scrape(address), True)
            command[3] = "resume"
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            until(all_up, "the exporter shows every GPU after resume", seconds=60, every=0.2)
            report.same("exporter", "resumed", True, True)


# --- everything -------------------------------------------------------------------------------------------------------
def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    """Flags."""
    parser = argparse.ArgumentParser(prog="parity.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to compare, at most 300 (120)")
    parser.add_argument("--library", default="libnvidia-ml.so.1", help="NVML, as a file or as a name")
    parser.add_argument("--smi", default="nvidia-smi", help="the nvidia-smi to compare with")
    parser.add_argument("--capture", type=Path, help="write the driver's raw replies, masked, to this file")
    parser.add_argument("--json", type=Path, help="write the outcome of each reading to this file")
    parser.add_argument("--device-prefix", default="/dev/nvidia", help="what the driver's device files begin with")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run; returns the exit status."""
    arguments = arguments_of(argv)
    try:
        return run(arguments, min(arguments.seconds, LONGEST_SECONDS))
    except (CannotRun, SessionError, ValueError) as problem:
        print(f"parity: {problem}", file=sys.stderr)
        return 2


def run(arguments: argparse.Namespace, seconds: float) -> int:
    """Compare for about so long, and print."""
    smi, report = Smi(arguments.smi), Report()
    recorder = Recorder(open_library(arguments.library))
    session = Session(recorder)
    begin = time.monotonic()
    gpus = []
    for number in range(session.count()):
        options = DeviceOptions(PACE, driver_version=session.versions.driver)
        gpus.append(Ours(number, Device(session.calls, session.handle(number), options, 0.0)))
    if not gpus:
        raise CannotRun("the driver has no GPU")
    print(
        f"{len(gpus)} GPUs, driver {session.versions.driver}: {', '.join({gpu.device.identity.name for gpu in gpus})}"
    )
    rounds = 0
    # A third of the time is for the exporter and the energy counter.
    while not rounds or time.monotonic() - begin < seconds * 2 / 3:
        one_round(report, gpus, smi, session.versions.driver)
        rounds += 1
        recorder.keeping = rounds < CAPTURED_ROUNDS
        time.sleep(gpm.SHORTEST_SECONDS)
    check_energy(report, gpus, min(3.0, seconds / 10))
    _say_what_is_not_compared(gpus)
    print("\n".join(cost_lines(recorder)))
    if arguments.capture is not None:
        names = sorted({gpu.device.identity.name for gpu in gpus})
        about = {"gpus": names, "driver_version": session.versions.driver, "made": time.strftime("%Y-%m-%d")}
        save(arguments.capture, recorder.answers, **about)
        print(f"capture: {arguments.capture}, {len(recorder.answers)} calls")
    for gpu in gpus:
        gpu.device.close()
    session.close()
    check_exporter(report, smi, arguments.library, len(gpus), arguments.device_prefix, seconds / 6)
    return conclude(report, rounds, arguments.json)


def _say_what_is_not_compared(gpus: Sequence[Ours]) -> None:
    for gpu in gpus:
        if gpu.activity:
            shown = ", ".join(f"{name} {value:.3g}" for name, value in sorted(gpu.activity.items()))
            print(f"gpu{gpu.number}, activity that nvidia-smi does not have: {shown}")
        dropped = ", ".join(f"{key.name}{key.members or ''} ({why})" for key, why in gpu.device.tally.dropped.items())
        print(f"gpu{gpu.number}, not reported: {dropped or 'nothing is missing'}")
        if gpu.device.tally.errors or gpu.device.tally.invalid:
            print(f"gpu{gpu.number}, errors {gpu.device.tally.errors}, impossible {gpu.device.tally.invalid}")


def conclude(report: Report, rounds: int, path: Path | None) -> int:
    """Print the report; 1 where something differs."""
    print("\n".join(report.lines()))
    differing = report.differing()
    compared = sum(bool(outcome.rounds) for outcome in report.outcomes.values())
    print(f"{rounds} rounds, {compared} readings compared, {len(differing)} differ")
    if path is not None:
        rows = {
            f"{subject} {name}": {
                "verdict": outcome.verdict,
                "rounds": outcome.rounds,
                "agreed": outcome.agreed,
                "furthest": outcome.furthest,
                "example": outcome.example,
            }
            for (subject, name), outcome in report.outcomes.items()
        }
        path.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
