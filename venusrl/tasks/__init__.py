"""Shell tasks made from a seed, with verifiers that look at the sandbox's state.

Three splits (warm-up, training, held-out) share families and phrasing, but no name, no content
and no directory shape.
"""

from venusrl.tasks.corpus import warmup_corpus
from venusrl.tasks.families import FAMILIES
from venusrl.tasks.flaw_mix import FLAW_MIX
from venusrl.tasks.fragments import FIXED_FRAGMENTS
from venusrl.tasks.generator import demonstrate, generate
from venusrl.tasks.task import (
    MAX_COMMAND_CHARACTERS,
    SPLITS,
    Demonstration,
    Family,
    Split,
    Step,
    Task,
)

__all__ = [
    "FAMILIES",
    "FIXED_FRAGMENTS",
    "FLAW_MIX",
    "MAX_COMMAND_CHARACTERS",
    "SPLITS",
    "Demonstration",
    "Family",
    "Split",
    "Step",
    "Task",
    "demonstrate",
    "generate",
    "warmup_corpus",
]
