"""HTTP/1.1 as the client speaks it: requests to bytes, bytes to a response. No I/O here.

Does not handle: redirects, trailers, responses without a length (the daemon sends none).
"""

from __future__ import annotations

import os
import stat
from typing import TypeVar

import httptools

from sandboxd.client._call import Call
from sandboxd.client.errors import ConnectionLost, DaemonUnavailable
from sandboxd.errors import OperationTimeout
from sandboxd.protocol import DEFAULT_SOCKET, SOCKET_ENV

T = TypeVar("T")
Socket = str | os.PathLike[str] | None

DEFAULT_REQUEST_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
# A command's end is reported by the daemon; this much later the daemon itself is taken for hung.
EXEC_GRACE_S = 30.0
# Below the daemon's 5 s, so that an idle connection is dropped here first, not under a request.
KEEPALIVE_S = 4.0
MAX_IDLE_CONNECTIONS = 32
# Room for more is a mapping of its own for each receive, which costs ten times as much.
RECEIVE_BYTES = 64 << 10
# Of an answer that may be an upgrade: whatever follows its head is not the client's to read.
UPGRADE_STEP_BYTES = 1
LAST_CHUNK = b"0\r\n\r\n"


def encode_request(call: Call[T], *, streamed: bool) -> bytes:
    """The head, and the call's body unless that is `streamed` in chunks after it."""
    # The Host header is required by HTTP/1.1 and means nothing on a Unix socket.
    head = [f"{call.method} {call.target} HTTP/1.1\r\nHost: sandboxd\r\n"]
    if call.content_type is not None:
        head.append(f"Content-Type: {call.content_type}\r\n")
    if streamed:
        head.append("Transfer-Encoding: chunked\r\n\r\n")
        return "".join(head).encode()
    head.append(f"Content-Length: {len(call.body)}\r\n\r\n")
    return "".join(head).encode() + call.body


def encode_upgrade(call: Call[T], protocol: str) -> bytes:
    """The head of a request after which the connection is to speak `protocol`."""
    return (
        f"{call.method} {call.target} HTTP/1.1\r\nHost: sandboxd\r\n"
        f"Connection: upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    ).encode()


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Response:
    """One answer, fed with bytes as they come."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self.upgraded = False
        """What follows is another protocol's."""
        self.status: int | None = None
        self.complete = False
        self.reusable = False
        """The connection may carry another request; only once the answer is complete."""

    def feed(self, data: bytes) -> None:
        """Raises `httptools.HttpParserError` for what is not HTTP."""
        if self.complete:
            raise httptools.HttpParserError("bytes after the end of the answer")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.upgraded = True

    def take_body(self) -> list[bytes]:
        """What has come of the body since the last call."""
        body, self._body = self._body, []
        return body

    # Called by the parser.

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True
        self.reusable = self._parser.should_keep_alive()


# What can go wrong with a connection. Every error names the socket and what was asked for.


def socket_path(socket: str | os.PathLike[str] | None) -> str:
    """The given socket, else $VENUS_SOCKET, else the default."""
    return os.fspath(socket) if socket is not None else os.environ.get(SOCKET_ENV) or DEFAULT_SOCKET


def unavailable(socket: str, call: Call[T], error: OSError) -> DaemonUnavailable:
    """The request was not sent."""
    return DaemonUnavailable(
        f"no daemon answers at {socket}",
        operation=call.operation,
        object=call.object,
        cause=_why_unreachable(socket, error),
    )


def lost(socket: str, call: Call[T], cause: str) -> ConnectionLost:
    """The outcome of the request is unknown."""
    return ConnectionLost(
        f"the connection to {socket} was lost",
        operation=call.operation,
        object=call.object,
        cause=cause,
    )


def too_slow(socket: str, call: Call[T], timeout_s: float | None) -> OperationTimeout:
    return OperationTimeout(
        f"the daemon at {socket} was silent for {timeout_s:g} s"
        if timeout_s is not None
        else f"the daemon at {socket} was silent for too long",
        operation=call.operation,
        object=call.object,
    )


def _why_unreachable(socket: str, failure: OSError) -> str:
    try:
        mode = os.stat(socket).st_mode
    except FileNotFoundError:
        return "the socket does not exist; is sandboxd running?"
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISSOCK(mode):
        return "it is not a socket"
    if not os.access(socket, os.W_OK):
        return "permission denied; it is open to root and to the members of its group"
    if isinstance(failure, ConnectionRefusedError):
        return "the socket exists, but nobody listens; was sandboxd killed?"
    return failure.strerror or str(failure) or type(failure).__name__
