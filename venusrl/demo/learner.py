"""One update: train on a batch, publish the weights, push them, compare logprobs."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from venusrl.demo.threads import in_thread
from venusrl.engine import VllmEngine, compare_logprobs
from venusrl.train.publish import WeightPublisher
from venusrl.train.sample import Sample
from venusrl.train.trainer import StepStats, Trainer


@dataclass(frozen=True)
class ProbePrompt:
    """Tokens to continue from; ``loss_mask`` is 1 where the policy wrote them."""

    token_ids: list[int]
    loss_mask: list[int]


@dataclass(frozen=True)
class Update:
    version: int
    stats: StepStats
    max_abs_logprob_diff: float
    train_s: float
    push_s: float
    probe_s: float


class Learner:
    """Keeps the engine's weights equal to the trainer's, one version per update."""

    def __init__(
        self,
        trainer: Trainer,
        engine: VllmEngine,
        weights_dir: Path,
        *,
        tolerance: float,
        probe_tokens: int,
    ) -> None:
        self._trainer = trainer
        self._engine = engine
        self._publisher = WeightPublisher(weights_dir)
        self._tolerance = tolerance
        self._probe_tokens = probe_tokens
        self.max_abs_logprob_diff = 0.0

    async def update(
        self, samples: Sequence[Sample], probe_prompts: Sequence[ProbePrompt]
    ) -> Update:
        version = self._engine.version + 1
        started = time.monotonic()
        stats = await in_thread(lambda: self._trainer.step(samples))
        trained = time.monotonic()
        directory = await in_thread(
            lambda: self._publisher.publish(self._trainer.state_for_engine(), version)
        )
        await self._engine.push_weights(directory, version)
        pushed = time.monotonic()
        difference = await self.check(probe_prompts)
        return Update(
            version=version,
            stats=stats,
            max_abs_logprob_diff=difference,
            train_s=trained - started,
            push_s=pushed - trained,
            probe_s=time.monotonic() - pushed,
        )

    async def check(self, prompts: Sequence[ProbePrompt]) -> float:
        """The largest difference between the engine's and the trainer's logprobs.

        Raises:
            LogprobMismatch: it is above the tolerance.
        """
        probes = await asyncio.gather(
            *(
                self._engine.probe(
                    prompt.token_ids, max_tokens=self._probe_tokens, chosen=prompt.loss_mask
                )
                for prompt in prompts
            )
        )
        version = self._engine.version
        difference = await in_thread(
            lambda: compare_logprobs(
                probes, self._trainer.logprobs, version=version, tolerance=self._tolerance
            )
        )
        self.max_abs_logprob_diff = max(self.max_abs_logprob_diff, difference)
        return difference

    def close(self) -> None:
        self._publisher.close()
