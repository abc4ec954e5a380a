"""uvicorn on the daemon's Unix socket, with the peer's credentials in every request's state."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sandboxd.api.peer import peer_of

_BACKLOG = 1024
_KEEP_ALIVE_S = 75
# After the sandboxes are destroyed their streams end by themselves; whoever does not read the
# end of an answer is cut after this.
_SHUTDOWN_GRACE_S = 3


class PeerProtocol(HttpToolsProtocol):
    """Asks the kernel once per connection, not per request: credentials cannot change."""

    socket_gid: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        try:
            peer = peer_of(connection, self.socket_gid)
        except OSError:
            transport.abort()
            raise
        self.app_state = {**self.app_state, "peer": peer}


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
        protocol: type[PeerProtocol] = self.config.http_protocol_class  # type: ignore[assignment]
        create_protocol = functools.partial(
            protocol, self.config, self.server_state, self.lifespan.state
        )
        self.servers = [
            await loop.create_unix_server(create_protocol, sock=self._listener, backlog=_BACKLOG)
        ]
        self.started = True
        self.ready.set()


def build_server(app: Any, listener: socket.socket, *, socket_gid: int | None) -> Server:
    """A server for `app`, not yet started."""
    protocol = type("SocketProtocol", (PeerProtocol,), {"socket_gid": socket_gid})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        date_header=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
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
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
