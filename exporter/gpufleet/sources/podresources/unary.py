"""One gRPC call with an empty request and one reply, as HTTP/2 on a connection of its own. No I/O: bytes in, bytes out.

The window that we offer is as large as the largest reply, so that neither side ever waits for the other's credit.
Sources: gRPC over HTTP/2 (grpc/grpc doc/PROTOCOL-HTTP2.md), RFC 9113.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

LARGEST_REPLY = 16 << 20
"""Bytes; a kubelet sends no more (its server's own limit)."""
OK = 0
_PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""
_EMPTY_MESSAGE = bytes(_PREFIX)
_DEFAULT_WINDOW = 65_535
_SETTINGS_FRAME = 4
"""Type, in the fourth byte of a frame, of the one that a server begins with."""
_LARGEST_HEADERS = 16 << 10
_OVERHEAD = 1 << 20
"""Bytes of frames, headers and pings around the largest reply: a peer that sends more is not about to finish."""
_LONGEST_TEXT = 300
"""Characters of what the peer says of an error; it goes into a log line."""


class BrokenCall(Exception):
    """What came is no answer to the call; says why."""


class RefusedCall(Exception):
    """The service answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message or f"status {status}")
        self.status = status
        """Of gRPC, not 0."""
        self.message = message
        """What the service says of it: one line, bounded, may be empty."""


class UnaryCall:
    """One call: send ``opening()``; give what comes to ``receive`` and send what it returns, until ``reply`` is set."""

    def __init__(self, path: str, *, timeout: float) -> None:
        """``path`` is ``/package.Service/Method``; ``timeout`` in seconds is told to the server, not watched here."""
        self.reply: bytes | None = None
        """The message, once the call has ended well."""
        self._path = path
        self._timeout = timeout
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self._http.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: LARGEST_REPLY + _PREFIX,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: _LARGEST_HEADERS,
            },
        )
        self._http.decoder.max_header_list_size = _LARGEST_HEADERS
        self._stream = self._http.get_next_available_stream_id()
        self._received = 0
        self._body = bytearray()
        self._headers: dict[bytes, bytes] = {}

    def opening(self) -> bytes:
        """All that we have to say: connection, request and its end."""
        self._http.initiate_connection()
        self._http.increment_flow_control_window(LARGEST_REPLY + _PREFIX - _DEFAULT_WINDOW)
        self._http.send_headers(
            self._stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", self._path),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "gpufleet"),
                ("grpc-timeout", f"{max(1, int(self._timeout * 1000))}m"),
            ],
        )
        self._http.send_data(self._stream, _EMPTY_MESSAGE, end_stream=True)
        return self._http.data_to_send()

    def receive(self, data: bytes) -> bytes:
        """Take what came; returns what has to be sent now (often nothing).

        Raises:
            BrokenCall: it is no HTTP/2, no gRPC, too much, or the end of the connection (``data`` is empty).
            RefusedCall: the service answered with an error.
        """
        if not data:
            raise BrokenCall("it ended the connection before its reply was whole")
        if not self._received and len(data) > 3 and data[3] != _SETTINGS_FRAME:
            # h2 would wait for the rest of a frame whose length is in truth a piece of text: "HTT" is 4.5 MiB.
            raise BrokenCall("it does not speak HTTP/2")
        self._received += len(data)
        if self._received > LARGEST_REPLY + _OVERHEAD:
            raise BrokenCall(f"it sends more than {LARGEST_REPLY >> 20} MiB")
        try:
            events = self._http.receive_data(data)
            for event in events:
                self._take(event)
                if self.reply is not None:
                    return b""
            return self._http.data_to_send()
        except h2.exceptions.FlowControlError as error:
            raise BrokenCall(f"it sends more than {LARGEST_REPLY >> 20} MiB") from error
        except h2.exceptions.H2Error as error:
            raise BrokenCall(f"it does not speak HTTP/2 as a gRPC server does ({_line(str(error))})") from error

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self._take_headers(event)
            case h2.events.TrailersReceived():
                self._headers |= _headers(event)
            case h2.events.DataReceived():
                self._take_data(event)
            case h2.events.StreamEnded():
                self.reply = self._result()
            case h2.events.StreamReset():
                raise BrokenCall(f"it broke off its reply (RST_STREAM, code {int(event.error_code or 0)})")
            case h2.events.ConnectionTerminated():
                raise BrokenCall(
                    f"it is ending its connections (GOAWAY, code {int(event.error_code or 0)}), as at a restart"
                )
            case _:  # settings, windows, pings: h2 answers them
                pass

    def _take_headers(self, event: h2.events.ResponseReceived) -> None:
        self._headers = _headers(event)
        status = self._headers.get(b":status", b"")
        if status != b"200":
            raise BrokenCall(f"it answers with HTTP status {_line(status.decode('ascii', 'replace'))}: no gRPC service")
        kind = self._headers.get(b"content-type", b"")
        if not kind.startswith(b"application/grpc"):
            raise BrokenCall(f"it answers with {_line(kind.decode('ascii', 'replace')) or 'no content-type'}, not gRPC")

    def _take_data(self, event: h2.events.DataReceived) -> None:
        body = self._body
        body += event.data or b""
        if len(body) < _PREFIX:
            return
        if body[0]:
            raise BrokenCall("its reply is compressed, which we did not offer")
        length = int.from_bytes(body[1:_PREFIX], "big")
        if length > LARGEST_REPLY:
            raise BrokenCall(f"its reply has {length} bytes; {LARGEST_REPLY >> 20} MiB are read at most")
        if len(body) > _PREFIX + length:
            raise BrokenCall("it sends more than one reply")

    def _result(self) -> bytes:
        text = self._headers.get(b"grpc-status", b"")
        # At most 16 in gRPC; int() would also take signs, spaces and underscores.
        if not text.isdigit() or len(text) > 4:
            raise BrokenCall("it ended its reply without a status")
        status = int(text)
        if status != OK:
            message = unquote_to_bytes(self._headers.get(b"grpc-message", b"")[: 3 * _LONGEST_TEXT])
            raise RefusedCall(status, _line(message.decode("utf-8", "replace")))
        body = self._body
        if len(body) < _PREFIX or len(body) != _PREFIX + int.from_bytes(body[1:_PREFIX], "big"):
            raise BrokenCall("its reply is incomplete, though it says that all is well")
        return bytes(memoryview(body)[_PREFIX:])


def _headers(event: h2.events.ResponseReceived | h2.events.TrailersReceived) -> dict[bytes, bytes]:
    return {bytes(name): bytes(value) for name, value in event.headers or ()}


def _line(text: str) -> str:
    """A bounded line of printable characters: whoever listens at the socket has chosen the rest."""
    shown = "".join(each if each.isprintable() else " " for each in text[: _LONGEST_TEXT + 1])
    return shown if len(shown) <= _LONGEST_TEXT else shown[:_LONGEST_TEXT] + "…"
