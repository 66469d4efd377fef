"""The Kubernetes API server: where it is, who we are to it, and one request at a time.

The token of a service account is rotated by the kubelet, so it is read anew for each request. Proxies of the
environment are not used: the server is a neighbour.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpufleet.sources.pods.decoding import decode_failure
from gpufleet.sources.pods.http import HttpError, Response, connect, get

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MOST_BYTES = 64 << 20
_MOST_TOKEN = 1 << 16
_CONNECT_SECONDS = 10.0


class ApiError(Exception):
    """The API server did not answer as asked; the text is for a person. ``status`` is HTTP's, 0 without an answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server and our credentials."""

    url: str
    """Without a slash at the end."""
    token_file: Path | None = None
    ca_file: Path | None = None
    """``None``: the system's authorities."""

    @contextmanager
    def open(self, path: str, accept: str, *, seconds: float) -> Iterator[Response]:
        """The answer to a GET, to be read inside; each read may take ``seconds``. Raises ApiError, for reads too."""
        url = urlsplit(self.url)
        secure = url.scheme == "https"
        host = url.hostname or ""
        try:
            with self._connected(host, url.port or (443 if secure else 80), secure=secure) as peer:
                # A peer that accepts and is silent is given up after the time of one read.
                peer.settimeout(seconds)
                response = get(peer, url.netloc, f"{url.path}{path}", self._headers(accept))
                with response.stream:
                    if response.status != 200:
                        raise self._refused(response, path)
                    yield response
        except ssl.SSLCertVerificationError as error:
            raise ApiError(f"{self.url}: its certificate is not trusted: {error.verify_message}") from error
        except TimeoutError as error:
            raise ApiError(f"{self.url}: no answer within {seconds:g} s") from error
        except OSError as error:
            raise ApiError(f"{self.url}: {error.strerror or error}") from error
        except HttpError as error:
            raise ApiError(f"{self.url}: this is not how an API server answers: {error}") from error

    def get(self, path: str, accept: str, *, seconds: float) -> bytes:
        """The whole body. Raises ApiError."""
        with self.open(path, accept, seconds=seconds) as response:
            body = response.read(_MOST_BYTES)
        if len(body) > _MOST_BYTES:
            raise ApiError(f"{self.url}: its answer is larger than {_MOST_BYTES >> 20} MiB")
        return body

    def _connected(self, host: str, port: int, *, secure: bool) -> socket.socket:
        try:
            return connect(host, port, self._context() if secure else None, seconds=_CONNECT_SECONDS)
        except TimeoutError as error:
            raise ApiError(f"{self.url}: can't be reached within {_CONNECT_SECONDS:g} s") from error

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ApiError(f"{self.ca_file}: is no certificate of an authority: {error}") from error

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": "gpufleet"}
        if self.token_file is not None:
            try:
                with self.token_file.open("rb") as file:
                    token = file.read(_MOST_TOKEN).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ApiError(f"{self.token_file}: the token can't be read: {error}") from error
            if not token.isprintable() or " " in token:
                raise ApiError(f"{self.token_file}: is no token")
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _refused(self, response: Response, path: str) -> ApiError:
        said = decode_failure(response.read(1 << 16))
        remedy = {
            401: "it does not know this token: see the service account",
            403: "let the service account list and watch pods (a ClusterRole; docs/owners.md has it)",
            429: "it is overloaded",
        }.get(response.status, f"GET {path.partition('?')[0]}")
        return ApiError(f"{self.url}: {response.status} {said or response.reason}: {remedy}", response.status)


def in_cluster(environ: Mapping[str, str], account: Path = ACCOUNT) -> ApiServer:
    """The server of the cluster that this process is a pod of."""
    host = environ.get("KUBERNETES_SERVICE_HOST") or "kubernetes.default.svc"
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    name = f"[{host}]" if ":" in host else host
    return ApiServer(f"https://{name}:{port}", account / "token", account / "ca.crt")


def api_server_at(url: str, account: Path = ACCOUNT) -> ApiServer:
    """A server by its URL, with the service account's credentials where there are any and the way is encrypted."""
    if not url.startswith("https://") or not (account / "token").exists():
        return ApiServer(url)
    return ApiServer(url, account / "token", account / "ca.crt" if (account / "ca.crt").exists() else None)
