"""A capture gives the same readings again, on a machine without the driver, and tells nobody whose they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.model.readings import Key
from gpufleet.sources.nvml.calls import Driver
from gpufleet.sources.nvml.device import Device, DeviceOptions
from gpufleet.sources.nvml.plan import Pace
from gpufleet.sources.nvml.session import Session, open_library
from tests.conftest import Golden
from tests.gpu.capture import Answer, Recorder, Replay, load, masks, save
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_profiles import A100, H100, SEVEN_SLICES, Profile

CAPTURES = Path(__file__).resolve().parent.parent / "captures"
POLLS = 4
PACE = Pace(1.0, 1.0, 1.0)


def readings_of(driver: Driver) -> dict[str, dict[Key, object]]:
    """All that the exporter reads of each GPU of a driver in a few polls, but for what masking changes."""
    session = Session(driver)
    found: dict[str, dict[Key, object]] = {}
    for index in range(session.count()):
        options = DeviceOptions(PACE, driver_version=session.versions.driver)
        device = Device(session.calls, session.handle(index), options, 0.0)
        values: dict[Key, object] = {}
        for poll in range(1, POLLS + 1):
            reading = device.read(float(poll))
            sample = device.sample(float(poll))
            parts = [*reading.parts, *([] if sample.own is None else [sample.own[0]])]
            for place, (identity, own) in enumerate(reading.slices):
                values[Key("slice", (str(place),))] = (identity.profile, [part.values for part in own])
            for part in parts:
                values.update(zip(part.keys, part.values, strict=True))
        values[Key("identity")] = (device.identity.name, device.identity.pci_bus_id, device.identity.vbios_version)
        found[str(index)] = values
    return found


@pytest.mark.parametrize("profile", [H100, A100], ids=lambda profile: profile.name)
def test_a_capture_reads_like_the_driver_that_it_was_made_of(
    fake_nvml: FakeNvml, tmp_path: Path, profile: Profile
) -> None:
    """Every reading, also those that moved from poll to poll, and the slices of a GPU that was cut."""
    fake_nvml.set_gpus(2, profile)
    fake_nvml.set_mig(1, SEVEN_SLICES)
    fake_nvml.control.gpm_spacing_ms = 0
    fake_nvml.move()
    recorder = Recorder(open_library(str(fake_nvml.library)))

    original = readings_of(recorder)
    save(tmp_path / "capture.json", recorder.answers, gpu=profile.name)

    assert original["0"][Key("power_watts")]
    assert len([key for key in original["1"] if key.name == "slice"]) == 7
    assert readings_of(Replay(load(tmp_path / "capture.json"))) == original


def test_a_capture_does_not_tell_whose_it_was(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """UUIDs of GPUs and slices, serial numbers and the cluster are replaced, each by one stand-in of its own."""
    fake_nvml.set_gpus(2)
    fake_nvml.set_mig(1, SEVEN_SLICES)
    recorder = Recorder(open_library(str(fake_nvml.library)))
    readings_of(recorder)
    save(tmp_path / "capture.json", recorder.answers)

    secrets = [fake_nvml.uuid(0), fake_nvml.uuid(1), *fake_nvml.mig_uuids(1), "1653000000000", "1653000000001"]
    cluster = bytes(fake_nvml.gpus[0].fabric_cluster)
    told = b"".join(reply for answer in load(tmp_path / "capture.json") for reply in answer.replies)
    assert [secret for secret in secrets if secret.encode() in told] == []
    assert cluster not in told
    assert len(set(masks(recorder.answers).values())) == len(masks(recorder.answers)) >= 2 + 7 + 2


def test_what_was_not_captured_is_not_supported() -> None:
    """A plan that asks for more than the capture has gets the driver's own word for it."""
    replay = Replay([Answer("nvmlDeviceGetCount_v2", (None,), 0, (b"\0\0\0\0",), (b"\x01\0\0\0",))])

    assert replay.function("nvmlDeviceGetUUID") is None
    assert replay.function("nvmlDeviceGetCount_v2") is not None


def test_calls_and_fields_are_timed(fake_nvml: FakeNvml) -> None:
    """As seen from here by function; as the driver says by field."""
    fake_nvml.set_gpus(1)
    recorder = Recorder(open_library(str(fake_nvml.library)))
    readings_of(recorder)

    assert len(recorder.nanoseconds["nvmlDeviceGetFieldValues"]) >= POLLS
    assert all(taken > 0 for taken in recorder.nanoseconds["nvmlDeviceGetFieldValues"])
    assert (186, 0) in recorder.field_latency


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.json")), ids=lambda path: path.stem)
def test_captures_of_real_drivers_read_as_they_did(path: Path, golden: Golden) -> None:
    """Each reading of each captured machine, as text beside the captures."""
    lines = [
        f"{index} {key.name} {' '.join(key.members)} {value}".replace("  ", " ")
        for index, values in readings_of(Replay(load(path))).items()
        for key, value in sorted(values.items(), key=lambda item: (item[0].name, item[0].members))
    ]
    golden(f"captures/{path.stem}.txt", ("\n".join(lines) + "\n").encode())
