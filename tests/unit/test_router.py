"""The router over engines that do what a test tells them; real ones are in tests/rl."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.engines import Fleet, take, until
from venusrl.engine.generation import EngineError
from venusrl.engine.rollout import MAX_DEATHS
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Router, RouterConfig
from venusrl.engine.shared_table import DECISION, SharedTable
from venusrl.engine.workers import MAX_FAILURES
from venusrl.schedule.priority import Priority
from venusrl.schedule.snapshot import Costs, Decision, Level, Snapshot

pytestmark = pytest.mark.unit


def config(engines: int = 2, **more: object) -> RouterConfig:
    return RouterConfig(engines, Capacity(100_000, 8), batch_groups=1, pause_s=0.0, **more)  # type: ignore[arg-type]


def run(body: Callable[[Router, Fleet], Awaitable[None]], chosen: RouterConfig) -> None:
    async def whole() -> None:
        fleet = Fleet()
        router = await Router.start(chosen, fleet)
        try:
            await body(router, fleet)
        finally:
            await router.close()

    asyncio.run(whole())


def test_a_trajectory_stays_where_it_is_and_groups_are_spread(tmp_path: Path) -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        handles = [handle for _ in range(2) for handle in router.dispatch(10, 2)]
        contexts = [[100 * n] for n in range(4)]
        for _ in range(3):
            found = await asyncio.gather(
                *(take(h, c) for h, c in zip(handles, contexts, strict=True))
            )
            for context, turn in zip(contexts, found, strict=True):
                context += turn.token_ids
        assert contexts == [list(range(100 * n, 100 * n + 13)) for n in range(4)]
        used = [{c.trajectory for c in engine.claims if c} for engine in fleet.started]
        assert [len(trajectories) for trajectories in used] == [2, 2]
        assert router.migrated == 0

    run(body, config())


def test_the_policy_weighs_with_what_computing_takes_on_these_engines() -> None:
    seen: list[float] = []

    async def body(router: Router, fleet: Fleet) -> None:
        def policy(snapshot: Snapshot) -> Decision:
            seen.append(snapshot.costs.recompute_s)
            return Priority()(snapshot)

        router.policy = policy
        router.dispatch(10, 1)
        await until(lambda: bool(seen))
        assert seen[-1] == Costs().recompute_s, "nobody has told yet"
        fleet.started[0].prefill_ns, fleet.started[1].prefill_ns = 200_000, 400_000
        await until(lambda: seen[-1] == pytest.approx(300e-6))
        fleet.started[1].kill()  # nobody is asked who is dead; the others' word counts
        fleet.started[0].prefill_ns = 100_000
        await until(lambda: seen[-1] == pytest.approx(100e-6))

    run(body, config(costs_interval_s=0.01, interval_s=0.01))


def test_decisions_are_in_the_table_before_a_turn_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "table"

    async def body(router: Router, fleet: Fleet) -> None:
        table = SharedTable.attach(path, DECISION)
        (handle,) = router.dispatch(3, 1)
        await take(handle, [1, 2, 3])
        found = table.read()
        assert found is not None
        claim = fleet.started[handle.member.worker].claims[0]
        assert claim is not None
        row = found[1][claim.slot]
        assert row["trajectory"] == claim.trajectory
        assert (row["worker"], row["level"]) == (handle.member.worker, Level.HIGH)
        handle.finish()
        groups = await router.batch()
        router.retire(groups)
        number = claim.trajectory
        await until(lambda: (now := table.read()) and number not in now[1]["trajectory"])

    run(body, config(table=path))


def test_a_dead_engine_is_replaced_and_its_turns_go_on_where_they_were() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        await router.push_weights("weights", 3)
        (handle,) = router.dispatch(1, 1)
        await take(handle, [10])
        first = fleet.started[handle.member.worker]
        assert first.number == 0
        first.hold = asyncio.Event()
        first.asked.clear()
        turn = asyncio.create_task(take(handle, [10, 11, 12, 13, 14], length=6))
        await first.asked.wait()
        first.kill()
        found = await turn
        assert found.token_ids == [15, 16, 17, 18, 19, 20]
        assert len(found.logprobs) == len(found.versions) == 6
        later = [request for engine in fleet.started[1:] for request in engine.requests]
        assert later[-1:] == [[10, 11, 12, 13, 14, 15, 16]], "what it had was thrown away"
        await until(lambda: router.workers.replaced)
        assert fleet.started[2].number == first.number
        assert fleet.started[2].version == 3, "the replacement has old weights"
        assert router.workers.live == [0, 1]

    run(body, config())


def test_engines_that_do_not_start_again_are_given_up_and_everybody_is_told() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        (handle,) = router.dispatch(1, 1)
        await take(handle, [1])
        waits = asyncio.create_task(router.batch())
        fleet.refuse = True
        for engine in fleet.started:
            engine.kill()
        with pytest.raises(EngineError, match="given up: no engine to be had"):
            await take(handle, [1, 2])
        with pytest.raises(EngineError, match="given up"):
            await waits

    run(body, config())


def test_a_turn_that_kills_engines_ends_before_it_has_killed_all() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        (handle,) = router.dispatch(1, 1)
        fleet.doomed = True
        for engine in fleet.started:
            engine.hold = asyncio.Event()
        turn = asyncio.create_task(take(handle, [1], length=90))
        for _ in range(MAX_DEATHS):
            await until(lambda: [e for e in fleet.started if e.dead is None and e.requests])
            next(e for e in fleet.started if e.dead is None and e.requests).kill()
        with pytest.raises(EngineError, match=f"{MAX_DEATHS} engines died under a turn"):
            await turn

    assert MAX_DEATHS <= MAX_FAILURES
    run(body, config(engines=3))


def test_who_is_not_admitted_waits_and_one_that_gives_up_leaves_nothing() -> None:
    closed = {"door": True}

    def policy(snapshot: Snapshot) -> Decision:
        from venusrl.schedule.priority import Priority

        decision = Priority()(snapshot)
        if closed["door"]:
            decision.admitted[:] = False
        return decision

    async def body(router: Router, fleet: Fleet) -> None:
        first, second = router.dispatch(1, 2)
        waits = asyncio.create_task(take(first, [1]))
        gives_up = asyncio.create_task(take(second, [5]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not [engine for engine in fleet.started if engine.requests]
        with pytest.raises(ValueError, match="no turn to take"):
            await take(first, [1])
        gives_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gives_up
        closed["door"] = False
        assert (await waits).token_ids == [2, 3, 4, 5]
        assert (await take(second, [5])).token_ids == [6, 7, 8, 9]
        for handle in (first, second):
            handle.finish()
            handle.finish()
        with pytest.raises(ValueError, match="no turn to take"):
            await take(first, [1])
        (group,) = await router.batch()
        router.retire([group])
        assert not router.rollouts.groups

    async def start(whole: Fleet) -> None:
        router = await Router.start(config(), whole, policy)
        try:
            await body(router, whole)
        finally:
            await router.close()

    asyncio.run(start(Fleet()))


def test_more_trajectories_than_slots_are_refused() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        router.dispatch(1, 3)
        with pytest.raises(ValueError, match="1 slots"):
            router.dispatch(1, 2)

    run(body, config(max_trajectories=4))
