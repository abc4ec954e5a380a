"""A port of this machine that leads to a port of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._calls import connect_port
from sandboxd.errors import VenusError
from sandboxd.protocol import UPGRADE_TO_TCP

LOCALHOST = "127.0.0.1"
_CHUNK_BYTES = 64 << 10

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OnError = Callable[[VenusError], None] | None


class AsyncPortForward:
    """Listens within the block; each connection is one to the sandbox's port. `address` is where:
    host and port. Several may lead to one port."""

    def __init__(
        self,
        transport: AsyncTransport,
        sandbox_id: str,
        port: int,
        local_port: int,
        host: str,
        on_error: OnError = None,
    ) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._port = port
        self._listen_at = (host, local_port)
        self._on_error = on_error
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.address = self._listen_at

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listen_at)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = (str(host), int(port))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The connections end, too."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = connect_port(self._sandbox_id, self._port)
        writers = [writer]
        try:
            from_sandbox, to_sandbox = await self._transport.upgrade(call, UPGRADE_TO_TCP)
            writers.append(to_sandbox)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, to_sandbox))
                both.create_task(_pump(from_sandbox, writer))
            for each in writers:
                each.close()  # which sends the rest
        except VenusError as error:
            _abort(writers)
            if self._on_error is not None:
                self._on_error(error)
        except BaseException as error:
            _abort(writers)
            # Where one side is gone the connection is over.
            if not isinstance(error, ExceptionGroup) or error.split(OSError)[1] is not None:
                raise


def _abort(writers: list[asyncio.StreamWriter]) -> None:
    for each in writers:
        each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """To the end, which is handed on."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


class PortForward:
    """As `AsyncPortForward`, in a thread of its own."""

    def __init__(
        self,
        socket: str,
        sandbox_id: str,
        port: int,
        local_port: int,
        host: str,
        on_error: OnError = None,
    ) -> None:
        self._forward = AsyncPortForward(
            AsyncTransport(socket), sandbox_id, port, local_port, host, on_error
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="venus-port-forward", daemon=True
        )
        self.address = self._forward.address

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._forward.__aenter__())
        except BaseException:
            self._stop()
            raise
        self.address = self._forward.address
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop)
            self._run(self._forward.__aexit__(None, None, None))

    def _run(self, work: Awaitable[object]) -> None:
        async def run() -> None:
            await work

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
