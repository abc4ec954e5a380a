"""Pseudo-words, split by hash: no word belongs to two splits.

Names must be *copied*, never known, so they are syllables without meaning. All splits use the
same letters and lengths; which split a word belongs to is decided by its hash alone, so the
pools are disjoint whatever is drawn from them.
"""

import hashlib
import random
from collections.abc import Callable
from functools import cache

from venusrl.tasks.task import SPLITS, Split

DrawWord = Callable[[Split, random.Random], str]

_CONSONANTS = "bcdfghjklmnprstvwxyz"
_VOWELS = "aeiou"

# Shapes (C consonant, V vowel) of the names of directories, and of all other words. Two open
# syllables of a hundred: a name says nothing about the next syllable of another one, so that
# learning names by heart does not pay and copying does.
_DIRECTORY_SHAPES = ("CVCV",)
_WORD_SHAPES = ("CVCV",)

# Syllables that mean something in a prompt, a note or a shell.
RESERVED = frozenset(
    {
        *("run", "set", "get", "let", "not", "now", "own", "one", "two", "ten", "for", "has"),
        *("its", "all", "but", "tar", "sed", "top", "dir", "put", "pop", "bin", "lib", "dev"),
        *("tab", "bit", "sum", "nor", "far", "line", "lines", "file", "files", "name", "names"),
        *("mode", "modes", "date", "time", "type", "size", "note", "move", "make", "rule", "save"),
        *("take", "team", "view", "first", "last", "room", "base", "data", "read", "does", "rev"),
        *("rename", "remove", "pipe", "kill", "tail", "nice", "nohup", "rasp", "time", "late"),
        *("bare", "rapes", "nazi", "nazis", "pedo", "rape", "penis"),
    }
)


def split_of(word: str) -> Split:
    """The one split that ``word`` belongs to."""
    return SPLITS[hashlib.sha256(word.encode()).digest()[0] % len(SPLITS)]


def draw_word(split: Split, rng: random.Random) -> str:
    return _draw(_WORD_SHAPES, split, rng)


def draw_directory_name(split: Split, rng: random.Random) -> str:
    return _draw(_DIRECTORY_SHAPES, split, rng)


def _draw(shapes: tuple[str, ...], split: Split, rng: random.Random) -> str:
    # A third of all words qualify, so this ends after three rounds on average.
    while True:
        letters = {"C": _CONSONANTS, "V": _VOWELS}
        word = "".join(rng.choice(letters[kind]) for kind in rng.choice(shapes))
        if word not in RESERVED and split_of(word) == split:
            return word


@cache
def modes(split: Split) -> tuple[str, ...]:
    """Octal access modes of ``split``, none of them a common default."""
    every = (f"{o}{g}{r}" for o in "4567" for g in "014567" for r in "0145")
    return tuple(mode for mode in every if mode not in ("644", "755") and split_of(mode) == split)
