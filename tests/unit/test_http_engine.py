"""A server that hangs in the middle of a turn: it neither ends the turn nor answers."""

from __future__ import annotations

import asyncio
import json

import pytest

from venusrl.engine import http_engine
from venusrl.engine.generation import EngineError, FinishReason, Generation
from venusrl.engine.http_engine import HttpEngine
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Router, RouterConfig
from venusrl.engine.workers import Engine

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]

EVENT = {"token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": None}


class Server:
    """Answers each turn by one token and nothing more. Healthy until it hangs."""

    def __init__(self) -> None:
        self.hangs = False
        self.asked = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if self.hangs:
                    await reader.read()
                    return
                if head.startswith(b"GET /health"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                data = f"data: {json.dumps({'choices': [EVENT]})}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
                self.asked.set()
                await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_engine, "_HEALTH_INTERVAL_S", 0.05)
    monkeypatch.setattr(http_engine, "_HEALTH_TIMEOUT_S", 0.3)


def test_a_turn_of_a_server_that_hangs_ends_with_what_it_had() -> None:
    async def scenario() -> None:
        hanging = Server()
        async with await asyncio.start_server(hanging, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            engine = await HttpEngine.connect(f"http://127.0.0.1:{port}", "policy")
            partial = Generation([], [], [], FinishReason.LENGTH)
            turn = asyncio.create_task(
                engine.generate([1, 2], max_tokens=9, stop_token_ids=[], partial=partial)
            )
            await hanging.asked.wait()
            hanging.hangs = True
            with pytest.raises(EngineError, match="generate from 2 tokens"):
                await turn
            assert engine.dead is not None and partial.token_ids == [7]
            engine.close()

    asyncio.run(scenario())


def test_a_router_goes_on_without_a_server_that_hangs() -> None:
    async def scenario() -> None:
        servers = [Server(), Server()]
        urls: list[str] = []

        async def start(number: int) -> Engine:
            return await HttpEngine.connect(urls[number], "policy", timeout_s=10.0)

        async with (
            await asyncio.start_server(servers[0], "127.0.0.1", 0) as first,
            await asyncio.start_server(servers[1], "127.0.0.1", 0) as second,
        ):
            urls += [f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}" for s in (first, second)]
            config = RouterConfig(2, Capacity(1000, 4), batch_groups=1, pause_s=0.0)
            router = await Router.start(config, start)
            (handle,) = router.dispatch(1, 1)
            turn = asyncio.create_task(handle.generate([1], max_tokens=9, stop_token_ids=[]))
            done, _ = await asyncio.wait(
                [asyncio.create_task(s.asked.wait()) for s in servers],
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert len(done) == 1
            at = handle.member.worker
            servers[at].hangs = True
            await servers[1 - at].asked.wait()
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
            servers[at].hangs = False
            await router.close()

    asyncio.run(scenario())


class Broken:
    """Answers each turn with an error, in either way that vLLM has for it."""

    def __init__(self, *, streamed: bool, healthy: bool) -> None:
        self.streamed, self.healthy = streamed, healthy

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                status, body = 200, b""
                if head.startswith(b"GET"):
                    status = 200 if self.healthy else 503
                elif self.streamed:
                    body = b'data: {"error": {"message": "the engine is dead"}}\n\n'
                else:
                    status, body = 500, b"the engine is dead"
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n" % (status, len(body)))
                writer.write(b"connection: close\r\n\r\n" + body)
                await writer.drain()
                return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("healthy", [False, True])
def test_an_error_of_a_server_that_is_not_healthy_is_its_death(
    monkeypatch: pytest.MonkeyPatch, streamed: bool, healthy: bool
) -> None:
    """Then its turn goes on elsewhere; of one that is healthy it is the turn's own trouble."""
    monkeypatch.setattr(http_engine, "_HEALTH_INTERVAL_S", 60.0)

    async def scenario() -> None:
        broken = Broken(streamed=streamed, healthy=True)
        async with await asyncio.start_server(broken, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            engine = await HttpEngine.connect(f"http://127.0.0.1:{port}", "policy")
            broken.healthy = healthy
            with pytest.raises(EngineError, match="the engine is dead"):
                await engine.generate([1, 2], max_tokens=9, stop_token_ids=[])
            if healthy:
                assert engine.dead is None
            else:
                assert engine.dead == "the server is not healthy: status 503"
            engine.close()

    asyncio.run(scenario())


def test_what_is_no_address_of_a_server_is_told_at_once() -> None:
    async def scenario() -> None:
        for url in ("localhost:8000", "127.0.0.1", "ftp://there", "http://there:port"):
            with pytest.raises(EngineError, match=f"connect to the engine at {url}: "):
                await HttpEngine.connect(url, "policy")
        with pytest.raises(EngineError, match=r"within 0.05 s; the last was ConnectError"):
            await HttpEngine.connect("http://127.0.0.1:1", "policy", timeout_s=0.05)

    asyncio.run(scenario())
