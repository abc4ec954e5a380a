"""What holds the memory of templates while no daemon does.

An entry is a name, a header (what the native engine's `Template.save` gave) and an ordered list of
sealed files (`Template.descriptors`). The pool keeper is one implementation; the descriptor store
of systemd could be another, so nothing here asks for more than names and descriptors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol


@dataclass(frozen=True)
class Held:
    """An entry, as a listing shows it."""

    name: str
    files: int
    """Descriptors of the entry, the header not counted."""


@dataclass
class Taken:
    """A copy of an entry: the descriptors are the holder's of this value, who closes them."""

    header: bytes
    descriptors: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Close all descriptors; again does nothing."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def __enter__(self) -> Taken:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class PoolStore(Protocol):
    """Blocking; may be called from any thread. Every method may raise a `VenusError`."""

    def hold(self, name: str, header: bytes, descriptors: Sequence[int]) -> None:
        """Hold an entry, whole or not at all. The caller keeps its descriptors.

        `Conflict` when the name is taken: entries never change. `LimitExceeded` when there is no
        room for it.
        """

    def take(self, name: str) -> Taken:
        """A copy of an entry, which stays held; `NotFound` when there is none of that name."""

    def release(self, name: str) -> None:
        """Forget an entry; no error if there is none."""

    def list(self) -> tuple[Held, ...]:
        """All entries."""
