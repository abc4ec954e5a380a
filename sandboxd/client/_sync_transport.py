"""Carries `Call` values to the daemon over its Unix socket, for threads.

Connections are kept for the next call where both sides allow it; a connection carries one call at
a time, and one whose answer was not read to its end is closed. Nothing is ever sent twice, because
the client cannot know whether the daemon has already acted.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket as sockets
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import httptools

from sandboxd.client._call import Call
from sandboxd.client._http import (
    CONNECT_TIMEOUT_S,
    DEFAULT_REQUEST_TIMEOUT_S,
    KEEPALIVE_S,
    LAST_CHUNK,
    MAX_IDLE_CONNECTIONS,
    RECEIVE_BYTES,
    UPGRADE_STEP_BYTES,
    Response,
    encode_chunk,
    encode_request,
    encode_upgrade,
    lost,
    socket_path,
    too_slow,
    unavailable,
)

T = TypeVar("T")


class _SyncConnection:
    """A connected socket; carries the errors of its use over into the client's own."""

    def __init__(self, path: str, call: Call[T]) -> None:
        self._path = path
        self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self._timeout_s: float | None = CONNECT_TIMEOUT_S
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self.idle_since = 0.0
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise unavailable(path, call, error) from error

    def close(self) -> None:
        self._socket.close()

    def detach(self) -> sockets.socket:
        """The socket, blocking; the caller's from here on."""
        self._socket.settimeout(None)
        return self._socket

    def is_fresh(self) -> bool:
        """Idle for a short time only, and the daemon has neither closed it nor said anything."""
        if time.monotonic() - self.idle_since > KEEPALIVE_S:
            return False
        return not self._poll.poll(0)

    def _set_timeout(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:  # each setting is a system call
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s

    def send(self, data: bytes, call: Call[T], timeout_s: float | None) -> bool:
        """False when the daemon takes no more; it may have answered already, and why."""
        self._set_timeout(timeout_s)
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise too_slow(self._path, call, timeout_s) from error
        except (BrokenPipeError, ConnectionResetError):
            return False
        except OSError as error:
            raise lost(self._path, call, str(error)) from error
        return True

    def receive(
        self,
        response: Response,
        call: Call[T],
        timeout_s: float | None,
        max_bytes: int = RECEIVE_BYTES,
    ) -> None:
        self._set_timeout(timeout_s)
        try:
            data = self._socket.recv(max_bytes)
            if data:
                response.feed(data)
                return
        except TimeoutError as error:
            raise too_slow(self._path, call, timeout_s) from error
        except (OSError, httptools.HttpParserError) as error:
            raise lost(self._path, call, str(error)) from error
        raise lost(self._path, call, "the daemon closed it")


class SyncTransport:
    """Safe to share between threads."""

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self.socket = socket_path(socket)
        self._lock = threading.Lock()
        self._idle: list[_SyncConnection] = []
        """Guarded by the lock; the last one was used last."""

    def close(self) -> None:
        """Closes what is idle. A call in progress is not touched."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def call(
        self,
        call: Call[T],
        *,
        content: Iterable[bytes] | None = None,
        timeout_s: float | None = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> T:
        """Sends the call's body, or `content` in chunks, and reads the whole answer."""
        with self.stream(call, content=content, timeout_s=timeout_s) as chunks:
            return call.parse(b"".join(chunks))

    @contextlib.contextmanager
    def stream(
        self,
        call: Call[T],
        *,
        content: Iterable[bytes] | None = None,
        timeout_s: float | None = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> Iterator[Iterator[bytes]]:
        """Yields the body of a successful answer, piece by piece.

        `timeout_s` bounds each wait for the daemon, not their sum. Leaving before the end of the
        body closes the connection, which is how the daemon learns of it.
        """
        connection = self._connection(call)
        response = Response()
        sent = False
        try:
            head = encode_request(call, streamed=content is not None)
            sent = connection.send(head, call, timeout_s)
            if sent and content is not None:
                sent = self._send_content(connection, content, call, timeout_s)
            while response.status is None:
                connection.receive(response, call, timeout_s)
            chunks = self._body(connection, response, call, timeout_s)
            if response.status >= 300:
                raise call.error(response.status, b"".join(chunks))
            yield chunks
        finally:
            if sent and response.reusable:
                self._keep(connection)
            else:
                connection.close()

    def upgrade(self, call: Call[None], protocol: str) -> sockets.socket:
        """A connection of its own that speaks `protocol`, as a blocking socket."""
        connection = _SyncConnection(self.socket, call)
        timeout_s = DEFAULT_REQUEST_TIMEOUT_S
        response = Response()
        try:
            connection.send(encode_upgrade(call, protocol), call, timeout_s)
            while response.status is None:
                connection.receive(response, call, timeout_s, UPGRADE_STEP_BYTES)
            if not response.upgraded:
                body = b"".join(self._body(connection, response, call, timeout_s))
                raise call.error(response.status, body)
        except BaseException:
            connection.close()
            raise
        return connection.detach()

    @staticmethod
    def _send_content(
        connection: _SyncConnection,
        content: Iterable[bytes],
        call: Call[T],
        timeout_s: float | None,
    ) -> bool:
        for chunk in content:
            if not connection.send(encode_chunk(chunk), call, timeout_s):
                return False
        return connection.send(LAST_CHUNK, call, timeout_s)

    @staticmethod
    def _body(
        connection: _SyncConnection, response: Response, call: Call[T], timeout_s: float | None
    ) -> Iterator[bytes]:
        yield from response.take_body()
        while not response.complete:
            connection.receive(response, call, timeout_s)
            yield from response.take_body()

    def _connection(self, call: Call[T]) -> _SyncConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return _SyncConnection(self.socket, call)
            if connection.is_fresh():
                return connection
            connection.close()

    def _keep(self, connection: _SyncConnection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            if len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()
