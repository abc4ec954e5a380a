"""What `rollout_real` runs: a workload with forced lengths, two engines, and one policy on them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from venusrl.engine import EngineConfig, VllmEngine
from venusrl.engine.rollouts import Capacity
from venusrl.engine.router import Rollout, Router, RouterConfig
from venusrl.schedule.snapshot import Phase, Policy
from venusrl.simulate.workload import GroupScript, LogNormal, Workload, draw_group

ENGINES = 2
GROUP = 8
BATCH = 2
ASYNC_FACTOR = 1.5
BLOCK = 32
MODEL_TOKENS = 896
STEP_TOKENS = 256
SLOTS = 32
# Blocks of each engine, one of which is vLLM's own, for a pressure of 5 and of 1.
BLOCKS = {"5": MODEL_TOKENS // BLOCK + 1, "1": 5 * MODEL_TOKENS // BLOCK + 1}
# The heavy workload at a fraction of its size, chosen by what one context costs: to compute the
# mean live context again takes three times as long as a turn decodes at full memory, as on a 32B
# engine. So a context is 37 times what a turn generates (147 there), as prefill is dearer here: a
# token costs 0.036 of a step that only decodes (0.002 there). With 24 trajectories in flight an
# engine holds 2.4 mean contexts at the higher pressure (8.7 there), and must hold the longest.
WORKLOAD = Workload(
    name="small",
    turns=LogNormal(11, 0.7),
    sibling_icc=0.6,
    prompt_tokens=128,
    generated=LogNormal(8, 0.7),
    observed=LogNormal(24, 0.9),
    tool_s=LogNormal(0.03, 1.2),
    max_turns=40,
    max_tokens=MODEL_TOKENS - BLOCK,
)
VOCABULARY = 512


@dataclass(frozen=True, slots=True)
class Entrant:
    """One row. `name`s of settings are those of `rollout_real_settings.json`."""

    policy: Policy
    async_factor: float = ASYNC_FACTOR
    by_rank: bool = False
    ours: bool = False
    pause_s: float = 0.02


@dataclass(frozen=True, slots=True)
class Effort:
    """Steps of a run: left out, then measured."""

    seeds: tuple[int, ...] = (1, 2, 3)
    warm_up: int = 1
    measured: int = 3


@dataclass(frozen=True, slots=True)
class Measured:
    trained_tokens_per_hour: float
    step_s: float
    # Mean context of those that have begun and are not complete, times those that are dispatched,
    # over what the engines can hold.
    pressure: float
    unfinished_pressure: float  # context of all that are not complete, begun or not, over the same
    hit_rate: float  # of the context of admitted turns
    prefilled_per_trained: float
    preempted_per_step: float
    engine_cpu_s: float  # of the engines, per thousand trained tokens: what a busy machine leaves
    migrated: int
    mean_trained_tokens: float  # of a trajectory; what was dispatched: `mean_dispatched_tokens`
    mean_dispatched_tokens: float


class Fleet:
    """Two engines with a router, for all runs that share memory and scheduler."""

    def __init__(self, place: Path, blocks: int, *, ours: bool) -> None:
        self.place, self.blocks, self.ours = place, blocks, ours
        self.table = place / f"table-{blocks}"
        self.router: Router

    async def start(self, number: int) -> VllmEngine:
        return await VllmEngine.start(
            self.place / "model",
            EngineConfig(
                max_model_len=MODEL_TOKENS,
                max_concurrency=SLOTS,
                kv_blocks=self.blocks,
                block_tokens=BLOCK,
                step_tokens=STEP_TOKENS,
                threads=1,
                log_steps=True,
                scheduler={"table": str(self.table), "worker": number} if self.ours else None,
                log_path=self.place / f"engine-{number}.log",
            ),
        )

    async def __aenter__(self) -> Fleet:
        capacity = Capacity((self.blocks - 1) * BLOCK, SLOTS, BLOCK)
        config = RouterConfig(
            ENGINES,
            capacity,
            BATCH,
            max_trajectories=64,
            table=self.table if self.ours else None,
            interval_s=0.25,
        )
        self.router = await Router.start(config, self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.router.close()


@dataclass(frozen=True, slots=True)
class StepTime:
    """Of the trainer, from one step to the next."""

    wall_s: float
    cpu_s: float  # of all engines


class Run:
    """One policy on one seed. After `measure`: `step_times` of all its steps, the first from the
    start on, and `engine_steps` as `simulate.fitted` reads them."""

    def __init__(self, fleet: Fleet, entrant: Entrant, seed: int) -> None:
        self.router, self.entrant, self.seed = fleet.router, entrant, seed
        self.capacity_tokens = ENGINES * (fleet.blocks - 1) * BLOCK
        self.scripts: dict[int, GroupScript] = {}  # by order of dispatch
        self.episodes: set[asyncio.Task[None]] = set()
        self.dispatched = 0
        self.contexts: list[tuple[float, float]] = []
        self.step_times: list[StepTime] = []
        self.engine_steps: list[list[float]] = []

    async def measure(self, effort: Effort) -> Measured:
        router = self.router
        router.policy = self.entrant.policy
        router.config = replace(
            router.config, by_rank=self.entrant.by_rank, pause_s=self.entrant.pause_s
        )
        in_flight = round(self.entrant.async_factor * BATCH)
        trained: list[int] = []
        moved = 0
        await self.take_steps()  # of whoever ran before
        counts = [await self.counts()]
        times_s = [time.monotonic()]
        for _ in range(in_flight):
            self.dispatch()
        self.episodes.add(asyncio.create_task(self.watch()))
        for step in range(effort.warm_up + effort.measured):
            if step == effort.warm_up:
                moved = router.migrated
                trained.clear()
                self.contexts.clear()
            groups = await self.batch()
            for group in groups:
                trained += self.scripts[group.order].generated_tokens.tolist()
            router.retire(groups)
            router.advance(router.rollouts.version + 1)
            times_s.append(time.monotonic())
            for _ in groups:
                self.dispatch()
            counts.append(await self.counts())
        migrated = router.migrated - moved
        self.engine_steps = await self.take_steps()
        await self.leave()
        self.step_times = [
            StepTime(later_s - before_s, (after["cpu_ms"] - before["cpu_ms"]) / 1000)
            for (before_s, later_s), (before, after) in zip(
                pairwise(times_s), pairwise(counts), strict=True
            )
        ]
        counted = {name: counts[-1][name] - counts[effort.warm_up][name] for name in counts[0]}
        time_s = times_s[-1] - times_s[effort.warm_up]
        dispatched = [script.generated_tokens for script in self.scripts.values()]
        live, unfinished = np.mean(self.contexts, axis=0)
        return Measured(
            trained_tokens_per_hour=3600 * sum(trained) / time_s,
            step_s=time_s / effort.measured,
            pressure=float(live) * in_flight * GROUP / self.capacity_tokens,
            unfinished_pressure=float(unfinished) / self.capacity_tokens,
            hit_rate=counted["hit_tokens"] / max(1, counted["asked_tokens"]),
            prefilled_per_trained=(counted["asked_tokens"] - counted["hit_tokens"]) / sum(trained),
            preempted_per_step=counted["preempted"] / effort.measured,
            engine_cpu_s=counted["cpu_ms"] / sum(trained),
            migrated=migrated,
            mean_trained_tokens=float(np.mean(trained)),
            mean_dispatched_tokens=float(np.mean(np.concatenate(dispatched))),
        )

    async def batch(self) -> list[Any]:
        """The next step's groups; an episode that fails ends the run."""
        waiting = asyncio.ensure_future(self.router.batch())
        while not waiting.done():
            done, _ = await asyncio.wait(
                {waiting, *self.episodes}, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done - {waiting}:
                self.episodes.discard(task)
                await task
        return await waiting

    async def watch(self) -> None:
        """Samples how much context is under way, for ever."""
        while True:
            await asyncio.sleep(0.2)
            unfinished = [m for m in self.router.rollouts if m.phase is not Phase.DONE]
            begun = [m.context_tokens for m in unfinished if m.turns or m.phase is Phase.RUNNING]
            if begun:
                held = sum(m.context_tokens for m in unfinished)
                self.contexts.append((float(np.mean(begun)), float(held)))

    async def take_steps(self) -> list[list[float]]:
        rows: list[list[float]] = []
        for engine in self.router.workers.engines:
            assert isinstance(engine, VllmEngine)
            rows += await engine.steps()
        return rows

    async def counts(self) -> dict[str, int]:
        engines = await self.router.workers.counts()
        found = {name: sum(counts[name] for counts in engines) for name in engines[0]}
        used_s = 0.0
        for engine in self.router.workers.engines:
            assert isinstance(engine, VllmEngine)
            times = psutil.Process(engine.pid).cpu_times()
            used_s += times.user + times.system
        return found | {"cpu_ms": round(1000 * used_s)}

    def dispatch(self) -> None:
        script = draw_group(WORKLOAD, self.seed, self.dispatched, GROUP)
        random = np.random.default_rng([self.seed, self.dispatched, 7])
        prompt = random.integers(2, VOCABULARY, WORKLOAD.prompt_tokens).tolist()
        handles = self.router.dispatch(len(prompt), GROUP)
        self.scripts[handles[0].member.group.order] = script
        self.dispatched += 1
        for member, handle in enumerate(handles):
            play = episode(handle, prompt, script, member, int(random.integers(1 << 30)))
            self.episodes.add(asyncio.create_task(play))

    async def leave(self) -> None:
        """Ends what is under way, so that the next run finds empty engines."""
        for task in self.episodes:
            task.cancel()
        await asyncio.gather(*self.episodes, return_exceptions=True)
        for member in list(self.router.rollouts):
            self.router.rollouts.finish(member)
        self.router.retire(list(self.router.rollouts.groups))


async def episode(
    handle: Rollout, prompt: list[int], script: GroupScript, member: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    context = list(prompt)
    turns = int(script.turns[member])
    for turn in range(turns):
        generated = await handle.generate(
            context, max_tokens=int(script.generated[member, turn]), stop_token_ids=[]
        )
        if turn == turns - 1:
            break
        context += generated.token_ids
        await asyncio.sleep(float(script.tool_s[member, turn]))
        context += random.integers(2, VOCABULARY, int(script.observed[member, turn])).tolist()
    handle.finish()
