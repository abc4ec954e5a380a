"""The TCP socket for E2B's clients. Anybody who can reach it can connect; so how many do is bounded
before there is a key."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from dataclasses import dataclass
from typing import Any

from sandboxd.api.bounded_protocol import BoundedProtocol
from sandboxd.api.server import BACKLOG, Server, server_of
from sandboxd.e2b.refusals import error_body
from sandboxd.errors import InvalidRequest, LimitExceeded, VenusError

_LOG = logging.getLogger("sandboxd")
MAX_CONNECTIONS = 4000
"""Of all clients together, also idle ones: each is one of the daemon's descriptors."""
# Longer than the SDK keeps a connection that it does not use: whoever closes it while the other one
# writes makes a request fail.
_KEEP_ALIVE_S = 330


@dataclass
class _Connections:
    """Those that are open."""

    count: int = 0


class E2bProtocol(BoundedProtocol):
    """One connection."""

    shared: _Connections
    _counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counted = True
        self.shared.count += 1
        if self.shared.count > MAX_CONNECTIONS:
            self.refuse(
                LimitExceeded("too many connections", cause=f"at most {MAX_CONNECTIONS} are served")
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._counted:
            self._counted = False
            self.shared.count -= 1

    def error_body(self, error: VenusError) -> bytes:
        return error_body(error.http_status, str(error))


def bind(address: str) -> socket.socket:
    """A listening socket at HOST:PORT, of a numeric host; `InvalidRequest` where it cannot be
    had."""
    host, _, port = address.rpartition(":")
    try:
        number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError("the port is no number up to 65535")
        family = socket.AF_INET6 if number.version == 6 else socket.AF_INET
        listener = socket.create_server((str(number), int(port)), family=family, backlog=BACKLOG)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            "it cannot be listened on",
            operation="serve E2B clients",
            object=f"e2b_address {address[:200]}",
            cause=str(error),
        ) from error
    listener.setblocking(False)
    if not number.is_loopback:
        _LOG.warning("E2B clients are served on %s without TLS: keys go over it in clear", address)
    return listener


def build_e2b_server(app: Any, listener: socket.socket, *, timeout_s: float) -> Server:
    """A server for `app`, not yet started. `timeout_s`: see `BoundedProtocol`."""
    own: dict[str, Any] = {"shared": _Connections(), "timeout_s": timeout_s}
    protocol = type("E2bSocketProtocol", (E2bProtocol,), own)
    return server_of(app, listener, protocol, keep_alive_s=_KEEP_ALIVE_S)
