"""Streams of answers: signs of life, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("sandboxd._native", reason="needs the native build")

from sandboxd.api.frame_stream import Client
from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.paced import paced


class Source:
    """Gives what is put in, and knows whether it was let go of."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[int | None] = asyncio.Queue()
        self.cancelled = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            while (item := await self.queue.get()) is not None:
                yield item
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class Peer:
    """A client that is there until it goes."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.client = Client(self._receive)

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_items_come_in_order_and_end() -> None:
    async def run() -> None:
        source, peer = Source(), Peer()
        for item in (1, 2, None):
            source.queue.put_nowait(item)
        stream = paced(source.items(), peer.client, keepalive_s=None, timeout_s=None)
        assert [item async for item in stream] == [1, 2]
        peer.client.close()

    asyncio.run(run())


def test_a_silence_is_told_and_loses_nothing() -> None:
    async def run() -> None:
        source, peer = Source(), Peer()
        stream = paced(source.items(), peer.client, keepalive_s=0.001, timeout_s=None)
        async with aclosing(stream):
            assert await anext(stream) is None
            assert await anext(stream) is None
            source.queue.put_nowait(7)
            while (item := await anext(stream)) is None:
                pass
            assert item == 7
        peer.client.close()

    asyncio.run(run())


def test_the_time_of_a_stream_is_up() -> None:
    async def run() -> None:
        source, peer = Source(), Peer()
        stream = paced(source.items(), peer.client, keepalive_s=None, timeout_s=0.01)
        with pytest.raises(ConnectError) as caught:
            await anext(stream)
        assert caught.value.code is Code.DEADLINE_EXCEEDED
        assert source.cancelled
        peer.client.close()

    asyncio.run(run())


def test_a_client_that_goes_ends_the_stream() -> None:
    async def run() -> None:
        source, peer = Source(), Peer()
        stream = paced(source.items(), peer.client, keepalive_s=None, timeout_s=None)
        source.queue.put_nowait(1)
        assert await anext(stream) == 1
        asyncio.get_running_loop().call_soon(peer.left.set)
        assert [item async for item in stream] == []
        assert source.cancelled
        gone = paced(source.items(), peer.client, keepalive_s=None, timeout_s=None)
        assert [item async for item in gone] == []

    asyncio.run(run())


def test_what_makes_the_source_fail_comes_through() -> None:
    async def broken() -> AsyncGenerator[int, None]:
        yield 1
        raise OSError("broken")

    async def run() -> None:
        peer = Peer()
        stream = paced(broken(), peer.client, keepalive_s=None, timeout_s=None)
        assert await anext(stream) == 1
        with pytest.raises(OSError, match="broken"):
            await anext(stream)
        peer.client.close()

    asyncio.run(run())
