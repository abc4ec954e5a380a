"""Episodes: a policy acts in one sandbox, turn by turn, and is scored by the task's verifier."""

from venusrl.episode.record import Episode, Outcome, SandboxTimes, Turn
from venusrl.episode.rollout import Job, roll_out
from venusrl.episode.runner import EpisodeConfig, EpisodeRunner
from venusrl.episode.sandbox import CommandCounter, SandboxSettings
from venusrl.episode.source import DaemonSandboxes, Sharing

__all__ = [
    "CommandCounter",
    "DaemonSandboxes",
    "Episode",
    "EpisodeConfig",
    "EpisodeRunner",
    "Job",
    "Outcome",
    "SandboxSettings",
    "SandboxTimes",
    "Sharing",
    "Turn",
    "roll_out",
]
