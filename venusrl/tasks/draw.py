"""Draws the names, contents and directory shape of one task from its split's pools.

No two splits share the shape of a whole directory tree: beside the directories that a task is
about stands one that holds empty directories only, and how many they are belongs to one split.
The *depth* of paths is shared. It has to be: a policy that copies paths by steps cannot know how
to end one of a depth that it has never seen.
"""

import random
from collections.abc import Mapping

from venusrl.tasks.task import Split
from venusrl.tasks.words import DrawWord, draw_directory_name, draw_word, modes, split_of

DIRECTORY_DEPTHS = (1, 2)
EMPTY_DIRECTORIES: Mapping[Split, tuple[int, ...]] = {
    "warmup": (2, 5),
    "train": (3, 6),
    "held_out": (4, 7),
}


class Draw:
    """A source of facts for one task; no word comes twice."""

    def __init__(self, split: Split, rng: random.Random) -> None:
        self.split = split
        self.rng = rng
        self._used: set[str] = set()

    def word(self) -> str:
        return self._fresh(draw_word)

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def directory(self) -> str:
        """A path of one or two names."""
        depth = self.rng.choice(DIRECTORY_DEPTHS)
        return "/".join(self._fresh(draw_directory_name) for _ in range(depth))

    def clutter(self) -> str:
        """Directories that stand beside the task's own, separated by blanks."""
        side = self._fresh(draw_directory_name)
        count = self.rng.choice(EMPTY_DIRECTORIES[self.split])
        return " ".join(f"{side}/{self.word()}" for _ in range(count))

    def mode(self) -> str:
        return self.rng.choice(modes(self.split))

    def longer(self, word: str) -> str:
        """A word of the same split that begins with ``word``."""
        while True:
            longer = word + draw_directory_name(self.split, self.rng)
            if split_of(longer) == self.split and longer not in self._used:
                self._used.add(longer)
                return longer

    def text(self, lines: int, words_per_line: int = 1) -> str:
        """Lines of words, each line ending in a newline."""
        return "".join(" ".join(self.words(words_per_line)) + "\n" for _ in range(lines))

    def _fresh(self, draw: DrawWord) -> str:
        while True:
            word = draw(self.split, self.rng)
            if word not in self._used:
                self._used.add(word)
                return word
