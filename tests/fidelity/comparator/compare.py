"""What differs between two records, and which of it nobody has reviewed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.fidelity.comparator.kernel import PAGE
from tests.fidelity.comparator.record import Area, ProcessMemory, Record

ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    owner: str
    field: str
    original: Hashable
    fork: Hashable

    def __str__(self) -> str:
        was, is_now = self.original, self.fork
        if isinstance(was, tuple) and isinstance(is_now, tuple):
            was, is_now = (
                tuple(each for each in one if each not in other)
                for one, other in ((was, is_now), (is_now, was))
            )
        return f"{self.owner}: {self.field}: {_short(was)} → {_short(is_now)}"


def _short(value: Hashable) -> str:
    text = value.hex() if isinstance(value, bytes) and len(value) > 64 else str(value)
    return text if len(text) < 400 else f"{text[:400]}… ({len(text)})"


def _cut(areas: Iterable[Area], edges: Sequence[int]) -> Iterator[tuple[int, int, Area]]:
    at = 0
    for area in areas:
        start = area.start
        while at < len(edges) and edges[at] <= start:
            at += 1
        while start < area.end:
            end = min(area.end, edges[at]) if at < len(edges) else area.end
            yield start, end, area
            start = end
            at += 1


def _memory(owner: str, original: ProcessMemory, fork: ProcessMemory) -> Iterator[Difference]:
    edges = sorted({e for each in (original, fork) for a in each.areas for e in (a.start, a.end)})
    ours = {start: (end, area) for start, end, area in _cut(original.areas, edges)}
    theirs = {start: (end, area) for start, end, area in _cut(fork.areas, edges)}
    for start in sorted({*ours, *theirs}):
        end, _ = ours.get(start) or theirs[start]
        where = f"{owner} {start:x}-{end:x}"
        a = ours[start][1].attributes if start in ours else {}
        b = theirs[start][1].attributes if start in theirs else {}
        if not a or not b:
            yield Difference(where, "area", _what(a), _what(b))
            continue
        for name in sorted({*a, *b}):
            if a.get(name, ABSENT) != b.get(name, ABSENT):
                yield Difference(where, f"area/{name}", a.get(name, ABSENT), b.get(name, ABSENT))
    changed = [
        address
        for address in sorted({*original.pages, *fork.pages})
        if original.pages.get(address) != fork.pages.get(address)
    ]
    for _, run in groupby(enumerate(changed), key=lambda each: each[1] - each[0] * PAGE):
        pages = [address for _, address in run]
        where = f"{owner} {pages[0]:x}-{pages[-1] + PAGE:x}"
        wiped = all(_is_wiped(original.areas, address) for address in pages)
        yield Difference(
            where,
            "area/content wiped on fork" if wiped else "area/content",
            original.pages.get(pages[0]),
            fork.pages.get(pages[0]),
        )


def _is_wiped(areas: Iterable[Area], address: int) -> bool:
    return any(area.start <= address < area.end and "flag wf" in area.attributes for area in areas)


def _what(attributes: dict[str, Hashable]) -> str:
    if not attributes:
        return ABSENT
    return f"{attributes['protection']} {attributes['backing']} {attributes['name']}"


def differences(original: Record, fork: Record) -> Iterator[Difference]:
    for owner, field in sorted({*original.fields, *fork.fields}):
        a = original.fields.get((owner, field), ABSENT)
        b = fork.fields.get((owner, field), ABSENT)
        if a != b:
            yield Difference(owner, field, a, b)
    nothing = ProcessMemory()
    for owner in sorted({*original.memory, *fork.memory}):
        yield from _memory(
            owner, original.memory.get(owner, nothing), fork.memory.get(owner, nothing)
        )
