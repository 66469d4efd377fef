"""Prolog and epilog by themselves, in each shell there is, with hostile environments and file systems."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.sources.slurm.formats import read_own
from tests.conftest import ROOT, program

SCRIPTS = ROOT / "deploy" / "slurm"
UUIDS = [f"GPU-{number}0000000-0000-4000-8000-00000000000{number}" for number in range(4)]
MIG = "MIG-265a219d-a49f-578a-825d-222c72699c16"
INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 220
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.74.00.01
Bus Type: \t PCIe
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Firmware: \t 535.183.01
GPU Excluded:\t No
"""


class Node:
    """A directory for the files, a tree that looks like /proc, and the shell that runs the scripts."""

    def __init__(self, shell: Path, root: Path) -> None:
        self.shell = shell
        self.directory = root / "files"
        self.procfs = root / "proc"
        self.configuration = root / "etc/slurm.conf"
        self.configuration.parent.mkdir()

    def gpu(self, bus: str, minor: int | str, uuid: str) -> None:
        """A GPU of the driver's."""
        path = self.procfs / "driver/nvidia/gpus" / bus / "information"
        path.parent.mkdir(parents=True)
        path.write_text(INFORMATION.format(bus=bus, minor=minor, uuid=uuid))

    def run(self, name: str, **variables: str) -> str:
        """Run a script as slurmd does, with these variables and no PATH; what it complains of on standard error."""
        environment = {
            "GPUFLEET_SLURM_DIR": str(self.directory),
            "GPUFLEET_PROCFS": str(self.procfs),
            "SLURM_CONF": str(self.configuration),
            **variables,
        }
        # The script itself starts its other half by /bin/sh, so the half that works is run by the shell in question.
        done = subprocess.run(
            [self.shell, SCRIPTS / f"{name}.sh", "--inner"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
        assert done.returncode == 0
        assert done.stdout == ""
        return done.stderr

    def prolog(self, **variables: str) -> str:
        """Run the prolog of job 42."""
        return self.run("prolog", **{"SLURM_JOB_ID": "42", **variables})

    def files(self) -> dict[str, dict[str, object]]:
        """The content of each file that is there."""
        if not self.directory.is_dir():
            return {}
        return {path.name: json.loads(path.read_bytes()) for path in sorted(self.directory.iterdir())}

    def devices(self) -> list[object]:
        """The device of each file, in the order of their names."""
        return [content["device"] for content in self.files().values()]


@pytest.fixture(params=["dash", "bash"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    """A node without a driver."""
    return Node(program(request.param), tmp_path)


@pytest.fixture
def permuted(node: Node) -> Node:
    """A node of four GPUs whose minor numbers run against the order of the bus."""
    for place, bus in enumerate(("0000:17:00.0", "0000:31:00.0", "0000:ca:00.0", "0000:db:00.0")):
        node.gpu(bus, 3 - place, UUIDS[3 - place])
    return node


def test_the_prolog_writes_a_file_a_gpu(permuted: Node) -> None:
    """What slurmd tells a prolog, and the UUID of each GPU."""
    complaint = permuted.prolog(
        SLURM_JOB_GPUS="0,2",
        CUDA_VISIBLE_DEVICES="0,2",
        SLURM_JOB_USER="ann",
        SLURM_JOB_ACCOUNT="physics",
        SLURM_JOB_PARTITION="h100",
        SLURM_JOB_RESTART_COUNT="2",
    )

    assert complaint == ""
    files = permuted.files()
    assert list(files) == [f"{UUIDS[0]}.42.json", f"{UUIDS[2]}.42.json"]
    content = files[f"{UUIDS[0]}.42.json"]
    assert isinstance(content.pop("started_at"), int)
    assert content == {
        "version": 1,
        "device": UUIDS[0],
        "job": "42",
        "user": "ann",
        "account": "physics",
        "partition": "h100",
        "name": "",
        "array_job": "",
        "array_task": "",
        "restart_count": "2",
        "shared": False,
        "contained": False,
    }
    assert stat.S_IMODE((permuted.directory / f"{UUIDS[0]}.42.json").stat().st_mode) == 0o644
    assert stat.S_IMODE(permuted.directory.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("order", "devices"),
    [
        ("", [UUIDS[0], UUIDS[1]]),
        ("auto", [UUIDS[0], UUIDS[1]]),
        ("minor", [UUIDS[0], UUIDS[1]]),
        ("pci", [UUIDS[2], UUIDS[3]]),
        ("2 0 3 1", [UUIDS[0], UUIDS[2]]),
        (f"{MIG} 1", [UUIDS[1], MIG]),
    ],
)
def test_numbers_are_in_the_order_that_slurm_counts(permuted: Node, order: str, devices: list[str]) -> None:
    """By minor number where gres.conf lists files, by bus where Slurm asks NVML, else as the operator says."""
    assert permuted.prolog(SLURM_JOB_GPUS="0,1", GPUFLEET_GPU_ORDER=order) == ""

    assert permuted.devices() == devices


@pytest.mark.parametrize(
    ("gres", "first"),
    [
        ("AutoDetect=nvml\n", UUIDS[3]),
        ("NodeName=gn[1-4] autodetect=NVIDIA\n", UUIDS[3]),
        ("AutoDetect=off\nName=gpu File=/dev/nvidia[0-3]\n", UUIDS[0]),
        ("# AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]\n", UUIDS[0]),
        ("", UUIDS[0]),
    ],
)
def test_the_order_is_told_by_gres_conf(permuted: Node, gres: str, first: str) -> None:
    """It lies beside slurm.conf, also where slurmd fetched both from the controller."""
    (permuted.configuration.parent / "gres.conf").write_text(gres)

    permuted.prolog(SLURM_JOB_GPUS="0")

    assert permuted.devices() == [first]


@pytest.mark.parametrize(("order", "devices"), [("minor", ["minor:0", "minor:12"]), ("pci", ["index:0", "index:12"])])
def test_without_the_drivers_word_the_number_itself_is_written(node: Node, order: str, devices: list[str]) -> None:
    """The exporter, which asks NVML, knows both kinds of numbers."""
    assert node.prolog(SLURM_JOB_GPUS="0,12", GPUFLEET_GPU_ORDER=order) == ""

    assert node.devices() == devices
    assert list(node.files()) == [f"{device.replace(':', '-')}.42.json" for device in devices]


@pytest.mark.parametrize("order", ["minor", "pci"])
def test_a_gpu_that_nobody_initialized_has_no_uuid_yet(node: Node, order: str) -> None:
    """The driver shows question marks then; the minor number holds."""
    node.gpu("0000:17:00.0", 0, "GPU-????????-????-????-????-????????????")

    node.prolog(SLURM_JOB_GPUS="0", GPUFLEET_GPU_ORDER=order)

    assert node.devices() == ["minor:0"]


def test_slices_are_named_by_slurm(permuted: Node) -> None:
    """Slurm gives a slice's UUID where the number of a GPU would stand; old ones have slashes."""
    old = "MIG-GPU-5e8a1c3f-7d2b-4a90-8c16-3b9e6f0d2a71/1/0"

    assert permuted.prolog(SLURM_JOB_GPUS="0,1,7", CUDA_VISIBLE_DEVICES=f"{MIG},1,{old}") == ""

    assert sorted(map(str, permuted.devices())) == sorted([MIG, UUIDS[1], old])
    assert f"{old.replace('/', '-')}.42.json" in permuted.files()


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"])
def test_other_variables_stand_in_for_slurms(permuted: Node, variable: str) -> None:
    """Some releases leave SLURM_JOB_GPUS out."""
    permuted.prolog(**{variable: "1"})

    assert permuted.devices() == [UUIDS[1]]


@pytest.mark.parametrize(
    ("line", "shared", "contained"),
    [
        ("GresTypes=gpu,shard", True, False),
        ("grestypes=gpu,MPS", True, False),
        ("PrologFlags=Alloc,Contain", False, True),
        ("PrologFlags=X11", False, True),
        ("GresTypes=gpu\nPrologFlags=Alloc", False, False),
        ("#PrologFlags=Contain # GresTypes=shard", False, False),
    ],
)
def test_slurm_conf_tells_what_a_job_shares_and_whether_it_has_a_group(
    permuted: Node, line: str, shared: bool, contained: bool
) -> None:
    """Whether several jobs may have one GPU, and whether each has a control group, are settings of the cluster."""
    permuted.configuration.write_text(f"ClusterName=x\n{line}\n")

    permuted.prolog(SLURM_JOB_GPUS="0")
    (content,) = permuted.files().values()

    assert (content["shared"], content["contained"]) == (shared, contained)


def test_shards_are_written_where_they_are_told(permuted: Node) -> None:
    """A prolog of today's releases is not told them."""
    permuted.prolog(SLURM_JOB_GPUS="0", SLURM_SHARDS_ON_NODE="3")
    (content,) = permuted.files().values()

    assert content["shards"] == 3


@pytest.mark.parametrize("variables", [{}, {"SLURM_JOB_GPUS": ""}, {"SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": ""}])
def test_a_job_without_gpus_writes_nothing(permuted: Node, variables: Mapping[str, str]) -> None:
    """Not even the directory."""
    assert permuted.prolog(**variables) == ""
    assert not permuted.directory.exists()


@pytest.mark.parametrize("job", ["", "x", "../../etc/passwd", "4 2", "99999999999999999999"])
def test_without_a_number_of_a_job_nothing_is_written(permuted: Node, job: str) -> None:
    """It was started by somebody else than slurmd; that is said, and is no failure."""
    permuted.directory.mkdir()

    complaint = permuted.run("prolog", SLURM_JOB_ID=job, SLURM_JOB_GPUS="0")

    assert permuted.files() == {}
    assert "SLURM_JOB_ID is not set" in complaint or shutil.which("logger")


@pytest.mark.parametrize(
    "gpus", ["NoDevFiles", "x,0", "-1,0", "0;rm,0", "99999999999999999999,0", "*,0", ",,0,", "$(id),0"]
)
def test_devices_that_are_none_cost_themselves(permuted: Node, gpus: str) -> None:
    """The others are written."""
    permuted.prolog(SLURM_JOB_GPUS=gpus)

    assert set(map(str, permuted.devices())) == ({UUIDS[0]} if "0" in gpus.split(",") else set())


def test_leading_zeros_are_no_octal_numbers(permuted: Node) -> None:
    """08 is no error of arithmetic."""
    permuted.prolog(SLURM_JOB_GPUS="08,01,000")

    assert sorted(map(str, permuted.devices())) == sorted(["minor:8", UUIDS[1], UUIDS[0]])


def test_the_epilog_removes_its_jobs_files_only(permuted: Node) -> None:
    """Another job's, also one whose number ends alike, stay; so does what is no file of ours."""
    for job in ("42", "142", "420"):
        permuted.run("prolog", SLURM_JOB_ID=job, SLURM_JOB_GPUS="0,1")
    (permuted.directory / "README").touch()
    (permuted.directory / f".{UUIDS[0]}.42.json.999").write_text("{")
    (permuted.directory / f".{UUIDS[0]}.142.json.999").write_text("{")

    assert permuted.run("epilog", SLURM_JOB_ID="42") == ""

    left = {path.name for path in permuted.directory.iterdir()}
    assert left == {"README", f".{UUIDS[0]}.142.json.999"} | {
        f"{uuid}.{job}.json" for uuid in UUIDS[:2] for job in ("142", "420")
    }
    assert permuted.run("epilog", SLURM_JOB_ID="42") == ""


@pytest.mark.parametrize("job", ["", "*", "../x", "4*"])
def test_an_epilog_without_a_number_removes_nothing(permuted: Node, job: str) -> None:
    """No pattern gets in by the number."""
    permuted.prolog(SLURM_JOB_GPUS="0")

    permuted.run("epilog", SLURM_JOB_ID=job)

    assert len(permuted.files()) == 1


def test_a_prolog_that_runs_again_replaces_its_file(permuted: Node) -> None:
    """A job that was requeued has its number and another count."""
    permuted.prolog(SLURM_JOB_GPUS="0")
    permuted.prolog(SLURM_JOB_GPUS="0", SLURM_JOB_RESTART_COUNT="1")
    (content,) = permuted.files().values()

    assert content["restart_count"] == "1"


def test_a_directory_that_cant_be_made_fails_nothing(permuted: Node) -> None:
    """A file is in its place: status 0, and a complaint to the system's log or to slurmd's."""
    permuted.directory.write_text("")

    complaint = permuted.prolog(SLURM_JOB_GPUS="0")
    permuted.run("epilog", SLURM_JOB_ID="42")

    assert "can't write to" in complaint or shutil.which("logger")


@pytest.fixture
def full_disk(permuted: Node) -> Iterator[Path]:
    """A file system of the directory's own that has no room left."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    permuted.directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "tmpfs", permuted.directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
    try:
        (permuted.directory / "filler").write_bytes(b"x" * 4096)
        yield permuted.directory
    finally:
        subprocess.run(["umount", permuted.directory], check=True)


def test_a_full_disk_fails_nothing_and_leaves_nothing(permuted: Node, full_disk: Path) -> None:
    """No half of a file, neither under its name nor under that of the temporary one."""
    complaint = permuted.prolog(SLURM_JOB_GPUS="0")

    assert [path.name for path in full_disk.iterdir()] == ["filler"]
    assert "can't write to" in complaint or shutil.which("logger")


def test_a_read_only_file_system_fails_nothing(permuted: Node, full_disk: Path) -> None:
    """Neither prolog nor epilog."""
    subprocess.run(["mount", "-o", "remount,ro", full_disk], check=True)

    permuted.prolog(SLURM_JOB_GPUS="0")
    permuted.run("epilog", SLURM_JOB_ID="42")

    assert [path.name for path in full_disk.iterdir()] == ["filler"]


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_a_script_that_hangs_is_ended_and_fails_nothing(tmp_path: Path, script: str) -> None:
    """A job waits for its prolog, so the prolog is given a time; here it is a second in place of ten."""
    text = (SCRIPTS / f"{script}.sh").read_text()
    hanging, count = re.subn(r"timeout -k 2 10 ", "timeout -k 1 1 ", text)
    assert count == 1
    hanging, count = re.subn(r"(?m)^directory=", "sleep 300\ndirectory=", hanging)
    assert count == 1
    path = tmp_path / f"{script}.sh"
    path.write_text(hanging)

    done = subprocess.run(["/bin/sh", path], env={"SLURM_JOB_ID": "42"}, capture_output=True, timeout=60, check=False)

    assert done.returncode == 0


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_a_script_that_breaks_fails_nothing(tmp_path: Path, script: str) -> None:
    """A shell ends with status 2 when a file that it reads has a syntax error."""
    text = (SCRIPTS / f"{script}.sh").read_text()
    path = tmp_path / f"{script}.sh"
    path.write_text(text.replace("config=/etc/gpufleet/slurm-prolog.conf", f"config={tmp_path}/broken.conf"))
    (tmp_path / "broken.conf").write_text("if then fi (\n")

    done = subprocess.run(["/bin/sh", path], env={"SLURM_JOB_ID": "42"}, capture_output=True, timeout=60, check=False)

    assert done.returncode == 0


def test_settings_are_read_from_the_file_in_etc(tmp_path: Path) -> None:
    """slurmd hands a prolog no variables of the operator's."""
    for script in ("prolog", "epilog"):
        text = (SCRIPTS / f"{script}.sh").read_text()
        assert "/etc/gpufleet/slurm-prolog.conf" in text
        path = tmp_path / f"{script}.sh"
        path.write_text(text.replace("/etc/gpufleet/slurm-prolog.conf", f"{tmp_path}/settings.conf"))
    (tmp_path / "settings.conf").write_text(f"GPUFLEET_SLURM_DIR={tmp_path}/elsewhere\nGPUFLEET_GPU_ORDER='{MIG}'\n")
    environment = {"SLURM_JOB_ID": "42", "SLURM_JOB_GPUS": "0"}

    subprocess.run(["/bin/sh", tmp_path / "prolog.sh"], env=environment, check=True, timeout=60)
    written = [path.name for path in (tmp_path / "elsewhere").iterdir()]
    subprocess.run(["/bin/sh", tmp_path / "epilog.sh"], env=environment, check=True, timeout=60)

    assert written == [f"{MIG}.42.json"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_the_scripts_are_executable_and_parse(node: Node, script: str) -> None:
    """slurmd executes them as they are."""
    path = SCRIPTS / script

    assert os.access(path, os.X_OK)
    subprocess.run([node.shell, "-n", path], check=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.binary(max_size=160).filter(lambda value: b"\0" not in value)
        | st.text("\"\\'$`*?[]{} \n\t\r\x7f\u00e9\u2028", max_size=60).map(str.encode),
        min_size=5,
        max_size=5,
    )
)
def test_whatever_the_variables_hold_the_file_is_json(node: Node, values: list[bytes]) -> None:
    """Quotes, backslashes, control characters, patterns, and bytes that are no text at all."""
    names = ("SLURM_JOB_USER", "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION", "SLURM_JOB_NAME", "SLURM_JOB_RESTART_COUNT")
    variables = {name: value.decode(errors="surrogateescape") for name, value in zip(names, values, strict=True)}

    node.prolog(SLURM_JOB_GPUS="0", **variables)
    (path,) = node.directory.iterdir()
    (found,) = read_own(path.name, path.read_bytes(), 1.0)

    blank = bytes.maketrans(bytes(range(32)) + b"\x7f", b" " * 33)
    assert path.name == "minor-0.42.json"
    assert found.device.account == values[1][:128].translate(blank).decode(errors="replace")[:128]
    assert found.device.partition == values[2][:128].translate(blank).decode(errors="replace")[:128]
