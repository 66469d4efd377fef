"""The landing page, as a browser shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.chromium_browser import ChromiumBrowser
from tests.integration.exporter_process import ExporterProcess
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_fixtures import fake_nvml, nvml_build
from tests.support.fake_nvml_profiles import H100

__all__ = ["fake_nvml", "nvml_build"]

GPUS = 3
LOST = 1


@pytest.mark.parametrize("javascript", [False, True], ids=["without scripts", "with scripts"])
def test_the_page_shows_every_gpu_and_asks_no_other_host(
    fake_nvml: FakeNvml, chromium: ChromiumBrowser, tmp_path: Path, javascript: bool
) -> None:
    """A row a GPU, with its name and state in words; nothing is fetched from elsewhere, nothing is refused."""
    fake_nvml.set_gpus(GPUS, H100)
    with ExporterProcess(fake_nvml, tmp_path) as exporter:
        exporter.wait_for(r"^gpu_sm_active_ratio\{")
        fake_nvml.lose(LOST)
        exporter.wait_for(rf'^gpu_up\{{gpu="{LOST}",uuid="{fake_nvml.uuid(LOST)}"\}} 0$')
        with chromium.page(exporter.url("/"), javascript=javascript) as page:
            text = page.text()
            for number in range(GPUS):
                assert fake_nvml.uuid(number) in text
            assert "H100 80GB HBM3" in text
            assert "lost" in text
            assert page.failed == []
            assert page.console == []
            assert all(request.startswith(exporter.url("/")) for request in page.requested)


def test_the_page_fits_a_narrow_screen(fake_nvml: FakeNvml, chromium: ChromiumBrowser, tmp_path: Path) -> None:
    """Nothing has to be scrolled sideways on a phone."""
    fake_nvml.set_gpus(GPUS, H100)
    with ExporterProcess(fake_nvml, tmp_path) as exporter:
        exporter.wait_for(r"^gpu_sm_active_ratio\{")
        with chromium.page(exporter.url("/"), size=(390, 800)) as page:
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
