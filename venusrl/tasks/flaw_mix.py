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
    "create": Mix(0.62, {"no_parents": 8, "side_by_side": 1, "swapped": 1}),
    "move": Mix(0.62, {"copied": 8, "old_name": 1, "no_directory": 1}),
    "edit": Mix(0.62, {"first_only": 8, "to_screen": 1, "swapped": 1}),
    "count": Mix(0.42, {"not_counted": 1, "to_screen": 1, "every_line": 1, "others": 1}),
    "search": Mix(0.62, {"not_below": 8, "with_lines": 1, "by_name": 1, "top_only": 1}),
    "permissions": Mix(0.62, {"recursive": 8, "directory": 1, "everywhere": 1}),
    "archives": Mix(0.42, {"not_compressed": 1, "whole_path": 1, "inside": 1}),
    "sort": Mix(0.62, {"as_text": 8, "smallest_first": 1, "first_column": 1, "to_screen": 1}),
    "processes": Mix(0.62, {"not_exact": 8, "paused": 1, "not_written": 1}),
    "environment": Mix(0.42, {"not_exported": 1, "argument": 1, "swapped": 1}),
    # Nearly all of these leave the translation of the note right: the policy has to learn dozens
    # of phrases, and what reward turns should be one habit, not each phrase on its own.
    "order": Mix(0.40, {"astray": 4, "unfound_note": 2, "mistaken": 1}),
    "grant": Mix(0.40, {"astray": 2, "on_note": 1, "swapped": 1, "unfound_note": 1}),
    "question": Mix(0.54, {"to_screen": 8, "elsewhere": 2, "unfound_note": 1}),
}
