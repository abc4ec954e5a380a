"""The daemon's end of a sandbox's control socket: requests, answers, events, descriptors.

One `InitLink` per sandbox, on the event loop. Answers are matched to requests by id; events go to
the handler of their exec. When the peer's end closes, init is dead and with it the sandbox: every
waiter gets `LinkClosed` and `on_close` runs once.

Does not handle: what a closed link means. That is the service's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from sandboxd.errors import InternalError, LimitExceeded, OperationTimeout, error_from_errno
from sandboxd.init_packets import receive_packet
from sandboxd.init_protocol import (
    MAX_EXECS,
    SEND_BUFFER_SIZE,
    Ack,
    Answer,
    ExecFds,
    ExecInfo,
    ExecRequest,
    Exited,
    Failed,
    HelloReply,
    ProtocolError,
    RequestError,
    Started,
    decode_packet,
    encode_exec,
    encode_hello,
    encode_keep_terminal,
    encode_kill,
    encode_list,
    encode_release,
    encode_socket,
    encode_stdin_closed,
)

# Init answers at once unless its whole group is frozen or starved. Whoever waits longer than this
# is told so instead of hanging with it.
ANSWER_TIMEOUT_S = 60.0
_MAX_QUEUED_PACKETS = 4096
_SIGKILL = 9


class LinkClosed(Exception):
    """Init is gone, or the link was closed by this side."""


class InitLink:
    """A connection to the init of one sandbox."""

    def __init__(self, connection: socket.socket, sandbox_id: str) -> None:
        self._socket = connection
        self._sandbox_id = sandbox_id
        self._loop = asyncio.get_running_loop()
        self._request_ids = itertools.count(1)
        self._waiters: dict[int, asyncio.Future[Answer]] = {}
        self._listings: dict[int, list[tuple[ExecInfo, list[int]]]] = {}
        self._exit_handlers: dict[int, Callable[[Exited], None]] = {}
        self._early_exits: dict[int, Exited] = {}
        # Execs whose starter stopped waiting before init answered: killed and forgotten.
        self._orphans: set[int] = set()
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._closed = False
        self.on_close: Callable[[], None] = lambda: None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done once the link is closed, by either side."""
        self._loop.add_reader(connection.fileno(), self._on_readable)

    @classmethod
    async def connect(cls, path: Path, sandbox_id: str) -> InitLink:
        """Connect and make sure that the sandbox of that id answers."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_SIZE)
            connection.setblocking(False)
            # Local: it connects at once, or nobody listens, or the backlog is full.
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise InternalError(
                "init does not take a connection",
                operation="connect to init",
                object=sandbox_id,
                cause=str(error),
            ) from error
        link = cls(connection, sandbox_id)
        try:
            hello = await link._ask(encode_hello)
            if not isinstance(hello, HelloReply) or hello.sandbox_id != sandbox_id:
                raise link._unexpected("connect to init", hello)
        except BaseException:
            link.close()
            raise
        return link

    @property
    def closed(self) -> bool:
        """True once init is known to be dead, or `close` was called."""
        return self._closed

    def close(self) -> None:
        """Drop the connection; init and its execs live on. Runs `on_close` no more."""
        self.on_close = lambda: None
        self._shut()

    # -- requests --------------------------------------------------------------------------------

    async def start(
        self, request: ExecRequest, fds: ExecFds, on_exit: Callable[[Exited], None]
    ) -> Started | Failed:
        """Start a program or a file operation. `on_exit` runs once if the answer is Started."""
        self._exit_handlers[request.exec_id] = on_exit
        try:
            answer = await self._ask(
                lambda request_id: encode_exec(request_id, request, fds), fds.in_order()
            )
            if isinstance(answer, RequestError):
                raise self._unexpected("start command", answer)
        except BaseException:
            self._exit_handlers.pop(request.exec_id, None)
            raise
        if isinstance(answer, Failed):
            self._exit_handlers.pop(request.exec_id, None)
            return answer
        if not isinstance(answer, Started) or len(answer.fds) != (request.terminal is not None):
            raise self._unexpected("start command", answer)
        return answer

    def watch(self, exec_id: int, on_exit: Callable[[Exited], None]) -> None:
        """Have `on_exit` run for an exec that an earlier daemon started."""
        early = self._early_exits.pop(exec_id, None)
        if early is not None:
            on_exit(early)
        else:
            self._exit_handlers[exec_id] = on_exit

    async def kill(self, exec_id: int, signal: int, *, whole_tree: bool) -> int:
        """Signal a command; returns init's errno, 0 when it was sent."""
        answer = await self._ask(
            lambda request_id: encode_kill(request_id, exec_id, signal, whole_tree=whole_tree)
        )
        return answer.errno if isinstance(answer, Ack | RequestError) else 0

    async def keep_terminal(self, exec_id: int, master: int) -> int:
        """Give init a duplicate of a restored command's terminal; returns init's errno or 0."""
        answer = await self._ask(
            lambda request_id: encode_keep_terminal(request_id, exec_id), (master,)
        )
        return answer.errno if isinstance(answer, Ack | RequestError) else 0

    async def open_socket(self, family: int) -> socket.socket:
        """A TCP socket of the sandbox's network, not connected. `family`: AF_INET or AF_INET6."""
        answer = await self._ask(lambda request_id: encode_socket(request_id, family))
        if isinstance(answer, Ack) and len(answer.fds) == 1:
            return socket.socket(family, socket.SOCK_STREAM, fileno=answer.fds[0])
        if isinstance(answer, Ack | RequestError) and answer.errno:
            raise error_from_errno(
                answer.errno,
                "init opens no socket",
                operation="open socket",
                object=self._sandbox_id,
            )
        raise self._unexpected("open socket", answer)

    def kill_soon(self, exec_id: int, signal: int, *, whole_tree: bool) -> None:
        """As `kill`, when nobody waits for the answer; does nothing on a closed link."""
        self._tell(encode_kill(next(self._request_ids), exec_id, signal, whole_tree=whole_tree))

    def release_soon(self, exec_id: int) -> None:
        """Let init forget an exec that has exited, and drop the descriptors that it keeps."""
        self._exit_handlers.pop(exec_id, None)
        self._tell(encode_release(next(self._request_ids), exec_id))

    def stdin_closed_soon(self, exec_id: int) -> None:
        """Let init drop its copy of the input's end, so that the command sees end of file."""
        self._tell(encode_stdin_closed(next(self._request_ids), exec_id))

    async def list_execs(self) -> list[tuple[ExecInfo, list[int]]]:
        """All execs that init knows, each with the descriptors it kept (now the caller's)."""
        request_id = next(self._request_ids)
        found = self._listings[request_id] = []
        try:
            await self._wait_for(request_id, encode_list(request_id), [])
        except BaseException:
            for _, fds in found:
                _close_all(fds)
            raise
        finally:
            del self._listings[request_id]
        return found

    # -- sending -----------------------------------------------------------------------------------

    async def _ask(self, encode: Callable[[int], bytes], fds: Sequence[int] = ()) -> Answer:
        request_id = next(self._request_ids)
        return await self._wait_for(request_id, encode(request_id), fds)

    async def _wait_for(self, request_id: int, packet: bytes, fds: Sequence[int]) -> Answer:
        if self._closed:
            raise LinkClosed
        if len(self._outbox) >= _MAX_QUEUED_PACKETS:
            raise LimitExceeded(
                "too many requests wait for init", operation="ask init", object=self._sandbox_id
            )
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiters[request_id] = waiter
        timer = self._loop.call_later(ANSWER_TIMEOUT_S, self._give_up, request_id)
        try:
            self._send(packet, fds)
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._unwanted(waiter.result())
            raise
        finally:
            timer.cancel()
            self._waiters.pop(request_id, None)

    def _give_up(self, request_id: int) -> None:
        waiter = self._waiters.get(request_id)
        if waiter is not None and not waiter.done():
            waiter.set_exception(
                OperationTimeout(
                    f"init gave no answer within {ANSWER_TIMEOUT_S:.0f} s",
                    operation="ask init",
                    object=self._sandbox_id,
                )
            )

    def _tell(self, packet: bytes) -> None:
        if not self._closed:
            self._send(packet, [])

    def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        if not self._outbox and self._try_send(packet, fds):
            return
        if self._closed:
            raise LinkClosed
        # The caller closes its descriptors when it likes; a queued packet owns copies.
        self._outbox.append((packet, [os.dup(fd) for fd in fds]))
        self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _try_send(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            if fds:
                socket.send_fds(self._socket, [packet], list(fds))
            else:
                self._socket.send(packet)
        except BlockingIOError:
            return False
        except OSError as error:
            if self._socket.fileno() >= 0 and isinstance(error, BrokenPipeError | ConnectionError):
                self._peer_gone()
                raise LinkClosed from error
            raise
        return True

    def _on_writable(self) -> None:
        try:
            while self._outbox and self._try_send(*self._outbox[0]):
                _close_all(self._outbox.popleft()[1])
        except LinkClosed:
            return
        if not self._outbox:
            self._loop.remove_writer(self._socket.fileno())

    # -- receiving ---------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        # One packet: the loop calls again while there are more, which costs less than to try.
        try:
            packet, fds = receive_packet(self._socket)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        try:
            answer = decode_packet(packet) if packet else None
        except ProtocolError:
            # Init is our own program: whatever sends other bytes is not it.
            answer = None
        if answer is None:
            _close_all(fds)
            self._peer_gone()
        else:
            self._take(answer, fds)

    def _take(self, answer: Answer, fds: list[int]) -> None:
        if isinstance(answer, Exited):
            handler = self._exit_handlers.pop(answer.exec_id, None)
            if handler is not None:
                handler(answer)
            elif answer.exec_id in self._orphans:
                self._orphans.discard(answer.exec_id)
                self.release_soon(answer.exec_id)
            elif len(self._early_exits) < MAX_EXECS:
                self._early_exits[answer.exec_id] = answer
            return
        if isinstance(answer, ExecInfo):
            listing = self._listings.get(answer.request_id)
            if listing is None:
                _close_all(fds)
            else:
                listing.append((answer, fds))
            return
        if isinstance(answer, Started | Ack) and fds:
            answer = dataclasses.replace(answer, fds=tuple(fds))
        else:
            _close_all(fds)
        waiter = self._waiters.get(answer.request_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)
        else:
            self._unwanted(answer)

    def give_up(self, exec_id: int) -> None:
        """Nobody wants a command that has started: it is killed, and forgotten once it is dead."""
        self._exit_handlers.pop(exec_id, None)
        self._orphans.add(exec_id)
        self.kill_soon(exec_id, _SIGKILL, whole_tree=True)

    def _unwanted(self, answer: Answer) -> None:
        if isinstance(answer, Started | Ack):
            _close_all(answer.fds)
        if isinstance(answer, Started):
            self.give_up(answer.exec_id)

    # -- the end -----------------------------------------------------------------------------------

    def _peer_gone(self) -> None:
        notify, self.on_close = self.on_close, lambda: None
        # First the owner, so that whoever waits for an answer finds the reason recorded.
        notify()
        self._shut()

    def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        while self._outbox:
            _close_all(self._outbox.popleft()[1])
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(LinkClosed())
        self._exit_handlers.clear()
        self.gone.set_result(None)

    def _unexpected(self, operation: str, answer: Answer) -> InternalError:
        return InternalError(
            "init gave an answer that does not fit",
            operation=operation,
            object=self._sandbox_id,
            cause=repr(answer),
        )


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
