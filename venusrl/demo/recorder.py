"""Writes what happens: metrics and episodes to files, progress to the terminal."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from venusrl.demo.evaluation import Evaluation, family_rewards
from venusrl.demo.learner import Update
from venusrl.engine import VllmEngine
from venusrl.episode import Episode, Outcome
from venusrl.report.metrics import JsonLines, percentiles
from venusrl.report.terminal import Terminal

METRICS_FILE = "metrics.jsonl"
EPISODES_FILE = "episodes.jsonl"


@dataclass
class RolloutTotals:
    """One rollout phase while it runs. ``engine_s`` is the time with a generation under way."""

    title: str
    expected: int
    started: float
    tokens_before: int
    busy_before_s: float
    done: int = 0
    solved: int = 0
    failed: int = 0


class Recorder:
    def __init__(self, out: Path, terminal: Terminal) -> None:
        self._metrics = JsonLines(out / METRICS_FILE)
        self._episodes = JsonLines(out / EPISODES_FILE)
        self.terminal = terminal
        self.episodes = 0
        self.failed_episodes = 0

    def close(self) -> None:
        self.terminal.end_live()
        self._metrics.close()
        self._episodes.close()

    def begin_rollout(self, title: str, expected: int, engine: VllmEngine) -> RolloutTotals:
        return RolloutTotals(
            title, expected, time.monotonic(), engine.tokens_generated, engine.busy_s
        )

    def episode_sink(
        self, totals: RolloutTotals, engine: VllmEngine, phase: str
    ) -> Callable[[Episode], None]:
        def take(episode: Episode) -> None:
            totals.done += 1
            totals.solved += episode.outcome is Outcome.SOLVED
            totals.failed += episode.outcome is Outcome.FAILED
            self.episodes += 1
            self.failed_episodes += episode.outcome is Outcome.FAILED
            self._episodes.write(_episode_record(episode, phase, engine.version))
            if episode.outcome is Outcome.FAILED:
                self.terminal.note(f"failed episode {episode.task_id}: {episode.failure}")
            seconds = max(1e-3, time.monotonic() - totals.started)
            tokens = engine.tokens_generated - totals.tokens_before
            self.terminal.live(
                f"{totals.title}: {totals.done}/{totals.expected} episodes  "
                f"reward {totals.solved / max(1, totals.done - totals.failed):.2f}  "
                f"{totals.expected - totals.done} to go  {tokens / seconds:.0f} tokens/s"
            )

        return take

    def step(
        self, step: int, steps: int, episodes: Sequence[Episode], update: Update,
        totals: RolloutTotals, engine: VllmEngine, rollout_s: float,
    ) -> None:  # fmt: skip
        scored = [episode for episode in episodes if episode.outcome is not Outcome.FAILED]
        reward = sum(episode.reward for episode in scored) / max(1, len(scored))
        engine_s = min(rollout_s, engine.busy_s - totals.busy_before_s)
        tokens = sum(episode.policy_tokens for episode in episodes)
        phases = {
            "generate": engine_s,
            "sandboxes alone": rollout_s - engine_s,
            "train": update.train_s,
            "push": update.push_s,
            "probe": update.probe_s,
        }
        record = {
            "kind": "step",
            "step": step,
            "version": update.version,
            "reward": reward,
            "episodes": len(episodes),
            "failed": len(episodes) - len(scored),
            "families": family_rewards(scored),
            "policy_tokens": tokens,
            "tokens_per_s": tokens / rollout_s,
            "episodes_per_s": len(episodes) / rollout_s,
            "phases_s": phases,
            "latencies_s": latencies(episodes),
            "max_abs_logprob_diff": update.max_abs_logprob_diff,
            "train": asdict(update.stats),
        }
        self._metrics.write(record)
        where = "  ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
        self.terminal.note(
            f"step {step}/{steps}  reward {reward:.2f}  {len(episodes)} sandboxes at "
            f"{len(episodes) / rollout_s:.0f}/s  {tokens / rollout_s:.0f} tokens/s  "
            f"seconds: {where}"
        )

    def evaluation(self, evaluation: Evaluation) -> None:
        self._metrics.write(evaluation.record())
        how = "greedy" if evaluation.greedy else "T=1"
        self.terminal.note(
            f"held-out, {evaluation.name}, {how}: {evaluation.reward:.3f} "
            f"± {evaluation.standard_error:.3f} ({evaluation.episodes} tasks, "
            f"{evaluation.seconds:.0f} s)"
        )

    def event(self, record: dict[str, Any]) -> None:
        self._metrics.write(record)


def latencies(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Percentiles of what episodes waited for, by kind of request."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, seconds in _waits(episode).items():
            found.setdefault(name, []).extend(seconds)
        found.setdefault("generate", []).append(episode.generate_s)
        found.setdefault("episode", []).append(episode.total_s)
    return {name: percentiles(values) for name, values in found.items()}


def _waits(episode: Episode) -> dict[str, list[float]]:
    times = episode.times
    single = {
        "create": times.create_s,
        "setup": times.setup_s,
        "verify": times.verify_s,
        "kill": times.kill_s,
    }
    waits = {name: [seconds] for name, seconds in single.items() if seconds is not None}
    waits["command"] = times.commands_s
    return waits


def _episode_record(episode: Episode, phase: str, version: int) -> dict[str, Any]:
    waits = _waits(episode)
    return {
        "phase": phase,
        "version": version,
        "task": episode.task_id,
        "family": episode.family,
        "group": episode.group,
        "trajectory": episode.trajectory_id,
        "outcome": episode.outcome.value,
        "failure": episode.failure,
        "prompt": episode.prompt,
        "turns": [asdict(turn) for turn in episode.turns],
        "policy_tokens": episode.policy_tokens,
        "seconds": round(episode.total_s, 4),
        "waits_s": {name: [round(s, 5) for s in seconds] for name, seconds in waits.items()},
    }
