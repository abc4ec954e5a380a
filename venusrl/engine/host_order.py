"""Whose chunks of attention state a host tier holds, and in which order they leave it.

A *chunk* is what the tier holds and copies at once: some blocks of a context, named by the hash of
all tokens up to its end. So a name has one position, and siblings have the names of their prompt in
common. What leaves first:

1. chunks of trajectories of the lower level: of no use, then held back, then admitted;
2. within a level, what the GPU holds as well: it costs nothing as long as it stays there;
3. then the trajectory that is last in rank.

Within a trajectory the tail leaves first: without what precedes it a chunk is of no use. A chunk of
several trajectories belongs to the one that stays longest.

The order of trajectories is made once per step, and only where something must leave; after that
each chunk costs a look at the tail of the first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from venusrl.engine.shared_table import NOBODY


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the tier asks of the engine that it belongs to."""

    step: Callable[[], int]  # what is answered below holds for this step
    level: Callable[[int], int]  # of a trajectory: schedule.snapshot.Level
    priority: Callable[[int], int]  # of a trajectory: lower is more urgent
    on_gpu: Callable[[bytes], bool]  # of a chunk: whether the GPU holds it as well


# Where nobody is known all are alike, and whoever came last goes first.
_NOTHING_KNOWN = EngineView(lambda: 0, lambda _: 0, lambda _: 0, lambda _: False)


@dataclass(slots=True)
class _Chunk:
    position: int
    owners: set[int] = field(default_factory=set)


class HostOrder:
    """The books of one tier. Chunks that no trajectory has claimed are NOBODY's, and of no use."""

    def __init__(self) -> None:
        self.engine = _NOTHING_KNOWN
        self._chunks: dict[bytes, _Chunk] = {}
        # By trajectory: its chunks by position, so that the tail is last.
        self._chains: dict[int, list[tuple[int, bytes]]] = {}
        self._step = 0
        self._places: dict[int, int] | None = None  # of trajectories, the first to go first

    def __contains__(self, key: bytes) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, key: bytes, position: int, owner: int = NOBODY) -> None:
        """A chunk is there from now on. `position` is where it ends in its context, in tokens."""
        self._chunks[key] = _Chunk(position)
        self._own(key, owner)

    def claim(self, key: bytes, position: int, owner: int) -> None:
        """A trajectory uses a chunk that is there. Where nobody did, `position` becomes known."""
        chunk = self._chunks[key]
        if owner == NOBODY or owner in chunk.owners:
            return
        if NOBODY in chunk.owners:
            self._disown(key, NOBODY)
            chunk.position = position
        self._own(key, owner)

    def remove(self, key: bytes) -> None:
        """A chunk is gone."""
        for owner in list(self._chunks[key].owners):
            self._disown(key, owner)
        del self._chunks[key]

    def clear(self) -> None:
        """All are gone."""
        self._chunks.clear()
        self._chains.clear()
        self._places = None

    def first(self, count: int, stays: Callable[[bytes], bool]) -> list[bytes] | None:
        """The next `count` chunks to leave, but for those of which `stays` is true; None where
        there are not so many. Changes nothing."""
        places = self._order()
        found: list[bytes] = []
        for owner, place in places.items():
            for _, key in reversed(self._chains[owner]):
                if len(found) == count:
                    return found
                if any(places[other] > place for other in self._chunks[key].owners):
                    break  # and so is what precedes it
                if not stays(key):
                    found.append(key)
        return found if len(found) == count else None

    def _order(self) -> dict[int, int]:
        step = self.engine.step()
        if self._places is None or self._step != step:
            self._step = step
            ordered = sorted(self._chains, key=self._worth)
            self._places = {owner: place for place, owner in enumerate(ordered)}
        return self._places

    def _worth(self, owner: int) -> tuple[bool, int, bool, int, int]:
        if owner == NOBODY:
            return (False, 0, False, 0, 0)
        engine = self.engine
        # On the GPU, too, the tail goes first: where it is, all is.
        only_here = not engine.on_gpu(self._chains[owner][-1][1])
        return (True, engine.level(owner), only_here, -engine.priority(owner), -owner)

    def _own(self, key: bytes, owner: int) -> None:
        chunk = self._chunks[key]
        chunk.owners.add(owner)
        chain = self._chains.get(owner)
        if chain is None:
            self._chains[owner] = [(chunk.position, key)]
            self._places = None
        else:
            insort(chain, (chunk.position, key))

    def _disown(self, key: bytes, owner: int) -> None:
        chunk, chain = self._chunks[key], self._chains[owner]
        chunk.owners.remove(owner)
        del chain[bisect_left(chain, (chunk.position, key))]
        if not chain:
            del self._chains[owner]
            if self._places is not None:
                del self._places[owner]
