"""The machine as the kernel describes it, read from trees that look like /proc, /sys and /dev."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.sources import node
from gpufleet.sources.node import KernelDriver, PciGpu

PROPRIETARY = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-AE18-23-3)
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2)
"""
MAPS = """\
55d4c1a00000-55d4c1a01000 r--p 00000000 08:01 1310 /usr/bin/python3.11
7f10a4000000-7f10a4200000 r-xp 00002000 08:01 4711 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.183.01 (deleted)
7f10a5000000-7f10a5001000 rw-p 00000000 00:00 0
7ffd1b7c9000-7ffd1b7ea000 rw-p 00000000 00:00 0    [stack]
"""


def put(path: Path, text: str) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pci_device(sysfs: Path, address: str, ids: tuple[str, str, str], driver: str | None = None) -> None:
    """A device on the PCI bus: vendor, class and device id as sysfs writes them."""
    directory = sysfs / "bus/pci/devices" / address
    for name, text in zip(("vendor", "class", "device"), ids, strict=True):
        put(directory / name, text + "\n")
    if driver is not None:
        (directory / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (PROPRIETARY, KernelDriver("535.183.01", is_open=False)),
        (OPEN, KernelDriver("580.95.05", is_open=True)),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  595.45  Mon Nov  2 00:00:00 UTC 2026\n",
            KernelDriver("595.45", is_open=False),
        ),
        ("NVRM version: unheard of\n", None),
        ("GCC version: 535.183.01\n", None),
        ("", None),
        ("\x00" * 40, None),
    ],
)
def test_the_kernel_modules_version_is_read_from_its_own_line(text: str, driver: KernelDriver | None) -> None:
    """The compiler's version on the next line is none of the driver's."""
    assert node.parse_kernel_driver(text) == driver


def test_a_loaded_driver_is_read_from_procfs(tmp_path: Path) -> None:
    """It needs no library and no permission on a device."""
    put(tmp_path / "driver/nvidia/version", OPEN)
    assert node.read_kernel_driver(tmp_path) == KernelDriver("580.95.05", is_open=True)


def test_a_node_without_a_driver_has_none_of_it(tmp_path: Path) -> None:
    """Nothing there is an ordinary answer, not an error."""
    assert node.read_kernel_driver(tmp_path) is None
    assert node.read_boot_id(tmp_path) is None
    assert node.read_driver_gpus(tmp_path) == ()
    assert node.read_pci_gpus(tmp_path) == ()
    assert node.read_device_nodes(tmp_path) == ()
    assert node.read_open_devices(tmp_path) == ()
    assert node.read_mapped_library(tmp_path, "libnvidia-ml.so.1") is None


@pytest.mark.parametrize(
    ("text", "boot_id"),
    [
        ("8C3E3F0E-7c1d-4f5e-9b52-0d6c3e2f1a00\n", "8c3e3f0e-7c1d-4f5e-9b52-0d6c3e2f1a00"),
        ("", None),
        ("not a boot id", None),
    ],
)
def test_the_boot_id_is_a_uuid_or_absent(text: str, boot_id: str | None, tmp_path: Path) -> None:
    """State of this boot is recognised by it, so that half an id is none."""
    put(tmp_path / "sys/kernel/random/boot_id", text)
    assert node.read_boot_id(tmp_path) == boot_id


def test_the_boot_id_of_this_machine_is_read() -> None:
    """The path is the real kernel's."""
    assert node.read_boot_id(Path("/proc")) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_gpus_of_the_driver_are_listed_by_address(tmp_path: Path) -> None:
    """The kernel writes addresses in either case; sysfs and the metrics have lower case."""
    for name in ("0000:CA:00.0", "0000:4a:00.0", "10000:01:00.0", "lost+found"):
        put(tmp_path / "driver/nvidia/gpus" / name / "information", "")
    assert node.read_driver_gpus(tmp_path) == ("0000:4a:00.0", "0000:ca:00.0", "10000:01:00.0")


def test_only_nvidias_display_devices_are_gpus(tmp_path: Path) -> None:
    """NVSwitches, audio functions and other makers' cards are none."""
    pci_device(tmp_path, "0000:1b:00.0", ("0x10de", "0x030200", "0x2330"), driver="nvidia")
    pci_device(tmp_path, "0000:05:00.0", ("0x10de", "0x068000", "0x22a3"), driver="nvidia-nvswitch")
    pci_device(tmp_path, "0000:01:00.1", ("0x10de", "0x040300", "0x22ba"), driver="snd_hda_intel")
    pci_device(tmp_path, "0000:01:00.0", ("0x10de", "0x030000", "0x2684"), driver="vfio-pci")
    pci_device(tmp_path, "0000:03:00.0", ("0x1002", "0x030000", "0x744c"), driver="amdgpu")
    pci_device(tmp_path, "0000:5d:00.0", ("0x10de", "0x030200", "0x2330"))
    put(tmp_path / "bus/pci/devices/0000:06:00.0/vendor", "gibberish")
    assert node.read_pci_gpus(tmp_path) == (
        PciGpu("0000:01:00.0", 0x2684, "vfio-pci"),
        PciGpu("0000:1b:00.0", 0x2330, "nvidia"),
        PciGpu("0000:5d:00.0", 0x2330, None),
    )


def test_the_pci_bus_of_this_machine_is_read_without_error() -> None:
    """The layout is the real kernel's; whether there is a GPU is this machine's affair."""
    assert isinstance(node.read_pci_gpus(Path("/sys")), tuple)


def test_only_character_devices_of_the_driver_are_device_nodes(tmp_path: Path) -> None:
    """A regular file of the name is not the driver; /dev/null, linked, stands for a device here."""
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidiactl").write_text("")
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidia9").symlink_to("/nowhere")
    (tmp_path / "null").symlink_to("/dev/null")
    found = node.read_device_nodes(tmp_path)
    assert [Path(device.path).name for device in found] == ["nvidia0"]
    assert found[0].usable
    assert (found[0].mode, found[0].owner, found[0].group) == (0o666, 0, 0)


def test_open_devices_of_the_driver_are_found_among_the_descriptors(tmp_path: Path) -> None:
    """They are what blocks a reset of a GPU and an unload of the driver."""
    descriptors = tmp_path / "self/fd"
    descriptors.mkdir(parents=True)
    for number, target in enumerate(("/dev/nvidia0", "/dev/null", "/dev/nvidiactl", "socket:[1]")):
        (descriptors / str(number)).symlink_to(target)
    (descriptors / "9").write_text("closed meanwhile")
    assert node.read_open_devices(tmp_path) == ("/dev/nvidia0", "/dev/nvidiactl")


def test_a_library_name_is_searched_where_the_loader_does_not_look() -> None:
    """The GPU operator's driver container and WSL put the library beside the loader's path."""
    machine = os.uname().machine
    assert node.library_candidates("libnvidia-ml.so.1", Path("/")) == (
        "libnvidia-ml.so.1",
        f"/run/nvidia/driver/usr/lib/{machine}-linux-gnu/libnvidia-ml.so.1",
        "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
        "/run/nvidia/driver/usr/lib/libnvidia-ml.so.1",
        "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    )


def test_a_library_path_stands_for_itself() -> None:
    """Who names a file means that file."""
    assert node.library_candidates("/opt/fake/libnvidia-ml.so") == ("/opt/fake/libnvidia-ml.so",)


def test_the_mapped_library_is_found_also_when_its_file_was_replaced() -> None:
    """After a package upgrade the kernel marks the old file as deleted."""
    mapped = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.183.01"
    assert node.parse_mapped_library(MAPS, "libnvidia-ml.so.1") == mapped
    assert node.parse_mapped_library(MAPS, "/any/libnvidia-ml.so") == mapped
    assert node.parse_mapped_library(MAPS, "libcuda.so.1") is None


def test_the_c_library_of_this_process_is_found_mapped() -> None:
    """The parser meets the real kernel's text."""
    found = node.read_mapped_library(Path("/proc"), "libc.so.6")
    assert found is not None
    assert Path(found).name.startswith("libc.so")


def test_the_fingerprint_changes_when_a_package_replaces_the_library(tmp_path: Path) -> None:
    """A package puts a new file in place and points the link at it; the mapped file's name stays the old one."""
    old, new, link = (tmp_path / f"libnvidia-ml.so.{end}" for end in ("535.183.01", "550.54.15", "1"))
    old.write_text("old")
    link.symlink_to(old.name)
    before = node.read_library_fingerprint("libnvidia-ml.so.1", str(old))
    assert before == node.read_library_fingerprint(str(link), None)
    new.write_text("new")
    link.unlink()
    link.symlink_to(new.name)
    old.unlink()
    after = node.read_library_fingerprint("libnvidia-ml.so.1", str(old))
    assert after is not None
    assert after.startswith(f"{new.resolve()}:")
    assert after != before


def test_the_fingerprint_changes_when_the_file_is_rewritten_under_its_name(tmp_path: Path) -> None:
    """A driver container's file has no version in its link."""
    library = tmp_path / "libnvidia-ml.so"
    library.write_text("old")
    before = node.read_library_fingerprint(str(library), None)
    os.utime(library, ns=(1, 1))
    assert node.read_library_fingerprint(str(library), None) != before


def test_a_library_that_is_not_there_has_no_fingerprint(tmp_path: Path) -> None:
    """Between removal and installation there is nothing to load."""
    (tmp_path / "circle").symlink_to("circle")
    assert node.read_library_fingerprint(str(tmp_path / "none"), None) is None
    assert node.read_library_fingerprint(str(tmp_path / "circle"), None) is None
    assert node.read_library_fingerprint("libnvidia-ml.so.1", None) is None


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15", "550.54.15"),
        ("libnvidia-ml.so.1", None),
        ("/opt/libnvidia-ml.so", None),
    ],
)
def test_the_librarys_release_is_in_its_files_name(path: str, version: str | None) -> None:
    """It can be compared with the kernel module's without loading either."""
    assert node.library_version(path) == version


def test_the_host_name_is_the_kernels() -> None:
    """It is the name that the node has among its peers."""
    assert node.host_name() == Path("/proc/sys/kernel/hostname").read_text().strip()
