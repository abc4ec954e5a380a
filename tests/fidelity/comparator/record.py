"""What was seen of a sandbox: a flat table of named values, and memory by address."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Area:
    """Consecutive pages of one mapping, with everything that is said of it."""

    start: int
    end: int
    attributes: dict[str, Hashable]
    """Of file offsets: `offset` is that of address 0, so that parts of one mapping agree."""


@dataclass
class ProcessMemory:
    areas: list[Area] = field(default_factory=list)
    pages: dict[int, int] = field(default_factory=dict)
    """Checksum of each page that is not zero, by address."""
    plans: list[tuple[int, int]] = field(default_factory=list)
    """Of forks: what is left of the restore plan. Its pages count as no area."""


class Names:
    """Numbers that are the kernel's own choice (inodes, pointers), by order of appearance."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Hashable], str] = {}
        self._counts: dict[str, int] = {}

    def of(self, kind: str, number: Hashable) -> str:
        key = (kind, number)
        if key not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[key] = f"{kind} {self._counts[kind]}"
        return self._known[key]

    def known(self, kind: str, number: Hashable) -> str:
        return self._known.get((kind, number), f"{kind} of nobody")


@dataclass
class Record:
    fields: dict[tuple[str, str], Hashable] = field(default_factory=dict)
    """By owner ("pid 5 fd 3") and name ("fd/info/pos")."""
    memory: dict[str, ProcessMemory] = field(default_factory=dict)
    """By process ("pid 5")."""
    names: Names = field(default_factory=Names)
    took_ms: float = 0

    def add(self, owner: str, name: str, value: Hashable) -> None:
        key, copies = (owner, name), 1
        while key in self.fields:
            copies += 1
            key = (owner, f"{name} ({copies})")
        self.fields[key] = value
