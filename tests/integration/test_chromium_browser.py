"""The means to look at pages, tried on a page of its own."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.chromium_browser import ChromiumBrowser


def test_the_browser_renders_with_and_without_javascript(chromium: ChromiumBrowser, tmp_path: Path) -> None:
    """A test sees the page after scripts have run, or as it is without them, and each request that it made."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer every request with the same page."""
            body = (
                b"<p id=a>plain</p><script>document.getElementById('a').textContent = 'scripted'</script>"
                b"<img src='http://outside.invalid/'>"
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            with chromium.page(url) as page:
                assert page.text() == "scripted"
                assert page.requested[0] == url
                assert page.failed == ["net::ERR_NAME_NOT_RESOLVED"]
            with chromium.page(url, javascript=False) as page:
                assert page.text() == "plain"
                page.screenshot(tmp_path / "page.png")
            assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
        finally:
            server.shutdown()
            thread.join()
