"""The processes of a template come to life in a fresh sandbox.

Order: first init learns which of its children to come are commands, so that none can end unseen;
then the plan and all descriptors are sent, and the tree is built. It waits, for seconds if need be,
until it is released. Before that no process of the template runs; when anything fails none has, and
the sandbox is removed by whoever made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator

from sandboxd import _native
from sandboxd.errors import ForkFailed, errno_text
from sandboxd.exec_session import RunningExec
from sandboxd.init_link import InitLink, LinkClosed
from sandboxd.init_protocol import ExecFds, ExecKind, ExecRequest, Exited, Failed
from sandboxd.pipes import InputPipe, OutputPipe, command_pipe
from sandboxd.sandbox import LiveSandbox
from sandboxd.templates.template import CapturedCommand, Template

_LOG = logging.getLogger("sandboxd")
OPERATION = "fork"
# For a thousand processes on a busy node; a process that the kernel killed for want of memory
# would be waited for for ever.
RESTORE_TIMEOUT_S = 30.0


class _Ends:
    """New pipes for the template's external slots. Owns the sandbox's ends."""

    def __init__(self, count: int) -> None:
        self._inner: list[int | None] = [None] * count

    def __enter__(self) -> _Ends:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._inner:
            if descriptor is not None:
                os.close(descriptor)

    def output(self, slot: int) -> int:
        """The daemon's end of a pipe that the sandbox writes to."""
        ours, self._inner[slot] = command_pipe()
        return ours

    def input(self, slot: int) -> int:
        """The daemon's end of a pipe that the sandbox reads from."""
        self._inner[slot], ours = command_pipe()
        return ours

    def terminal(self, slot: int) -> socket.socket:
        """Over which the master of a new terminal will come."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        self._inner[slot] = theirs.detach()
        return ours

    def all(self) -> list[int]:
        """Every slot, in order; one that no command has leads nowhere."""
        for slot, descriptor in enumerate(self._inner):
            if descriptor is None:
                self._inner[slot] = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        return [descriptor for descriptor in self._inner if descriptor is not None]


class HeldTree:
    """The processes of a template in a sandbox, built or being built, none of which runs before
    `release`. No clock of theirs runs meanwhile."""

    def __init__(
        self, sandbox: LiveSandbox, link: InitLink, template: Template, shared_page: int
    ) -> None:
        self._sandbox = sandbox
        self._link = link
        self._template = template
        self.shared_page = shared_page
        self._ended: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(self._on_ended)
        self._released = False
        self._masters: list[tuple[RunningExec, socket.socket]] = []
        self._exec_id = sandbox.next_exec_id()

    async def start(self, connection: socket.socket) -> None:
        """Have init start the coordinator, which reads the plan from the connection."""
        request = ExecRequest(
            self._exec_id,
            ("restore",),
            kind=ExecKind.RESTORE,
            number0=self._template.native.coordinator,
        )
        answer = await self._link.start(
            request, ExecFds(stdin=connection.fileno()), self._ended.set_result
        )
        if isinstance(answer, Failed):
            cause = f"step {answer.step.name.lower()}: {errno_text(answer.errno)}"
            raise _failed(self._sandbox, cause)

    async def release(self) -> None:
        """Let it run as soon as it is built; returns when it does. `ForkFailed` names the step that
        did not go as planned."""
        try:
            with _explained(self._sandbox):
                if self._is_broken():
                    raise _failed(self._sandbox, "a process of it ended while it waited")
                if not self._template.native.release(self.shared_page):
                    await self._run()
                self._released = True
                for running, connection in self._masters:
                    await self._take_master(running, connection)
        except BaseException:
            _let_go(self._sandbox)
            raise
        finally:
            self.close()
        for running in list(self._sandbox.execs.values()):
            running.keep()

    def expect_master(self, running: RunningExec, connection: socket.socket) -> None:
        """The command has a terminal, whose master comes over the connection as it is built."""
        self._masters.append((running, connection))

    async def _take_master(self, running: RunningExec, connection: socket.socket) -> None:
        try:
            _, masters, _, _ = socket.recv_fds(connection, 1, 1)
        except BlockingIOError:
            masters = []
        if not masters:
            raise _failed(self._sandbox, "the master of a terminal did not come")
        running.take_terminal(masters[0])
        if number := await self._link.keep_terminal(running.exec_id, masters[0]):
            raise _failed(self._sandbox, f"keep a terminal: {errno_text(number)}")

    def _is_broken(self) -> bool:
        """Somebody killed what waits, from outside or for want of memory on the node."""
        ended = (each.exited is not None and each.pid for each in self._sandbox.execs.values())
        return self._ended.done() or any(ended)

    def _on_ended(self, ended: asyncio.Future[Exited]) -> None:
        with contextlib.suppress(LinkClosed):
            self._link.release_soon(self._exec_id)
        if self._released and ended.result().exit_code != 0:
            # One was missing after all, and the others have given up.
            _LOG.error("the fork %s did not come to run: %s", self._sandbox.sandbox_id, ended)
            if self._sandbox.launched is not None:
                self._sandbox.launched.begin_kill()

    async def _run(self) -> None:
        await asyncio.wait(
            (self._ended, self._link.gone),
            return_when=asyncio.FIRST_COMPLETED,
            timeout=RESTORE_TIMEOUT_S,
        )
        if self._link.closed:
            raise LinkClosed
        if not self._ended.done():
            raise _failed(self._sandbox, f"it took longer than {RESTORE_TIMEOUT_S:g} s")
        exited = self._ended.result()
        failure = self._template.native.failure(self.shared_page)
        if exited.exit_code != 0 or failure:
            raise _failed(self._sandbox, failure or f"the coordinator ended with {exited}")

    def abandon(self) -> None:
        """It will not be released; the sandbox must be removed."""
        _let_go(self._sandbox)
        self.close()

    def close(self) -> None:
        """The record of failures is not needed any more."""
        os.close(self.shared_page)
        for _, connection in self._masters:
            connection.close()


async def build(sandbox: LiveSandbox, link: InitLink, template: Template) -> HeldTree:
    """Begin to build the tree, in a fresh sandbox; the caller completes or abandons it."""
    try:
        with _explained(sandbox):
            return await _build(sandbox, link, template)
    except BaseException:
        _let_go(sandbox)
        raise


async def _build(sandbox: LiveSandbox, link: InitLink, template: Template) -> HeldTree:
    native = template.native
    with contextlib.ExitStack() as stack:
        ends = stack.enter_context(_Ends(native.counts["external_slots"]))
        masters = []
        for command in template.record.commands:
            running = await _enter(sandbox, link, command, ends)
            if command.terminal is not None:
                masters.append((running, stack.enter_context(ends.terminal(command.terminal))))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(ours)
        stack.enter_context(theirs)
        # More descriptors than a socket holds are an error here, not a daemon that waits.
        ours.setblocking(False)
        tree = HeldTree(sandbox, link, template, native.create_shared_page())
        try:
            native.send(ours.fileno(), tree.shared_page, ends.all())
            await tree.start(theirs)
        except BaseException:
            tree.close()
            raise
        for running, connection in masters:
            tree.expect_master(running, connection.dup())
        return tree


def _let_go(sandbox: LiveSandbox) -> None:
    for running in list(sandbox.execs.values()):
        running.lost = True
        running.detach()


@contextlib.contextmanager
def _explained(sandbox: LiveSandbox) -> Iterator[None]:
    """What can go wrong with init and with the engine, as `ForkFailed`."""
    try:
        yield
    except LinkClosed:
        raise _failed(sandbox, "init died; its memory limit may be too small") from None
    except _native.NativeError as error:
        cause = f"{error.operation} {error.object}: {errno_text(error.errno)}"
        raise _failed(sandbox, cause) from error


async def _enter(
    sandbox: LiveSandbox, link: InitLink, command: CapturedCommand, ends: _Ends
) -> RunningExec:
    """Enter a command, here and with init. Its output is taken only once it runs: before that
    nobody holds the other ends but us."""
    running = RunningExec(sandbox, command.exec_id, OPERATION, is_program=True)
    running.pid = command.pid
    running.is_inherited = True
    if command.pid == 0:
        running.exited = _ended_before(command.exec_id)
    if command.stdin is not None:
        running.stdin = InputPipe(ends.input(command.stdin))
    if command.stdout is not None:
        running.stdout = OutputPipe(ends.output(command.stdout), running.wake)
    if command.stderr is not None:
        running.stderr = OutputPipe(ends.output(command.stderr), running.wake)
    request = ExecRequest(
        command.exec_id, ("restored",), kind=ExecKind.RESTORED, number0=command.pid
    )
    fds = ExecFds(
        keep_stdin=running.stdin.fd if running.stdin else None,
        keep_stdout=running.stdout.fd if running.stdout else None,
        keep_stderr=running.stderr.fd if running.stderr else None,
    )
    answer = await link.start(request, fds, running.on_exit)
    if isinstance(answer, Failed):
        raise _failed(sandbox, f"enter command: {errno_text(answer.errno)}")
    return running


def _ended_before(exec_id: int) -> Exited:
    """Its client was told long ago how the leader ended; here it only says that there is none."""
    return Exited(
        exec_id=exec_id,
        exit_code=0,
        signal=None,
        timed_out=False,
        killed_by_request=False,
        core_dumped=False,
        user_us=0,
        system_us=0,
        max_rss_kib=0,
        duration_us=0,
    )


def _failed(sandbox: LiveSandbox, cause: str) -> ForkFailed:
    return ForkFailed(
        "the processes of the template could not be restored",
        operation=OPERATION,
        object=sandbox.sandbox_id,
        cause=cause,
    )
