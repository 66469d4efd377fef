"""What the doctor says of holders and prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.commands.diagnosis import Check, Status
from gpufleet.commands.diagnosis_owners import owner_steps
from gpufleet.settings import Settings, read_settings

BARE = read_settings({}, environ={}, host_name="host")


def checks(settings: Settings, directory: Path) -> dict[str, Check]:
    """Every check, on a node whose kubelet and Slurm would be found in a directory."""
    steps = owner_steps(settings, directory / "pod-resources" / "kubelet.sock", directory / "slurm")
    return {subject: step() for subject, step in steps}


def test_a_node_without_kubelet_and_slurm_says_who_holders_are(tmp_path: Path) -> None:
    """Nothing is missing there, and nothing is hidden either."""
    found = checks(BARE, tmp_path)
    assert set(found) == {"owners", "price book"}
    assert found["owners"].status is Status.NOTE
    assert "processes" in found["owners"].detail
    assert "no holder" in checks(replace(BARE, owners_processes=False), tmp_path)["owners"].detail
    assert found["price book"].status is Status.NOTE


def test_a_kubelet_without_its_socket_is_missing_with_the_remedy(tmp_path: Path) -> None:
    """Most often the socket was mounted in place of its directory."""
    (tmp_path / "pod-resources").mkdir()
    found = checks(BARE, tmp_path)["kubelet"]
    assert found.status is Status.MISSING
    assert str(tmp_path) in found.detail
    assert "mount the directory" in (found.remedy or "")


def test_directories_of_jobs_are_looked_at(tmp_path: Path) -> None:
    """Those that are there, and those that were named and are not."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "GPU-1.42.json").touch()
    found = checks(replace(BARE, slurm_dcgm_dir=tmp_path / "none"), tmp_path)
    assert found["slurm"] == Check("slurm", Status.OK, f"{tmp_path / 'slurm'} has 1 file")
    assert found["slurm dcgm"].status is Status.MISSING


@pytest.mark.parametrize(
    ("option", "subject", "good", "bad"),
    [
        ("owners.config.file", "owners configuration", "labels: [team]\n", "lables: [team]\n"),
        ("prices.file", "price book", "currency: USD\nrules:\n  - {name: a, per_hour: 1}\n", "rules: 7\n"),
    ],
)
def test_files_are_tried(tmp_path: Path, option: str, subject: str, good: str, bad: str) -> None:
    """As the exporter would read them at its start."""
    file = tmp_path / "file.yml"
    settings = read_settings({option: [str(file)]}, environ={}, host_name="host")
    file.write_text(good, encoding="utf-8")
    assert checks(settings, tmp_path)[subject].status is Status.OK
    file.write_text(bad, encoding="utf-8")
    found = checks(settings, tmp_path)[subject]
    assert found.status is Status.MISSING
    assert str(file) in found.detail
