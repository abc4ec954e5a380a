"""How often, and how, demonstrations of each family go wrong in warm-up.

The mix makes the start mediocre. Where one mistake outweighs the right form, greedy decoding
makes that mistake and only reward can turn it; elsewhere the mistakes are spread, the right form
is the commonest, and sampling at T = 1 is what errs. The right form always keeps a share of a
quarter or more, so that a group of eight samples nearly always holds a success to learn from.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mix:
    """``share`` of a family's demonstrations is flawed, the kinds in proportion to ``weights``."""

    share: float
    weights: Mapping[str, float]


FLAW_MIX: Mapping[str, Mix] = {
    "create": Mix(0.70, {"no_parents": 8, "wrong_level": 1, "swapped": 1}),
    "move": Mix(0.55, {"copied": 1, "old_name": 1, "no_directory": 1}),
    "edit": Mix(0.70, {"first_only": 8, "to_screen": 1, "swapped": 1}),
    "order": Mix(0.55, {"astray": 3, "mistaken": 1, "on_note": 1, "unfound_note": 1}),
}
