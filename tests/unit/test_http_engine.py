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
