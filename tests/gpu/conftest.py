"""The stand-in driver, on which the script's own machinery is tested where there is no GPU."""

from __future__ import annotations

from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build

__all__ = ["fake_nvml", "nvml_build"]
