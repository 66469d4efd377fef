"""What files of prologs say, each kind in its own form."""

from __future__ import annotations

import json

import pytest

from gpufleet.model.claims import JobDevice, JobSource
from gpufleet.sources.slurm.formats import FormatError, JobFile, jobstats_reader, read_dcgm, read_own

GPU = "GPU-5e8a1c3f-7d2b-4a90-8c16-3b9e6f0d2a71"
MIG = "MIG-265a219d-a49f-578a-825d-222c72699c16"
read_jobstats = jobstats_reader(lambda uid: f"user{uid}")


def own(content: dict[str, object], name: str = f"{GPU}.42.json") -> tuple[JobFile, ...]:
    """What our own file of that content says."""
    return read_own(name, json.dumps(content).encode(), 100.0)


def test_our_own_file_says_everything_that_a_prolog_knows() -> None:
    """Each key of the object becomes a field."""
    content: dict[str, object] = {
        "version": 1,
        "device": GPU,
        "job": "42",
        "user": "ann",
        "account": "physics",
        "partition": "h100",
        "name": "train",
        "array_job": "40",
        "array_task": "2",
        "restart_count": "1",
        "shards": 3,
        "shared": True,
        "contained": True,
        "started_at": 1700000000,
    }

    assert own(content) == (
        JobFile(
            JobDevice(
                JobSource.PROLOG,
                GPU,
                "42",
                user="ann",
                account="physics",
                partition="h100",
                name="train",
                array_job_id="40",
                array_task_id="2",
                restart_count="1",
                shards=3,
                started_at=1700000000.0,
            ),
            contained=True,
            shared=True,
        ),
    )


def test_keys_of_a_newer_prolog_are_left_out_and_missing_ones_are_empty() -> None:
    """Only the job must be there; the device may be told by the file's name, and the time by its last change."""
    (found,) = own({"job": 42, "key_of_tomorrow": {"a": [1]}}, f"{GPU}.json")

    assert found == JobFile(JobDevice(JobSource.PROLOG, GPU, "42", started_at=100.0))


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (f"{GPU}.json", GPU),
        (f"{GPU}.42.json", GPU),
        (f"{MIG}.42.json", MIG),
        ("minor-3.42.json", "minor:3"),
        ("index-12.json", "index:12"),
    ],
)
def test_the_name_of_our_own_file_names_the_device(name: str, device: str) -> None:
    """One file a device, or one a device and job, where several jobs share one."""
    (found,) = own({"job": "42"}, name)

    assert found.device.device == device


@pytest.mark.parametrize("device", [GPU, MIG, "MIG-GPU-5e8a1c3f-7d2b-4a90-8c16-3b9e6f0d2a71/1/0", "minor:0", "index:7"])
def test_a_device_is_a_uuid_or_a_number_of_a_known_kind(device: str) -> None:
    """Slices of drivers before R470 have slashes in their names."""
    (found,) = own({"job": "42", "device": device}, "anything.json")

    assert found.device.device == device


@pytest.mark.parametrize("content", [b"", b"\n", b"{}", b'{"device": "GPU-1"}', b'{"job": ""}', b'{"job": null}'])
def test_our_own_file_without_a_job_is_of_a_device_without_one(content: bytes) -> None:
    """The device is not dropped and no fault is reported: nobody has it."""
    assert read_own(f"{GPU}.json", content, 1.0) == ()


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"job": "42", "user": "an',
        b"\x00\xff\xfe\x80" * 100,
        b"[]",
        b"42",
        b'"text"',
        b"[" * 60_000,
        b'{"job": ' + b"9" * 10_000 + b"}",
        b'{"job": "../../etc"}',
        b'{"job": "a b"}',
        b'{"job": "42", "device": "/dev/nvidia0"}',
        b'{"job": "42", "device": "minor:x"}',
    ],
)
def test_what_is_no_file_of_ours_is_refused(content: bytes) -> None:
    """Cut, binary, deep, of another type or naming nothing that exists: an error that says so, and no other."""
    with pytest.raises(FormatError):
        read_own(f"{GPU}.json", content, 1.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shards", -1),
        ("shards", True),
        ("shards", "2"),
        ("shards", 1e300),
        ("started_at", float("nan")),
        ("started_at", float("inf")),
        ("started_at", True),
        ("started_at", "yesterday"),
        ("started_at", -5),
        ("user", ["ann"]),
        ("user", True),
        ("contained", "yes"),
        ("shared", 1),
    ],
)
def test_a_value_of_the_wrong_type_is_as_if_it_were_missing(key: str, value: object) -> None:
    """A fault in one fact does not cost the others."""
    assert own({"job": "42", "device": GPU, key: value}) == own({"job": "42", "device": GPU})


def test_texts_are_bounded_and_can_be_shown() -> None:
    """A user chooses names; half of a surrogate pair and bytes that are no UTF-8 become replacement characters."""
    (long,) = own({"job": "42", "device": GPU, "name": "n" * 100_000})
    (surrogate,) = read_own("x.json", b'{"job":"42","device":"%s","name":"a\\ud800b"}' % GPU.encode(), 1.0)
    (latin,) = read_own("x.json", b'{"job":"42","device":"%s","name":"a\xe9b"}' % GPU.encode(), 1.0)

    assert len(long.device.name) == 128
    assert surrogate.device.name.encode().decode() == "a?b"
    assert latin.device.name == "a\ufffdb"


@pytest.mark.parametrize(
    ("name", "content", "devices"),
    [
        ("0", b"42\n", [("index:0", "42")]),
        ("7", b"42", [("index:7", "42")]),
        ("0.13", b"42\n", [("index:0.13", "42")]),
        ("3", b"42\n43\n42\n\n", [("index:3", "42"), ("index:3", "43")]),
        ("3", b"", []),
        ("3", b"\n \n", []),
    ],
)
def test_dcgms_file_names_the_gpu_and_lists_its_jobs(name: str, content: bytes, devices: list[tuple[str, str]]) -> None:
    """One job a line, for a GPU or for one of its GPU instances; an empty file is a GPU without a job."""
    found = read_dcgm(name, content, 5.0)

    assert [(each.device.device, each.device.job_id) for each in found] == devices
    assert {each.device.source for each in found} <= {JobSource.DCGM}
    assert {each.shared for each in found} <= {len(devices) > 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("0", b"\xff\xfe"),
        ("0", b"a b"),
        ("0", b"{}"),
        ("0.1.2", b"42"),
        ("x", b"42"),
        ("0", b"\n".join(map(b"%d".__mod__, range(100)))),
    ],
)
def test_what_is_no_file_of_dcgms_is_refused(name: str, content: bytes) -> None:
    """Binary, no number of a job, too many of them, or another name."""
    with pytest.raises(FormatError):
        read_dcgm(name, content, 1.0)


@pytest.mark.parametrize(
    ("name", "content", "device"),
    [
        (
            "0",
            b"45916256 262563\n",
            JobDevice(JobSource.JOBSTATS, "index:0", "45916256", user="user262563", started_at=5.0),
        ),
        (GPU, b"42 0", JobDevice(JobSource.JOBSTATS, GPU, "42", user="user0", started_at=5.0)),
        (MIG, b"42 7\n", JobDevice(JobSource.JOBSTATS, MIG, "42", user="user7", started_at=5.0)),
        (MIG, b"42\n", JobDevice(JobSource.JOBSTATS, MIG, "42", started_at=5.0)),
    ],
)
def test_jobstats_file_gives_job_and_user(name: str, content: bytes, device: JobDevice) -> None:
    """The numbers of both, for an index, a GPU or a slice."""
    assert read_jobstats(name, content, 5.0) == (JobFile(device),)


def test_jobstats_empty_file_is_a_device_without_a_job() -> None:
    """Nothing is claimed and nothing is wrong."""
    assert read_jobstats("0", b"\n", 5.0) == ()


@pytest.mark.parametrize(
    ("name", "content"),
    [("0", b"42 ann"), ("0", b"42 7 1"), ("0", b"\xff"), ("x", b"42 7"), ("0", b"42 99999999999999"), ("0", b"../x 7")],
)
def test_what_is_no_file_of_jobstats_is_refused(name: str, content: bytes) -> None:
    """Other words than two numbers, or another name."""
    with pytest.raises(FormatError):
        read_jobstats(name, content, 1.0)
