"""What the router refuses, and what is left after it: settings, calls, policies, weights, engines
that do not start."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.engines import Fleet, Scripted, take, until
from venusrl.engine import EngineConfig
from venusrl.engine.generation import EngineError, RolloutEnded, WeightsError
from venusrl.engine.journal import Journal, JournalError
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Router, RouterConfig
from venusrl.engine.scheduler_options import Options
from venusrl.engine.shared_table import REPORT, SharedTable
from venusrl.schedule.priority import Priority
from venusrl.schedule.snapshot import Decision, Snapshot

pytestmark = [pytest.mark.unit, pytest.mark.timeout(20)]

CAPACITY = Capacity(100_000, 8)


def config(**options: object) -> RouterConfig:
    return replace(
        RouterConfig(2, CAPACITY, batch_groups=1, pause_s=0.0),
        **options,  # type: ignore[arg-type]
    )


def run(
    body: Callable[[Router, Fleet], Awaitable[None]],
    policy: Callable[[Snapshot], Decision] | None = None,
    journal: Journal | None = None,
    **options: object,
) -> None:
    async def whole() -> None:
        fleet = Fleet()
        router = await Router.start(config(**options), fleet, policy, journal=journal)
        try:
            await body(router, fleet)
        finally:
            await router.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("engines", 0),
        ("engines", "2"),
        ("batch_groups", 0),
        ("batch_groups", 1.5),
        ("max_staleness", -1),
        ("max_trajectories", 0),
        ("pause_s", -0.1),
        ("interval_s", 0.0),
        ("interval_s", None),
        ("tool_timeout_s", -1.0),
        ("costs_interval_s", math.nan),
        ("step_timeout_s", 0),
    ],
)
def test_settings_of_the_router(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"router: {name} is {value!r}, not"):
        config(**{name: value})


def test_settings_of_engines_and_their_scheduler(tmp_path: Path) -> None:
    for name in ("kv_tokens", "slots", "block_tokens"):
        with pytest.raises(ValueError, match=f"capacity: {name} is 0"):
            replace(CAPACITY, **{name: 0})
    for name in ("max_model_len", "max_concurrency", "answer_timeout_s", "push_timeout_s"):
        with pytest.raises(ValueError, match=f"engine: {name} is -1"):
            replace(EngineConfig(), **{name: -1})
    for name, value in {
        "table": Path("table"),
        "report": 7,
        "worker": "0",
        "check_every": -1,
        "prefill_tokens": -256,
        "wait_factor": math.nan,
        "patience_s": "10",
    }.items():
        with pytest.raises(ValueError, match=rf"additional_config\['venus'\]: {name} is"):
            Options(**{"table": "table", name: value})  # type: ignore[arg-type]
    report = SharedTable.create(tmp_path / "report", REPORT, 8)
    with pytest.raises(ValueError, match=r"report .*/report has 8 rows"):
        config(reports=[report])


def test_groups_and_turns_of_nothing() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        for prompt_tokens, size in ((10, 0), (10, -1), (0, 2), (-5, 2), (10, 2.0)):
            with pytest.raises(ValueError, match="dispatch a group: "):
                router.dispatch(prompt_tokens, size)  # type: ignore[arg-type]
        assert not router.rollouts.groups
        (handle,) = router.dispatch(1, 1)
        for length in (0, -4):
            with pytest.raises(ValueError, match=f"trajectory 1: max_tokens is {length}"):
                await take(handle, [1], length)
        for wrong in ("text", [1, 2.5], [None]):
            with pytest.raises(ValueError, match="a token id is no whole number"):
                await take(handle, wrong)  # type: ignore[arg-type]
        assert (await take(handle, np.array([1]))).token_ids == [2, 3, 4, 5]  # type: ignore[arg-type]

    run(body)


def test_a_group_that_is_retired_incomplete_leaves_nobody_waiting(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal", 0)

    def nobody(snapshot: Snapshot) -> Decision:
        decision = Priority()(snapshot)
        decision.admitted[:] = False
        return decision

    async def body(router: Router, fleet: Fleet) -> None:
        handles = router.dispatch(1, 2)
        turn = asyncio.create_task(take(handles[0], [1]))
        await asyncio.sleep(0.01)
        group = handles[0].member.group
        router.retire([group])
        with pytest.raises(RolloutEnded, match="retired"):
            await turn
        with pytest.raises(RolloutEnded, match="retired"):
            await take(handles[1], [1])
        handles[1].finish("too late")
        with pytest.raises(ValueError, match="group 0: it is not dispatched, or has been retired"):
            router.retire([group])
        assert router.given_up == {"retired": 2}

    run(body, nobody, journal)
    journal.close()


def test_a_group_that_the_journal_cannot_keep_is_not_there() -> None:
    class Full(Journal):
        def dispatch(self, *_: object) -> None:
            raise JournalError("the disk is full")

    async def scenario() -> None:
        router = await Router.start(
            config(interval_s=0.01), Fleet(), journal=Full.open(Path(":memory:"), 0)
        )
        try:
            with pytest.raises(JournalError, match="full"):
                router.dispatch(1, 2)
            assert not router.rollouts.groups
            await asyncio.sleep(0.05)
            router.fail_if_given_up()
        finally:
            await router.close()

    asyncio.run(scenario())


def test_after_close_everything_says_so() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        (handle,) = router.dispatch(1, 1)
        await router.close()
        await router.close()
        for call in (take(handle, [1]), router.batch(), router.push_weights("weights", 1)):
            with pytest.raises(EngineError, match="the router was closed"):
                await call
        with pytest.raises(EngineError, match="the router was closed"):
            router.dispatch(1, 1)

    run(body)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rank": np.zeros(1)}, r"over 2 trajectories: rank has shape \(1,\)"),
        ({"worker": np.array([0, 2])}, r"2 workers: row 1 \(admitted=True\) has worker 2"),
        ({"worker": np.array([-1, 0])}, r"row 0 \(admitted=True\) has worker -1"),
        ({"worker": np.array([0, -2]), "admitted": np.array([True, False])}, "has worker -2"),
        ({"level": np.array([0, 7])}, "has level 7"),
    ],
)
def test_what_a_policy_decides_of_others_ends_everybody_that_waits(
    change: dict[str, object], said: str
) -> None:
    def policy(snapshot: Snapshot) -> Decision:
        return replace(Priority()(snapshot), **change)  # type: ignore[arg-type]

    async def body(router: Router, fleet: Fleet) -> None:
        first, _ = router.dispatch(1, 2)
        with pytest.raises(EngineError, match=f"nothing is decided any more: .*{said}"):
            await take(first, [1])

    run(body, policy)


def test_weights_that_are_refused_change_nothing() -> None:
    """Whoever pushes is told, the version stays, and engines started later have those before."""

    async def body(router: Router, fleet: Fleet) -> None:
        await router.push_weights("good", 1)

        async def refuse(path: Path | str, version: int) -> None:
            raise WeightsError(f"push {path}: there is no such file")

        for engine in fleet.started:
            engine.push_weights = refuse  # type: ignore[method-assign]
        with pytest.raises(WeightsError, match="push missing: there is no such file"):
            await router.push_weights("missing", 2)
        assert router.rollouts.version == 1
        fleet.started[0].kill()
        await until(lambda: router.workers.replaced)
        assert fleet.started[2].version == 1
        with pytest.raises(WeightsError, match="push old as version 0: 1 generates now"):
            await router.push_weights("old", 0)

    run(body)


def test_an_engine_that_dies_at_a_push_is_replaced_and_gets_the_weights() -> None:
    async def body(router: Router, fleet: Fleet) -> None:
        first = fleet.started[0]

        async def die(path: Path | str, version: int) -> None:
            first.kill()
            raise EngineError("killed")

        first.push_weights = die  # type: ignore[method-assign]
        await router.push_weights("weights", 1)
        await until(lambda: router.workers.replaced)
        assert [engine.version for engine in fleet.started[1:]] == [1, 1]

    run(body)


def test_whatever_start_raises_later_an_engine_is_given_up() -> None:
    async def scenario() -> None:
        fleet, calls = Fleet(), itertools.count()

        async def start(number: int) -> Scripted:
            if next(calls):
                raise OSError("no descriptor is left")
            return await fleet(number)

        router = await Router.start(config(engines=1), start)
        try:
            (handle,) = router.dispatch(1, 1)
            await take(handle, [1])
            fleet.started[0].kill()
            with pytest.raises(EngineError, match=r"given up: OSError.*no descriptor"):
                await take(handle, [1, 2])
        finally:
            await router.close()

    asyncio.run(scenario())


def test_a_start_that_fails_or_is_cancelled_leaves_no_engine_and_no_table(tmp_path: Path) -> None:
    async def scenario(*, cancelled: bool) -> None:
        fleet, reached = Fleet(), asyncio.Event()

        async def start(number: int) -> Scripted:
            if number == 0:
                return await fleet(0)
            await until(lambda: fleet.started)
            reached.set()
            if cancelled:
                await asyncio.Event().wait()
            raise EngineError("no engine to be had")

        starting = asyncio.create_task(Router.start(config(table=tmp_path / "table"), start))
        await reached.wait()
        if cancelled:
            starting.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else EngineError):
            await starting
        assert [engine.dead for engine in fleet.started] == ["closed"]
        assert not (tmp_path / "table").exists()

    asyncio.run(scenario(cancelled=False))
    asyncio.run(scenario(cancelled=True))


def test_two_routers_do_not_share_a_table(tmp_path: Path) -> None:
    table = tmp_path / "table"

    async def body(router: Router, fleet: Fleet) -> None:
        with pytest.raises(FileExistsError, match=r"create table: File exists: .*/table"):
            await Router.start(config(table=table), Fleet())
        assert table.exists()

    run(body, table=table)
    assert not table.exists()
