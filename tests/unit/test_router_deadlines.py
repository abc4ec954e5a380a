"""Nothing that hangs is waited for without end: tools, judges, turns, steps, the policy itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.support.engines import Fleet, take, until
from venusrl.engine.generation import EngineError, RolloutEnded
from venusrl.engine.liveness import wait_for_silence
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Rollout, Router, RouterConfig
from venusrl.schedule.priority import Priority
from venusrl.schedule.snapshot import Decision, Phase, Snapshot

pytestmark = [pytest.mark.unit, pytest.mark.timeout(20)]

NEVER = 3600.0
SOON = 0.05


def run(body: Callable[[Router, Fleet], Awaitable[None]], **options: object) -> None:
    config = RouterConfig(
        2,
        Capacity(100_000, 8),
        **{"batch_groups": 1, "pause_s": 0.0, "interval_s": 0.01, **options},  # type: ignore[arg-type]
    )

    async def whole() -> None:
        fleet = Fleet()
        router = await Router.start(config, fleet)
        try:
            await body(router, fleet)
        finally:
            await router.close()

    asyncio.run(whole())


async def whole_episode(handle: Rollout) -> None:
    await take(handle, [1])
    handle.finish()


@pytest.mark.parametrize("turns", [0, 1])
def test_a_tool_or_judge_that_never_returns_is_given_up(turns: int) -> None:
    """Also that of an episode that never began."""

    async def body(router: Router, fleet: Fleet) -> None:
        good, stuck = router.dispatch(1, 2)
        await whole_episode(good)
        for _ in range(turns):
            await take(stuck, [1])
        (group,) = await router.batch()
        assert [member.failure is None for member in group.members] == [True, False]
        assert "no turn" in (stuck.member.failure or "")
        assert router.given_up == {"tool": 1}
        with pytest.raises(RolloutEnded, match="no turn"):
            await take(stuck, [1, 2])
        stuck.finish("too late")
        assert stuck.member.record is None

    run(body, tool_timeout_s=SOON)


def test_one_that_waits_for_its_turn_is_not_idle() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        held = asyncio.Event()
        for engine in fleet.started:
            engine.hold = held
        (slow,), (stuck,) = router.dispatch(1, 1), router.dispatch(1, 1)
        turn = asyncio.create_task(take(slow, [1]))
        await until(lambda: slow.member.phase is Phase.RUNNING)
        slow.member.tool_began_s = -NEVER
        assert await router.batch() == [stuck.member.group]
        assert stuck.member.failure is not None and slow.member.failure is None
        held.set()
        await turn

    run(body, tool_timeout_s=SOON)


def test_a_step_waits_no_longer_than_it_may_for_a_forced_group() -> None:
    """Complete groups beside it do not help: the bound forces the one that hangs."""

    async def body(router: Router, fleet: Fleet) -> None:
        stuck = router.dispatch(1, 2)
        for engine in fleet.started:
            engine.hold = asyncio.Event()
        turns = [asyncio.create_task(take(handle, [1])) for handle in stuck]
        await until(lambda: all(h.member.phase is Phase.RUNNING for h in stuck))
        for engine in fleet.started:
            engine.hold = None
        router.advance(1)
        (other,) = router.dispatch(1, 1)
        await whole_episode(other)
        # Not forced yet, and so not waited for.
        assert await router.batch() == [other.member.group]
        router.retire([other.member.group])
        router.advance(2)
        (other,) = router.dispatch(1, 1)
        await whole_episode(other)
        assert await router.batch() == [stuck[0].member.group]
        for turn in turns:
            with pytest.raises(RolloutEnded, match="step has waited"):
                await turn
        assert router.given_up == {"step": 2}
        assert other.member.failure is None

    run(body, max_staleness=2, step_timeout_s=SOON)


def test_a_step_gives_up_no_more_than_it_needs() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        handles = [router.dispatch(1, 1)[0] for _ in range(4)]
        await whole_episode(handles[2])
        first, second = await router.batch()
        assert [first.order, second.order] == [0, 2]
        assert [h.member.failure is None for h in handles] == [False, True, True, True]

    run(body, batch_groups=2, max_staleness=9, step_timeout_s=SOON)


def test_a_step_of_too_few_groups_gives_nothing_up_for_nothing() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        (first,) = router.dispatch(1, 1)
        waits = asyncio.create_task(router.batch())
        await asyncio.sleep(3 * SOON)
        assert first.member.failure is None
        (second,) = router.dispatch(1, 1)
        await whole_episode(second)
        assert len(await waits) == 2
        assert first.member.failure is not None

    run(body, batch_groups=2, step_timeout_s=SOON)


def test_a_policy_that_fails_ends_everybody_that_waits() -> None:
    broken = {"now": False}

    def policy(snapshot: Snapshot) -> Decision:
        if broken["now"]:
            raise ZeroDivisionError("no policy")
        return Priority()(snapshot)

    async def scenario() -> None:
        config = RouterConfig(1, Capacity(100, 1), batch_groups=1, pause_s=0.0)
        router = await Router.start(config, Fleet(), policy)
        try:
            first, second = router.dispatch(1, 2)
            await whole_episode(first)
            waits = asyncio.create_task(router.batch())
            broken["now"] = True
            with pytest.raises(EngineError, match="no policy"):
                await take(second, [1])
            with pytest.raises(EngineError, match="no policy"):
                await waits
        finally:
            await router.close()

    asyncio.run(scenario())


def test_a_router_that_is_closed_leaves_nobody_waiting() -> None:
    async def scenario() -> None:
        config = RouterConfig(1, Capacity(100, 4), batch_groups=1, pause_s=0.0)
        router = await Router.start(config, Fleet())
        router.dispatch(1, 1)
        waits = asyncio.create_task(router.batch())
        await asyncio.sleep(0)
        await router.close()
        with pytest.raises(EngineError):
            await waits

    asyncio.run(scenario())


def test_silence_is_told_from_a_loop_that_was_busy() -> None:
    async def scenario() -> None:
        answers: asyncio.Queue[None] = asyncio.Queue()
        asked = asyncio.Event()

        async def ask() -> None:
            asked.set()
            await answers.get()
            for _ in range(5):  # an answer comes through some hands
                await asyncio.sleep(0)

        def block() -> None:
            time.sleep(1.0)
            answers.put_nowait(None)

        watching = asyncio.create_task(wait_for_silence(ask, 0.4))
        await asked.wait()
        asyncio.get_running_loop().call_soon(block)
        asked.clear()
        await asked.wait()
        assert not watching.done()
        await watching

        async def refuse() -> None:
            raise EngineError("dead")

        with pytest.raises(EngineError, match="dead"):
            await wait_for_silence(refuse, 0.4)

    asyncio.run(scenario())
