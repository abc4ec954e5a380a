"""The best settings of a baseline: one setting at a time, up and down its ladder, until nothing
next to it is better. So the best never lies at the edge of what was tried, but at a setting's
natural end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from venusrl.simulate.contenders import Ladder


@dataclass(frozen=True, slots=True)
class Tuned:
    settings: dict[str, float]
    tried: list[tuple[dict[str, float], float]]
    finished: bool  # False: the limit of trials came first


def tune(
    ladders: Mapping[str, Ladder],
    value_of: Callable[[dict[str, float]], float],
    limit: int = 30,
) -> Tuned:
    """`value_of` is maximised; it may raise ValueError for settings that are not possible."""
    seen: dict[tuple[float, ...], float] = {}
    names = list(ladders)

    def value(settings: dict[str, float]) -> float:
        key = tuple(settings[name] for name in names)
        if key not in seen:
            try:
                seen[key] = value_of(settings)
            except ValueError:
                seen[key] = float("-inf")
        return seen[key]

    best = {name: ladder.first for name, ladder in ladders.items()}
    improved = True
    while improved and len(seen) < limit:
        improved = False
        for name in names:
            for neighbour in ladders[name].neighbours(best[name]):
                # Straight on while it gets better.
                while value({**best, name: neighbour}) > value(best) and len(seen) < limit:
                    direction = neighbour > best[name]
                    best = {**best, name: neighbour}
                    improved = True
                    further = [
                        v
                        for v in ladders[name].neighbours(neighbour)
                        if (v > neighbour) == direction
                    ]
                    if not further:
                        break
                    neighbour = further[0]
    tried = [(dict(zip(names, key, strict=True)), worth) for key, worth in seen.items()]
    return Tuned(best, tried, finished=not improved)
