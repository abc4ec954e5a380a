"""What tests/kernel/programs/soaker.c holds after any row of commands: the same, in Python."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
PRIVATE_PAGES, FIXED_PAGES = 256, 48
MIN_PRIVATE_PAGES, MAX_PRIVATE_PAGES = 64, 640
MAX_WRITE, MAX_FILE = 1 << 16, 200_000
ON_DISK = tuple(f"f{number}" for number in range(5))
IN_MEMORY = tuple(f"/tmp/soak/t{number}" for number in range(5))
MEMORY_DIRECTORY = "/tmp/soak"
Memory = NDArray[np.uint8]


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def sequence(seed: int, count: int) -> NDArray[np.uint64]:
    return mixed(np.arange(count, dtype=np.uint64) + np.uint64(seed))


def filled(size: int, seed: int) -> Memory:
    return sequence(seed, -(-size // 8)).view(np.uint8)[:size]


def empty(pages: int) -> Memory:
    return np.zeros(pages * PAGE, np.uint8)


@dataclass
class Process:
    """The areas that one process has for itself."""

    private: Memory = field(default_factory=lambda: empty(PRIVATE_PAGES))
    heap: Memory = field(default_factory=lambda: empty(FIXED_PAGES))
    data: Memory = field(default_factory=lambda: empty(FIXED_PAGES))


@dataclass
class Model:
    """Copied for each fork (`copy.deepcopy`, which keeps hard links)."""

    processes: dict[str, Process] = field(default_factory=lambda: {"p": Process(), "c": Process()})
    anonymous: Memory = field(default_factory=lambda: empty(FIXED_PAGES))
    file: Memory = field(default_factory=lambda: empty(FIXED_PAGES))
    nameless: bytearray = field(default_factory=bytearray)
    files: dict[str, bytearray] = field(default_factory=lambda: {"log": bytearray()})
    """By path; hard links are the same object."""

    def fork(self) -> Model:
        return copy.deepcopy(self)

    def memory(self, who: str) -> bytes:
        """What the process dumps."""
        own = self.processes[who]
        areas = (own.private, own.heap, own.data, self.anonymous, self.file)
        return b"".join(each.tobytes() for each in areas) + bytes(self.nameless)

    def _area(self, who: str, letter: str) -> Memory:
        own = self.processes[who]
        areas = {"P": own.private, "H": own.heap, "D": own.data, "S": self.anonymous}
        return areas.get(letter, self.file)

    # -- carrying a command out --------------------------------------------------------------------

    def apply(self, command: str) -> None:
        who, name, *rest = command.split()
        if name in "wdup":
            self._pages(who, name, *rest)
        elif name == "r":
            own, size = self.processes[who], int(rest[0]) * PAGE
            own.private = np.concatenate([own.private[:size], empty(int(rest[0]))])[:size]
        elif name == "q":
            numbers = sequence(int(rest[1]), int(rest[0]))
            words = self.processes[who].private.view(np.uint64)
            words[numbers % np.uint64(len(words))] = numbers
        else:
            self._files(name, rest)

    def _pages(self, who: str, name: str, letter: str, page: str, count: str, *seed: str) -> None:
        start, size = int(page) * PAGE, int(count) * PAGE
        if name in "du":
            self._area(who, letter)[start : start + size] = 0
        elif name == "w":
            self._area(who, letter)[start : start + size] = filled(size, int(seed[0]))

    def _files(self, name: str, rest: list[str]) -> None:
        if name == "F":
            path, offset, size, seed = rest[0], *map(int, rest[1:])
            content = self.files.setdefault(path, bytearray())
            content.extend(bytes(max(0, offset + size - len(content))))
            content[offset : offset + size] = filled(size, seed).tobytes()
        elif name == "T":
            content, size = self.files[rest[0]], int(rest[1])
            content.extend(bytes(max(0, size - len(content))))
            del content[size:]
        elif name == "U":
            del self.files[rest[0]]
        elif name == "N":
            # Renaming a file to another name of itself does nothing.
            if self.files.get(rest[1]) is not self.files[rest[0]]:
                self.files[rest[1]] = self.files.pop(rest[0])
        elif name == "L":
            self.files[rest[1]] = self.files[rest[0]]
        elif name == "A":
            content = self.nameless if rest[0] == "n" else self.files["log"]
            content.extend(filled(int(rest[1]), int(rest[2])).tobytes())

    # -- choosing one ------------------------------------------------------------------------------

    def draw(self, dice: random.Random) -> str:
        """A command that must succeed, for either process."""
        who = dice.choice("pc")
        makers: Mapping[Callable[[random.Random, str], str | None], int] = {
            self._draw_pages: 12,
            self._draw_resize: 2,
            self._draw_scribble: 2,
            self._draw_write: 5,
            self._draw_append: 2,
            self._draw_names: 4,
        }
        while True:
            [make] = dice.choices(list(makers), list(makers.values()))
            if (command := make(dice, who)) is not None:
                return f"{who} {command}"

    def _draw_pages(self, dice: random.Random, who: str) -> str:
        name = dice.choice("wwwwdup")
        letter = dice.choice({"w": "PPPHDSM", "d": "PPSM"}.get(name, "P"))
        pages = len(self._area(who, letter)) // PAGE
        count = min(pages, dice.choice((1, 1, 2, 5, 17, 64)))
        page = dice.randrange(pages - count + 1)
        seed = f" {dice.getrandbits(40)}" if name == "w" else ""
        return f"{name} {letter} {page} {count}{seed}"

    def _draw_resize(self, dice: random.Random, who: str) -> str:
        return f"r {dice.randint(MIN_PRIVATE_PAGES, MAX_PRIVATE_PAGES)}"

    def _draw_scribble(self, dice: random.Random, who: str) -> str:
        return f"q {dice.randint(100, 12_000)} {dice.getrandbits(40)}"

    def _draw_write(self, dice: random.Random, who: str) -> str:
        path = dice.choice(ON_DISK + IN_MEMORY)
        offset = dice.randrange(MAX_FILE - MAX_WRITE)
        return f"F {path} {offset} {dice.randint(1, MAX_WRITE)} {dice.getrandbits(40)}"

    def _draw_append(self, dice: random.Random, who: str) -> str | None:
        where, content = dice.choice((("n", self.nameless), ("l", self.files["log"])))
        if len(content) > 4 * MAX_FILE:
            return None
        return f"A {where} {dice.randint(1, 5000)} {dice.getrandbits(40)}"

    def _draw_names(self, dice: random.Random, who: str) -> str | None:
        places = dice.choice((ON_DISK, IN_MEMORY))
        there = [path for path in places if path in self.files]
        absent = [path for path in places if path not in self.files]
        if not there:
            return None
        path = dice.choice(there)
        name = dice.choice("TUNL")
        if name == "T":
            return f"T {path} {dice.randrange(MAX_FILE)}"
        if name == "U":
            return f"U {path}"
        if name == "N":
            return f"N {path} {dice.choice(places)}"
        # On disk, names of one file part ways in a fork when it is written (docs/fidelity.md).
        if places is ON_DISK or not absent:
            return None
        return f"L {path} {dice.choice(absent)}"
