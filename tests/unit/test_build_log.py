"""The log of a build: bounded, and followed by any number."""

from __future__ import annotations

import asyncio

from sandboxd.templates.build_log import BuildLog


async def follow(log: BuildLog) -> bytes:
    return b"".join([piece async for piece in log.follow()])


def test_everybody_reads_all_of_it_whenever_they_came() -> None:
    async def scenario() -> list[bytes]:
        log = BuildLog(100)
        early = asyncio.ensure_future(follow(log))
        await asyncio.sleep(0)
        log.add(b"one ")
        late = asyncio.ensure_future(follow(log))
        await asyncio.sleep(0)
        log.add(b"two ")
        log.add(b"three")
        log.end()
        return [await early, await late, await follow(log), log.content()]

    assert asyncio.run(scenario()) == [b"one two three"] * 4


def test_the_end_is_kept_and_who_is_slow_misses_the_middle() -> None:
    async def scenario() -> None:
        log = BuildLog(10)
        slow = log.follow()
        log.add(b"begin")
        assert await anext(slow) == b"begin"
        for number in range(1000):
            log.add(b"%9d\n" % number)
        assert log.content() == b"      999\n"
        missed = await anext(slow)
        assert missed.endswith(log.content()) and len(missed) <= 20
        log.end()
        assert [piece async for piece in slow] == []

    asyncio.run(scenario())
