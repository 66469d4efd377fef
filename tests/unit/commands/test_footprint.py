"""Keeping the process small, without breaking what it spares."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING

from gpufleet.commands.footprint import import_without

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SPARING = """
import sys
from gpufleet.commands.footprint import UNUSED_BY_US, import_without, settle, share_one_heap
share_one_heap()
spared = import_without("prometheus_client", UNUSED_BY_US)
loaded = [name for name in UNUSED_BY_US if name in sys.modules]
from gpufleet.metrics.selfmetrics import SelfMetrics
text = SelfMetrics().text()
settle()
import ssl, http.server
print(spared, loaded, b"process_resident_memory_bytes " in text, ssl.create_default_context().check_hostname)
"""


def test_the_client_library_works_without_its_http_server_and_the_rest_is_there_for_others() -> None:
    """Self-metrics are made; TLS, if it is configured later, gets the real ssl."""
    done = subprocess.run([sys.executable, "-c", SPARING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True [] True True"


def test_a_library_that_needs_what_was_spared_is_imported_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later release may do more than name it; memory is then what it is."""
    (tmp_path / "needs_it.py").write_text(
        "import bdb\nclass Debugger(bdb.Bdb):\n    first = bdb.effective.__module__\n"
    )
    (tmp_path / "names_it.py").write_text("from bdb import Bdb\nclass Debugger(Bdb):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bdb", raising=False)
    try:
        assert import_without("names_it", ("bdb",))
        assert "bdb" not in sys.modules
        (tmp_path / "needs_it.py").write_text("import bdb\nassert bdb.effective.__code__\n")
        assert not import_without("needs_it", ("bdb",))
        assert importlib.import_module("bdb").Bdb.__module__ == "bdb"
    finally:
        for name in ("needs_it", "names_it"):
            sys.modules.pop(name, None)


def test_a_library_that_is_there_already_is_left_alone() -> None:
    """What another part of the process has imported is not taken from it."""
    assert not import_without("sys", ("ssl",))
