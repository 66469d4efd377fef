"""A real Slurm on this machine: a controller and one slurmd a node, with GPUs that exist for Slurm alone.

Everything lives in one directory below the system's for temporary files, because sockets' paths are short and jobs of
other users must reach them; it is removed at the end. Root only: slurmd starts jobs as other users.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.conftest import require
from tests.waiting import until

# slurmctld and slurmd are in a directory that only root's PATH has.
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    **dict.fromkeys(("sbatch", "scancel", "scontrol", "sinfo", "squeue"), "slurm-client"),
}
_CONFIG = """\
ClusterName=gpufleet
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is queued again waits until its credential has expired: 5 s is the shortest that is accepted.
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
# Nodes may have more CPUs and memory than this machine has.
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmdSpoolDir={directory}/spool/%n
StateSaveLocation={directory}/state
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
SchedulerType=sched/backfill
SchedulerParameters=requeue_delay=1,batch_sched_delay=1,sched_interval=1,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobRequeue=1
KillWait=1
InactiveLimit=0
MinJobAge=600
SlurmdTimeout=60
GresTypes={gres_types}
{more}
{nodes}
PartitionName=gpu Nodes={node_names} Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """A cluster; a context manager whose nodes are idle on entry.

    ``nodes`` each have ``gpus`` GPUs of type h100, and ``shards`` shards of them where that is not 0. Their device
    files are called ``nvidia0`` and so on and are links to /dev/null: Slurm wants a character device with such a name
    and opens none. ``settings`` are lines of slurm.conf; ``{directory}`` in a value is the cluster's directory.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[str] = ("gn1",),
        gpus: int = 4,
        shards: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if os.geteuid() != 0:
            require(None, "root", "run the tests as root: slurmd starts jobs as other users")
        self._programs = {
            name: require(shutil.which(name, path=_PATH), name, f"install it (Debian: apt-get install {package})")
            for name, package in _PACKAGES.items()
        }
        self.nodes = tuple(nodes)
        self._gpus = gpus
        self._shards = shards
        self._settings = dict(settings or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.directory = Path()
        """Exists from entry to exit."""

    @property
    def configuration(self) -> Path:
        """slurm.conf, for the environment variable SLURM_CONF."""
        return self.directory / "slurm.conf"

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="gpufleet-slurm-"))
        self.directory.chmod(0o755)
        try:
            self._configure()
            self._start("munged", *self._munge())
            until((self.directory / "munge.socket").is_socket, "munged listens")
            self._start("slurmctld", "-D", "-f", self.configuration)
            for node in self.nodes:
                self.start_node(node)
            until(lambda: set(self.node_states().values()) == {"idle"}, "every node is idle", seconds=60, every=0.2)
        except BaseException as error:
            error.add_note(self.logs())
            self.stop()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            exc.add_note(self.logs())
        self.stop()

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._start(f"slurmd.{node}", "-D", "-N", node, "-f", self.configuration)

    def kill_node(self, node: str) -> None:
        """End the slurmd of a node as a crash would; its jobs run on."""
        process = self._running.pop(f"slurmd.{node}")
        process.kill()
        process.wait(timeout=15)

    def stop(self) -> None:
        """End jobs and daemons and remove the directory."""
        if "slurmctld" in self._running:
            self.cancel_all()
            try:
                until(lambda: not self._answer("squeue", "--noheader"), "every job has ended", every=0.1)
            except TimeoutError:
                pytest.fail(f"jobs of the Slurm cluster did not end\n{self.logs()}")
        # Daemons first that speak to the others.
        for process in reversed(self._running.values()):
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=15)
        self._running.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, program: str, *arguments: str | Path) -> str:
        """What a command of Slurm prints; CalledProcessError where it fails."""
        done = self.attempt(program, *arguments)
        done.check_returncode()
        return done.stdout

    def attempt(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """A command of Slurm, whatever comes of it."""
        return subprocess.run(
            [self._programs[program], *arguments],
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=60,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        """For commands of Slurm: PATH and SLURM_CONF."""
        return {"PATH": _PATH, "SLURM_CONF": str(self.configuration)}

    def submit(self, command: str, *arguments: str) -> str:
        """Hand in a batch job that runs a line of shell; its number."""
        output = f"--output={self.directory}/jobs/%j.out"
        said = self.run("sbatch", "--parsable", "--chdir=/", output, *arguments, f"--wrap={command}")
        return said.strip().partition(";")[0]

    def cancel_all(self) -> None:
        """Cancel every job, and end those that run at once: an ordinary cancel waits for KillWait."""
        for job in self._answer("squeue", "--noheader", "--format=%A").split():
            self._answer("scancel", job)
            self._answer("scancel", "--signal=KILL", "--full", job)

    def wait_for_start(self, job: str) -> None:
        """Wait until a batch job's own script runs; its state is RUNNING before that, while the prolog runs."""
        until(self.output(job).exists, f"job {job} has been started", seconds=60, every=0.1)

    def output(self, job: str) -> Path:
        """What the job has printed; the file is made when its script is started."""
        return self.directory / f"jobs/{job}.out"

    def job_state(self, job: str) -> str:
        """``PENDING``, ``RUNNING``, ``COMPLETED``, ..."""
        return self.job_field(job, "JobState")

    def job_field(self, job: str, field: str) -> str:
        """A field of ``scontrol show job``; empty when it is not shown."""
        found = re.search(rf"\b{field}=(\S*)", self.run("scontrol", "show", "job", job))
        return found[1] if found else ""

    def node_states(self) -> dict[str, str]:
        """``idle``, ``mixed``, ``draining``, ``drained``, ... of each node, without flags (``*``: not answering)."""
        lines = self._answer("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return {node: state.rstrip("*~#!%$@^-+") for node, _, state in (line.partition(" ") for line in lines)}

    def drain_reason(self, node: str) -> str:
        """Why a node is drained; ``none`` when it is not."""
        return self.run("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%E").strip()

    def logs(self) -> str:
        """The end of every daemon's log."""
        paths = sorted(self.directory.glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def _answer(self, program: str, *arguments: str) -> str:
        """What a command prints, and nothing while the controller is not up."""
        return self.attempt(program, *arguments).stdout

    def _munge(self) -> list[str | Path]:
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        # --force: a directory for temporary files is nothing that munged would trust by itself.
        flags = [
            f"--{what}={self.directory}/munge.{what.partition('-')[0]}"
            for what in ("key-file", "socket", "pid-file", "seed-file")
        ]
        return ["--foreground", "--force", f"--log-file={self.directory}/munged.log", *flags]

    def _configure(self) -> None:
        for name in ("spool", "state", "devices", "jobs", *(f"spool/{node}" for node in self.nodes)):
            (self.directory / name).mkdir()
        (self.directory / "jobs").chmod(0o1777)
        for gpu in range(self._gpus):
            (self.directory / f"devices/nvidia{gpu}").symlink_to("/dev/null")
        files = f"File={self.directory}/devices/nvidia[0-{self._gpus - 1}]"
        gres = f"gpu:h100:{self._gpus}" + (f",shard:{self._shards}" if self._shards else "")
        size = "CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000"
        ports = _free_ports(len(self.nodes) + 1)
        self.configuration.write_text(
            _CONFIG.format(
                controller_port=ports.pop(),
                directory=self.directory,
                gres_types="gpu,shard" if self._shards else "gpu",
                more="\n".join(
                    f"{key}={value.replace('{directory}', str(self.directory))}"
                    for key, value in self._settings.items()
                ),
                nodes="\n".join(
                    f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} {size} Gres={gres}"
                    for node, port in zip(self.nodes, ports, strict=True)
                ),
                node_names=",".join(self.nodes),
            )
        )
        lines = [f"NodeName={node} Name=gpu Type=h100 {files}" for node in self.nodes]
        if self._shards:
            lines += [f"NodeName={node} Name=shard Count={self._shards} {files}" for node in self.nodes]
        (self.directory / "gres.conf").write_text("".join(f"{line}\n" for line in lines))
        version = re.search(r"(\d+)\.(\d+)", self.run("slurmd", "-V"))
        assert version is not None
        # From 23.11 on slurmd doesn't start where it can't make control groups, unless it is told to do without.
        if (int(version[1]), int(version[2])) >= (23, 11):
            (self.directory / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _start(self, name: str, *arguments: str | Path) -> None:
        program = name.partition(".")[0]
        with (self.directory / f"{name}.output.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [self._programs[program], *arguments],
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def script(path: Path, *lines: str) -> Path:
    """An executable shell script."""
    path.write_text("#!/bin/sh\n" + "".join(f"{line}\n" for line in lines))
    path.chmod(0o755)
    return path


def exports(**variables: str | Path) -> str:
    """A line of shell that sets them for the programs that follow."""
    return "export " + " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())


def _free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
