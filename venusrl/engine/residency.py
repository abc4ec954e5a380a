"""Whose cached blocks stay between two turns, and in which order they go.

vLLM keeps the blocks of finished requests in one queue, and takes from its front what was used
longest ago. To a trajectory that is in the middle of its life this does harm: what others compute
while its tool works pushes its context out. So between its turns a trajectory has a *record* of its
blocks, with one of three levels:

- high: the blocks are pinned: they have a reference of the record's, and count as used;
- low: they are in vLLM's queue, least recently used first;
- unused (its trajectory is over): they go to the front of the queue, but for those that the record
  of another trajectory lists too (the prompt of a group).

A trajectory has a record or a running request, never both: what runs has references of its own,
and preempting it must free its blocks. Pins never stand in the way of what must run: `shrink` gives
back the tail of a record, and the scheduler decides whose.

Rests on three things of vLLM's block pool: `touch`, `free_blocks`, and its free queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Record:
    """The full blocks of one trajectory, from the beginning of its context.

    Blocks that are not pinned may have been taken meanwhile; the hash tells.
    """

    blocks: list[Any]
    hashes: list[bytes]
    pinned: int = 0  # the first so many have a reference of this record's


class Residency:
    """The records of one engine. `pool` is its vLLM BlockPool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.records: dict[int, Record] = {}  # by trajectory
        self.pinned = 0  # references that records hold, in all
        self._listed: Counter[bytes] = Counter()  # by how many records

    def keep(self, trajectory: int, blocks: Iterable[Any], *, high: bool) -> None:
        """A turn ends: `blocks` become the record. Their request must still hold them."""
        self.drop(trajectory)
        full = []
        for block in blocks:
            if block.is_null or block.block_hash is None:
                break
            full.append(block)
        if not full:
            return
        record = Record(full, [block.block_hash for block in full])
        self.records[trajectory] = record
        self._listed.update(record.hashes)
        if high:
            self._pin(record, len(full))

    def raise_level(self, trajectory: int) -> None:
        """Low to high: pins what is still cached."""
        record = self.records.get(trajectory)
        if record is not None:
            pairs = zip(record.blocks, record.hashes, strict=True)
            gone = (at for at, (block, value) in enumerate(pairs) if block.block_hash != value)
            self._pin(record, next(gone, len(record.blocks)))

    def lower_level(self, trajectory: int) -> None:
        """High to low."""
        record = self.records.get(trajectory)
        if record is not None:
            self._unpin(record, record.pinned)

    def shrink(self, trajectory: int, blocks: int) -> int:
        """Gives back at least so many pins at the tail, or all; returns how many."""
        record = self.records.get(trajectory)
        return 0 if record is None else self._unpin(record, blocks)

    def drop(self, trajectory: int) -> None:
        """Forgets the record: its trajectory runs again. Blocks stay cached while nobody needs
        the room."""
        record = self.records.pop(trajectory, None)
        if record is None:
            return
        self._unpin(record, record.pinned)
        self._unlist(record)

    def release(self, trajectory: int) -> None:
        """Forgets the record: its trajectory is over. What nobody else lists goes first."""
        record = self.records.get(trajectory)
        if record is None:
            return
        self.drop(trajectory)
        useless = [
            block
            for block, block_hash in zip(record.blocks, record.hashes, strict=True)
            if block.ref_cnt == 0
            and block.block_hash == block_hash
            and not self._listed[block_hash]
        ]
        queue = self._pool.free_block_queue
        for block in useless:
            queue.remove(block)
        queue.prepend_n(useless[::-1])

    def clear(self) -> None:
        """Forgets everything, as when the cached content is of older weights."""
        for trajectory in list(self.records):
            self.drop(trajectory)

    def cached_blocks(self, trajectory: int) -> int:
        """How many blocks of the record are still there, from the beginning."""
        record = self.records.get(trajectory)
        return 0 if record is None else self._cached(record)

    def _cached(self, record: Record) -> int:
        # Tails go before what precedes them, so what is left is a beginning.
        low, high = record.pinned, len(record.blocks)
        while low < high:
            middle = (low + high) // 2
            if record.blocks[middle].block_hash == record.hashes[middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def _pin(self, record: Record, count: int) -> None:
        added: Sequence[Any] = record.blocks[record.pinned : count]
        self._pool.touch(added)
        record.pinned += len(added)
        self.pinned += len(added)

    def _unpin(self, record: Record, count: int) -> int:
        count = min(count, record.pinned)
        first = record.pinned - count
        # Reversed: the tail is to go first.
        self._pool.free_blocks(record.blocks[first : record.pinned][::-1])
        record.pinned = first
        self.pinned -= count
        return count

    def _unlist(self, record: Record) -> None:
        self._listed.subtract(record.hashes)
        for block_hash in record.hashes:
            if not self._listed[block_hash]:
                del self._listed[block_hash]
