"""TCP sockets of the daemon. Anybody who can reach one can connect; so how many do is bounded
before it is known who they are."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass

from sandboxd.api.bounded_protocol import BoundedProtocol
from sandboxd.api.server import BACKLOG
from sandboxd.errors import InvalidRequest, LimitExceeded


@dataclass
class Connections:
    """Those of one socket that are open, idle ones too: each is one of the daemon's descriptors."""

    limit: int
    count: int = 0


class TcpProtocol(BoundedProtocol):
    """One connection."""

    shared: Connections
    _counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._counted = True
        self.shared.count += 1
        if self.shared.count > self.shared.limit:
            self.refuse(
                LimitExceeded(
                    "too many connections", cause=f"at most {self.shared.limit} are served"
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._counted:
            self._counted = False
            self.shared.count -= 1


def bind(address: str, setting: str) -> socket.socket:
    """A listening socket at HOST:PORT, of a numeric host, as `setting` names it; `InvalidRequest`
    where it cannot be had."""
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
            operation="listen",
            object=f"{setting} {address[:200]}",
            cause=str(error),
        ) from error
    listener.setblocking(False)
    return listener
