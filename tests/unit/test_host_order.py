"""What leaves host memory first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from venusrl.engine.host_order import EngineView, HostOrder
from venusrl.engine.shared_table import NOBODY
from venusrl.schedule.snapshot import Level


@dataclass
class World:
    """An engine as the test says it is, and the order of its host tier."""

    levels: dict[int, Level] = field(default_factory=dict)
    priorities: dict[int, int] = field(default_factory=dict)
    gpu: set[bytes] = field(default_factory=set)
    step: int = 0
    order: HostOrder = field(default_factory=HostOrder)

    def __post_init__(self) -> None:
        self.order.engine = EngineView(
            step=lambda: self.step,
            level=lambda who: self.levels.get(who, Level.UNUSED),
            priority=lambda who: self.priorities.get(who, 0),
            on_gpu=self.gpu.__contains__,
        )

    def context(self, who: int, *names: str, level: Level, priority: int) -> None:
        """A trajectory uses these chunks, from the beginning of its context."""
        self.levels[who], self.priorities[who] = level, priority
        for place, name in enumerate(names):
            key = name.encode()
            if key in self.order:
                self.order.claim(key, place, who)
            else:
                self.order.add(key, place, who)

    def leave(self, count: int, stays: Callable[[bytes], bool] = lambda _: False) -> list[str]:
        found = self.order.first(count, stays)
        assert found is not None
        for key in found:
            self.order.remove(key)
        return [key.decode() for key in found]


def test_the_tail_of_the_last_in_rank_leaves_first() -> None:
    world = World()
    world.context(1, "a1", "a2", level=Level.HIGH, priority=5)
    world.context(2, "b1", "b2", level=Level.HIGH, priority=7)
    world.context(3, "c1", "c2", level=Level.HIGH, priority=6)
    assert world.leave(6) == ["b2", "b1", "c2", "c1", "a2", "a1"]
    assert len(world.order) == 0


def test_levels_come_before_ranks_and_what_is_of_no_use_goes_before_all() -> None:
    world = World()
    world.context(1, "a1", level=Level.LOW, priority=1)
    world.context(2, "b1", level=Level.HIGH, priority=9)
    world.context(3, "c1", level=Level.UNUSED, priority=0)
    world.context(NOBODY, "n1", level=Level.UNUSED, priority=0)
    assert world.leave(4) == ["n1", "c1", "a1", "b1"]


def test_what_the_gpu_holds_as_well_goes_before_what_it_does_not() -> None:
    world = World()
    world.context(1, "a1", "a2", level=Level.HIGH, priority=1)
    world.context(2, "b1", "b2", level=Level.HIGH, priority=2)
    world.context(3, "c1", "c2", level=Level.LOW, priority=3)
    world.gpu |= {b"a1", b"a2", b"b1"}  # of b the tail is here alone
    assert world.leave(6) == ["c2", "c1", "a2", "a1", "b2", "b1"]


def test_a_prompt_belongs_to_the_sibling_that_stays_longest() -> None:
    world = World()
    world.context(1, "p", "q", "a", level=Level.HIGH, priority=1)
    world.context(2, "p", "q", "b", level=Level.HIGH, priority=2)
    world.context(3, "x", level=Level.HIGH, priority=0)
    assert world.leave(5) == ["b", "a", "q", "p", "x"]


def test_what_is_copied_stays_and_too_much_is_refused_as_a_whole() -> None:
    world = World()
    world.context(1, "a1", "a2", "a3", level=Level.HIGH, priority=1)
    assert world.order.first(3, lambda key: key == b"a3") is None
    assert len(world.order) == 3
    assert world.leave(1, lambda key: key == b"a3") == ["a2"]


def test_ranks_are_those_of_the_step() -> None:
    world = World()
    world.context(1, "a1", "a2", level=Level.HIGH, priority=1)
    world.context(2, "b1", "b2", "b3", level=Level.HIGH, priority=2)
    assert world.leave(1) == ["b3"]
    world.priorities = {1: 2, 2: 1}
    assert world.leave(1) == ["b2"], "one step sees one decision"
    world.step += 1
    assert world.leave(2) == ["a2", "a1"]


def test_chunks_of_nobody_are_claimed_by_who_uses_them() -> None:
    world = World()
    world.order.add(b"p", 0)
    world.order.add(b"q", 0)
    world.context(1, "p", "q", level=Level.HIGH, priority=1)
    world.context(NOBODY, "n", level=Level.UNUSED, priority=0)
    assert world.leave(3) == ["n", "q", "p"]
    world.order.add(b"p", 0)
    world.order.clear()
    assert world.order.first(1, lambda _: False) is None


PATHS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=6)
STANDINGS = st.tuples(st.sampled_from(Level), st.integers(0, 4))


@given(PATHS, st.lists(STANDINGS, min_size=6, max_size=6), st.data())
def test_the_order_is_that_of_a_plain_sort(
    paths: list[tuple[int, int]], standings: list[tuple[Level, int]], data: st.DataObject
) -> None:
    """Contexts that begin with the same prompt and part after some chunks; some of the chunks stay,
    some are on the GPU as well. Each that leaves is the worst of those that may."""
    world = World()
    for who, ((shared, own), (level, priority)) in enumerate(zip(paths, standings, strict=False)):
        names = [f"p{at}" for at in range(shared)] + [f"{who}-{at}" for at in range(own)]
        world.context(who, *names, level=level, priority=priority)
    chains = {
        who: [f"p{at}".encode() for at in range(shared)]
        + [f"{who}-{at}".encode() for at in range(own)]
        for who, (shared, own) in enumerate(paths)
    }
    every = sorted({key for chain in chains.values() for key in chain})
    world.gpu |= data.draw(st.sets(st.sampled_from(every)))
    stay = data.draw(st.sets(st.sampled_from(every)))

    def worth(who: int) -> tuple[int, bool, int, int]:
        level, priority = standings[who]
        return (level, chains[who][-1] not in world.gpu, -priority, -who)

    def place(key: bytes) -> tuple[tuple[int, bool, int, int], int]:
        best = max((who for who in chains if key in chains[who]), key=worth)
        return worth(best), -chains[best].index(key)

    expected = sorted((key for key in every if key not in stay), key=place)
    count = data.draw(st.integers(0, len(every)))
    found = world.order.first(count, stay.__contains__)
    assert found == (expected[:count] if count <= len(expected) else None)
