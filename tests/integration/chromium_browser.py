"""Headless Chromium: a page as a person's browser shows it, driven through its debugging pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--no-sandbox",  # its sandbox refuses to run as root, as tests in a container do
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    # It asks its maker's hosts on its own account; no test reaches beyond loopback.
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
_LIMIT_SECONDS = 60.0


@dataclass(slots=True)
class Page:
    """One page of a running browser. What happened on it so far is in the three lists."""

    _pipe: _Pipe
    _session: str
    requested: list[str] = field(default_factory=list)
    """The address of each request that the page made, itself first."""
    failed: list[str] = field(default_factory=list)
    """Why each request failed that did."""
    console: list[str] = field(default_factory=list)
    """Errors of scripts, and what the browser found wrong with the page (content security policy and so on)."""

    def html(self) -> str:
        """The document as it is now."""
        return str(self.evaluate("document.documentElement.outerHTML"))

    def text(self) -> str:
        """The text that a person sees, as it is now."""
        return str(self.evaluate("document.body.innerText"))

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 - whatever JSON the expression gives
        """The value of a JavaScript expression in the page, also where the page's own scripts are off."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def screenshot(self, to: Path) -> None:
        """Write a PNG picture of the page."""
        to.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        result = self._pipe.call(method, parameters, session=self._session)
        self._take_events()
        return result

    def _take_events(self) -> None:
        for event in self._pipe.take_events(self._session):
            match event["method"], event["params"]:
                case "Network.requestWillBeSent", parameters:
                    self.requested.append(parameters["request"]["url"])
                case "Network.loadingFailed", parameters:
                    self.failed.append(parameters["errorText"])
                case "Runtime.exceptionThrown", parameters:
                    self.console.append(str(parameters["exceptionDetails"]))
                case "Log.entryAdded", parameters:
                    self.console.append(parameters["entry"]["text"])


@dataclass(frozen=True, slots=True)
class ChromiumBrowser:
    """One Chromium binary."""

    path: Path

    @contextmanager
    def page(self, url: str, *, javascript: bool = True, size: tuple[int, int] = (1280, 900)) -> Iterator[Page]:
        """Open ``url`` in a browser of its own with an empty profile and wait until it has loaded; then end it."""
        with (
            tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile,
            self._running(profile, size) as pipe,
        ):
            target = pipe.call("Target.createTarget", {"url": "about:blank"})["targetId"]
            session = pipe.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
            for method in ("Page.enable", "Network.enable", "Runtime.enable", "Log.enable"):
                pipe.call(method, {}, session=session)
            if not javascript:
                pipe.call("Emulation.setScriptExecutionDisabled", {"value": True}, session=session)
            pipe.forget_events()
            answer = pipe.call("Page.navigate", {"url": url}, session=session)
            assert "errorText" not in answer, f"{url}: {answer['errorText']}"
            pipe.wait_for("Page.loadEventFired", session)
            page = Page(pipe, session)
            page._take_events()
            yield page

    @contextmanager
    def _running(self, profile: str, size: tuple[int, int]) -> Iterator[_Pipe]:
        command_end, commands = _pipe_from_10_on()
        answers, answer_end = _pipe_from_10_on()
        command: list[str | Path] = [
            # Chromium reads commands from descriptor 3 and answers on 4, which subprocess itself can't assign. Of the
            # shells, dash refuses to copy descriptors of two digits.
            *("bash", "-c", f'exec "$@" 3<&{command_end} 4>&{answer_end} {command_end}<&- {answer_end}>&-', "bash"),
            *(self.path, *_FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"),
        ]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(command_end, answer_end),
                start_new_session=True,
            )
        finally:
            os.close(command_end)
            os.close(answer_end)
        try:
            yield _Pipe(commands, answers)
        finally:
            os.close(commands)
            os.close(answers)
            with suppress(ProcessLookupError):  # its helper processes share its session and may outlive it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=15)


def _pipe_from_10_on() -> tuple[int, int]:
    """A pipe whose descriptors are out of the way of 3 and 4."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in low)
    for each in low:
        os.close(each)
    return high[0], high[1]


class _Pipe:
    """The DevTools protocol over two pipes: JSON messages, each ended by a zero byte."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._unread = b""
        self._last_id = 0
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _LIMIT_SECONDS
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def wait_for(self, method: str, session: str) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not any(each.get("method") == method and each.get("sessionId") == session for each in self._events):
            self._events.append(self._next(deadline, method))

    def take_events(self, session: str) -> list[dict[str, Any]]:
        taken = [each for each in self._events if each.get("sessionId") == session]
        self.forget_events()
        return taken

    def forget_events(self) -> None:
        self._events.clear()

    def _next(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\0" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"Chromium: no {waiting_for} within {_LIMIT_SECONDS:g} s")
                chunk = os.read(self._answers, 1 << 16)
                if not chunk:
                    raise ChildProcessError(f"Chromium ended before {waiting_for}")
                self._unread += chunk
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
