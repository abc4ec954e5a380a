"""A command in a sandbox, from its start until init may forget it.

Order of the end: the leader exits (init's event), then its pipes reach end of file once no child
holds them, then the exec is released: init drops its descriptors and the exec's cgroup goes. In
between, a command whose client is answered, or gone, is *detached*: what its children still write
is read and thrown away, so that they neither block nor die of SIGPIPE.

A command that is *kept* needs no client: what it writes is always taken, and its end is held in
rings, from which any number of readers are served, each at its own pace; how it ended is remembered
for a while. A terminal is always kept, and hangs up when its leader has ended.

Memory is flat: nothing beyond the rings is collected here, and a consumer that does not read stops
a command that is not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal as signals
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sandboxd.exec_outcome import exit_payload, exit_reason, lost_reason, may_be_oom
from sandboxd.init_link import LinkClosed
from sandboxd.init_protocol import Exited
from sandboxd.output_ring import OutputRing
from sandboxd.pipes import InputPipe, OutputPipe
from sandboxd.protocol import ExitReason
from sandboxd.sandbox import LiveSandbox

if TYPE_CHECKING:
    from sandboxd.output_reader import OutputReader

# How long the end of a stream may take once its sandbox is gone.
_LAST_WORDS_S = 5.0


class RunningExec:
    """One exec that init knows. Touched on the event loop only."""

    def __init__(
        self, sandbox: LiveSandbox, exec_id: int, operation: str, *, is_program: bool
    ) -> None:
        self.sandbox = sandbox
        self.exec_id = exec_id
        self.is_program = is_program
        self.pid = 0
        self.stdin: InputPipe | None = None
        self.stdout: OutputPipe | None = None
        self.stderr: OutputPipe | None = None
        self.exited: Exited | None = None
        self.lost = False
        self.oom_kills_before = 0
        self.feeder: asyncio.Task[None] | None = None
        self.consumer: asyncio.Task[Any] | None = None
        """The task that forwards the output; cancelling one that is done does nothing."""
        self.ends_for_capture = False
        """It starts again by itself after a capture, and must not be there during one."""
        self.ended_for_capture = False
        self.argv: tuple[str, ...] = ()
        """What was started, for lists; empty when an earlier daemon, or another sandbox, did."""
        self.is_kept = False
        self.is_inherited = False
        """It came with a fork."""
        self.is_terminal = False
        self.reason: ExitReason | None = None
        """Why a kept one is over, once it is."""
        self.readers: set[OutputReader] = set()
        self.on_end: Callable[[RunningExec], None] = lambda _: None
        self.begun_s = time.monotonic()
        self._detached = False
        self._is_forgotten = False
        self._wake = asyncio.Event()
        self._end = asyncio.Event()
        sandbox.add_exec(self, operation)

    # -- what happens to it ------------------------------------------------------------------------

    def wake(self) -> None:
        """Something happened that `wait` waits for."""
        self._wake.set()
        if self._detached:
            self._settle()
        for reader in self.readers:
            reader.wake()

    async def wait(self) -> None:
        """Until output, exit, loss or `wake` since the last call."""
        await self._wake.wait()
        self._wake.clear()

    def on_exit(self, exited: Exited) -> None:
        """Init's event: the leader is dead and reaped."""
        self.exited = exited
        if self.ends_for_capture:
            self.sandbox.gate.notify()
        if self.is_program:
            if self.oom_kills_during():
                self.sandbox.tell("oom", exec_id=self.exec_id)
            self.sandbox.tell(
                "exited",
                exec_id=self.exec_id,
                exit_code=exited.exit_code,
                signal=exited.signal,
                timed_out=exited.timed_out,
            )
        if self.is_kept:
            self._finish()
        self.wake()

    def on_lost(self) -> None:
        """The sandbox ended under it."""
        self.lost = True
        if self.consumer is not None:
            # It may be waiting for a client that does not read.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.consumer.cancel)
        if self.is_kept:
            self._finish()
        self.wake()

    @property
    def over(self) -> bool:
        """No more is to be expected from the leader."""
        return self.exited is not None or self.lost

    @property
    def is_finished(self) -> bool:
        """Of a kept one: it is over, and all of its output is in the rings."""
        return self.over and all(pipe.finished for pipe in self.outputs())

    async def wait_end(self) -> None:
        """Of a kept one: until `is_finished`."""
        await self._end.wait()

    def outcome(self, *, truncated: bool = False) -> dict[str, Any]:
        """How a kept one ended, as the EXIT frame tells it."""
        assert self.reason is not None, "it is not over"
        return exit_payload(
            # Of one whose leader ended before the fork nobody knows any more how.
            self.exited if self.pid else None,
            self.reason,
            stdout_bytes=self.stdout.total_bytes if self.stdout else 0,
            stderr_bytes=self.stderr.total_bytes if self.stderr else 0,
            truncated=truncated,
            duration_s=time.monotonic() - self.begun_s,
        )

    def oom_kills_during(self) -> int:
        """Kernel kills for memory in the sandbox since the command started. Asked only of one that
        died as such a kill makes it die: it costs a read."""
        exited, launched = self.exited, self.sandbox.launched
        if exited is None or launched is None or not may_be_oom(exited):
            return 0
        now = launched.oom_kills()
        self.sandbox.oom_kills_seen = max(self.sandbox.oom_kills_seen, now)
        return now - self.oom_kills_before

    # -- what is done to it ------------------------------------------------------------------------

    def kill_soon(self) -> None:
        """SIGKILL to everything that the command started."""
        link = self.sandbox.link
        if link is not None and not self.over:
            with contextlib.suppress(LinkClosed):
                link.kill_soon(self.exec_id, signals.SIGKILL, whole_tree=True)

    def end_for_capture(self) -> None:
        """Once; it may already have been asked to."""
        if not self.ended_for_capture:
            self.ended_for_capture = True
            self.kill_soon()

    def take_terminal(self, master: int) -> None:
        """It has a terminal, of which this is the master; which is from here on its own."""
        self.is_terminal = True
        # First the owner of what is given.
        self.stdout = OutputPipe(master, self.wake, is_terminal=True)
        self.stdin = InputPipe(os.dup(master))

    def set_typing_paused(self, paused: bool) -> None:
        """While the sandbox is captured its terminal is in a mode in which keys mean nothing."""
        if self.is_terminal and self.stdin is not None:
            if paused:
                self.stdin.pause()
            else:
                self.stdin.go_on()

    def close_stdin(self) -> None:
        """End of file for the command, once what was written is read. A terminal has none."""
        if self.is_terminal:
            return
        if self.stdin is not None and not self.stdin.closed:
            self.stdin.close()
            if self.sandbox.link is not None:
                with contextlib.suppress(LinkClosed):
                    self.sandbox.link.stdin_closed_soon(self.exec_id)

    def keep(self) -> None:
        """Its output is taken and kept from here on, whoever reads it."""
        if self._detached:
            return
        self._detached = self.is_kept = True
        bounds = self.sandbox.kept_output
        for pipe in self.outputs():
            ring = OutputRing(bounds.ring_bytes, bounds)
            ring.on_added = self._tell_readers
            pipe.drain(ring)
        if self.over and self.pid:
            self._finish()
        self._settle()

    def detach(self) -> None:
        """Nobody reads the output from here on; the exec settles by itself."""
        if self._detached:
            return
        self._detached = True
        for pipe in self.outputs():
            pipe.drain()
        self._settle()

    def forget_output(self) -> None:
        """Nobody will ask for it any more; who reads it still gets it."""
        self._is_forgotten = True
        self.drop_unread()

    def drop_unread(self) -> None:
        """A reader has gone: what was left for it alone goes, too."""
        if self._is_forgotten and not self.readers:
            for pipe in self.outputs():
                if pipe.ring is not None:
                    pipe.ring.clear()

    def outputs(self) -> list[OutputPipe]:
        """Its streams."""
        return [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]

    def _tell_readers(self) -> None:
        for reader in self.readers:
            reader.wake()

    def _finish(self) -> None:
        if self.reason is None:
            if self.exited is None or not self.pid:
                self.reason = lost_reason(self.sandbox.end_reason)
            else:
                self.reason = exit_reason(self.exited, oom_kills=self.oom_kills_during())
            self.on_end(self)
        for pipe in self.outputs():
            pipe.finish(at_once=self.lost)

    def _settle(self) -> None:
        if self.lost or (self.is_terminal and self.is_finished):
            for pipe in self.outputs():
                pipe.close()
        if self.is_kept and self.is_finished:
            if self.reason is None:
                self._finish()
            self._end.set()
        if not self.over or not all(pipe.eof for pipe in self.outputs()):
            return
        if self.stdin is not None:
            self.stdin.close()
        if not self.sandbox.drop_exec(self.exec_id):
            return
        if self.is_kept:
            self.sandbox.ended.add(self)
        if self.lost:
            return
        if self.sandbox.link is not None:
            with contextlib.suppress(LinkClosed):
                self.sandbox.link.release_soon(self.exec_id)
        if self.is_program and self.sandbox.launched is not None:
            self.sandbox.launched.remove_exec_cgroup(self.exec_id)
