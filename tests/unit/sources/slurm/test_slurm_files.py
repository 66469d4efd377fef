"""Directories of prologs' files, good, hostile and missing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from gpufleet.model.claims import JobDevice, JobSource
from gpufleet.model.snapshot import SourceHealth
from gpufleet.sources.slurm.files import SlurmFiles

GPU = "GPU-5e8a1c3f-7d2b-4a90-8c16-3b9e6f0d2a71"
MIG = "MIG-265a219d-a49f-578a-825d-222c72699c16"


class Directories:
    """The three directories, on a machine that says nothing of boot and control groups."""

    def __init__(self, root: Path) -> None:
        self.own, self.dcgm, self.jobstats = root / "own", root / "dcgm", root / "jobstats"
        for each in (self.own, self.dcgm, self.jobstats):
            each.mkdir()
        self.nothing = root / "nothing"

    def files(self, *, own: bool = True, dcgm: bool = False, jobstats: bool = False) -> SlurmFiles:
        """A reader of those that are named."""
        return SlurmFiles(
            own=self.own if own else None,
            dcgm=self.dcgm if dcgm else None,
            jobstats=self.jobstats if jobstats else None,
            procfs=self.nothing,
            cgroupfs=self.nothing,
            clock=lambda: 2_000_000_000.0,
        )

    def put(self, job: str, device: str = GPU, **more: object) -> None:
        """One of our own files."""
        content = json.dumps({"job": job, "device": device, "started_at": 1_900_000_000, **more})
        (self.own / f"{device.replace(':', '-')}.{job}.json").write_text(content)


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    """Three empty directories."""
    return Directories(tmp_path)


def claimed(devices: tuple[JobDevice, ...]) -> list[tuple[str, str, str]]:
    """(source, device, job) of each."""
    return [(each.source.value, each.device, each.job_id) for each in devices]


def test_all_three_kinds_are_read_at_once(directories: Directories) -> None:
    """Each has a health of its own, and the devices are in a fixed order."""
    directories.put("42")
    (directories.dcgm / "0").write_text("42\n")
    (directories.dcgm / "0.13").write_text("43\n")
    (directories.jobstats / MIG).write_text("44 0\n")

    reading = directories.files(dcgm=True, jobstats=True).read()

    assert claimed(reading.devices) == [
        ("dcgm", "index:0", "42"),
        ("dcgm", "index:0.13", "43"),
        ("jobstats", MIG, "44"),
        ("prolog", GPU, "42"),
    ]
    assert reading.sources == tuple(
        SourceHealth(source, up=True) for source in ("slurm", "slurm_dcgm", "slurm_jobstats")
    )


def test_nothing_configured_reads_nothing(directories: Directories) -> None:
    """No source, and no device."""
    reading = directories.files(own=False).read()

    assert (reading.devices, reading.sources) == ((), ())


def test_an_empty_file_is_a_device_without_a_job(directories: Directories) -> None:
    """Its GPU is not dropped: nobody claims it, and nothing is wrong."""
    (directories.own / f"{GPU}.json").write_text("")
    (directories.dcgm / "0").write_text("")
    (directories.jobstats / "1").write_text("")

    reading = directories.files(dcgm=True, jobstats=True).read()

    assert reading.devices == ()
    assert [each.reason for each in reading.sources] == [None] * 3


def test_several_jobs_may_have_a_file_for_one_device(directories: Directories) -> None:
    """Shards of one GPU, a file each."""
    directories.put("42", shared=True)
    directories.put("43", shared=True)
    directories.put("44", device="minor:1", shared=True)

    reading = directories.files().read()

    assert [(each.device, each.job_id, each.shards) for each in reading.devices] == [
        (GPU, "42", 1),
        (GPU, "43", 1),
        ("minor:1", "44", None),
    ]


def test_a_bad_file_costs_itself_only(directories: Directories) -> None:
    """Large, FIFO, link, directory, cut, binary: the good file beside them is read, and the reason names them."""
    directories.put("42")
    (directories.own / "large.json").write_bytes(b" " * 10_000_000)
    os.mkfifo(directories.own / "fifo.json")
    (directories.own / "link.json").symlink_to(directories.own / f"{GPU}.42.json")
    (directories.own / "folder.json").mkdir()
    (directories.own / "cut.json").write_text('{"job": "4')
    (directories.own / "binary.json").write_bytes(bytes(range(256)))
    (directories.own / "empty.json").write_text("")
    (directories.own / ".temporary.json").write_text("{")
    (directories.own / "notes.txt").write_text("{")

    reading = directories.files().read()
    (health,) = reading.sources

    assert claimed(reading.devices) == [("prolog", GPU, "42")]
    assert health.up
    assert health.reason == (
        f"{directories.own}: 6 files can't be used (binary.json: not JSON, or cut short; cut.json: not JSON, or cut "
        "short; fifo.json: not a regular file and 3 more)"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [("large", "larger than 64 KiB"), ("link", "a symbolic link"), ("folder", "not a regular file")],
)
def test_a_bad_file_is_named_with_its_fault(directories: Directories, name: str, reason: str) -> None:
    """One a directory, so that each fault is seen."""
    path = directories.own / f"{name}.json"
    if name == "large":
        path.write_bytes(b" " * 65_537)
    elif name == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()

    (health,) = directories.files().read().sources

    assert health == SourceHealth(
        "slurm", up=True, reason=f"{directories.own}: 1 file can't be used ({name}.json: {reason})"
    )


def test_a_file_that_may_not_be_read_is_named(directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job is not known; the others are."""
    directories.put("42")
    (directories.own / "secret.json").touch()
    real = os.open

    def refusing(path: Path, flags: int) -> int:
        if path.name == "secret.json":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    reading = directories.files().read()

    assert len(reading.devices) == 1
    assert "secret.json: Permission denied" in (reading.sources[0].reason or "")


def test_names_of_files_may_be_anything(directories: Directories) -> None:
    """Bytes that are no UTF-8 and line ends can be shown in a reason."""
    (directories.own / (b"\xff\n" + b"n" * 200 + b".json").decode(errors="surrogateescape")).write_text("{")

    (health,) = directories.files().read().sources

    assert health.reason is not None
    assert health.reason.encode().decode() == health.reason
    assert len(health.reason) < 400


def test_thousands_of_files_are_read_in_part(directories: Directories) -> None:
    """A flood costs a bounded time and is said; what is beside it in other directories is read."""
    for number in range(2_100):
        (directories.own / f"{number}.json").touch()
    (directories.dcgm / "0").write_text("42")

    reading = directories.files(dcgm=True).read()

    assert claimed(reading.devices) == [("dcgm", "index:0", "42")]
    assert reading.sources[0].reason == f"{directories.own}: more than 2048 files, the others are not read"


def test_a_flood_of_other_files_is_looked_at_in_part(directories: Directories) -> None:
    """Files of other names are passed over, up to a number."""
    for number in range(16_400):
        (directories.dcgm / f"x{number}").touch()

    (health,) = directories.files(own=False, dcgm=True).read().sources

    assert health.reason is not None
    assert "the others are not read" in health.reason


def test_a_missing_directory_is_down_with_its_remedy(directories: Directories) -> None:
    """The others are read."""
    directories.own.rmdir()
    (directories.dcgm / "0").write_text("42")

    reading = directories.files(dcgm=True).read()

    assert claimed(reading.devices) == [("dcgm", "index:0", "42")]
    assert [each.up for each in reading.sources] == [False, True]
    assert f"{directories.own} does not exist: the prolog makes it" in (reading.sources[0].reason or "")


def test_a_file_in_the_place_of_the_directory_is_down(directories: Directories) -> None:
    """What can't be listed is said as the kernel says it."""
    directories.own.rmdir()
    directories.own.write_text("")

    (health,) = directories.files().read().sources

    assert health == SourceHealth("slurm", up=False, reason=f"{directories.own} can't be read: Not a directory")


def test_jobstats_numbers_do_not_count_where_uuids_are_given(directories: Directories) -> None:
    """Its newer prologs write both; a number may be NVML's or the device's minor number, and a UUID is neither."""
    (directories.jobstats / "0").write_text("42 0")
    (directories.jobstats / MIG).write_text("43 0")
    with_numbers = directories.files(own=False, jobstats=True).read()
    (directories.jobstats / GPU).write_text("42 0")
    with_uuids = directories.files(own=False, jobstats=True).read()

    assert claimed(with_numbers.devices) == [("jobstats", MIG, "43"), ("jobstats", "index:0", "42")]
    assert claimed(with_uuids.devices) == [("jobstats", GPU, "42"), ("jobstats", MIG, "43")]


def test_a_change_is_noticed_without_reading(directories: Directories) -> None:
    """A file that comes, goes, or a directory that appears; nothing else."""
    directories.jobstats.rmdir()
    files = directories.files(dcgm=True, jobstats=True)
    assert files.changed()

    def settle() -> None:
        # The kernel stamps by its tick: two changes within one would leave one time.
        for each in (directories.own, directories.dcgm, directories.jobstats):
            if each.exists():
                os.utime(each, (1, 1))
        files.read()
        assert not files.changed()

    settle()
    directories.put("42")
    assert files.changed()
    settle()
    (directories.own / f"{GPU}.42.json").unlink()
    assert files.changed()
    settle()
    (directories.dcgm / "0").touch()
    assert files.changed()
    settle()
    directories.jobstats.mkdir()
    assert files.changed()


def test_a_file_that_vanishes_while_it_is_read_is_no_fault(
    directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job has ended between the listing and the reading."""
    directories.put("42")
    directories.put("43", device="minor:1")
    real = os.open

    def vanishing(path: Path, flags: int) -> int:
        if path.name.startswith("minor"):
            path.unlink()
        return real(path, flags)

    monkeypatch.setattr(os, "open", vanishing)
    reading = directories.files().read()

    assert claimed(reading.devices) == [("prolog", GPU, "42")]
    assert reading.sources == (SourceHealth("slurm", up=True),)


def test_jobs_that_are_over_are_dropped(directories: Directories) -> None:
    """What jobs says of it is what is read: here a newer job has the device."""
    directories.put("42")
    directories.put("43", started_at=1_900_000_001)

    assert claimed(directories.files().read().devices) == [("prolog", GPU, "43")]


def test_what_the_prolog_says_is_kept(directories: Directories) -> None:
    """Its source comes first of the three."""
    directories.put("42", user="ann", account="physics", partition="h100", restart_count="2")

    assert directories.files().read().devices == (
        JobDevice(
            JobSource.PROLOG,
            GPU,
            "42",
            user="ann",
            account="physics",
            partition="h100",
            restart_count="2",
            started_at=1_900_000_000.0,
        ),
    )
