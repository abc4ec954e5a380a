"""The fleet of `rollout_fleet`, simulated with constants that were fitted to its engines."""

from __future__ import annotations

from bench.rollout_fleet import (
    BATCH,
    BLOCK,
    ENGINES,
    GROUP,
    MODEL_TOKENS,
    SLOTS,
    STEP_TOKENS,
    WORKLOAD,
    Entrant,
)
from venusrl.simulate.cluster import Cluster, Contender, Scenario, Step
from venusrl.simulate.engines import Rules
from venusrl.simulate.fitted import Fit
from venusrl.simulate.hardware import EngineModel


def model_of(fitted: Fit, blocks: int, stretch: float = 1.0) -> EngineModel:
    """An engine with so many blocks. They are filled in part: half of one is lost for each mean
    context that is held. `stretch`: seconds on the wall for one of the processor."""
    capacity = (blocks - 1) * BLOCK
    held = max(1, round(capacity / (MODEL_TOKENS / 2)))
    return fitted.model(
        kv_capacity=capacity - held * BLOCK // 2,
        step_tokens=STEP_TOKENS,
        max_running=SLOTS,
        block_tokens=BLOCK,
        stretch=stretch,
    )


def simulate(model: EngineModel, entrant: Entrant, seed: int, steps: int) -> list[Step]:
    """What `rollout_fleet.Run` does, with the same groups. Our class evicts by level and rank, and
    leaves nothing free for growth; both evict block by block."""
    rules = Rules(
        by_rank=entrant.ours or entrant.by_rank,
        by_level=entrant.ours,
        displace=entrant.ours,
        reserve_tokens=1,
        evict_tokens=BLOCK,
    )
    scenario = Scenario(model, WORKLOAD, BATCH, entrant.async_factor, GROUP, ENGINES)
    contender = Contender("", entrant.policy, rules, interval_s=max(entrant.pause_s, 0.05))
    return Cluster(scenario, contender, seed).run(steps)
