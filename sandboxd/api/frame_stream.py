"""What all answers in frames have in common: the client, and the frames on their way to it.

Raw ASGI, because exec is the hottest path of the daemon: no model, no generator, no copy of the
output beyond the frame that is being sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandboxd.api.exec_request import Message, Receive
from sandboxd.protocol import CONTENT_TYPE_FRAMES, FrameType, encode_frame, encode_prefix

Send = Callable[[Message], Awaitable[None]]

_START_MESSAGE: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", CONTENT_TYPE_FRAMES.encode())],
}


class Client:
    """Whether the one who asked is still there. The request must have been read to its end."""

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self._watch = asyncio.ensure_future(self._wait_gone(receive))

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._watch.cancel()

    async def _wait_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


class FrameStream:
    """Frames to one client: STARTED, at most `max_output_bytes` of output, and one last frame."""

    def __init__(self, max_output_bytes: int, send: Send, client: Client) -> None:
        self._room = max_output_bytes
        self._send = send
        self._client = client
        self._truncated = False
        self.told = False
        """The client was there to be told of the start."""

    async def _begin(self, started: str) -> None:
        await self._send(_START_MESSAGE)
        await self._write(encode_frame(FrameType.STARTED, started.encode()))
        self.told = True

    async def _forward(self, frame_type: FrameType, data: bytes) -> None:
        if len(data) > self._room:
            self._truncated = True
            data = data[: self._room]
            if not data:
                return
        self._room -= len(data)
        await self._write(encode_prefix(frame_type, len(data)) + data)

    async def _write(self, body: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
