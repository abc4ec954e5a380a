"""How many sandboxes of which shape should stand ready. No I/O, no clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxd.launch_request import Limits

if TYPE_CHECKING:
    from sandboxd.templates.template import Template


@dataclass(frozen=True)
class Shape:
    """All that preparing one depends on, apart from names: sandboxes of one shape are
    interchangeable until somebody has one. Never shared by two tenants."""

    tenant_uid: int
    image: str
    template: Template | None
    limits: Limits


@dataclass(frozen=True)
class Adjustment:
    """The next thing to do: launch one of a shape, or remove one."""

    shape: Shape
    launch: bool


class Demand:
    """Requests of the last `window_s` seconds, and what follows from them.

    A shape that one request asked for may never be asked for again. After two it gets as many as
    were asked for in the window, so that the next such burst finds them. `limit` bounds all shapes
    together.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._requests: dict[Shape, deque[tuple[float, int]]] = {}

    def note(self, shape: Shape, count: int, now_s: float) -> None:
        """A request for so many; `now_s` never goes back."""
        # Moved to the end: the order of the table is that of the last request.
        requests = self._requests.pop(shape, None) or deque(maxlen=max(2, self._limit))
        requests.append((now_s, count))
        self._requests[shape] = requests

    def forget(self, matches: Callable[[Shape], bool]) -> None:
        """What matches is not wanted until it is asked for again."""
        for shape in [each for each in self._requests if matches(each)]:
            del self._requests[shape]

    def wanted(self, now_s: float) -> dict[Shape, int]:
        """How many of each shape should stand. Where the limit is too low for all, they get equally
        many, and if it is too low even for that, those that were asked for last."""
        asked = {}
        for shape in reversed(list(self._requests)):
            requests = self._requests[shape]
            while requests and requests[0][0] <= now_s - self._window_s:
                requests.popleft()
            if not requests:
                del self._requests[shape]
            elif len(requests) > 1:
                asked[shape] = sum(count for _, count in requests)
        return _shared_out(self._limit, asked)


def _shared_out(limit: int, asked: Mapping[Shape, int]) -> dict[Shape, int]:
    found = dict.fromkeys(list(asked)[:limit], 1)
    turn = 1
    # What is left over is not given to some: whose it was would change with every request, and each
    # change costs a launch and a removal.
    while (wanting := [each for each in found if asked[each] > turn]) and (
        sum(found.values()) + len(wanting) <= limit
    ):
        turn += 1
        found.update(dict.fromkeys(wanting, turn))
    return found


def next_adjustment(
    wanted: Mapping[Shape, int], standing: Mapping[Shape, int]
) -> Adjustment | None:
    """Removals first: they make room. None when all is as it should be."""
    for shape, count in standing.items():
        if count > wanted.get(shape, 0):
            return Adjustment(shape, launch=False)
    for shape, count in wanted.items():
        if count > standing.get(shape, 0):
            return Adjustment(shape, launch=True)
    return None
