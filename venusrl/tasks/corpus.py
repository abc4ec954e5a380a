"""The demonstrations that the policy is warmed up on."""

import random
from collections.abc import Iterator

from venusrl.tasks.flaw_mix import FLAW_MIX
from venusrl.tasks.generator import demonstrate, generate
from venusrl.tasks.task import Demonstration, Task


def warmup_corpus(seed: int, count: int) -> Iterator[tuple[Task, Demonstration]]:
    """``count`` warm-up tasks, each with one demonstration, flawed as often as FLAW_MIX says."""
    for index, task in enumerate(generate("warmup", seed, count)):
        rng = random.Random(f"demonstration/{seed}/{index}")
        flawed = rng.random() < FLAW_MIX[task.family].share
        yield task, demonstrate(task, rng, flawed)
