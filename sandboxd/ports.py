"""Connections to TCP ports in sandboxes.

The socket is opened by the sandbox's init, so it belongs to the sandbox's network namespace for
good, whoever connects it; the daemon connects it to the loopback, by number. All that is at its
other end is a program of the sandbox.

A connection does not run, so a paused sandbox keeps it. It ends with the sandbox and with the
daemon; a fork has none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Callable

from sandboxd.errors import (
    LimitExceeded,
    OperationTimeout,
    Unreachable,
    errno_text,
    error_from_errno,
)
from sandboxd.init_link import LinkClosed
from sandboxd.sandbox import LiveSandbox

MAX_CONNECTIONS_PER_SANDBOX = 256
MAX_CONNECTIONS = 4000
"""To all sandboxes together: each takes two of the daemon's descriptors."""
CONNECT_TIMEOUT_S = 10.0
"""A listener with a full backlog answers nothing."""
IDLE_TIMEOUT_S = 3600.0
"""How long a connection may carry nothing, unless its sandbox is paused."""
_OPERATION = "connect to port"
# Where a program listens that listens on the loopback, or everywhere.
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class PortConnection:
    """One of them. Whoever opened it closes it."""

    def __init__(self, sandbox: LiveSandbox, connected: socket.socket, ports: Ports) -> None:
        self.sandbox = sandbox
        self.socket = connected
        """Connected, and non-blocking."""
        self.on_cut: Callable[[], None] = lambda: None
        """Called when the sandbox ends, after the socket was shut down."""
        self._ports = ports

    def close(self) -> None:
        """Idempotent. Not for a socket that an event loop's transport has: that closes it."""
        self.socket.close()
        self.release()

    def release(self) -> None:
        """It counts no longer. Idempotent."""
        self._ports.forget(self)

    def cut(self) -> None:
        """End it, whatever is under way on it."""
        with contextlib.suppress(OSError):  # the sandbox may have been faster
            self.socket.shutdown(socket.SHUT_RDWR)
        self.on_cut()


class Ports:
    """The connections of one daemon, counted."""

    def __init__(self) -> None:
        self._open: dict[str, set[PortConnection]] = {}
        # Also those that are being opened.
        self._of_sandbox: Counter[str] = Counter()

    async def connect(self, sandbox: LiveSandbox, port: int) -> PortConnection:
        """A connection to what listens on the port of the loopback, by IPv4 or else by IPv6.

        `Unreachable` when nothing does, `LimitExceeded` when too many are open.
        """
        where = f"port {port} of {sandbox.sandbox_id}"
        self._take(sandbox.sandbox_id, where)
        try:
            connected = await _connected(sandbox, port, where)
        except BaseException:
            self._give_back(sandbox.sandbox_id)
            raise
        connection = PortConnection(sandbox, connected, self)
        self._open.setdefault(sandbox.sandbox_id, set()).add(connection)
        return connection

    def cut_all(self, sandbox_id: str) -> None:
        """The sandbox ends."""
        for each in list(self._open.get(sandbox_id, ())):
            each.cut()

    def forget(self, connection: PortConnection) -> None:
        """It is closed."""
        sandbox_id = connection.sandbox.sandbox_id
        known = self._open.get(sandbox_id, set())
        if connection in known:
            known.remove(connection)
            if not known:
                del self._open[sandbox_id]
            self._give_back(sandbox_id)

    def _take(self, sandbox_id: str, where: str) -> None:
        for count, limit, whose in (
            (self._of_sandbox[sandbox_id], MAX_CONNECTIONS_PER_SANDBOX, "a sandbox"),
            (self._of_sandbox.total(), MAX_CONNECTIONS, "the daemon"),
        ):
            if count >= limit:
                raise LimitExceeded(
                    f"{count} connections to ports are open already",
                    operation=_OPERATION,
                    object=where,
                    cause=f"{whose} may have {limit}",
                )
        self._of_sandbox[sandbox_id] += 1

    def _give_back(self, sandbox_id: str) -> None:
        self._of_sandbox[sandbox_id] -= 1
        if not self._of_sandbox[sandbox_id]:
            del self._of_sandbox[sandbox_id]


async def _connected(sandbox: LiveSandbox, port: int, where: str) -> socket.socket:
    refused: OSError | None = None
    for family, address in _LOOPBACKS:
        opened = await _opened(sandbox, family)
        try:
            await _connect(opened, address, port, where)
            # It may have ended meanwhile, and has cut its connections already.
            sandbox.require_live(_OPERATION)
        except OSError as error:
            opened.close()
            refused = error
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    number = errno.ECONNREFUSED if refused is None or refused.errno is None else refused.errno
    if number == errno.ECONNREFUSED:
        raise Unreachable(
            "nothing listens there",
            operation=_OPERATION,
            object=where,
            cause=errno_text(number),
        )
    raise error_from_errno(number, "it failed", operation=_OPERATION, object=where)


async def _opened(sandbox: LiveSandbox, family: int) -> socket.socket:
    await sandbox.gate.enter()
    try:
        _, link = sandbox.require_running(_OPERATION)
        return await link.open_socket(family)
    except LinkClosed:
        raise sandbox.gone_error(_OPERATION) from None
    finally:
        sandbox.gate.leave()


async def _connect(opened: socket.socket, address: str, port: int, where: str) -> None:
    opened.setblocking(False)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().sock_connect(opened, (address, port))
    except TimeoutError:
        raise OperationTimeout(
            f"no connection within {CONNECT_TIMEOUT_S:g} s",
            operation=_OPERATION,
            object=where,
            cause="whatever listens there accepts nothing",
        ) from None
