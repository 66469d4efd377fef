"""The machine: its name and boot, the kernel driver, the GPUs that the kernel sees, the driver library's file.

Roots (``/proc``, ``/sys``, ``/dev``, ``/``) are arguments: in a container the host's may be mounted elsewhere. What is
not there is None or empty; nothing here raises for a missing or unreadable file, because a node without a driver is an
ordinary node.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

NVIDIA = 0x10DE
_DISPLAY_CLASS = 0x03
"""VGA (0x0300) and 3D controllers (0x0302: GPUs of data centres). NVSwitches are bridges (0x0680)."""
_VERSION = re.compile(r"(?<![\w.])(\d{3,4}\.\d{1,3}(?:\.\d{1,3})?)(?![\w.])")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LIBRARY_DIRECTORIES = (
    "run/nvidia/driver/usr/lib/{machine}-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "run/nvidia/driver/usr/lib",
    "usr/lib/wsl/lib",
)
"""Where no loader configuration points: the driver container of the GPU operator, and Windows's driver in WSL 2."""


@dataclass(frozen=True, slots=True)
class KernelDriver:
    """The kernel module that is loaded."""

    version: str
    is_open: bool
    """The open kernel module; it is the only one for Blackwell and later."""


@dataclass(frozen=True, slots=True)
class PciGpu:
    """An NVIDIA display device on the PCI bus, whether or not the NVIDIA driver has it."""

    address: str
    """``dddd:bb:dd.f``, lower case."""
    device: int
    driver: str | None
    """Kernel driver bound to it: ``nvidia``, ``vfio-pci``, ``nouveau``; None: none."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device of the driver and whether this process may use it."""

    path: str
    mode: int
    owner: int
    group: int
    usable: bool


def host_name() -> str:
    """The host name of this process's UTS namespace; in a container that is the container's."""
    return os.uname().nodename


def read_boot_id(procfs: Path) -> str | None:
    """Random UUID that the kernel made at boot."""
    text = _read(procfs / "sys/kernel/random/boot_id").strip().lower()
    return text if re.fullmatch(r"[0-9a-f-]{36}", text) else None


def read_kernel_driver(procfs: Path) -> KernelDriver | None:
    """The loaded NVIDIA kernel module; None when there is none."""
    return parse_kernel_driver(_read(procfs / "driver/nvidia/version"))


def parse_kernel_driver(text: str) -> KernelDriver | None:
    """The module in the text of ``/proc/driver/nvidia/version``; its first line is ``NVRM version: …``."""
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            found = _VERSION.search(line)
            return KernelDriver(found[1], is_open="Open Kernel Module" in line) if found else None
    return None


def read_driver_gpus(procfs: Path) -> tuple[str, ...]:
    """PCI addresses of the GPUs that the NVIDIA kernel module has, in order of address."""
    addresses = (address.lower() for address in _list(procfs / "driver/nvidia/gpus"))
    return tuple(sorted(address for address in addresses if _PCI_ADDRESS.fullmatch(address)))


def read_pci_gpus(sysfs: Path) -> tuple[PciGpu, ...]:
    """NVIDIA display devices on the PCI bus, in order of address."""
    devices = sysfs / "bus/pci/devices"
    found = []
    for name in sorted(_list(devices)):
        directory = devices / name
        if _number(directory / "vendor") != NVIDIA or (_number(directory / "class") or 0) >> 16 != _DISPLAY_CLASS:
            continue
        try:
            driver = (directory / "driver").readlink().name
        except OSError:
            driver = None
        found.append(PciGpu(name.lower(), _number(directory / "device") or 0, driver))
    return tuple(found)


def read_device_nodes(dev: Path) -> tuple[DeviceNode, ...]:
    """The driver's character devices, by name; ``usable`` is what access(2) says, without opening any."""
    nodes = []
    for name in sorted(_list(dev)):
        if not name.startswith("nvidia"):
            continue
        path = dev / name
        try:
            status = path.stat()
        except OSError:
            continue
        if not stat.S_ISCHR(status.st_mode):
            continue
        usable = os.access(path, os.R_OK | os.W_OK)
        nodes.append(DeviceNode(str(path), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, usable))
    return tuple(nodes)


def read_open_devices(procfs: Path) -> tuple[str, ...]:
    """Device files of the driver that this process holds open; each blocks a reset or an unload of the driver."""
    descriptors = procfs / "self/fd"
    held = []
    for name in _list(descriptors):
        try:
            target = str((descriptors / name).readlink())
        except OSError:  # the descriptor that listed the directory is closed by now
            continue
        if target.startswith("/dev/nvidia"):
            held.append(target)
    return tuple(sorted(held))


def library_candidates(name: str, root: Path = Path("/")) -> tuple[str, ...]:
    """What to hand to dlopen, in this order, until one loads. A path stands for itself alone."""
    if "/" in name:
        return (name,)
    machine = os.uname().machine
    directories = (root / directory.format(machine=machine) for directory in _LIBRARY_DIRECTORIES)
    return (name, *(str(directory / name) for directory in directories))


def read_mapped_library(procfs: Path, name: str) -> str | None:
    """File that this process has mapped for the library; ``name`` is a path or a name as for dlopen."""
    return parse_mapped_library(_read(procfs / "self/maps"), name)


def parse_mapped_library(maps: str, name: str) -> str | None:
    """Path in ``/proc/self/maps`` whose file name begins with that of the library, without its version.

    The kernel marks a file that a package upgrade has replaced with `` (deleted)``; the mark is cut off.
    """
    stem = Path(name).name.partition(".so")[0] + ".so"
    for line in maps.splitlines():
        path = line[line.find("/") :].removesuffix(" (deleted)") if "/" in line else ""
        if Path(path).name.startswith(stem):
            return path
    return None


def read_library_fingerprint(name: str, mapped: str | None) -> str | None:
    """What changes when the library's file is replaced: real path, modification time and inode; None: no such file.

    ``name`` is what was handed to dlopen. A bare name stands for the file of that name beside the ``mapped`` one: the
    loader's search can't be repeated without loading, and packages replace files in place.
    """
    if "/" in name:
        path = Path(name)
    elif mapped is not None:
        path = Path(mapped).parent / name
    else:
        return None
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
        return None
    return f"{real}:{status.st_mtime_ns}:{status.st_ino}"


def library_version(path: str) -> str | None:
    """The driver release in the name of the library's real file: ``libnvidia-ml.so.550.54.15``."""
    found = _VERSION.search(Path(path).name.partition(".so.")[2])
    return found[1] if found else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            return handle.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


def _list(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(_read(path), 16)
    except ValueError:
        return None
