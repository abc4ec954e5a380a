"""Pages of a list. Pure.

A page goes on after an entry, not after a number of them: so one that is removed between two pages
hides none of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

Entry = TypeVar("Entry")
Position = tuple[float, str]
"""When an entry was made (s), and its id: no two have the same, and it never changes."""


def cut(
    entries: Iterable[tuple[Position, Entry]],
    limit: int,
    after: Position | None,
    *,
    newest_first: bool = False,
) -> tuple[list[Entry], Position | None]:
    """At most `limit` of the entries, and where the next page goes on: None at the end."""
    rest = [
        entry
        for entry in entries
        if after is None or (entry[0] < after if newest_first else entry[0] > after)
    ]
    rest.sort(key=lambda entry: entry[0], reverse=newest_first)
    found = rest[:limit]
    return [entry for _, entry in found], found[-1][0] if len(rest) > limit else None


def token(position: Position) -> str:
    """What a client gives back for the page after this."""
    return f"{position[0]!r}:{position[1]}"


def parse(text: str) -> Position:
    """Inverse of `token`; `ValueError`."""
    made_at, separator, name = text.partition(":")
    position = float(made_at), name
    if not separator or not math.isfinite(position[0]):
        raise ValueError("not where a page ended")
    return position
