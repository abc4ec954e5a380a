"""HTTP requests for a port of a sandbox, handed on to the server that listens there.

The server belongs to the sandbox, so nothing that it sends is trusted: h11 reads it strictly, with
a bound on the head of an answer, and what lies here of a body is what was read last. Headers that
concern one connection stay on their side. An upgrade, as to WebSockets, becomes a plain relay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import h11
from starlette.types import Send

from sandboxd.api.bounded_protocol import MAX_HEAD_BYTES
from sandboxd.api.upgradable_protocol import STATE_NAME, UpgradableProtocol
from sandboxd.e2b.http import ClientGone, Request
from sandboxd.errors import Unreachable
from sandboxd.port_relay import PortRelay
from sandboxd.ports import IDLE_TIMEOUT_S, PortConnection

_READ_BYTES = 64 << 10
# Of one connection, not of the request or the answer (RFC 9110, 7.6.1). Of those that wait for
# "100 Continue" the daemon has taken care.
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_WITHOUT_BODY = frozenset({204, 304})

Headers = list[tuple[bytes, bytes]]


async def forward(connection: PortConnection, request: Request, send: Send) -> None:
    """Answer the request by what the server at the port answers; closes the connection.

    `Unreachable` when it does not answer, or not by HTTP. Once its answer has begun, what is wrong
    with it cuts the answer to the client.
    """
    exchange = _Exchange(connection, request, send)
    try:
        await exchange.run()
    finally:
        if not exchange.handed_over:
            connection.close()


class _Exchange:
    """One request and its answer."""

    def __init__(self, connection: PortConnection, request: Request, send: Send) -> None:
        self._connection = connection
        self._request = request
        self._send = send
        self._client: UpgradableProtocol = request.scope["state"][STATE_NAME]
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self.handed_over = False
        """The connection is a relay's now."""

    async def run(self) -> None:
        upgrade = self._request.header("upgrade") if self._client.upgradable else ""
        head = request_headers(self._request.scope["headers"], upgrade.encode("latin-1"))
        target: bytes = self._request.scope["raw_path"]
        if query := self._request.scope["query_string"]:
            target += b"?" + query
        try:
            await self._tell(h11.Request(method=self._request.method, target=target, headers=head))
        except h11.LocalProtocolError as error:
            raise self._failed(f"the request cannot be handed on: {error}") from error
        sending = asyncio.ensure_future(self._send_body())
        receiving = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and _client_is_gone(sending):
                raise ClientGone
            await receiving
        except (OSError, h11.RemoteProtocolError, TimeoutError) as error:
            if not self._begun:
                raise self._failed(str(error) or "it is silent") from error
            self._client.cut()
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send_body(self) -> None:
        """To its end; afterwards, until the client leaves."""
        # A server that does not want the rest says so by its answer.
        with contextlib.suppress(OSError, h11.LocalProtocolError):
            async for chunk in self._request.chunks():
                await self._tell(h11.Data(data=chunk))
            await self._tell(h11.EndOfMessage())
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        raise ClientGone

    async def _tell(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                await self._loop.sock_sendall(self._connection.socket, data)

    async def _receive(self) -> None:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    data = await self._loop.sock_recv(self._connection.socket, _READ_BYTES)
                self._http.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    await self._switch(event)
                    return
            elif isinstance(event, h11.Response):
                self._begun = True
                await self._send(_start(event))
            elif isinstance(event, h11.Data):
                body = {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
                await self._send(body)
            elif isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b""})
                return
            else:
                raise h11.RemoteProtocolError("the server closed the connection")

    async def _switch(self, event: h11.InformationalResponse) -> None:
        """Both sides speak something else from here on."""
        # Both headers are of one connection, but it is one now.
        head = [b"HTTP/1.1 101 Switching Protocols"]
        head += [name + b": " + value for name, value in event.headers.raw_items()]
        relay = PortRelay(self._connection)
        self.handed_over = True
        ahead, _ = self._http.trailing_data
        await relay.attach()
        self._begun = True
        self._client.take_over(b"\r\n".join([*head, b"", b""]) + ahead, relay.client)

    def _failed(self, cause: str) -> Unreachable:
        return Unreachable(
            "the server in the sandbox gives no answer",
            operation=f"{self._request.method} {self._request.path}"[:200],
            object=self._connection.sandbox.sandbox_id,
            cause=cause[:200],
        )


def _client_is_gone(sending: asyncio.Future[None]) -> bool:
    return sending.done() and isinstance(sending.exception(), ClientGone)


def request_headers(headers: Headers, upgrade: bytes) -> Headers:
    """What the server is told. `upgrade`: what the connection may become."""
    kept = end_to_end(headers)
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    if chunked:
        kept = [(name, value) for name, value in kept if name != b"content-length"]
        kept.append((b"transfer-encoding", b"chunked"))
    if upgrade:
        kept += [(b"connection", b"upgrade"), (b"upgrade", upgrade)]
    elif not any(name == b"connection" for name, _ in kept):
        # One request is all that this connection carries.
        kept.append((b"connection", b"close"))
    return kept


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Those that concern more than one connection."""
    headers = list(headers)
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    dropped = _HOP_BY_HOP | (named - {b"content-length", b"host"})
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _start(event: h11.Response) -> dict[str, object]:
    headers = end_to_end(event.headers)
    if event.status_code in _WITHOUT_BODY:
        # It may say how long the body is that it does not have.
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    return {"type": "http.response.start", "status": event.status_code, "headers": headers}
