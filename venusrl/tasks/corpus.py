"""The demonstrations that the policy is warmed up on."""

import random
from collections.abc import Iterator

from venusrl.tasks.families import FAMILIES
from venusrl.tasks.flaw_mix import FLAW_MIX
from venusrl.tasks.generator import demonstrate, generate
from venusrl.tasks.task import Demonstration, Task

# Families whose notes say dozens of different things, each of which has to be met often enough:
# they take several turns of a round.
_EXTRA_TURNS = ("order", "order", "question", "question", "question")


def warmup_corpus(seed: int, count: int) -> Iterator[tuple[Task, Demonstration]]:
    """``count`` warm-up tasks, each with one demonstration, flawed as often as FLAW_MIX says."""
    families = [*FAMILIES, *_EXTRA_TURNS]
    for index, task in enumerate(generate("warmup", seed, count, families)):
        rng = random.Random(f"demonstration/{seed}/{index}")
        flawed = rng.random() < FLAW_MIX[task.family].share
        yield task, demonstrate(task, rng, flawed)
