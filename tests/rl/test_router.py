"""Two real engines behind the router; one of them is killed in the middle of a generation."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.support.random_model import VOCABULARY, random_model
from venusrl.engine import EngineConfig, EngineError, VllmEngine
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Rollout, Router, RouterConfig
from venusrl.engine.shared_table import REPORT, SharedTable
from venusrl.schedule.priority import Priority

pytestmark = [pytest.mark.rl, pytest.mark.timeout(600)]

CONTEXT = 512
BLOCK = 32
BLOCKS = 40
SLOTS = 64


async def episode(
    handle: Rollout, prompt: list[int], seed: int, lengths: list[int]
) -> tuple[list[int], list[int]]:
    """The whole context in the end, and the versions of what was generated."""
    chance = random.Random(seed)
    context, versions = list(prompt), []
    for length in lengths:
        turn = await handle.generate(context, max_tokens=length, stop_token_ids=[], temperature=0.0)
        assert len(turn.token_ids) == len(turn.logprobs) == len(turn.versions) == length
        context += turn.token_ids + [chance.randrange(2, VOCABULARY) for _ in range(9)]
        versions += turn.versions
    handle.finish()
    return context, versions


async def groups(router: Router, lengths: list[int]) -> list[tuple[list[int], list[int]]]:
    """Three groups of three, the same in each call; trained as they become complete."""
    chance = random.Random(3)
    episodes = []
    for group in range(3):
        prompt = [chance.randrange(2, VOCABULARY) for _ in range(60)]
        for member, handle in enumerate(router.dispatch(len(prompt), 3)):
            episodes.append(episode(handle, prompt, 10 * group + member, lengths))
    found = await asyncio.gather(*episodes)
    for _ in range(3):
        router.retire(await router.batch())
    return found


def test_an_engine_killed_in_mid_generation_loses_no_trajectory(tmp_path: Path) -> None:
    random_model(tmp_path / "first", 3, tied=False, positions=CONTEXT)
    random_model(tmp_path / "second", 4, tied=False, positions=CONTEXT)
    table = tmp_path / "table"
    reports = [SharedTable.create(tmp_path / f"report{n}", REPORT, SLOTS) for n in range(2)]
    engines: list[VllmEngine] = []

    async def start(number: int) -> VllmEngine:
        engine = await VllmEngine.start(
            tmp_path / "first",
            EngineConfig(
                max_model_len=CONTEXT,
                max_concurrency=8,
                kv_blocks=BLOCKS,
                block_tokens=BLOCK,
                threads=1,
                scheduler={
                    "table": str(table),
                    "worker": number,
                    "report": str(reports[number].path),
                    "check_every": 1,
                },
            ),
        )
        engines.append(engine)
        return engine

    config = RouterConfig(
        engines=2,
        capacity=Capacity((BLOCKS - 1) * BLOCK, 8),
        batch_groups=1,
        max_trajectories=SLOTS,
        table=table,
        reports=reports,
    )

    async def scenario() -> None:
        router = await Router.start(config, start, Priority(growth_tokens=60.0))
        try:
            lengths = [30, 150, 30]
            expected = await groups(router, lengths)
            kv = reports[0].read()
            assert kv is not None and kv[1]["kv_tokens"].max() > 0, "the engine tells nothing"
            await router.push_weights(tmp_path / "second", 1)
            after_push = await groups(router, lengths)
            assert after_push != expected and {v for _, vs in after_push for v in vs} == {1}

            again = asyncio.create_task(groups(router, lengths))
            victim = router.workers.engines[0]
            assert isinstance(victim, VllmEngine)
            # In the middle of a turn, with some of it told already.
            while not any(80 < len(part.token_ids) < 150 for part in victim._partial.values()):
                assert not again.done()
                await asyncio.sleep(0.005)
            under_way = {m.number for m in router.rollouts if m.worker == 0}
            os.kill(victim.pid, signal.SIGKILL)
            assert under_way
            assert await again == after_push
            # The replacement has the weights of now, and takes part.
            while router.workers.replaced == 0:
                assert router.workers.reason
                await asyncio.sleep(0.01)
            assert router.workers.live == [0, 1] and engines[2].version == 1
            assert await groups(router, lengths) == after_push
            assert (await engines[2].counts())["admitted"] > 0
            with pytest.raises(EngineError, match="generate from 600"):
                await router.dispatch(600, 1)[0].generate(
                    [5] * 600, max_tokens=4, stop_token_ids=[]
                )
        finally:
            await router.close()

    asyncio.run(scenario())
