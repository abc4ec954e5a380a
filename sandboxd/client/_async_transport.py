"""Carries `Call` values to the daemon over its Unix socket, for asyncio.

The rules are those of the synchronous transport: a kept connection carries one call at a time, one
whose answer was not read to its end is closed, and nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterable, AsyncIterator
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


class _AsyncConnection:
    """A connected stream of one event loop."""

    def __init__(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self.idle_since = 0.0

    @classmethod
    async def open(cls, path: str, call: Call[T]) -> _AsyncConnection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                streams = await asyncio.open_unix_connection(path, limit=RECEIVE_BYTES)
        except OSError as error:  # a TimeoutError is one
            raise unavailable(path, call, error) from error
        return cls(path, *streams)

    def close(self) -> None:
        # Not close(), which would first send what is buffered. The loop may be gone already.
        if not self._loop.is_closed():
            self._writer.transport.abort()

    def detach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The streams; the caller's from here on."""
        return self._reader, self._writer

    def is_fresh(self) -> bool:
        """Of this loop, idle for a short time only, and not closed by the daemon."""
        return (
            self._loop is asyncio.get_running_loop()
            and time.monotonic() - self.idle_since <= KEEPALIVE_S
            and not self._reader.at_eof()
            and not self._writer.transport.is_closing()
        )

    async def send(self, data: bytes, call: Call[T], timeout_s: float | None) -> bool:
        """False when the daemon takes no more; it may have answered already, and why."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
        except TimeoutError as error:
            raise too_slow(self._path, call, timeout_s) from error
        except (BrokenPipeError, ConnectionResetError):
            return False
        except OSError as error:
            raise lost(self._path, call, str(error)) from error
        return True

    async def receive(
        self,
        response: Response,
        call: Call[T],
        timeout_s: float | None,
        max_bytes: int = RECEIVE_BYTES,
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._reader.read(max_bytes)
            if data:
                response.feed(data)
                return
        except TimeoutError as error:
            raise too_slow(self._path, call, timeout_s) from error
        except (OSError, httptools.HttpParserError) as error:
            raise lost(self._path, call, str(error)) from error
        raise lost(self._path, call, "the daemon closed it")


class AsyncTransport:
    """For one event loop at a time; connections of an earlier one are not used again."""

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self.socket = socket_path(socket)
        self._idle: list[_AsyncConnection] = []

    async def close(self) -> None:
        """Closes what is idle. A call in progress is not touched."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

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
        """As `SyncTransport.stream`."""
        connection = await self._connection(call)
        response = Response()
        sent = False
        try:
            head = encode_request(call, streamed=content is not None)
            sent = await connection.send(head, call, timeout_s)
            if sent and content is not None:
                sent = await self._send_content(connection, content, call, timeout_s)
            while response.status is None:
                await connection.receive(response, call, timeout_s)
            chunks = self._body(connection, response, call, timeout_s)
            if response.status >= 300:
                raise call.error(response.status, b"".join([chunk async for chunk in chunks]))
            yield chunks
        finally:
            if sent and response.reusable and len(self._idle) < MAX_IDLE_CONNECTIONS:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    async def upgrade(
        self, call: Call[None], protocol: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of its own that speaks `protocol`."""
        connection = await _AsyncConnection.open(self.socket, call)
        timeout_s = DEFAULT_REQUEST_TIMEOUT_S
        response = Response()
        try:
            await connection.send(encode_upgrade(call, protocol), call, timeout_s)
            while response.status is None:
                await connection.receive(response, call, timeout_s, UPGRADE_STEP_BYTES)
            if not response.upgraded:
                chunks = self._body(connection, response, call, timeout_s)
                raise call.error(response.status, b"".join([chunk async for chunk in chunks]))
        except BaseException:
            connection.close()
            raise
        return connection.detach()

    @staticmethod
    async def _send_content(
        connection: _AsyncConnection,
        content: AsyncIterable[bytes],
        call: Call[T],
        timeout_s: float | None,
    ) -> bool:
        async for chunk in content:
            if not await connection.send(encode_chunk(chunk), call, timeout_s):
                return False
        return await connection.send(LAST_CHUNK, call, timeout_s)

    @staticmethod
    async def _body(
        connection: _AsyncConnection, response: Response, call: Call[T], timeout_s: float | None
    ) -> AsyncIterator[bytes]:
        for chunk in response.take_body():
            yield chunk
        while not response.complete:
            await connection.receive(response, call, timeout_s)
            for chunk in response.take_body():
                yield chunk

    async def _connection(self, call: Call[T]) -> _AsyncConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()
        return await _AsyncConnection.open(self.socket, call)
