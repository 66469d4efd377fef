"""One Alertmanager over HTTP: a request in, a verdict out. Nothing that goes wrong out there is raised.

requests brings 11 MiB, so this module is imported only where an Alertmanager is configured.
"""

from __future__ import annotations

import logging
import ssl
import warnings
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import InsecureRequestWarning

from gpufleet import __version__
from gpufleet.logs import OnChange
from gpufleet.notify.credentials import CredentialsError, authorization, fingerprint, tls_context
from gpufleet.notify.decide import Answer, Verdict

if TYPE_CHECKING:
    from gpufleet.notify.client_config import ClientConfig
    from gpufleet.notify.credentials import Fingerprint

log = logging.getLogger(__name__)

_API = "/api/v2/alerts"
_CONNECT_SECONDS, _READ_SECONDS = 3.05, 10.0
_MOST_QUOTED = 200
"""Characters of an error's text in our log."""

_CONTENT = frozenset({400, 413, 422})
_LATER = frozenset({408, 425, 429})
"""A 4xx that asks for patience."""
_CREDENTIALS = frozenset({401, 403, 407})


class Alertmanager:
    """The client of one Alertmanager. To be used by one thread."""

    def __init__(self, url: str, config: ClientConfig) -> None:
        """``url`` is what comes before ``/api``."""
        self._url = url + _API
        self._config = config
        self._seen: Fingerprint = ()
        self._session: requests.Session | None = None
        self._changes = OnChange(log)

    def post(self, body: bytes) -> Answer:
        """Post a list of alerts in JSON."""
        try:
            session = self._ready()
            credentials = authorization(self._config)
        except CredentialsError as error:
            return Answer(Verdict.UNREACHED, str(error))
        headers = {"Authorization": credentials} if credentials is not None else {}
        try:
            with session.post(
                self._url,
                data=body,
                headers=headers,
                timeout=(_CONNECT_SECONDS, _READ_SECONDS),
                allow_redirects=False,  # a Location gets neither our alerts nor our credentials
                stream=True,  # an answer without end is not read to its end
            ) as response:
                return _answer(response, credentials)
        except requests.RequestException as error:
            return Answer(_verdict(error), _reason(error))

    def _ready(self) -> requests.Session:
        """The session, a new one after a change of the files of its TLS context.

        While they are broken the one before stays: a certificate is exchanged in two steps, the key and itself.
        """
        seen = fingerprint(self._config.tls)
        if self._session is None or seen != self._seen:
            try:
                session = open_session(self._url, self._config)
            except CredentialsError as error:
                if self._session is None:
                    raise
                self._changes.failed("tls", "new TLS files are not used, the old ones stay", str(error), url=self._url)
            else:
                self._session, self._seen = session, seen
                self._changes.over("tls", "the new TLS files are used", url=self._url)
        return self._session


class _Adapter(HTTPAdapter):
    """Connections with a TLS context of ours: requests would add certifi's CAs to those that we trust."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        self._context = context
        self._server_name = server_name
        super().__init__()

    def init_poolmanager(self, *sizes: Any, **pool: Any) -> None:  # noqa: ANN401 - what requests passes on to urllib3
        if self._server_name is not None:
            pool["server_hostname"] = self._server_name
        super().init_poolmanager(*sizes, ssl_context=self._context, **pool)

    def cert_verify(self, conn: object, url: str, verify: object, cert: object) -> None:
        """Leave the connection as it is: the context knows whom to trust."""


def open_session(url: str, config: ClientConfig) -> requests.Session:
    """A session that trusts and is what ``config`` says, and nothing of the environment. Raises CredentialsError."""
    session = requests.Session()
    # No proxy, no ~/.netrc and no CA bundle of the environment: an exporter's environment is not a user's.
    session.trust_env = False
    session.headers.clear()
    session.headers.update(
        {
            "Content-Type": "application/json",
            "User-Agent": f"gpufleet/{__version__}",
            # Posts are a minute apart. What stands between may have forgotten a connection that was idle for so long,
            # and we would wait for an answer to what never arrived.
            "Connection": "close",
        }
    )
    if url.startswith("https:"):
        tls = config.tls
        session.mount("https://", _Adapter(tls_context(tls), tls.server_name if tls is not None else None))
        if tls is not None and not tls.verify:
            session.verify = False
            warnings.filterwarnings("ignore", category=InsecureRequestWarning)  # it was asked for, and is logged
    return session


def _answer(response: requests.Response, credentials: str | None) -> Answer:
    code = response.status_code
    verdict = _verdict_of_status(code)
    if verdict is Verdict.ACCEPTED:
        return Answer(verdict, server_time=_server_time(response))
    return Answer(verdict, _explanation(response, credentials), _server_time(response))


def _verdict_of_status(code: int) -> Verdict:
    if 200 <= code < 300:
        return Verdict.ACCEPTED
    if code in _CONTENT:
        return Verdict.CONTENT_REFUSED
    if code in _LATER or not 300 <= code < 500:
        return Verdict.FAILED
    return Verdict.REFUSED


def _explanation(response: requests.Response, credentials: str | None) -> str:
    code = response.status_code
    if code in _CREDENTIALS:  # what it says about them is not for our log
        return f"status {code}: check basic_auth or authorization in --alertmanager.config.file"
    if 300 <= code < 400:
        return f"status {code}: a redirect is not followed; give --alertmanager.url as the place that answers itself"
    if code == 404:
        return f"status {code}: no Alertmanager API there; check the path of --alertmanager.url"
    try:
        text = response.raw.read(4 * _MOST_QUOTED, decode_content=True).decode(errors="replace").strip()
    except Exception:  # noqa: BLE001 - urllib3's and zlib's many; the status alone has to do
        text = ""
    if credentials is not None and credentials.partition(" ")[2] in text:  # some proxies answer with the request
        text = ""
    return f"status {code}: {text[:_MOST_QUOTED]}" if text else f"status {code}"


def _server_time(response: requests.Response) -> float | None:
    try:
        return parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
    except (ValueError, OverflowError):
        return None


def _verdict(error: requests.RequestException) -> Verdict:
    """Only where it is certain that nothing was sent may the alert count as unknown to Alertmanager."""
    root = root_cause(error)
    connecting = isinstance(error, requests.ConnectTimeout) or isinstance(
        root, ssl.SSLCertVerificationError | ConnectionRefusedError
    )
    return Verdict.UNREACHED if connecting else Verdict.FAILED


def _reason(error: requests.RequestException) -> str:
    """What the operating system or OpenSSL said. The libraries' own texts have addresses of objects in them."""
    root = root_cause(error)
    if isinstance(root, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {root.verify_message}; check tls_config in --alertmanager.config.file"
    if isinstance(root, ssl.SSLError) and root.reason:
        return f"TLS: {root.reason.replace('_', ' ').lower()}"
    if isinstance(root, OSError) and root.strerror:
        return root.strerror
    if isinstance(error, requests.ConnectTimeout):
        return f"no connection within {_CONNECT_SECONDS:g} s"
    if isinstance(error, requests.Timeout):
        return f"no answer within {_READ_SECONDS:g} s"
    return f"{type(root).__name__}: {root}"[:_MOST_QUOTED]


def root_cause(error: BaseException) -> BaseException:
    """The first cause: requests wraps urllib3's error, which wraps the system's."""
    for _ in range(16):
        inner = error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    return error
