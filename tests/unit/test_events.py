"""The ring of events and those who follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from sandboxd.errors import LimitExceeded
from sandboxd.events import MAX_FOLLOWERS_PER_TENANT, EventLog, Missed, SandboxEvent

Batches = AsyncGenerator[list[SandboxEvent | Missed], None]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 10))


def emit(log: EventLog, *names: str) -> None:
    for name in names:
        log.emit(name, "sb", 1, {}, {})


async def taken(batches: Batches) -> list[str]:
    """Of the next batch: what happened, and how many were missed."""
    return [
        each.type if isinstance(each, SandboxEvent) else f"missed {each.count}"
        for each in await anext(batches)
    ]


def everything(_event: SandboxEvent) -> bool:
    return True


def test_a_follower_sees_what_comes_from_now_on() -> None:
    async def scenario() -> None:
        log = EventLog()
        emit(log, "before")
        batches = log.follow(1, everything)
        assert await taken(batches) == []
        emit(log, "a", "b")
        assert await taken(batches) == ["a", "b"]
        waiting = asyncio.ensure_future(taken(batches))
        await asyncio.sleep(0)
        assert not waiting.done()
        emit(log, "c")
        assert await waiting == ["c"]
        log.close()
        with pytest.raises(StopAsyncIteration):
            await anext(batches)

    run(scenario())


def test_going_on_behind_a_number() -> None:
    async def scenario() -> None:
        log = EventLog(first=100)
        emit(log, "a", "b", "c")
        batches = log.follow(1, everything, after=100, wait=False)
        assert [await taken(batches), await taken(batches)] == [[], ["b", "c"]]
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        # 99 is what came before the first; 102 is the last, so that nothing is missed.
        for after, found in ((99, ["a", "b", "c"]), (101, ["c"])):
            batches = log.follow(1, everything, after=after)
            assert [await taken(batches), await taken(batches)] == [[], found]
        # Of an earlier daemon, and of one whose clock went ahead.
        for after in (5, 103):
            batches = log.follow(1, everything, after=after)
            await anext(batches)
            assert [await taken(batches), await taken(batches)] == [
                ["missed None"],
                ["a", "b", "c"],
            ]

    run(scenario())


def test_a_slow_follower_is_told_how_many_it_missed() -> None:
    async def scenario() -> None:
        log = EventLog(capacity=3, first=0)
        batches = log.follow(1, everything)
        await anext(batches)
        emit(log, *"abcde")
        missed = await anext(batches)
        assert missed == [Missed(2, 1)]
        emit(log, "f")  # while it was told
        assert [await taken(batches), await taken(batches)] == [["missed 1"], ["d", "e", "f"]]

    run(scenario())


def test_only_what_matches() -> None:
    async def scenario() -> None:
        log = EventLog(capacity=1000)
        batches = log.follow(1, lambda event: event.type == "wanted")
        await anext(batches)
        emit(log, *["other"] * 700, "wanted")
        assert await taken(batches) == ["wanted"]

    run(scenario())


def test_followers_are_bounded() -> None:
    async def scenario() -> None:
        log = EventLog()
        followers = [log.follow(1, everything) for _ in range(MAX_FOLLOWERS_PER_TENANT)]
        for each in followers:
            await anext(each)
        with pytest.raises(LimitExceeded):
            await anext(log.follow(1, everything))
        await anext(log.follow(2, everything))
        await followers.pop().aclose()
        await anext(log.follow(1, everything))

    run(scenario())


def test_numbers_of_a_later_daemon_are_higher() -> None:
    async def scenario() -> None:
        earlier = EventLog()
        emit(earlier, *["x"] * 100)
        [last] = [each async for batch in earlier.follow(1, everything, after=0, wait=False)
                  for each in batch if isinstance(each, SandboxEvent)][-1:]  # fmt: skip
        await asyncio.sleep(0.001)
        later = EventLog()
        batches = later.follow(1, everything, after=last.number)
        await anext(batches)
        assert await taken(batches) == ["missed None"]

    run(scenario())
