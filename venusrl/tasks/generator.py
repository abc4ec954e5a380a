"""Makes tasks and demonstrations from a seed: the same arguments give the same result."""

import random
from collections.abc import Sequence

from venusrl.tasks.draw import Draw
from venusrl.tasks.families import FAMILIES
from venusrl.tasks.flaw_mix import FLAW_MIX
from venusrl.tasks.task import Demonstration, Family, Split, Task


def generate(
    split: Split, seed: int, count: int, families: Sequence[str] | None = None
) -> list[Task]:
    """``count`` tasks of ``split``, the families taking turns."""
    names = list(FAMILIES) if families is None else list(families)
    if not names:
        raise ValueError(f"generate {split} tasks: no families given")
    unknown = sorted(set(names) - set(FAMILIES))
    if unknown:
        raise ValueError(f"generate {split} tasks: unknown families {', '.join(unknown)}")
    return [
        _task(FAMILIES[names[index % len(names)]], split, seed, index) for index in range(count)
    ]


def _task(family: Family, split: Split, seed: int, index: int) -> Task:
    # A text as seed is hashed by SHA-512: the same everywhere, and no two streams overlap.
    draw = Draw(split, random.Random(f"{split}/{seed}/{family.name}/{index}"))
    facts = {**family.draw(draw), "clutter": draw.clutter()}
    return Task(
        task_id=f"{family.name}-{split}-{seed}-{index}",
        family=family.name,
        split=split,
        prompt=family.prompt.format(**facts),
        max_turns=family.max_turns,
        setup=family.setup(facts),
        verify=family.verify(facts),
        facts=facts,
    )


def demonstrate(task: Task, rng: random.Random, flawed: bool) -> Demonstration:
    """An episode that solves ``task``, or one with a plausible mistake that does not."""
    family = FAMILIES[task.family]
    if not flawed:
        return Demonstration(family.solve(task.facts), flaw=None)
    flaws = family.flaws(task.facts)
    weights = FLAW_MIX[task.family].weights
    kinds = sorted(flaws)
    (kind,) = rng.choices(kinds, [weights[kind] for kind in kinds])
    return Demonstration(flaws[kind], flaw=kind)
