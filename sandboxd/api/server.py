"""uvicorn on the daemon's Unix socket, with the peer's credentials in every request's state; other
listeners of the daemon share what is not of that socket alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from sandboxd.api.bounded_protocol import BoundedProtocol
from sandboxd.api.departure import departure_of
from sandboxd.api.peer import Peer, peer_of
from sandboxd.api.upgradable_protocol import UpgradableProtocol
from sandboxd.errors import LimitExceeded

BACKLOG = 1024
_KEEP_ALIVE_S = 75
# After the sandboxes are destroyed their streams end by themselves; whoever does not read the
# end of an answer is cut after this.
_SHUTDOWN_GRACE_S = 3
# Of one tenant, also idle ones: each is one of the daemon's descriptors, which others need too.
MAX_CONNECTIONS_PER_TENANT = 6000


class PeerProtocol(UpgradableProtocol):
    """Asks the kernel once per connection, not per request: credentials cannot change. Bounds how
    many connections a tenant has."""

    socket_gid: int | None = None
    connections_of: Counter[int]
    _peer: Peer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        try:
            peer = peer_of(connection, self.socket_gid)
        except OSError:
            transport.abort()
            raise
        self.app_state = {
            **self.app_state,
            "peer": peer,
            "has_left": departure_of(connection),
        }
        self._peer = peer
        self.connections_of[peer.uid] += 1
        if self.connections_of[peer.uid] > MAX_CONNECTIONS_PER_TENANT:
            cause = f"a tenant may have {MAX_CONNECTIONS_PER_TENANT}"
            self.refuse(
                LimitExceeded(
                    "too many connections", operation="connect", object="socket", cause=cause
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._peer is not None:
            self.connections_of[self._peer.uid] -= 1
            self._peer = None


class Server(uvicorn.Server):
    """Serves on a socket that exists already, and leaves the signals to the composition root."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self._listener = listener
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        protocol: type[BoundedProtocol] = self.config.http_protocol_class  # type: ignore[assignment]
        create_protocol = functools.partial(
            protocol, self.config, self.server_state, self.lifespan.state
        )
        is_unix = self._listener.family == socket.AF_UNIX
        listen = loop.create_unix_server if is_unix else loop.create_server
        self.servers = [await listen(create_protocol, sock=self._listener, backlog=BACKLOG)]
        self.started = True
        self.ready.set()


def build_server(
    app: Any, listener: socket.socket, *, socket_gid: int | None, timeout_s: float
) -> Server:
    """A server for `app` on the daemon's own socket, not yet started. `timeout_s`: see
    `BoundedProtocol`."""
    own: dict[str, Any] = {
        "socket_gid": socket_gid,
        "connections_of": Counter(),
        "timeout_s": timeout_s,
    }
    return server_of(app, listener, type("SocketProtocol", (PeerProtocol,), own))


def server_of(
    app: Any,
    listener: socket.socket,
    protocol: type[BoundedProtocol],
    *,
    keep_alive_s: int = _KEEP_ALIVE_S,
) -> Server:
    """A server for `app` that speaks so, not yet started."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        # It warns of whatever a client does wrong, which is no matter of the daemon's log.
        log_level="error",
        date_header=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
    )
    return Server(config, listener)


def bind_socket(path: Path, socket_gid: int | None) -> socket.socket:
    """The listening socket: root's and the group's, at no instant anybody else's.

    A file left by a killed daemon is replaced; the caller holds the run directory's lock.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        previous = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(previous)
        if socket_gid is not None:
            os.chown(path, 0, socket_gid)
            os.chmod(path, 0o660)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
