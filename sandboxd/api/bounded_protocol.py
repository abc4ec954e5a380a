"""One HTTP connection, bounded in what the parser leaves to its peer: how large the head of a
request is, how long it takes to come, and how long a large answer lies unread."""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sandboxd.api.joined_writes import JoinedWrites
from sandboxd.errors import InvalidRequest, OperationTimeout, TooLarge, VenusError

# The parser keeps a request's line and headers until the last of them has come.
MAX_HEAD_BYTES = 64 << 10
# Streams wait for their reader with less than this; an answer that was made whole lies here.
MAX_UNREAD_BYTES = 2 << 20


class BoundedProtocol(HttpToolsProtocol):
    """What is refused here is answered in the one shape of errors, and the connection closed."""

    timeout_s = 30.0
    """For a head to come, from its first byte, the first one from the connection on; and for some
    of a large answer to be read."""
    _joined: JoinedWrites
    _in_head = False
    _head_bytes = 0
    _heads_begun = 0
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(self._joined)
        self._head_timer = self.loop.call_later(self.timeout_s, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_head_timer()
        self._stop_unread_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._heads_begun += 1

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        was_in_head, self._heads_begun = self._in_head, 0
        self._parse(data)
        if not self._in_head or self.transport.is_closing():
            return
        # Most heads come whole, and need no timer.
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.timeout_s, self._on_head_timeout)
        # Of several requests in one piece, the last is the only one that is not whole.
        if was_in_head or self._heads_begun == 1:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.refuse(
                TooLarge(
                    "the head of the request is too large",
                    operation="receive request",
                    object="headers",
                    cause=f"more than {MAX_HEAD_BYTES} bytes",
                )
            )

    def _parse(self, data: bytes) -> None:
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body:
                # An answer to a request before it would be cut, or stand in its place.
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.refuse(
            InvalidRequest(
                "the request is no HTTP", operation="receive request", object="request", cause=msg
            )
        )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_unread()

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()

    def refuse(self, error: VenusError) -> None:
        """Answer without a request that the application could see."""
        body = self.error_body(error)
        head = (
            f"HTTP/1.1 {error.http_status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def error_body(self, error: VenusError) -> bytes:
        """As the application writes errors."""
        return json.dumps(error.to_json()).encode()

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        self.refuse(
            OperationTimeout(
                "no request has come",
                operation="receive request",
                object="headers",
                cause=f"the last of them must come within {self.timeout_s:g} s",
            )
        )

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_unread(self) -> None:
        self._stop_unread_timer()
        unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self.timeout_s, self._on_unread, unread)

    def _on_unread(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread > MAX_UNREAD_BYTES and unread >= before:
            self.transport.abort()
        else:
            self._watch_unread()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
