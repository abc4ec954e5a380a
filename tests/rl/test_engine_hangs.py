"""Real engines that hang instead of dying, and real siblings and judges that never return."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.random_model import random_model
from venusrl.engine import EngineConfig, RolloutEnded, VllmEngine
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Rollout, Router, RouterConfig

pytestmark = [pytest.mark.rl, pytest.mark.timeout(600)]

CONTEXT = 1024
LONG = 800


async def turn(handle: Rollout, context: list[int], length: int) -> list[int]:
    found = await handle.generate(context, max_tokens=length, stop_token_ids=[], temperature=0.0)
    return found.token_ids


def test_a_stopped_engine_a_stuck_tool_and_a_stuck_judge_hold_no_step_up(tmp_path: Path) -> None:
    random_model(tmp_path, 3, tied=False, positions=CONTEXT)
    engines: dict[int, VllmEngine] = {}

    async def start(number: int) -> VllmEngine:
        engine = await VllmEngine.start(
            tmp_path,
            EngineConfig(
                max_model_len=CONTEXT,
                max_concurrency=8,
                kv_blocks=64,
                block_tokens=32,
                threads=1,
                answer_timeout_s=30.0,
            ),
        )
        engines[number] = engine
        return engine

    async def tool(seconds: float) -> None:
        process = await asyncio.create_subprocess_exec("sleep", str(seconds))
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def episode(handle: Rollout, *, tool_s: float = 0.0, judge_s: float = 0.0) -> None:
        context = [5] * 40
        context += await turn(handle, context, 20)
        await tool(tool_s)
        await turn(handle, context, 20)
        await tool(judge_s)
        handle.finish()

    async def scenario() -> None:
        config = RouterConfig(
            2, Capacity(63 * 32, 8), batch_groups=1, interval_s=0.05, tool_timeout_s=20.0
        )
        router = await Router.start(config, start)
        try:
            group = router.dispatch(40, 4)
            hangs: list[dict[str, float]] = [{}, {}, {"tool_s": 1e6}, {"judge_s": 1e6}]
            episodes = [
                asyncio.create_task(episode(handle, **what))
                for handle, what in zip(group, hangs, strict=True)
            ]
            (found,) = await router.batch()
            assert [m.failure is None for m in found.members] == [True, True, False, False]
            router.retire([found])
            await asyncio.gather(*episodes[:2])
            for task in episodes[2:]:
                assert not task.done()
                task.cancel()
            await asyncio.gather(*episodes[2:], return_exceptions=True)

            # An engine is stopped in the middle of a turn: it neither dies nor answers.
            (alone,) = router.dispatch(40, 1)
            expected = await turn(alone, [5] * 40, LONG)
            going = asyncio.create_task(turn(alone, [5] * 40, LONG))
            victim = engines[alone.member.worker]
            while not any(40 < len(part.token_ids) < LONG for part in victim._partial.values()):
                assert not going.done()
                await asyncio.sleep(0.005)
            os.kill(victim.pid, signal.SIGSTOP)
            assert await going == expected
            assert victim.dead is not None and "hangs" in victim.dead
            alone.finish()
            router.retire(await router.batch())
            while router.workers.replaced == 0:
                assert router.workers.reason
                await asyncio.sleep(0.01)
            assert not psutil.pid_exists(victim.pid)

            # What a step may wait for ends a turn that runs, too.
            (late,) = router.dispatch(40, 1)
            router.config = RouterConfig(2, config.capacity, 1, step_timeout_s=0.2)
            going = asyncio.create_task(turn(late, [5] * 40, LONG))
            assert await router.batch() == [late.member.group]
            with pytest.raises(RolloutEnded, match="step has waited"):
                await going
            assert router.given_up == {"tool": 2, "step": 1}
        finally:
            await router.close()

    asyncio.run(scenario())
