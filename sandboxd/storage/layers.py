"""Frozen upper directories, each held by whoever stands on it.

A layer is a volume that never changes. Sandboxes, templates and operations under way *hold* the
layers that they need; with its last holder a layer is removed. Holders are names that their owners
choose; what holds what is kept in memory only: after a start all layers that are found are kept
until `remove_unheld`, so that adopted sandboxes can take theirs again.

Lock: `_lock` is a leaf and guards the dictionary; volumes are made and removed outside of it. A
layer that left the dictionary cannot be held again, so no removal races with a new holder.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from sandboxd.errors import NotFound
from sandboxd.storage.layer_merge import merge_apart
from sandboxd.storage.volumes import Collection, VolumeStore

UPPER = "upper"


def to_merge(count: int, most: int) -> int:
    """How many of `count` layers, from the topmost down, become one where `most` may lie under a
    sandbox; 0: none need to.

    The lower half stays: it is what many stand on, and with it the page cache that they share. Of
    the others each merge writes anew only what they hold above the lowest of them, so that a long
    chain costs the same per layer whatever its length.
    """
    return count - most // 2 if count > most else 0


class LayerStore:
    """Blocking; every method may be called from any thread once `open` has returned."""

    def __init__(self, volumes: VolumeStore) -> None:
        self._volumes = volumes
        self._lock = threading.Lock()
        self._holders: dict[str, set[str]] = {}
        self._held: dict[str, set[str]] = {}
        """By holder, so that to release does not mean to look at every layer."""

    def open(self) -> None:
        """Find the layers of an earlier daemon, held by nobody yet."""
        with self._lock:
            for name in self._volumes.names(Collection.LAYERS):
                self._holders.setdefault(name, set())

    def freeze(self, sandbox_id: str, holder: str) -> str:
        """The upper directory of a sandbox as it is now, as a new layer that `holder` holds.

        Nothing in the sandbox may run meanwhile. Returns the layer's name.
        """
        name = self._new_name()
        self._volumes.freeze((Collection.UPPERS, sandbox_id), (Collection.LAYERS, name))
        with self._lock:
            self._add(name, holder)
        return name

    def flush(self, sandbox_id: str) -> None:
        """Before `freeze`, while the sandbox still runs: makes the stop short."""
        self._volumes.flush(Collection.UPPERS, sandbox_id)

    def merge(self, names: Sequence[str], holder: str) -> str:
        """What the layers show together, the topmost first, as one that `holder` holds in their
        place. Takes as long as those who wrote them chose. Returns the layer's name.
        """
        *uppers, base = names
        name = self._new_name()
        self._volumes.derive((Collection.LAYERS, base), (Collection.LAYERS, name))
        try:
            merge_apart(self._upper(name), [self._upper(each) for each in reversed(uppers)])
            self._volumes.settle(Collection.LAYERS, name)
        except BaseException:
            self._volumes.remove(Collection.LAYERS, name)
            raise
        with self._lock:
            self._add(name, holder)
            unheld = self._drop(names, holder)
            self._held[holder].difference_update(names)
        self.remove(unheld)
        return name

    def hold(self, holder: str, names: Sequence[str]) -> list[Path]:
        """Their directories, which stay until `release`. All or none: `NotFound`."""
        with self._lock:
            for name in names:
                if name not in self._holders:
                    raise NotFound("a layer is gone", operation="hold layer", object=name)
            for name in names:
                self._add(name, holder)
        return [self._upper(name) for name in names]

    def release(self, holder: str) -> None:
        """Undo every `hold` and `freeze` of the holder; what nobody holds is removed."""
        self.remove(self.let_go(holder))

    def let_go(self, holder: str) -> list[str]:
        """As `release`, without blocking: what nobody holds any more must be given to `remove`."""
        with self._lock:
            return self._drop(self._held.pop(holder, ()), holder)

    def remove_unheld(self) -> list[str]:
        """After adoption: remove what belongs to nobody; returns the names."""
        with self._lock:
            unheld = [name for name, holders in self._holders.items() if not holders]
            for name in unheld:
                del self._holders[name]
        self.remove(unheld)
        return unheld

    def remove(self, names: Sequence[str]) -> None:
        """Layers that `let_go` returned."""
        failures = []
        for name in names:
            try:
                self._volumes.remove(Collection.LAYERS, name)
            except Exception as error:  # the others must still go; the next start finds this one
                failures.append(error)
        if failures:
            raise failures[0]

    @staticmethod
    def _new_name() -> str:
        return f"layer-{secrets.token_hex(8)}"

    def _upper(self, name: str) -> Path:
        return self._volumes.path(Collection.LAYERS, name) / UPPER

    def _add(self, name: str, holder: str) -> None:
        self._holders.setdefault(name, set()).add(holder)
        self._held.setdefault(holder, set()).add(name)

    def _drop(self, names: Iterable[str], holder: str) -> list[str]:
        """Returns those that nobody holds any more."""
        unheld = []
        for name in names:
            self._holders[name].discard(holder)
            if not self._holders[name]:
                del self._holders[name]
                unheld.append(name)
        return unheld
