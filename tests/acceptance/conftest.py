"""The stand-in driver for the tests of what operators complained about elsewhere."""

from __future__ import annotations

from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build

__all__ = ["fake_nvml", "nvml_build"]
