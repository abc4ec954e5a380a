"""The answer to exec: frames straight from the command's pipes to the client.

When the client does not read, `send` waits, nothing is read from the pipes, and the command waits
in its write.
"""

from __future__ import annotations

import asyncio
import time

from sandboxd.api.frame_stream import Client, FrameStream, Send
from sandboxd.exec_outcome import exit_payload, exit_reason, lost_reason
from sandboxd.pipes import OutputPipe
from sandboxd.protocol import ExitReason, FrameType, encode_json_frame
from sandboxd.running_exec import RunningExec


class ExecStream(FrameStream):
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
        super().__init__(max_output_bytes, send, client)
        self._running = running
        self._sandbox = sandbox
        self._begun = time.monotonic()

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
            await self._begin(started_json(self._running, self._sandbox))
            finished = await self._pump()
            if not finished:
                return None
            reason = self._exit_reason()
            await self._write(self._exit_frame(reason), last=True)
            return reason
        finally:
            self._client.close()
            if not finished:
                self._running.kill_soon()
            # Not now: the loop writes the answer out first, and the client need not wait for the
            # removal of the command's group and for init to run.
            asyncio.get_running_loop().call_soon(self._running.detach)

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

    def _exit_reason(self) -> ExitReason:
        exited = self._running.exited
        if exited is None:
            return lost_reason(self._running.sandbox.end_reason)
        return exit_reason(exited, oom_kills=self._running.oom_kills_during())

    def _exit_frame(self, reason: ExitReason) -> bytes:
        running = self._running
        payload = exit_payload(
            running.exited,
            reason,
            stdout_bytes=running.stdout.total_bytes if running.stdout else 0,
            stderr_bytes=running.stderr.total_bytes if running.stderr else 0,
            truncated=self._truncated,
            duration_s=time.monotonic() - self._begun,
        )
        return encode_json_frame(FrameType.EXIT, payload)


def started_json(running: RunningExec, sandbox: str | None, more: str = "") -> str:
    """Content of the STARTED frame. `more`: further fields, each after a comma."""
    started = f'{{"exec_id":{running.exec_id},"pid":{running.pid}{more}'
    if sandbox is not None:
        started += f',"sandbox":{sandbox}'
    return f"{started}}}"
