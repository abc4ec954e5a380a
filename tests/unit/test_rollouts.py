"""The books of a fleet: what a turn changes, what policies see of it, and what they write down."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from venusrl.engine.rollouts import Capacity, Ended, Kept, Rollouts, Trajectory  # noqa: E402
from venusrl.engine.shared_table import NOBODY, REPORT  # noqa: E402
from venusrl.schedule.snapshot import (  # noqa: E402
    NOWHERE,
    Costs,
    Decision,
    Level,
    Phase,
    Snapshot,
)

pytestmark = pytest.mark.unit

CAPACITIES = {4: Capacity(1000, 8, 16), 7: Capacity(2000, 9, 32)}


def seen(rollouts: Rollouts, now_s: float = 100.0) -> Snapshot:
    return rollouts.snapshot(list(CAPACITIES), CAPACITIES, Costs(1e-6, 2e-6), now_s)


def columns(snapshot: Snapshot) -> dict[str, list[float]]:
    rows = snapshot.trajectories
    names = ("phase", "turns", "context_tokens", "kv_tokens", "tool_s")
    return {name: getattr(rows, name).tolist() for name in names}


def decide(rollouts: Rollouts, workers: list[int], **changes: object) -> list[Trajectory]:
    """Whoever has a worker is admitted, in their order; workers are columns of the snapshot."""
    count = len(workers)
    decision = Decision(
        critical=np.zeros(count, bool),
        rank=np.arange(count),
        admitted=np.asarray(workers) != NOWHERE,
        level=np.full(count, int(Level.HIGH)),
        worker=np.asarray(workers),
    )
    for name, value in changes.items():
        object.__setattr__(decision, name, np.asarray(value))
    return rollouts.apply(decision, list(CAPACITIES))


def test_a_turn_from_when_it_is_asked_for_to_the_end_of_its_tool() -> None:
    rollouts = Rollouts(8, 1, 4)
    (member,) = rollouts.dispatch(10, 1, 90.0).members

    def now(**expected: float) -> None:
        assert columns(seen(rollouts)) == {name: [value] for name, value in expected.items()}

    now(phase=Phase.WAITING, turns=0, context_tokens=10, kv_tokens=0, tool_s=0)
    rollouts.ask(member, 12)
    now(phase=Phase.WAITING, turns=0, context_tokens=12, kv_tokens=0, tool_s=0)
    rollouts.begin(member)
    now(phase=Phase.RUNNING, turns=0, context_tokens=12, kv_tokens=0, tool_s=0)
    rollouts.end(member, 15, 97.0)
    now(phase=Phase.TOOL, turns=1, context_tokens=15, kv_tokens=15, tool_s=3)
    rollouts.ask(member, 20)
    now(phase=Phase.WAITING, turns=1, context_tokens=20, kv_tokens=15, tool_s=0)
    rollouts.begin(member)
    rollouts.leave(member, 99.0)
    now(phase=Phase.TOOL, turns=1, context_tokens=20, kv_tokens=15, tool_s=1)
    rollouts.finish(member)
    now(phase=Phase.DONE, turns=1, context_tokens=20, kv_tokens=15, tool_s=0)
    assert member.level is Level.UNUSED and member.group.complete


def test_turns_are_told_apart_by_when_they_were_asked_for() -> None:
    rollouts = Rollouts(8, 1, 4)
    first, second = rollouts.dispatch(10, 2, 0.0).members
    assert seen(rollouts).trajectories.arrival.argsort().tolist() == [0, 1]
    rollouts.ask(second, 10)
    rollouts.ask(first, 10)
    assert seen(rollouts).trajectories.arrival.argsort().tolist() == [1, 0]


def test_policies_see_groups_and_workers_in_the_order_of_their_rows() -> None:
    rollouts = Rollouts(8, 2, 3)
    gone, *_ = rollouts.dispatch(5, 1, 0.0), rollouts.dispatch(10, 2, 0.0)
    rollouts.version = 6
    rollouts.dispatch(20, 1, 0.0)
    rollouts.retire(gone)
    decide(rollouts, [1, NOWHERE, 0])
    snapshot = seen(rollouts)
    assert (snapshot.version, snapshot.batch_groups, snapshot.max_staleness) == (6, 2, 3)
    assert snapshot.costs == Costs(1e-6, 2e-6)
    assert snapshot.trajectories.group.tolist() == [0, 0, 1]
    assert snapshot.trajectories.worker.tolist() == [1, NOWHERE, 0]
    assert not snapshot.trajectories.host_tokens.any()
    groups, workers = snapshot.groups, snapshot.workers
    assert groups.order.tolist() == [1, 2]
    assert groups.version.tolist() == [0, 6]
    assert groups.prompt_tokens.tolist() == [10, 20]
    assert workers.kv_capacity.tolist() == [1000, 2000]
    assert workers.slots.tolist() == [8, 9]
    assert not workers.host_capacity.any()
    assert workers.block_tokens == 32, "the coarsest: what fits it, fits all"


def test_a_decision_is_written_down_and_told_to_schedulers() -> None:
    rollouts = Rollouts(5, 1, 4)
    first, second, third = rollouts.dispatch(10, 3, 0.0).members
    rollouts.finish(third)
    moved = decide(
        rollouts,
        [0, 1, 1],
        critical=[True, False, False],
        rank=[1, 0, 2],
        admitted=[True, False, False],
        level=[Level.HIGH, Level.LOW, Level.HIGH],
    )
    assert moved == [], "nobody was anywhere"
    assert [m.admitted for m in (first, second, third)] == [True, False, False]
    table = rollouts.table(5)
    assert table[[m.slot for m in (first, second, third)]].tolist() == [
        (first.number, 4, 1, 1, Level.HIGH),
        (second.number, 7, 0, 0, Level.LOW),
        (third.number, NOWHERE, 2, 0, Level.UNUSED),
    ]
    assert (table["trajectory"] == NOBODY).sum() == 2


def test_who_moves_leaves_its_context_behind_and_nobody_moves_within_a_turn() -> None:
    rollouts = Rollouts(8, 1, 4)
    first, second = rollouts.dispatch(10, 2, 0.0).members
    decide(rollouts, [0, 0])
    for member in (first, second):
        rollouts.begin(member)
        rollouts.end(member, 30, 0.0)
    rollouts.begin(second)
    assert decide(rollouts, [1, 1]) == [first]
    assert (first.worker, first.kv_tokens, first.moved_turn) == (7, 0, 1)
    assert (second.worker, second.kv_tokens, second.moved_turn) == (4, 30, -1)
    assert decide(rollouts, [NOWHERE, 0]) == [], "nowhere is no place to go to"
    assert first.worker == 7


def test_what_a_dead_engine_ran_waits_for_another_place() -> None:
    rollouts = Rollouts(8, 1, 4)
    members = runs, acts, done, elsewhere = rollouts.dispatch(10, 4, 0.0).members
    decide(rollouts, [0, 0, 0, 1])
    for member in members:
        rollouts.begin(member)
        rollouts.end(member, 30, 0.0)
    rollouts.begin(runs)
    rollouts.begin(elsewhere)
    rollouts.finish(done)
    rollouts.lose(4)
    assert [m.phase for m in members] == [Phase.WAITING, Phase.TOOL, Phase.DONE, Phase.RUNNING]
    for member in (runs, acts):
        assert (member.worker, member.admitted, member.kv_tokens) == (NOWHERE, False, 0)
        assert member.level is Level.LOW
    assert done.level is Level.UNUSED
    assert (elsewhere.worker, elsewhere.admitted, elsewhere.kv_tokens) == (7, True, 30)


def test_engines_are_believed_of_what_they_hold_of_those_that_are_theirs() -> None:
    rollouts = Rollouts(8, 1, 4)
    members = _, more, running, unknown, _ = rollouts.dispatch(10, 5, 0.0).members
    decide(rollouts, [0, 0, 0, 0, 1])
    for member in members:
        rollouts.begin(member)
        rollouts.end(member, 30, 0.0)
    rollouts.begin(running)
    held = np.zeros(8, REPORT)
    for member in members:
        held[member.slot] = (member.number, 20)
    held[more.slot] = (more.number, 99)
    held[unknown.slot] = (12345, 20)  # whose slot it was before
    rollouts.hear(4, held)
    assert [m.kv_tokens for m in members] == [20, 30, 30, 0, 30]


def test_slots_are_used_again_and_numbers_never() -> None:
    rollouts = Rollouts(3, 1, 4)
    first = rollouts.dispatch(10, 2, 0.0)
    rollouts.retire(first)
    second = rollouts.dispatch(10, 3, 0.0)
    assert sorted(m.slot for m in second.members) == [0, 1, 2]
    assert {m.number for m in first.members}.isdisjoint(m.number for m in second.members)
    assert [m.place for m in second.members] == [0, 1, 2]


def test_a_group_that_is_restored_is_as_it_was_and_later_ones_come_after_all() -> None:
    rollouts = Rollouts(8, 1, 4)
    rollouts.version = 3
    ended = [Ended("done", None), None, Ended(None, "hung")]
    rollouts.restore([Kept(2, 1, 10, "key", ended)], dispatched=5, now_s=0.0)
    (group,) = rollouts.groups
    assert (group.order, group.version, group.prompt_tokens, group.key) == (2, 1, 10, "key")
    assert [m.record for m in group.members] == ["done", None, None]
    assert [m.failure for m in group.members] == [None, None, "hung"]
    assert [m.phase for m in group.members] == [Phase.DONE, Phase.WAITING, Phase.DONE]
    assert not group.complete
    assert rollouts.dispatch(10, 1, 0.0).order == 5


def test_forced_groups_are_trained_first_and_awaited_first() -> None:
    rollouts = Rollouts(8, 2, 1)
    groups = [rollouts.dispatch(10, 1, 0.0) for _ in range(2)]
    rollouts.version = 1
    groups += [rollouts.dispatch(10, 1, 0.0) for _ in range(2)]
    assert rollouts.next_batch() is None
    for group in groups[1:]:
        rollouts.finish(group.members[0])
    assert rollouts.next_batch() is None, "the first is forced"
    assert rollouts.awaited() == groups[0].members
    rollouts.finish(groups[0].members[0])
    assert rollouts.next_batch() == groups[:2]
    assert rollouts.awaited() == []
    for group in groups[:2]:
        rollouts.retire(group)
    assert rollouts.next_batch() == groups[2:]
    rollouts.retire(groups[2])
    assert rollouts.next_batch() is None and rollouts.awaited() == []
    rollouts.retire(groups[3])
    assert rollouts.next_batch() is None and rollouts.awaited() == []
