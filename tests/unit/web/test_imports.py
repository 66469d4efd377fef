"""What serving costs in modules: an open endpoint loads nothing that only TLS, basic auth or a configuration need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "asyncio",
    "bcrypt",
    "concurrent",
    "email",
    "html",
    "http",
    "json",
    "msgspec",
    "ssl",
    "urllib",
    "wsgiref",
    "yaml",
)


def loaded(script: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after script."""
    script += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_an_open_endpoint_loads_nothing_heavy() -> None:
    """A node without a web configuration file pays for none of it: each of these is memory on every node."""
    script = (
        "from gpufleet.web.app import App; from gpufleet.web.endpoint import open_endpoint\n"
        "from gpufleet.web import negotiate\n"
        "open_endpoint(App({}), ['127.0.0.1:0']).server.stop(0)"
    )
    before = loaded("")

    assert "gpufleet" in loaded(script)
    assert sorted((loaded(script) - before) & set(HEAVY)) == []


def test_basic_auth_alone_loads_no_tls() -> None:
    """Users without TLS need the YAML reader, and bcrypt only once somebody logs in."""
    script = (
        "from pathlib import Path; import tempfile; from gpufleet.web.live_config import LiveWebConfig\n"
        "file = Path(tempfile.mkdtemp()) / 'web.yml'\n"
        f"file.write_text('basic_auth_users: {{a: $2y$10${'a' * 53}}}')\n"
        "LiveWebConfig(file)"
    )

    assert {"ssl", "bcrypt", "http"} & loaded(script) == set()
