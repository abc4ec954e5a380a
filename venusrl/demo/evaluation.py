"""Held-out reward: one episode per task, none of it trained on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from venusrl.episode import Episode, Outcome


@dataclass(frozen=True)
class Evaluation:
    """Failed episodes count in ``failed`` and nowhere else."""

    name: str
    version: int
    greedy: bool
    reward: float
    standard_error: float
    episodes: int
    failed: int
    families: dict[str, float]
    seconds: float

    def record(self) -> dict[str, Any]:
        return {"kind": "evaluation", **self.__dict__}


def summarise(
    name: str, version: int, greedy: bool, episodes: Sequence[Episode], seconds: float
) -> Evaluation:
    scored = [episode for episode in episodes if episode.outcome is not Outcome.FAILED]
    if not scored:
        causes = {episode.failure for episode in episodes}
        raise RuntimeError(
            f"evaluate {name}: all {len(episodes)} episodes failed: {sorted(map(str, causes))[:3]}"
        )
    mean = sum(episode.reward for episode in scored) / len(scored)
    return Evaluation(
        name=name,
        version=version,
        greedy=greedy,
        reward=mean,
        standard_error=math.sqrt(mean * (1.0 - mean) / len(scored)),
        episodes=len(episodes),
        failed=len(episodes) - len(scored),
        families=family_rewards(scored),
        seconds=seconds,
    )


def family_rewards(scored: Sequence[Episode]) -> dict[str, float]:
    rewards: dict[str, list[float]] = {}
    for episode in scored:
        rewards.setdefault(episode.family, []).append(episode.reward)
    return {family: sum(own) / len(own) for family, own in sorted(rewards.items())}
