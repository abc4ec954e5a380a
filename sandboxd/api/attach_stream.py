"""Frames of a command whose output is kept, to any of its clients.

`KeptStream` is the answer to an exec whose command outlives its client, and to an attach. Only the
first is waited for when it does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import Response
from starlette.types import Receive, Scope
from starlette.types import Send as StarletteSend

from sandboxd.api.exec_stream import started_json
from sandboxd.api.frame_stream import Client, FrameStream, Send
from sandboxd.commands import command_epoch
from sandboxd.output_reader import OutputReader, StreamName
from sandboxd.protocol import ExitReason, FrameType, OnDisconnect, encode_json_frame

_FRAMES: Mapping[StreamName, FrameType] = {"stdout": FrameType.STDOUT, "stderr": FrameType.STDERR}


class KeptStream(FrameStream):
    """Sends one reader's pieces to one client, until the command's end or the client's."""

    def __init__(
        self,
        reader: OutputReader,
        max_output_bytes: int,
        send: Send,
        client: Client,
        sandbox: str | None = None,
        on_disconnect: OnDisconnect = OnDisconnect.KEEP,
    ) -> None:
        super().__init__(max_output_bytes, send, client)
        self._reader = reader
        self._sandbox = sandbox
        self._on_disconnect = on_disconnect

    async def run(self) -> ExitReason | None:
        """As `ExecStream.run`; what happens to the command when the client goes was said at its
        start. None also for an end that somebody else counts."""
        running = self._reader.running
        pumping = asyncio.ensure_future(self._pump())
        # It may be waiting for a client that does not read, or for a silent command.
        self._client.on_gone = lambda: _cancel(pumping)
        finished = False
        try:
            if self._client.gone:
                pumping.cancel()
            await asyncio.wait((pumping,))
            if not pumping.cancelled():
                pumping.result()
                finished = True
            return None
        finally:
            pumping.cancel()
            self._client.close()
            self._reader.close()
            if not finished and self._on_disconnect is OnDisconnect.KILL:
                running.kill_soon()

    async def _pump(self) -> None:
        running = self._reader.running
        positions = self._reader.positions()
        more = f',"epoch":{command_epoch(running)}'
        more += "".join(f',"{stream}_position":{at}' for stream, at in positions.items())
        await self._begin(started_json(running, self._sandbox, more))
        async for piece in self._reader:
            if piece.lost:
                lost = {"stream": piece.stream, "bytes": piece.lost}
                await self._write(encode_json_frame(FrameType.LOST, lost))
            if piece.data:
                await self._forward(_FRAMES[piece.stream], piece.data)
        end = running.outcome(truncated=self._truncated)
        await self._write(encode_json_frame(FrameType.EXIT, end), last=True)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class AttachResponse(Response):
    """An attach, as the framework takes it from a route."""

    def __init__(self, reader: OutputReader, max_output_bytes: int) -> None:
        super().__init__()
        self._reader = reader
        self._max_output_bytes = max_output_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: StarletteSend) -> None:
        """The answer itself."""
        client = Client(receive)
        await KeptStream(self._reader, self._max_output_bytes, send, client).run()
