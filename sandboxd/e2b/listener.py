"""The TCP socket for E2B's clients."""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import Any

from sandboxd.api import tcp
from sandboxd.api.server import Server, server_of
from sandboxd.api.upgradable_protocol import UpgradableProtocol
from sandboxd.e2b.refusals import error_body
from sandboxd.errors import VenusError

_LOG = logging.getLogger("sandboxd")
MAX_CONNECTIONS = 4000
"""Of all clients together."""
# Longer than the SDK keeps a connection that it does not use: whoever closes it while the other one
# writes makes a request fail.
_KEEP_ALIVE_S = 330


class E2bProtocol(tcp.TcpProtocol, UpgradableProtocol):
    """One connection."""

    def error_body(self, error: VenusError) -> bytes:
        return error_body(error.http_status, str(error))


def bind(address: str) -> socket.socket:
    """As `tcp.bind`."""
    listener = tcp.bind(address, "e2b_address")
    if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        _LOG.warning("E2B clients are served on %s without TLS: keys go over it in clear", address)
    return listener


def build_e2b_server(app: Any, listener: socket.socket, *, timeout_s: float) -> Server:
    """A server for `app`, not yet started. `timeout_s`: see `BoundedProtocol`."""
    own: dict[str, Any] = {"shared": tcp.Connections(MAX_CONNECTIONS), "timeout_s": timeout_s}
    protocol = type("E2bSocketProtocol", (E2bProtocol,), own)
    return server_of(app, listener, protocol, keep_alive_s=_KEEP_ALIVE_S)
