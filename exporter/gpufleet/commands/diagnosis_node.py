"""The doctor's look at the node: everything that can be told without a call into the driver."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.collect.control import ControlError, ask, socket_paths
from gpufleet.commands.diagnosis import Check, Overdue, Status, gpus_in_words, within
from gpufleet.commands.diagnosis_owners import owner_steps
from gpufleet.sources import node
from gpufleet.sources.errors import SourceError
from gpufleet.web.addresses import ListenAddress, ListenError, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpufleet.settings import Settings

_SECONDS = 5.0
_ANSWER_SECONDS = 2.0


def node_checks(settings: Settings, listed: int, dev: Path = Path("/dev")) -> Iterator[Check]:
    """Everything but the driver itself, one check after the other; each has a limit of time.

    ``listed`` is the number of GPUs that the driver lists. Where it lists some, how it gets at them is its own affair
    (WSL 2 and some sandboxes show neither a PCI bus nor device files).
    """
    exporter = running_exporter(settings)
    steps: Sequence[tuple[str, Callable[[], Check]]] = (
        ("kernel driver", lambda: kernel_driver(settings.path_procfs)),
        ("PCI bus", lambda: pci_bus(settings.path_sysfs, listed)),
        ("device files", lambda: device_files(dev, settings.path_procfs, listed)),
        ("procfs", lambda: procfs(settings.path_procfs)),
        ("udev", udev),
        ("kernel log", lambda: kernel_log(settings.kmsg_path)),
        ("state directory", lambda: state_directory(settings.state_dir)),
        ("exporter", lambda: exporter_check(exporter)),
        *owner_steps(settings),
    )
    for subject, step in steps:
        yield _limited(subject, step)
    for address in settings.web_listen_address:
        yield _limited(f"address {address}", partial(listen_address, address, exporter))
    if settings.web_config_file is not None:
        file = settings.web_config_file
        yield _limited("web configuration", lambda: web_configuration(file))


def _limited(subject: str, step: Callable[[], Check]) -> Check:
    try:
        return within(_SECONDS, step, subject)
    except Overdue:
        return Check(
            subject,
            Status.MISSING,
            f"no answer in {_SECONDS:g} seconds",
            "see the kernel log (dmesg): a file system or the driver hangs",
        )
    except Exception as error:  # noqa: BLE001 - one check's surprise must not cost the others
        return Check(subject, Status.MISSING, f"could not be looked at: {error!r}", "please report this as a bug")


def running_exporter(settings: Settings) -> Mapping[str, object] | None:
    """What the exporter on this node says of itself; None when none answers."""
    for path in socket_paths(settings.control_socket, settings.state_dir):
        try:
            return ask(path, "status", seconds=_ANSWER_SECONDS)
        except ControlError:
            continue
    return None


def kernel_driver(path: Path) -> Check:
    """The NVIDIA kernel module."""
    found = node.read_kernel_driver(path)
    if found is None:
        return Check(
            "kernel driver",
            Status.MISSING,
            f"{path}/driver/nvidia/version is not there: the module nvidia is not loaded, or not seen from here",
            "load it (modprobe nvidia) or install the NVIDIA driver; in a container mount the host's /proc and name it "
            "with --path.procfs",
        )
    return Check("kernel driver", Status.OK, found.version + (", open kernel module" if found.is_open else ""))


def pci_bus(sysfs: Path, listed: int) -> Check:
    """NVIDIA GPUs on the bus and who has them."""
    gpus = node.read_pci_gpus(sysfs)
    if not gpus and listed:
        return Check("PCI bus", Status.NOTE, "no NVIDIA GPU is seen on it from here")
    if not gpus:
        return Check(
            "PCI bus",
            Status.MISSING,
            "no NVIDIA GPU on it",
            "check lspci -d 10de: on the host; in a virtual machine pass the GPU through",
        )
    orphans = [gpu.address for gpu in gpus if gpu.driver is None]
    if orphans:
        return Check(
            "PCI bus",
            Status.MISSING,
            f"{gpus_in_words(len(gpus))}; no kernel driver has {', '.join(orphans)}",
            "load the driver (modprobe nvidia); if it is loaded, the kernel log says why it does not take them "
            "(dmesg | grep NVRM)",
        )
    others = [f"{gpu.address} ({gpu.driver})" for gpu in gpus if gpu.driver != "nvidia"]
    if others:
        return Check(
            "PCI bus", Status.NOTE, f"{gpus_in_words(len(gpus))}; not the NVIDIA driver's: {', '.join(others)}"
        )
    return Check("PCI bus", Status.OK, f"{gpus_in_words(len(gpus))} of NVIDIA's, all taken by its driver")


def device_files(dev: Path, path: Path, listed: int) -> Check:
    """/dev/nvidiactl and /dev/nvidiaN, and whether this user may use them."""
    if (dev / "dxg").exists():
        return Check("device files", Status.OK, "/dev/dxg (WSL 2 has no others)")
    files = [file for file in node.read_device_nodes(dev) if Path(file.path).name[6:] in {"ctl", *map(str, range(256))}]
    if not files and listed:
        return Check("device files", Status.NOTE, f"no {dev}/nvidia* is seen from here")
    if not files:
        loaded = node.read_kernel_driver(path) is not None
        return Check(
            "device files",
            Status.MISSING,
            f"no {dev}/nvidia* is there",
            "run nvidia-smi once as root, which makes them; in a container ask for GPUs (--gpus all, or the runtime "
            "class nvidia with NVIDIA_VISIBLE_DEVICES=all)"
            if loaded
            else "they come with the kernel driver",
        )
    refused = [f"{file.path} ({file.mode:o}, owner {file.owner}:{file.group})" for file in files if not file.usable]
    if refused:
        return Check(
            "device files",
            Status.MISSING,
            f"user {os.geteuid()} may not use {', '.join(refused)}",
            "run as a user or group that may, or set NVreg_DeviceFileMode in the module's options",
        )
    return Check("device files", Status.OK, ", ".join(Path(file.path).name for file in files))


def procfs(path: Path) -> Check:
    """The boot id, by which numbers and counts are continued over a restart."""
    if node.read_boot_id(path) is None:
        return Check(
            "procfs",
            Status.MISSING,
            f"{path} has no boot id: GPU numbers are not kept over a restart of the exporter",
            "mount the host's /proc and name it with --path.procfs",
        )
    return Check("procfs", Status.OK, f"{path}")


def udev() -> Check:
    """Whether the kernel tells of GPUs that come and go."""
    from gpufleet.sources.udev import GpuEvents

    try:
        GpuEvents().close()
    except SourceError as error:
        return Check(
            "udev", Status.NOTE, f"{error.reason}; GPUs that come or go are found by enumeration, in 10 seconds"
        )
    return Check("udev", Status.OK, "the kernel tells of GPUs that come and go")


def kernel_log(path: Path) -> Check:
    """Whether this user may follow the kernel's log, which alone tells of some faults."""
    from gpufleet.sources.kmsg import Follower

    try:
        Follower(path).close()
    except SourceError as error:
        return Check(
            "kernel log",
            Status.MISSING,
            error.reason,
            "run as root, or grant CAP_SYSLOG and in a container the device; name a log elsewhere with --kmsg.path",
        )
    return Check("kernel log", Status.OK, f"{path}")


def state_directory(directory: Path) -> Check:
    """Whether this user may keep state."""
    existing = next(path for path in (directory, *directory.resolve().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(
            "state directory",
            Status.MISSING,
            f"user {os.geteuid()} can't write {directory}: GPU numbers may change when the exporter restarts",
            "make it writable for the exporter's user, or name another with --state.dir",
        )
    return Check("state directory", Status.OK, f"{directory}" + ("" if existing == directory else " (will be made)"))


def exporter_check(exporter: Mapping[str, object] | None) -> Check:
    """Whether an exporter runs on this node."""
    if exporter is None:
        return Check("exporter", Status.NOTE, "none answers on this node's control socket")
    said = f"version {exporter.get('version')}, pid {exporter.get('pid')}, driver {exporter.get('nvml_state')}"
    return Check("exporter", Status.OK, said + (", quiesced" if exporter.get("quiesced") else ""))


def listen_address(address: ListenAddress, exporter: Mapping[str, object] | None) -> Check:
    """Whether the exporter could listen there."""
    subject = f"address {address}"
    try:
        listen(address).close()
    except ListenError as error:
        if exporter is not None:
            return Check(subject, Status.OK, "in use, and an exporter runs here")
        problem, _, remedy = str(error).partition("; ")
        return Check(subject, Status.MISSING, problem, remedy or "choose another with --web.listen-address")
    return Check(subject, Status.OK, "free")


def web_configuration(file: Path) -> Check:
    """Whether the web configuration file would be accepted."""
    from gpufleet.web.live_config import LiveWebConfig
    from gpufleet.web.webconfig import WebConfigError

    try:
        guards = LiveWebConfig(file).current().guards()
    except WebConfigError as error:
        return Check(
            "web configuration", Status.MISSING, str(error), "correct the file, or leave --web.config.file out"
        )
    return Check("web configuration", Status.OK, f"{file}: {', '.join(sorted(guards)) or 'guards nothing'}")
