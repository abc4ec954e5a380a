"""HTTP over the daemon's Unix socket, for threads and for asyncio. Carries out `Call` values.

Every failure of the connection becomes `DaemonUnavailable` (the request was not sent) or
`ConnectionLost` (its outcome is unknown); both name the socket. Nothing is retried here, because
the client cannot know whether the daemon has already acted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TypeVar

import httpcore

from sandboxd.client._calls import Call
from sandboxd.client.errors import ConnectionLost, DaemonUnavailable
from sandboxd.errors import LimitExceeded, OperationTimeout, VenusError
from sandboxd.protocol import DEFAULT_SOCKET, SOCKET_ENV

T = TypeVar("T")

DEFAULT_REQUEST_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
# A command's end is reported by the daemon; this much later the daemon itself is taken for hung.
EXEC_GRACE_S = 30.0
# Below uvicorn's 5 s, so that a connection is dropped here before the daemon closes it.
KEEPALIVE_EXPIRY_S = 4.0
# A running command holds a connection, so this bounds commands at once through one client.
MAX_CONNECTIONS = 1024
MAX_KEEPALIVE_CONNECTIONS = 32

# Order matters to readers only: a ConnectTimeout is also a TimeoutException.
_UNREACHABLE = (httpcore.ConnectError, httpcore.ConnectTimeout)
_FAILURES = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


def socket_path(socket: str | os.PathLike[str] | None) -> str:
    """The given socket, else $VENUS_SOCKET, else the default."""
    return os.fspath(socket) if socket is not None else os.environ.get(SOCKET_ENV) or DEFAULT_SOCKET


def _timeouts(timeout_s: float | None) -> dict[str, dict[str, float | None]]:
    return {
        "timeout": {
            "connect": CONNECT_TIMEOUT_S,
            "pool": timeout_s,
            "read": timeout_s,
            "write": timeout_s,
        }
    }


def _translated(error: Exception, socket: str, call: Call[T]) -> VenusError:
    cause = str(error) or type(error).__name__
    if isinstance(error, _UNREACHABLE):
        return DaemonUnavailable(
            f"no daemon answers at {socket}",
            operation=call.operation,
            object=call.object,
            cause=_why_unreachable(socket) or cause,
        )
    if isinstance(error, httpcore.PoolTimeout):
        return LimitExceeded(
            f"all {MAX_CONNECTIONS} connections of this client are busy",
            operation=call.operation,
            object=call.object,
        )
    if isinstance(error, httpcore.TimeoutException):
        return OperationTimeout(
            f"the daemon at {socket} did not answer in time",
            operation=call.operation,
            object=call.object,
            cause=cause,
        )
    return ConnectionLost(
        f"the connection to {socket} was lost",
        operation=call.operation,
        object=call.object,
        cause=cause,
    )


def _why_unreachable(socket: str) -> str:
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
    return "the socket exists, but nobody listens; was sandboxd killed?"


class SyncTransport:
    """Safe to share between threads."""

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self.socket = socket_path(socket)
        self._pool = httpcore.ConnectionPool(
            uds=self.socket,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_KEEPALIVE_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_EXPIRY_S,
        )

    def close(self) -> None:
        self._pool.close()

    def call(
        self,
        call: Call[T],
        *,
        content: Iterable[bytes] | None = None,
        timeout_s: float | None = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> T:
        """Sends the call's body, or `content` as a stream, and reads the whole answer."""
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
        """Yields the body of a successful answer; leaving early closes the connection."""
        headers = call.headers() if content is None else _streamed_headers(call)
        response: httpcore.Response | None = None
        try:
            response = self._pool.handle_request(
                httpcore.Request(
                    call.method.encode(),
                    f"http://sandboxd{call.target}",
                    headers=headers,
                    content=call.body if content is None else content,
                    extensions=_timeouts(timeout_s),
                )
            )
            if response.status >= 300:
                raise call.error(response.status, response.read())
            yield self._chunks(response, call)
        except _FAILURES as error:
            raise _translated(error, self.socket, call) from error
        finally:
            if response is not None:
                response.close()

    def _chunks(self, response: httpcore.Response, call: Call[T]) -> Iterator[bytes]:
        try:
            yield from response.iter_stream()
        except _FAILURES as error:
            raise _translated(error, self.socket, call) from error


class AsyncTransport:
    """Belongs to the event loop in which it is first used."""

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self.socket = socket_path(socket)
        self._pool = httpcore.AsyncConnectionPool(
            uds=self.socket,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_KEEPALIVE_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_EXPIRY_S,
        )

    async def close(self) -> None:
        await self._pool.aclose()

    async def call(
        self,
        call: Call[T],
        *,
        content: AsyncIterable[bytes] | None = None,
        timeout_s: float | None = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> T:
        async with self.stream(call, content=content, timeout_s=timeout_s) as chunks:
            return call.parse(b"".join([chunk async for chunk in chunks]))

    @contextlib.asynccontextmanager
    async def stream(
        self,
        call: Call[T],
        *,
        content: AsyncIterable[bytes] | None = None,
        timeout_s: float | None = DEFAULT_REQUEST_TIMEOUT_S,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        headers = call.headers() if content is None else _streamed_headers(call)
        response: httpcore.Response | None = None
        try:
            response = await self._pool.handle_async_request(
                httpcore.Request(
                    call.method.encode(),
                    f"http://sandboxd{call.target}",
                    headers=headers,
                    content=call.body if content is None else content,
                    extensions=_timeouts(timeout_s),
                )
            )
            if response.status >= 300:
                raise call.error(response.status, await response.aread())
            yield self._chunks(response, call)
        except _FAILURES as error:
            raise _translated(error, self.socket, call) from error
        finally:
            if response is not None:
                await response.aclose()

    async def _chunks(self, response: httpcore.Response, call: Call[T]) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.aiter_stream():
                yield chunk
        except _FAILURES as error:
            raise _translated(error, self.socket, call) from error


def _streamed_headers(call: Call[T]) -> list[tuple[bytes, bytes]]:
    headers = [(name, value) for name, value in call.headers() if name != b"Content-Length"]
    return [*headers, (b"Transfer-Encoding", b"chunked")]
