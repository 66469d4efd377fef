"""Builds the stand-in ``libnvidia-ml.so.1`` of tests/abi/driver with gcc against the official nvml.h."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.fake_nvml_layout import DRIVER_SOURCES, FUNCTIONS

LIBRARY_NAME = "libnvidia-ml.so.1"

# What a 470-series library lacks of the functions that gpufleet binds (the first header that declares each is later).
NOT_IN_OLD_DRIVERS = frozenset(
    name
    for name in FUNCTIONS
    if name.startswith("nvmlGpm")
    or name
    in {
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetSupportedClocksEventReasons",
        "nvmlDeviceGetJpgUtilization",
        "nvmlDeviceGetOfaUtilization",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetFanSpeedRPM",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetRunningProcessDetailList",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    }
)

FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror")


class ToolMissing(Exception):
    """A compiler or a header that the build needs is not installed; the text says what to install."""


def header_directory() -> Path:
    """Where the official nvml.h is. Raises ToolMissing."""
    try:
        distribution = importlib.metadata.distribution("nvidia-nvml-dev")
    except importlib.metadata.PackageNotFoundError:
        raise ToolMissing("nvml.h is missing: pip install nvidia-nvml-dev") from None
    for file in distribution.files or ():
        if file.name == "nvml.h":
            return Path(str(distribution.locate_file(file))).parent
    raise ToolMissing("the installed nvidia-nvml-dev has no nvml.h: pip install --force-reinstall nvidia-nvml-dev")


def compiler() -> str:
    """The C compiler. Raises ToolMissing."""
    found = shutil.which("gcc")
    if found is None:
        raise ToolMissing("gcc is missing: apt-get install gcc libc6-dev")
    return found


def default_cache() -> Path:
    """Where builds are kept between runs: beside pytest's own cache, which git ignores."""
    return DRIVER_SOURCES.parents[2] / ".pytest_cache" / "fake-nvml"


def build(cache: Path | None = None, *, old: bool = False, lacking: frozenset[str] = frozenset()) -> Path:
    """The path of a ``libnvidia-ml.so.1``, compiled unless this source was compiled before.

    ``old`` leaves out what a 470-series driver lacks, ``lacking`` any other functions. Raises ToolMissing.
    """
    gcc = compiler()
    headers = header_directory()
    lacking |= NOT_IN_OLD_DRIVERS if old else frozenset()
    if unknown := lacking - set(FUNCTIONS):
        raise ValueError(f"the library never had {sorted(unknown)}")
    sources = sorted(DRIVER_SOURCES.glob("*.[chd]*"))
    digest = hashlib.sha256()
    for path in (*sources, headers / "nvml.h"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr((sorted(lacking), FLAGS, gcc)).encode())
    directory = (cache or default_cache()) / digest.hexdigest()[:16]
    library = directory / LIBRARY_NAME
    if library.exists():
        return library
    directory.mkdir(parents=True, exist_ok=True)
    exported = "".join(f"{name};" for name in FUNCTIONS if name not in lacking)
    # Several test processes may build at once: each in a place of its own, moved in when it is whole.
    with tempfile.TemporaryDirectory(dir=directory) as work:
        script = Path(work) / "exported.map"
        script.write_text(f"{{ global: {exported} local: *; }};\n")
        output = Path(work) / LIBRARY_NAME
        command = [gcc, *FLAGS, "-shared", f"-I{headers}", f"-Wl,--version-script={script}", "-Wl,--no-undefined"]
        command += [f"-Wl,-soname,{LIBRARY_NAME}", "-o", str(output)]
        command += [str(path) for path in sources if path.suffix == ".c"]
        _run([*command, "-lpthread", "-lm", "-ldl"])
        output.replace(library)
    return library


def measure(include: str, members: dict[str, tuple[str, ...]], *, directory: Path) -> dict[str, dict[str, int]]:
    """``sizeof`` (under the name ``""``) and ``offsetof`` of members of C types, as the compiler lays them out.

    ``include`` is the header, ``members`` maps a type as written in C to its members.
    """
    lines = [
        f'printf("%s\\t%s\\t%zu\\n", "{ctype}", "{member}", '
        + (f"offsetof({ctype}, {member})" if member else f"sizeof({ctype})")
        + ");"
        for ctype, names in members.items()
        for member in ("", *names)
    ]
    return _table(include, lines, directory=directory)


def constants(include: str, names: tuple[str, ...], *, directory: Path) -> dict[str, int]:
    """The values of C constants."""
    lines = [f'printf("%s\\t%s\\t%lld\\n", "", "{name}", (long long)({name}));' for name in names]
    return _table(include, lines, directory=directory).get("", {})


def _table(include: str, lines: list[str], *, directory: Path) -> dict[str, dict[str, int]]:
    source = directory / "measure.c"
    program = directory / "measure"
    body = "\n    ".join(lines)
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include {include}\n"
        f"int main(void) {{\n    {body}\n    return 0;\n}}\n"
    )
    _run([compiler(), "-std=gnu11", f"-I{header_directory()}", f"-I{DRIVER_SOURCES}", "-o", str(program), str(source)])
    table: dict[str, dict[str, int]] = {}
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        ctype, member, number = line.split("\t")
        table.setdefault(ctype, {})[member] = int(number)
    return table


def exported_symbols(library: Path) -> set[str]:
    """The nvml functions that a library exports, as the dynamic linker sees them."""
    output = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\bT (nvml\w+)", output))


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, timeout=120
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
