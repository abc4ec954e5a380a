"""What the templates' memory amounts to, and which of them go when it is too much. No I/O.

Templates that descend from each other share files: a child refers to its parent's extents instead
of copying them. So bytes are counted by file, with a reference from each template that has it, and
removing a template frees only what nobody else refers to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

FileKey = tuple[int, int]
"""Device and inode of a sealed file."""


@dataclass(frozen=True)
class PoolEntry:
    """A template, as far as the pool is concerned."""

    template_id: str
    files: Mapping[FileKey, int]
    """Everything that it refers to → bytes of memory."""
    last_used_s: float
    """On any clock, as long as it is the same for all."""
    in_use: bool
    """Has live forks (whose pages would stay anyway), is being forked or captured from."""


@dataclass(frozen=True)
class Eviction:
    """What to do about a pool that is too full."""

    template_ids: tuple[str, ...]
    """To be removed, the least recently used first; empty when that would not be enough."""
    pool_bytes: int
    """Size of the pool afterwards."""
    fits: bool
    """False: what is in use is already too much, and nothing else should go in vain."""


class PagePool:
    """Reference counts from templates to files. Not thread-safe."""

    def __init__(self, entries: Iterable[PoolEntry] = ()) -> None:
        self._references: Counter[FileKey] = Counter()
        # As the first told: templates look at a file at different times, and huge pages change it.
        self._sizes: dict[FileKey, int] = {}
        self._entries: dict[str, PoolEntry] = {}
        self.total_bytes = 0
        """Every file counted once."""
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: PoolEntry) -> int:
        """Bytes that the pool grows by."""
        if entry.template_id in self._entries:
            raise ValueError(f"template {entry.template_id} is in the pool already")
        self._entries[entry.template_id] = entry
        new = {key: size for key, size in entry.files.items() if key not in self._sizes}
        self._sizes |= new
        self._references.update(entry.files.keys())
        grown = sum(new.values())
        self.total_bytes += grown
        return grown

    def remove(self, template_id: str) -> int:
        """Bytes that the pool shrinks by."""
        entry = self._entries.pop(template_id)
        freed = 0
        for key in entry.files:
            self._references[key] -= 1
            if self._references[key] == 0:
                del self._references[key]
                freed += self._sizes.pop(key)
        self.total_bytes -= freed
        return freed

    def own_bytes(self, template_id: str) -> int:
        """Bytes that no other template refers to: what removing it would free."""
        files = self._entries[template_id].files
        return sum(self._sizes[key] for key in files if self._references[key] == 1)


class PoolUsers:
    """The pool as it is: the templates that anybody uses, and what their memory is together.

    Users of a template are its name, each live fork (whose pages stay without the name, too), and
    each request that makes it or makes something of it. Sandboxes that were captured keep pages for
    their next capture. Counted as they come and go: forks would become slower with their number if
    each looked at all that live.
    """

    def __init__(self) -> None:
        self._pool = PagePool()
        self._files: dict[str, Mapping[FileKey, int]] = {}
        self._users: Counter[str] = Counter()
        self._kept: dict[str, Mapping[FileKey, int]] = {}

    @property
    def total_bytes(self) -> int:
        """Memory of all that are used, every file counted once."""
        return self._pool.total_bytes

    def add(self, template_id: str, files: Mapping[FileKey, int]) -> None:
        """One more user."""
        if self._users[template_id] == 0:
            self._files[template_id] = files
            self._pool.add(PoolEntry(template_id, files, 0.0, in_use=True))
        self._users[template_id] += 1

    def remove(self, template_id: str) -> None:
        """One user less; `ValueError` when there is none."""
        if self._users[template_id] == 0:
            raise ValueError(f"nobody uses template {template_id}")
        self._users[template_id] -= 1
        if self._users[template_id] == 0:
            del self._users[template_id], self._files[template_id]
            self._pool.remove(template_id)

    def keep(self, sandbox_id: str, files: Mapping[FileKey, int]) -> None:
        """What a sandbox keeps for its next capture, instead of what it kept before."""
        if self._kept.pop(sandbox_id, None) is not None:
            self._pool.remove(sandbox_id)
        if files:
            self._kept[sandbox_id] = files
            self._pool.add(PoolEntry(sandbox_id, files, 0.0, in_use=False))

    def entries(
        self, last_used_s: Mapping[str, float], captured: Collection[str]
    ) -> list[PoolEntry]:
        """For `decide_eviction`. `last_used_s` is of the templates that have a name, `captured` are
        the sandboxes that are being captured. What the others keep goes before any template: nobody
        asked for it."""
        kept = [
            PoolEntry(each, files, 0.0, in_use=each in captured)
            for each, files in self._kept.items()
        ]
        return kept + [
            PoolEntry(
                template_id,
                self._files[template_id],
                last_used_s.get(template_id, 0.0),
                in_use=users > 1 or template_id not in last_used_s,
            )
            for template_id, users in self._users.items()
        ]


def decide_eviction(entries: Iterable[PoolEntry], limit_bytes: int) -> Eviction:
    """Which idle templates go, so that the pool is at most `limit_bytes`.

    The least recently used go first, and none goes for nothing: one stays if there is room for it
    beside what is in use and what is younger, and one whose files others keep alive takes no room.
    """
    everything = list(entries)
    pool = PagePool(everything)
    evicted: list[PoolEntry] = []
    idle = (each for each in everything if not each.in_use)
    for entry in sorted(idle, key=lambda each: (each.last_used_s, each.template_id)):
        if pool.total_bytes <= limit_bytes:
            break
        pool.remove(entry.template_id)
        evicted.append(entry)
    if pool.total_bytes > limit_bytes:
        return Eviction((), PagePool(everything).total_bytes, fits=False)
    # The most recently used of them come back first, where there is room for them after all.
    for entry in reversed(evicted.copy()):
        if pool.total_bytes + pool.add(entry) <= limit_bytes:
            evicted.remove(entry)
        else:
            pool.remove(entry.template_id)
    return Eviction(tuple(each.template_id for each in evicted), pool.total_bytes, fits=True)
