"""Certificates for the tests of the direct path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.pems import Pems, write_pems

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pems(tmp_path: Path) -> Pems:
    """A folder of certificates and keys, each test's own: some replace them."""
    return write_pems(tmp_path)
