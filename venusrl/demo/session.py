"""The composition root of a demo run: makes every part, wires them, drives them, ends them."""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import torch

from sandboxd.client import AsyncDaemon, DaemonInfo
from venusrl.demo.config import CHECK_SEED, EVALUATION_SEED, DemoConfig
from venusrl.demo.evaluation import Evaluation, summarise
from venusrl.demo.learner import Learner, ProbePrompt
from venusrl.demo.loop import TrainingLoop
from venusrl.demo.recorder import Recorder
from venusrl.demo.summary import Summary
from venusrl.demo.threads import in_thread
from venusrl.engine import EngineConfig, VllmEngine
from venusrl.episode import (
    CommandCounter,
    DaemonSandboxes,
    Episode,
    EpisodeConfig,
    EpisodeRunner,
    Job,
    SandboxSettings,
    roll_out,
)
from venusrl.policy.conversation import conversation_for
from venusrl.policy.warmup import WarmupProgress, make_policy
from venusrl.tasks import Task, generate
from venusrl.train.trainer import Trainer

CHECKPOINT_DIR = "checkpoint"


class DemoSession:
    """One run. ``run`` fills ``summary``; whatever ends it, ``summary`` says how far it came."""

    def __init__(self, config: DemoConfig, recorder: Recorder) -> None:
        self._config = config
        self._recorder = recorder
        self._started = time.monotonic()
        self._commands = CommandCounter()
        self._cancelled = False
        self.summary = Summary(seed=config.seed, shuffled=config.shuffle_rewards)

    async def run(self) -> None:
        config = self._config
        torch.set_num_threads(max(1, torch.get_num_threads()))
        async with AsyncDaemon(config.socket) as daemon:
            before = await daemon.info()
            sandboxes = DaemonSandboxes(
                SandboxSettings(
                    image=config.image, socket=config.socket, run_label=uuid.uuid4().hex
                ),
                self._commands,
            )
            try:
                model_dir = config.model or await self._make_policy()
                await self._train(model_dir, sandboxes)
            finally:
                await self._take_stock(daemon, before, sandboxes)

    async def _take_stock(
        self, daemon: AsyncDaemon, before: DaemonInfo, sandboxes: DaemonSandboxes
    ) -> None:
        left = await sandboxes.sweep()
        if left:
            self._recorder.terminal.note(f"removed {left} sandboxes that were still there")
        after = await daemon.info()
        summary = self.summary
        summary.commands = self._commands.started
        summary.daemon_commands = after.counters["execs_started"] - before.counters["execs_started"]
        summary.sharing = sandboxes.sharing
        summary.episodes = self._recorder.episodes
        summary.failed_episodes = self._recorder.failed_episodes
        summary.seconds = round(time.monotonic() - self._started, 1)

    async def _make_policy(self) -> Path:
        directory = self._config.out / "policy"
        terminal = self._recorder.terminal
        terminal.note("make the policy: warm-up on demonstrations, some of them flawed")

        def show(progress: WarmupProgress) -> None:
            if self._cancelled:
                raise InterruptedError("the warm-up was interrupted")
            line = f"warm-up {progress.step}/{progress.steps}  loss {progress.loss:.3f}"
            terminal.live(line)
            if progress.step % max(1, progress.steps // 5) == 0:
                terminal.note(line)

        def work() -> Path:
            return make_policy(self._config.seed, directory, show, self._config.warmup)

        started = time.monotonic()
        try:
            made = await in_thread(work, on_cancel=self._cancel)
        finally:
            terminal.end_live()
        seconds = time.monotonic() - started
        self._recorder.event({"kind": "policy", "seconds": seconds})
        return made

    def _cancel(self) -> None:
        self._cancelled = True

    async def _train(self, model_dir: Path, sandboxes: DaemonSandboxes) -> None:
        config = self._config
        terminal = self._recorder.terminal
        started = time.monotonic()
        trainer = Trainer(model_dir, config.grpo)
        terminal.note("start the engine")
        engine = await VllmEngine.start(
            model_dir,
            EngineConfig(
                max_model_len=config.context_tokens,
                max_concurrency=config.concurrency,
                threads=config.engine_threads,
                seed=config.seed,
                log_path=config.out / "engine.log",
            ),
        )
        seconds = time.monotonic() - started
        terminal.note(f"the engine runs after {seconds:.0f} s")
        self._recorder.event({"kind": "engine", "seconds": seconds})
        learner = Learner(
            trainer,
            engine,
            config.out / "weights",
            tolerance=config.logprob_tolerance,
            probe_tokens=config.probe_tokens,
        )
        try:
            conversation = conversation_for(trainer.tokenizer)
            runner = EpisodeRunner(
                engine,
                conversation,
                sandboxes,
                EpisodeConfig(context_tokens=config.context_tokens),
            )
            tasks = generate("held_out", EVALUATION_SEED, config.evaluation_tasks)
            starts = [conversation.start(task.prompt) for task in tasks[: config.probes]]
            await learner.check([ProbePrompt(ids, [0] * len(ids)) for ids in starts])
            await self._evaluate("before", runner, engine, tasks)
            try:
                await self._loop(runner, engine, learner).run(self._deadline())
            finally:
                await in_thread(lambda: trainer.save(config.out / CHECKPOINT_DIR))
            await self._evaluate("after", runner, engine, tasks)
        finally:
            self.summary.max_abs_logprob_diff = learner.max_abs_logprob_diff
            learner.close()
            engine.close()

    def _deadline(self) -> float:
        """When training must end for the evaluation that follows to fit."""
        evaluations_s = sum(one.seconds for one in self.summary.evaluations)
        # A quarter more: the machine may be busier then.
        return self._started + self._config.time_budget_s - 1.25 * evaluations_s - 10.0

    def _loop(self, runner: EpisodeRunner, engine: VllmEngine, learner: Learner) -> TrainingLoop:
        checks = generate("held_out", CHECK_SEED, self._config.check_tasks)

        async def check(step: int) -> None:
            await self._evaluate(f"step {step}", runner, engine, checks, greedy=False)

        return TrainingLoop(self._config, runner, engine, learner, self._recorder, check)

    async def _evaluate(
        self,
        name: str,
        runner: EpisodeRunner,
        engine: VllmEngine,
        tasks: Sequence[Task],
        *,
        greedy: bool = True,
    ) -> None:
        """Sampled at T = 1 and, if ``greedy``, greedily as well; the same tasks."""
        for temperature in (1.0, 0.0) if greedy else (1.0,):
            started = time.monotonic()
            kind = "sampled" if temperature else "greedy"
            totals = self._recorder.begin_rollout(f"evaluate {name}, {kind}", len(tasks), engine)
            episodes: list[Episode] = await roll_out(
                runner,
                [Job(task, task.task_id, temperature) for task in tasks],
                concurrency=self._config.concurrency,
                on_episode=self._recorder.episode_sink(totals, engine, f"{name} {kind}"),
            )
            evaluation: Evaluation = summarise(
                name, engine.version, temperature == 0.0, episodes, time.monotonic() - started
            )
            self._recorder.evaluation(evaluation)
            self.summary.evaluations.append(evaluation)
