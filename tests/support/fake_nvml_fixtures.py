"""Fixtures around the stand-in driver.

A conftest takes them by importing them, and names them in ``__all__``::

    from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_build import ToolMissing, build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def nvml_build(gcc: Path) -> Path:  # noqa: ARG001 - for its skip
    """The path of the built library. Skips, or fails where CI=true, without a compiler or the header."""
    try:
        return build()
    except ToolMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture
def fake_nvml(nvml_build: Path) -> Iterator[FakeNvml]:  # noqa: ARG001 - for its skip
    """A stand-in driver without GPUs: ``fake_nvml.set_gpus(...)`` comes first."""
    with FakeNvml() as fake:
        yield fake
