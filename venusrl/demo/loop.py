"""The training loop: roll out whole groups, update, push, repeat."""

import random
import time
from collections.abc import Awaitable, Callable, Sequence

from venusrl.demo.batch import training_samples
from venusrl.demo.config import DemoConfig
from venusrl.demo.learner import Learner, ProbePrompt
from venusrl.demo.recorder import Recorder
from venusrl.engine import VllmEngine
from venusrl.episode import Episode, EpisodeRunner, Job, roll_out
from venusrl.tasks import generate


class TrainingLoop:
    """Synchronous: a batch is generated wholly by the weights that the last update made."""

    def __init__(
        self,
        config: DemoConfig,
        runner: EpisodeRunner,
        engine: VllmEngine,
        learner: Learner,
        recorder: Recorder,
        check: Callable[[int], Awaitable[None]],
    ) -> None:
        self._config = config
        self._runner = runner
        self._engine = engine
        self._learner = learner
        self._recorder = recorder
        self._check = check
        self._random = random.Random(f"training/{config.seed}")
        self._tasks = generate("train", config.seed, config.steps * config.groups_per_step)

    async def run(self, deadline: float) -> None:
        """Take all steps, or as many as end before ``deadline`` (of the monotonic clock)."""
        longest_s = 0.0
        for step in range(1, self._config.steps + 1):
            started = time.monotonic()
            if started + longest_s > deadline:
                self._recorder.terminal.note(
                    f"the time budget ends training after {step - 1} steps"
                )
                return
            await self._step(step)
            if step % self._config.check_every == 0 and step < self._config.steps:
                await self._check(step)
            longest_s = max(longest_s, time.monotonic() - started)

    async def _step(self, step: int) -> None:
        config = self._config
        started = time.monotonic()
        jobs = self._jobs(step)
        totals = self._recorder.begin_rollout(f"step {step}", len(jobs), self._engine)
        episodes = await roll_out(
            self._runner,
            jobs,
            concurrency=config.concurrency,
            on_episode=self._recorder.episode_sink(totals, self._engine, f"step {step}"),
        )
        rollout_s = time.monotonic() - started
        samples = training_samples(episodes, self._random if config.shuffle_rewards else None)
        if not samples:
            raise RuntimeError(f"step {step}: no group has two episodes that did not fail")
        update = await self._learner.update(samples, self._probe_prompts(episodes))
        self._recorder.step(step, config.steps, episodes, update, totals, self._engine, rollout_s)

    def _jobs(self, step: int) -> list[Job]:
        config = self._config
        first = (step - 1) * config.groups_per_step
        return [
            Job(task, f"{step}/{task.task_id}")
            for task in self._tasks[first : first + config.groups_per_step]
            for _ in range(config.group_size)
        ]

    def _probe_prompts(self, episodes: Sequence[Episode]) -> list[ProbePrompt]:
        """Whole trajectories, so that the probe sees what training sees."""
        room = self._config.context_tokens - self._config.probe_tokens
        fitting = [
            ProbePrompt(episode.token_ids, episode.loss_mask)
            for episode in episodes
            if len(episode.token_ids) <= room
        ]
        return self._random.sample(fitting, min(self._config.probes, len(fitting)))
