"""The figures of a run, as others read them: DIR/summary.json."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from venusrl.demo.evaluation import Evaluation
from venusrl.episode import Sharing

SUMMARY_FILE = "summary.json"


@dataclass
class Summary:
    """What a run did not come to is null in the file, never left out."""

    seed: int
    shuffled: bool
    evaluations: list[Evaluation] = field(default_factory=list)
    episodes: int = 0
    failed_episodes: int = 0
    commands: int = 0
    daemon_commands: int | None = None
    # Forks of prepared sandboxes, and memory that they have in common with their templates.
    sharing: Sharing = field(default_factory=Sharing)
    seconds: float = 0.0
    max_abs_logprob_diff: float | None = None
    # "completed", "interrupted", or the error that ended the run.
    ended: str = "completed"

    def record(self) -> dict[str, Any]:
        return {
            "reward_before": self._reward("before", greedy=False),
            "reward_after": self._reward("after", greedy=False),
            "greedy_before": self._reward("before", greedy=True),
            "greedy_after": self._reward("after", greedy=True),
            "episodes": self.episodes,
            "failed_episodes": self.failed_episodes,
            "commands": self.commands,
            "daemon_commands": self.daemon_commands,
            "templates": self.sharing.templates,
            "forks": self.sharing.forks,
            "memory_saved_bytes": self.sharing.saved_bytes,
            "seconds": self.seconds,
            "max_abs_logprob_diff": self.max_abs_logprob_diff,
            "seed": self.seed,
            "shuffled_rewards": self.shuffled,
            "ended": self.ended,
        }

    def write(self, out: Path) -> None:
        text = json.dumps(self.record(), indent=2, allow_nan=False)
        (out / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")

    def _reward(self, name: str, *, greedy: bool) -> float | None:
        for evaluation in self.evaluations:
            if evaluation.name == name and evaluation.greedy is greedy:
                return evaluation.reward
        return None
