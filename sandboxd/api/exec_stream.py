"""The exec route: frames in, frames out, straight from the command's pipes to the client.

Raw ASGI, because this is the hottest path of the daemon: no model, no generator, no copy of the
output beyond the frame that is being sent. When the client does not read, `send` waits, nothing
is read from the pipes, and the command waits in its write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sandboxd.api.exec_request import Message, Receive
from sandboxd.exec_outcome import exit_payload, exit_reason, lost_reason
from sandboxd.exec_session import RunningExec
from sandboxd.pipes import OutputPipe
from sandboxd.protocol import (
    CONTENT_TYPE_FRAMES,
    ExitReason,
    FrameType,
    encode_frame,
    encode_json_frame,
    encode_prefix,
)

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


class ExecStream:
    """Sends one running command to one client.

    `sandbox` is the JSON of the sandbox, for a client that does not know it yet.
    """

    def __init__(
        self,
        running: RunningExec,
        max_output_bytes: int,
        send: Send,
        client: Client,
        sandbox: str | None = None,
    ) -> None:
        self._running = running
        self._room = max_output_bytes
        self._send = send
        self._client = client
        self._sandbox = sandbox
        self._truncated = False
        self._begun = time.monotonic()
        self.told = False
        """The client was there to be told of the start."""

    async def run(self) -> ExitReason | None:
        """Stream until the command's exit is sent, or the client is gone, which kills it.

        The reason of the exit, or None when nobody was left to be told.
        """
        self._running.consumer = asyncio.current_task()
        self._client.on_gone = self._running.wake
        finished = False
        try:
            if self._client.gone:
                return None
            await self._send(_START_MESSAGE)
            await self._write(self._started_frame())
            self.told = True
            finished = await self._pump()
            if not finished:
                return None
            reason = self._exit_reason()
            payload = self._exit_payload(reason)
            await self._write(encode_json_frame(FrameType.EXIT, payload), last=True)
            return reason
        finally:
            self._client.close()
            if not finished:
                self._running.kill_soon()
            # Not now: the loop writes the answer out first, and the client need not wait for the
            # removal of the command's group and for init to run.
            asyncio.get_running_loop().call_soon(self._running.detach)

    def _started_frame(self) -> bytes:
        started = f'{{"exec_id":{self._running.exec_id},"pid":{self._running.pid}'
        if self._sandbox is not None:
            started += f',"sandbox":{self._sandbox}'
        return encode_frame(FrameType.STARTED, f"{started}}}".encode())

    async def _pump(self) -> bool:
        running = self._running
        outputs: list[tuple[OutputPipe, FrameType]] = []
        if running.stdout is not None:
            outputs.append((running.stdout, FrameType.STDOUT))
        if running.stderr is not None:
            outputs.append((running.stderr, FrameType.STDERR))
        while not self._client.gone:
            if running.over:
                await self._send_rest(outputs)
                return True
            idle = True
            for pipe, frame_type in outputs:
                data = pipe.read()
                if data:
                    idle = False
                    await self._forward(frame_type, data)
            if idle:
                await running.wait()
        return False

    async def _send_rest(self, outputs: list[tuple[OutputPipe, FrameType]]) -> None:
        """What is in the pipes when the leader has exited is its output; what its children write
        from now on is not waited for."""
        for pipe, frame_type in outputs:
            left = pipe.waiting_bytes()
            while left > 0:
                data = pipe.read_waiting(left)
                if not data:
                    break
                left -= len(data)
                await self._forward(frame_type, data)
            pipe.read_end_of_file()

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

    def _exit_reason(self) -> ExitReason:
        exited = self._running.exited
        if exited is None:
            return lost_reason(self._running.sandbox.end_reason)
        return exit_reason(exited, oom_kills=self._running.oom_kills_during())

    def _exit_payload(self, reason: ExitReason) -> dict[str, Any]:
        running = self._running
        return exit_payload(
            running.exited,
            reason,
            stdout_bytes=running.stdout.total_bytes if running.stdout else 0,
            stderr_bytes=running.stderr.total_bytes if running.stderr else 0,
            truncated=self._truncated,
            duration_s=time.monotonic() - self._begun,
        )
