"""What a demo run does. Defaults fit two cores and twenty minutes."""

from dataclasses import dataclass, field
from pathlib import Path

from venusrl.policy.warmup import WarmupConfig
from venusrl.train.trainer import GrpoConfig

# Keeps the seeds of training, mini-evaluation and evaluation tasks apart.
EVALUATION_SEED = 1
CHECK_SEED = 2


@dataclass(frozen=True)
class DemoConfig:
    out: Path
    seed: int = 0
    # None makes the policy on the spot.
    model: Path | None = None
    socket: str | None = None
    image: str = "base"
    steps: int = 40
    groups_per_step: int = 24
    group_size: int = 8
    # Standard error of a mean of 400 zeros and ones: at most 0.025.
    evaluation_tasks: int = 400
    check_tasks: int = 60
    check_every: int = 8
    concurrency: int = 192
    # Training stops early enough that the evaluation afterwards still fits.
    time_budget_s: float = 1140.0
    # The control: rewards say nothing about what was done, so nothing may be learnt.
    shuffle_rewards: bool = False
    logprob_tolerance: float = 1e-4
    probes: int = 8
    probe_tokens: int = 12
    context_tokens: int = 1024
    # None is all cores. For the small policy a second thread costs more than it brings.
    engine_threads: int | None = None
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "groups_per_step", "evaluation_tasks", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"demo: {name} is {getattr(self, name)}, must be at least 1")
        if self.group_size < 2:
            raise ValueError(
                f"demo: group_size is {self.group_size}; a baseline needs at least 2 samples"
            )
