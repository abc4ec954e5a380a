"""The two sizes of a run."""

from pathlib import Path
from typing import Any

from venusrl.demo.config import DemoConfig
from venusrl.policy.warmup import WarmupConfig
from venusrl.train.trainer import GrpoConfig


def full(out: Path, *, seed: int, steps: int | None, **settings: Any) -> DemoConfig:
    """A real run: the held-out reward rises to 0.9 and above."""
    given = _given(settings)
    steps = steps or DemoConfig.steps
    return DemoConfig(
        out=out,
        seed=seed,
        steps=steps,
        grpo=GrpoConfig(seed=seed, total_steps=steps),
        **given,
    )


def quick(out: Path, *, seed: int, steps: int | None, **settings: Any) -> DemoConfig:
    """All the parts in two minutes; the policy hardly knows how to write a command."""
    given = _given(settings)
    steps = steps or 2
    return DemoConfig(
        out=out,
        seed=seed,
        steps=steps,
        groups_per_step=6,
        group_size=4,
        evaluation_tasks=12,
        check_tasks=6,
        check_every=1,
        concurrency=24,
        probes=4,
        warmup=WarmupConfig(steps=8),
        grpo=GrpoConfig(seed=seed, total_steps=steps),
        **given,
    )


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in settings.items() if value is not None}
    if "model" not in given:
        given["engine_threads"] = 1
    return given
