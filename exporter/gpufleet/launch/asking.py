"""Asks the node's exporter and the quarantine service over HTTP or a unix socket, with a limit for everything."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from gpufleet.launch.verdict import Answer, AnswerError, Fault, culprit, parse_answer

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_BYTES = 1 << 16
_CALL_SECONDS = 1.5
_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 0.05


class AskingError(Exception):
    """Nobody has answered; says whom and why."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run by its names; empty: not known."""

    project: str = ""
    run: str = ""
    otherwise: str = ""
    """The run's name as long as no place has said what it is called."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Where to ask, and for how long a clean answer is not believed yet."""

    url: str
    """``http://HOST:PORT``, ``https://…`` or ``unix:PATH``."""
    path: str
    about: Run | None = None
    """What to ask about; None: the place knows by who asks. A run without a name is first learned elsewhere."""
    patience: float = 0.0
    """Seconds after the end in which what is not known may still become known."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Monotonic times."""

    started: float
    ended: float
    until: float


def judged(places: tuple[Asked, ...], limits: Limits, pause: Callable[[float], bool]) -> tuple[Fault | None, list[str]]:
    """The hardware fault that ended the program, if there is one, and why whom could not be asked.

    ``pause`` waits so many seconds, and says whether to give up. Each place is asked on a thread of its own, which is
    left behind when time is up: a name server that hangs or a peer that drips must neither outlast the limit nor keep
    the other place from being heard.
    """
    learned: list[Run] = []
    inquiries = [_Inquiry(place, limits, learned) for place in places]
    for each in inquiries:
        each.start()
    while True:
        over = all(each.over for each in inquiries)
        fault = next((each.fault for each in inquiries if each.fault is not None), None)
        if fault is not None:
            return fault, []
        left = limits.until - time.monotonic()
        if over or left <= 0:
            return None, [each.silent for each in inquiries if each.silent]
        if pause(min(_LOOK_SECONDS, left)):
            return None, []


class _Inquiry(threading.Thread):
    """Asks one place until it knows, or until its patience is over."""

    def __init__(self, place: Asked, limits: Limits, learned: list[Run]) -> None:
        """``learned`` is shared by all: what one place calls our run."""
        super().__init__(name="asking", daemon=True)
        self._place = place
        self._limits = limits
        self._learned = learned
        self.fault: Fault | None = None
        self.silent = f"{place.url} has not answered in time"
        """Why there is no verdict; empty after an answer that says all."""
        self.over = False

    def run(self) -> None:
        try:
            while not self._asked():
                time.sleep(_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - a flaw of ours is no reason for another exit status
            self.silent = f"{self._place.url} cannot be asked: {error!r}"
        self.over = True

    def _asked(self) -> bool:
        """Ask once; whether that was the last time."""
        place, limits = self._place, self._limits
        now = time.monotonic()
        left = limits.until - now
        if left <= 0:
            return True
        # As of the question, not of the answer: whatever the way took, a fault from before the start stays one.
        age = now - limits.started
        settling = False
        try:
            answer = ask(place, age, min(left, _CALL_SECONDS), self._about())
        except AskingError as error:
            # It may be starting again just now: asked until patience is over, as for an answer that says nothing.
            self.silent = str(error)
        else:
            self.silent = f"{place.url} does not know: {answer.unknown}" if answer.unknown else ""
            self.fault = culprit(answer, age)
            settling = answer.settling
            if answer.run:
                self._learned.append(Run(answer.project, answer.run))
        return self.fault is not None or (not settling and time.monotonic() - limits.ended >= place.patience)

    def _about(self) -> Run | None:
        about = self._place.about
        if about is None or about.run:
            return about
        if self._learned:
            return self._learned[-1]
        if about.otherwise:
            return Run(about.project, about.otherwise)
        raise AskingError(f"{self._place.url} is not asked: the exporter has not said what this run is called")


def ask(place: Asked, age: float, seconds: float, about: Run | None = None) -> Answer:
    """One question; ``age`` is how long ago the program was started, so that no clocks need agree.

    Raises:
        AskingError: nobody answered in time, or with something else.
    """
    named = () if about is None else (("project", about.project), ("run", about.run))
    target = f"{place.path}?age={age:.3f}" + "".join(
        f"&{name}={quote(value, safe='')}" for name, value in named if value
    )
    connection = _connection(place.url, seconds)
    try:
        connection.request("GET", target, headers={"Host": "gpufleet", "Connection": "close"})
        response = connection.getresponse()
        body = response.read(_MOST_BYTES)
        if response.status != 200:
            said = body.decode("utf-8", "replace").strip()[:200]
            raise AskingError(f"{place.url} answers {response.status}: {said}")
        return parse_answer(body)
    except AnswerError as error:
        raise AskingError(f"{place.url}: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise AskingError(f"{place.url} does not answer: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()


def _connection(url: str, seconds: float) -> http.client.HTTPConnection:
    if url.startswith("unix:"):
        return _UnixConnection(url.removeprefix("unix:"), seconds)
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AskingError(f"{url!r} is no address: {error}") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise AskingError(f"{url!r} is no address: write http://HOST:PORT, https://HOST:PORT or unix:PATH")
    if parts.scheme == "https":
        import ssl

        return http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=seconds)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
