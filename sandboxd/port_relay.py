"""Bytes both ways between a client and a port of a sandbox, as they come.

Neither side is read while the other one does not take what came, so what lies here is bounded by
the transports' high-water marks. The end of one direction is handed on, and the other one goes on;
the end of both, an error of one side, or a long silence ends both.
"""

from __future__ import annotations

import asyncio
from typing import cast

from sandboxd.lifecycle import State
from sandboxd.ports import IDLE_TIMEOUT_S, PortConnection


class PortRelay:
    """Between one client's transport, whose protocol is `client`, and one connection."""

    def __init__(self, connection: PortConnection, idle_timeout_s: float = IDLE_TIMEOUT_S) -> None:
        self._connection = connection
        self._idle_timeout_s = idle_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self.client = _Side(self)
        self.port = _Side(self)
        self.client.other, self.port.other = self.port, self.client
        self.silent = False

    async def attach(self) -> None:
        """Take the connection, for a client that is still to come. Whatever fails, the connection
        is closed."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.port, sock=self._connection.socket)
        except BaseException:
            self._connection.close()
            raise
        self._connection.on_cut = self.abort
        self._look_later()

    def abort(self) -> None:
        """End both sides now."""
        self.client.abort()
        self.port.abort()

    def side_lost(self) -> None:
        """One side is closed; with both of them the relay is over."""
        if self.port.lost:
            self._connection.release()
            if self._timer is not None:
                self._timer.cancel()

    def _look_later(self) -> None:
        self.silent = True
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._idle_timeout_s, self._look)

    def _look(self) -> None:
        if self.silent and self._connection.sandbox.state is not State.PAUSED:
            self.abort()
        else:
            self._look_later()


class _Side(asyncio.Protocol):
    """What one of the two transports says."""

    other: _Side

    def __init__(self, relay: PortRelay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None
        self._early = b""
        """What came for it before it was there."""
        self._ended = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._early:
            self.transport.write(self._early)
        if self.other.lost:
            self.transport.close()
        elif self.other._ended:
            self.transport.write_eof()
        else:
            self.other._let_go()

    def data_received(self, data: bytes) -> None:
        self._relay.silent = False
        if self.other.transport is None:
            self.other._early += data
            self._hold()
        elif not self.other.transport.is_closing():
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        if self._ended:
            return True
        self._ended = True
        if self.other._ended:
            # What has been written is still sent.
            self.close()
            self.other.close()
        elif self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        self.other._hold()

    def resume_writing(self) -> None:
        self.other._let_go()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if error is None:
            self.other.close()
        else:
            self.other.abort()
        self._relay.side_lost()

    def close(self) -> None:
        """End it once all is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End it now."""
        if self.transport is not None:
            self.transport.abort()

    def _hold(self) -> None:
        """Read nothing from it."""
        if self.transport is not None and not self._ended and not self.transport.is_closing():
            self.transport.pause_reading()

    def _let_go(self) -> None:
        """Read it again."""
        if self.transport is not None and not self._ended and not self.transport.is_closing():
            self.transport.resume_reading()
