"""Routes: which handler answers a request, and what happens when it cannot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gpufleet.logs import OnChange
from gpufleet.web.message import Response, plain_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpufleet.web.message import Handler, Request

_log = logging.getLogger(__name__)

_BELOW = "/*"


class App:
    """An application of fixed routes, ``{("GET", "/metrics"): handler}``.

    A path that ends in ``/*`` takes everything below it (``/node/*``); an exact path goes first, then the longest of
    these. GET answers HEAD too. A handler that raises is a 500 for its request, logged once and again when the error
    changes; body_limit is the most bytes of a request's body, 0 for none.
    """

    def __init__(self, routes: Mapping[tuple[str, str], Handler], *, body_limit: int = 0) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        below: dict[str, dict[str, Handler]] = {}
        for (method, path), handler in routes.items():
            if not path.startswith("/"):
                raise ValueError(f"the path {path!r} must begin with a slash")
            table, key = (below, path[:-1]) if path.endswith(_BELOW) else (self._exact, path)
            table.setdefault(key, {})[method] = handler
        self._below = sorted(below.items(), key=lambda item: -len(item[0]))
        self._body_limit = body_limit
        self._failures = OnChange(_log)

    @property
    def body_limit(self) -> int:
        """Bytes that a request's body may have."""
        return self._body_limit

    def admit(self, request: Request) -> Response | None:
        """Refuse what no route would answer."""
        methods = self._methods(request.path)
        if methods is None:
            return plain_response(404, "there is nothing at this path")
        if _handler(methods, request.method) is None:
            allowed = sorted(methods.keys() | ({"HEAD"} if "GET" in methods else set()))
            return plain_response(405, "this path does not answer this method", ("Allow", ", ".join(allowed)))
        return None

    def respond(self, request: Request) -> Response:
        """Answer with the route's handler."""
        handler = _handler(self._methods(request.path) or {}, request.method)
        if handler is None:
            return self.admit(request) or plain_response(404, "there is nothing at this path")
        route = f"{request.method} {getattr(handler, '__qualname__', type(handler).__qualname__)}"
        try:
            response = handler(request)
        except Exception as error:  # noqa: BLE001 - one handler's flaw is one answer's, and never the server's
            self._failures.failed(
                route, "a handler failed", repr(error), level=logging.ERROR, exc_info=error, path=request.path
            )
            return plain_response(500, "internal error")
        self._failures.over(route, "a handler answers again", path=request.path)
        return response

    def _methods(self, path: str) -> dict[str, Handler] | None:
        methods = self._exact.get(path)
        if methods is None:
            methods = next((methods for prefix, methods in self._below if path.startswith(prefix)), None)
        return methods


def _handler(methods: Mapping[str, Handler], method: str) -> Handler | None:
    return methods.get("GET" if method == "HEAD" and "HEAD" not in methods else method)
