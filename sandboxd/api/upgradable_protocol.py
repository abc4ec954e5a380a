"""An HTTP connection that can become something else: what HTTP/1.1 calls an upgrade.

A request that asks for one is served like any other. Whoever answers it finds the connection in its
state, and may answer by `take_over`; from then on the bytes are another protocol's. What the client
sent ahead of the answer is kept for whichever side it turns out to be for.
"""

from __future__ import annotations

import asyncio

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sandboxd.api.bounded_protocol import MAX_HEAD_BYTES, BoundedProtocol

STATE_NAME = "connection"
"""Where a request's state has its connection."""


class UpgradableProtocol(BoundedProtocol):
    """All that counts connections, or bounds them, goes on counting one that was taken over."""

    _taken_by: asyncio.Protocol | None = None
    _asked_by: RequestResponseCycle | None = None
    """The request that asked for an upgrade, until it is answered."""
    _ahead = b""
    _lost = False

    @property
    def upgradable(self) -> bool:
        """The last request asks for an upgrade, in a form in which it can be had."""
        return self._asked_by is not None

    def take_over(self, head: bytes, protocol: asyncio.Protocol) -> None:
        """Answer an upgradable request by `head`, and give the connection to `protocol`. Only
        before anything of another answer was sent."""
        # To uvicorn the client is gone: it sends nothing more.
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._unset_keepalive_if_required()
        self._stop_head_timer()
        self._stop_unread_timer()
        self._taken_by = protocol
        ahead, self._ahead, self._asked_by = self._ahead, b"", None
        self.transport.write(head)
        if not self.transport.is_closing():
            self.flow.resume_reading()
        protocol.connection_made(self.transport)
        if ahead:
            protocol.data_received(ahead)
        if self._lost:
            protocol.connection_lost(None)

    def cut(self) -> None:
        """End the connection in the middle of an answer, which cannot be completed."""
        self.cycle.disconnected = True
        self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][STATE_NAME] = self

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._asked_by is not None:
            self._keep(data)
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._asked_by = self.cycle
            self._keep(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._asked_by is not None and self._asked_by.response_complete:
            # It was refused or passed over: what follows are requests.
            ahead, self._ahead, self._asked_by = self._ahead, b"", None
            if ahead and not self.transport.is_closing():
                self.data_received(ahead)

    def _keep(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > MAX_HEAD_BYTES:
            self.transport.close()

    # What the transport says, to whom it concerns.

    def data_received(self, data: bytes) -> None:
        if self._taken_by is None:
            super().data_received(data)
        else:
            self._taken_by.data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        return None if self._taken_by is None else self._taken_by.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost = True
        if self._taken_by is not None:
            self._taken_by.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._taken_by is None:
            super().pause_writing()
        else:
            self._taken_by.pause_writing()

    def resume_writing(self) -> None:
        if self._taken_by is None:
            super().resume_writing()
        else:
            self._taken_by.resume_writing()

    def shutdown(self) -> None:
        if self._taken_by is None:
            super().shutdown()
        else:
            self.transport.close()
