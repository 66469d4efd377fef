"""Prometheus, or what answers like it, as the report asks it: a query in, checked samples out."""

from __future__ import annotations

import http.client
import math
import socket
import ssl
import time
from collections.abc import Callable, Sequence

import msgspec
import requests
from urllib3.exceptions import IncompleteRead, InvalidChunkLength

from gpufleet.commands.report_rows import Sample
from gpufleet.notify.client_config import ClientConfig
from gpufleet.notify.credentials import CredentialsError, authorization
from gpufleet.notify.session import open_session, root_cause

MOST_BYTES = 10_000_000
"""Of an answer: about 50,000 runs."""
_CHUNK = 65_536
_CONNECT_SECONDS = 5.0
_MOST_QUOTED = 300
_MOST_WARNINGS = 10
_CONFIG = "--prometheus.config.file"


class PrometheusError(Exception):
    """Prometheus could not be asked, or its answer is none; the message says why, and what to look at."""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815 - the API's name
    result: msgspec.Raw


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    errorType: str = ""  # noqa: N815 - the API's name
    error: str = ""
    warnings: list[str] = []


class Prometheus:
    """The client of one Prometheus. To be used by one thread."""

    def __init__(
        self,
        url: str,
        config: ClientConfig,
        *,
        timeout: float,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``url`` is what comes before ``/api``; ``timeout`` in seconds is for each query as a whole.

        ``warn`` gets what Prometheus has to say about an answer that it gives all the same, each text once.
        """
        self._url = f"{url}/api/v1/query"
        self._config = config
        self._timeout = timeout
        self._warn = warn
        self._clock = clock
        self._warned: set[str] = set()
        try:
            self._session = open_session(url, config)
        except CredentialsError as error:
            raise PrometheusError(f"{_CONFIG}: {error}") from error
        del self._session.headers["Content-Type"]

    def instant(self, query: str, at: float) -> Sequence[Sample]:
        """The vector that ``query`` is at the Unix time ``at``. Raises PrometheusError."""
        return self._samples(self._decoded(self._get(query, at)))

    def _get(self, query: str, at: float) -> bytes:
        """The body of an answer with status 200."""
        until = self._clock() + self._timeout
        try:
            credentials = authorization(self._config)
            with self._session.get(
                self._url,
                params={"query": query, "time": f"{at:.3f}", "timeout": f"{max(round(self._timeout), 1)}s"},
                headers={} if credentials is None else {"Authorization": credentials},
                timeout=(min(_CONNECT_SECONDS, self._timeout), self._timeout),
                allow_redirects=False,  # a Location does not get our credentials
                stream=True,
            ) as response:
                body = self._body(response, until)
        except CredentialsError as error:
            raise PrometheusError(f"{_CONFIG}: {error}") from error
        except requests.RequestException as error:
            raise PrometheusError(f"{self._url}: {self._reason(error)}") from error
        finally:
            # Some servers hang up after an answer without saying so; a connection from a pool may be such a one.
            self._session.close()
        if response.status_code != 200:
            raise PrometheusError(f"{self._url}: {_refusal(response.status_code, body)}")
        return body

    def _body(self, response: requests.Response, until: float) -> bytes:
        parts = []
        length = 0
        for chunk in response.iter_content(_CHUNK):
            parts.append(chunk)
            length += len(chunk)
            if length > MOST_BYTES:
                raise PrometheusError(
                    f"{self._url}: an answer of more than {MOST_BYTES // 1_000_000} MB: ask for less with "
                    "--by=project, --cluster or a shorter --last"
                )
            if self._clock() > until:
                raise PrometheusError(f"{self._url}: the answer did not end within {self._timeout:g} s")
        return b"".join(parts)

    def _decoded(self, body: bytes) -> _Answer:
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PrometheusError(
                f"{self._url}: the answer is not Prometheus's ({error}); is --prometheus.url right?"
            ) from error
        if answer.status != "success":
            raise PrometheusError(f"{self._url}: {_printable(answer.errorType)}: {_printable(answer.error)}")
        for warning in answer.warnings[:_MOST_WARNINGS]:
            if warning not in self._warned:
                self._warned.add(warning)
                self._warn(_printable(warning))
        return answer

    def _samples(self, answer: _Answer) -> Sequence[Sample]:
        data = answer.data
        kind = "nothing" if data is None else data.resultType
        if data is None or kind != "vector":
            raise PrometheusError(f"{self._url}: the answer is {_printable(kind)} and should be a vector")
        try:
            found = msgspec.json.decode(data.result, type=list[_Series])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PrometheusError(f"{self._url}: the answer is not Prometheus's ({error})") from error
        samples = [Sample(series.metric, self._number(series.value[1])) for series in found]
        if len({tuple(sorted(sample.labels.items())) for sample in samples}) != len(samples):
            raise PrometheusError(f"{self._url}: the answer has a series twice; does something merge several servers?")
        return samples

    def _number(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0.0 <= number < math.inf:
            raise PrometheusError(
                f"{self._url}: {_printable(text)!r} is no sum of time or money; are the run:… series those of "
                f"alerts/gpufleet-cost.yaml?"
            )
        return number

    def _reason(self, error: requests.RequestException) -> str:
        """What the operating system or OpenSSL said; the libraries' own texts have addresses of objects in them."""
        root = root_cause(error)
        if isinstance(root, http.client.RemoteDisconnected):
            return "it hung up without an answer; try again"
        if isinstance(root, http.client.IncompleteRead | IncompleteRead | InvalidChunkLength):
            return "its answer broke off; try again"
        if isinstance(root, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {root.verify_message}; check tls_config in {_CONFIG}"
        if isinstance(root, ssl.SSLError) and root.reason:
            return f"TLS: {root.reason.replace('_', ' ').lower()}"
        if isinstance(error, requests.ConnectTimeout):
            return f"no connection within {min(_CONNECT_SECONDS, self._timeout):g} s"
        if isinstance(error, requests.Timeout):
            return f"no answer within {self._timeout:g} s"
        if isinstance(root, ConnectionRefusedError):
            return "nobody listens there; check host and port of --prometheus.url, and whether it runs"
        if isinstance(root, socket.gaierror):
            return "the host is not known; check --prometheus.url"
        if isinstance(root, OSError) and root.strerror:
            return root.strerror
        return _printable(f"{type(root).__name__}: {root}")


def _refusal(status: int, body: bytes) -> str:
    if status in (401, 403):
        return f"status {status}: check basic_auth or authorization in {_CONFIG}"
    if 300 <= status < 400:
        return f"status {status}: a redirect is not followed; give --prometheus.url as the place that answers itself"
    try:
        answer = msgspec.json.decode(body, type=_Answer)
        text = f"{answer.errorType}: {answer.error}" if answer.error else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode(errors="replace").strip()
    if status == 404:
        return "status 404: no Prometheus API there; check the path of --prometheus.url (Mimir's ends in /prometheus)"
    return f"status {status}: {_printable(text)}" if text else f"status {status}"


def _printable(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.split())[:_MOST_QUOTED]
