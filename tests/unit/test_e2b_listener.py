"""What is bounded on E2B's listener before there is a key."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxd.e2b import listener
from sandboxd.errors import InvalidRequest

Reached = Callable[[int], Awaitable[None]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def served(reached: Reached, timeout_s: float = 30.0) -> None:
    """Run it with the port of a listener."""

    async def run() -> None:
        bound = listener.bind("127.0.0.1:0")
        server = listener.build_e2b_server(app, bound, timeout_s=timeout_s)
        serving = asyncio.ensure_future(server.serve())
        await server.ready.wait()
        try:
            await reached(bound.getsockname()[1])
        finally:
            server.should_exit = True
            await serving

    asyncio.run(run())


async def told(port: int, request: bytes) -> bytes:
    """All that a connection answers until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_a_request_is_answered() -> None:
    async def reached(port: int) -> None:
        answer = await told(port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 204")

    served(reached)


@pytest.mark.parametrize(
    "request_", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nA: "]
)
def test_who_does_not_ask_is_cut(request_: bytes) -> None:
    async def reached(port: int) -> None:
        answer = await told(port, request_)
        assert b"HTTP/1.1 504" in answer and b'"code": 504' in answer

    served(reached, timeout_s=0.05)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)

    async def reached(port: int) -> None:
        first = await asyncio.open_connection("127.0.0.1", port)
        second = await asyncio.open_connection("127.0.0.1", port)
        assert (await told(port, b"")).startswith(b"HTTP/1.1 429")
        first[1].close()
        await first[1].wait_closed()
        # The server may learn of it a moment later.
        close = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        while not (await told(port, close)).startswith(b"HTTP/1.1 204"):
            pass
        second[1].close()

    served(reached)


def test_a_large_head_is_refused() -> None:
    async def reached(port: int) -> None:
        answer = await told(port, b"GET / HTTP/1.1\r\nA: " + b"x" * (100 << 10))
        assert answer.startswith(b"HTTP/1.1 413")

    served(reached)


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1", "127.0.0.1:", "localhost:1", "127.0.0.1:x", "127.0.0.1:65536", ":1"],
)
def test_an_address_is_numeric_host_and_port(address: str) -> None:
    with pytest.raises(InvalidRequest):
        listener.bind(address)


def test_an_address_may_be_of_ipv6() -> None:
    try:
        bound = listener.bind("[::1]:0")
    except InvalidRequest as error:
        assert "Cannot assign" in str(error) or "not supported" in str(error)
    else:
        assert bound.family == socket.AF_INET6
        bound.close()
