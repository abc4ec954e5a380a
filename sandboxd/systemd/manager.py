"""What a service manager hands to the daemon, and what the daemon tells it: sd_listen_fds(3),
sd_notify(3), sd_watchdog_enabled(3).

Without a service manager nothing is handed over, and telling does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

from sandboxd.errors import InvalidRequest

_LOG = logging.getLogger("sandboxd")
FIRST_LISTENER = 3
_HANDED = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
)  # fmt: skip


@dataclass(frozen=True)
class ServiceManager:
    """What it handed to this process."""

    notify_address: str = ""
    """Of its datagram socket; empty: nobody listens."""
    watchdog_s: float | None = None
    """It restarts a service that tells nothing for so long."""
    listener: socket.socket | None = None
    """The daemon's Unix socket, bound and listening before the daemon was started."""

    def tell(self, *lines: str) -> None:
        """Lines of sd_notify(3). Not being heard is no reason to stop serving."""
        if not self.notify_address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto("\n".join(lines).encode(), self.notify_address)
        except OSError as error:
            _LOG.warning("the service manager does not hear %s: %s", " ".join(lines), error)

    def tell_reloading(self) -> None:
        """READY is to follow."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    async def keep_alive(self, status: Callable[[], str]) -> None:
        """Tells that the event loop turns, and how it stands, for ever; three times in the time
        that the watchdog allows."""
        while self.watchdog_s is not None:
            self.tell("WATCHDOG=1", f"STATUS={status()}")
            await asyncio.sleep(self.watchdog_s / 3)


def hand_over(environment: MutableMapping[str, str], pid: int) -> ServiceManager:
    """What was handed to process `pid`; it goes from the environment, which programs that the
    daemon starts inherit. `InvalidRequest` for a listener that cannot be the daemon's."""
    handed = {name: environment.pop(name) for name in _HANDED if name in environment}
    address = handed.get("NOTIFY_SOCKET", "")
    watchdog_s = None
    if "WATCHDOG_USEC" in handed and handed.get("WATCHDOG_PID", str(pid)) == str(pid):
        watchdog_s = int(handed["WATCHDOG_USEC"]) / 1e6
    listener = None
    if handed.get("LISTEN_PID") == str(pid):
        listener = _listener(int(handed.get("LISTEN_FDS", "0")))
    # An abstract address begins with a zero byte.
    address = f"\0{address[1:]}" if address.startswith("@") else address
    return ServiceManager(address, watchdog_s, listener)


def _listener(count: int) -> socket.socket | None:
    if count == 0:
        return None
    found = socket.socket(fileno=FIRST_LISTENER)
    os.set_inheritable(FIRST_LISTENER, False)
    listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if (
        count != 1
        or (found.family, found.type) != (socket.AF_UNIX, socket.SOCK_STREAM)
        or not listens
    ):
        found.close()
        raise InvalidRequest(
            "the sockets of the service manager are refused",
            operation="take over listener",
            object=f"{count} sockets from descriptor {FIRST_LISTENER} on",
            cause="it must be one listening Unix stream socket",
        )
    found.setblocking(False)
    return found
