"""A small application for the tests of the server, and fixtures' way to start it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpufleet.web.app import App
from gpufleet.web.endpoint import Endpoint, open_endpoint
from gpufleet.web.message import PLAIN_TEXT, Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpufleet.web.server import ServerLimits

SCRAPE = b"metric 1\n" * 17_000  # about 150 KB, as eight GPUs have
# More than the kernel's buffers of both ends take in together.
BIG = bytes(48 * 1024 * 1024)
BODY_LIMIT = 100_000


class ToyApp(App):
    """Answers /metrics, /big, /hook (POST, echoes), /wait (once released) and /exit (raises SystemExit)."""

    def __init__(self) -> None:
        self.waiting = threading.Semaphore(0)
        """Released once for each request that waits."""
        self.release = threading.Event()
        self.hooks = 0
        super().__init__(
            {
                ("GET", "/metrics"): lambda _: Response(200, SCRAPE, PLAIN_TEXT),
                ("GET", "/big"): lambda _: Response(200, BIG, PLAIN_TEXT),
                ("GET", "/peer"): lambda request: Response(200, request.peer.encode(), PLAIN_TEXT),
                ("GET", "/wait"): self._wait,
                ("GET", "/exit"): self._exit,
                ("POST", "/hook"): self._hook,
            },
            body_limit=BODY_LIMIT,
        )

    def _wait(self, _: Request) -> Response:
        self.waiting.release()
        if not self.release.wait(60):
            raise TimeoutError
        return Response(200, b"released", PLAIN_TEXT)

    def _exit(self, _: Request) -> Response:
        raise SystemExit(3)

    def _hook(self, request: Request) -> Response:
        self.hooks += 1
        return Response(200, request.body, PLAIN_TEXT)


@contextmanager
def serving(
    app: ToyApp,
    *addresses: str,
    limits: ServerLimits | None = None,
    web_config_file: Path | None = None,
) -> Iterator[Endpoint]:
    """Serve app on addresses (a free port of 127.0.0.1 by default) for the time of a with block."""
    endpoint = open_endpoint(app, addresses or ("127.0.0.1:0",), limits=limits, web_config_file=web_config_file)
    try:
        yield endpoint
    finally:
        app.release.set()
        endpoint.server.stop(0)
