"""Who moves to another worker, once nobody waits."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from tests.support.schedule import make_snapshot  # noqa: E402
from venusrl.schedule.migration import balance  # noqa: E402
from venusrl.schedule.snapshot import Phase  # noqa: E402


def workers(context, *, admitted=True, phase=Phase.TOOL, moved_turn=-1):
    """All are on the first of two, after three turns each."""
    count = len(context)
    snapshot = make_snapshot(
        group=range(count),
        context=context,
        phase=[phase] * count,
        worker=[0] * count,
        admitted=[admitted] * count,
        turns=[3] * count,
        moved_turn=[moved_turn] * count,
        capacity=[100_000, 100_000],
    )
    rows = snapshot.trajectories
    found = balance(snapshot, rows.admitted, rows.worker, np.asarray(context, float))
    assert rows.worker.tolist() == [0] * count, "a snapshot does not change"
    return found.tolist()


def test_who_moves_has_a_quarter_at_most_of_what_it_leaves():
    assert workers([60_000, 15_000]) == [0, 1]
    assert workers([60_000, 15_100]) == [0, 0]


def test_the_most_recent_context_moves_first():
    # After either of them there is too much for the other.
    assert workers([60_000, 15_000, 5_000]) == [0, 0, 1]


@pytest.mark.parametrize(("largest", "moved"), [(40_000, [0, 1, 1]), (39_000, [0, 1, 0])])
def test_each_move_is_weighed_with_those_before_it(largest, moved):
    assert workers([largest, 5_000, 5_000]) == moved


def test_few_move_at_once():
    assert workers([60_000, *[1_000] * 6]) == [0, 1, 1, 1, 1, 0, 0]


def test_nobody_moves_during_a_turn_or_twice_in_one_or_without_a_place():
    assert workers([60_000, 5_000]) == [0, 1]
    assert workers([60_000, 5_000], phase=Phase.RUNNING) == [0, 0]
    assert workers([60_000, 5_000], moved_turn=3) == [0, 0]
    assert workers([60_000, 5_000], moved_turn=2) == [0, 1]
    assert workers([60_000, 5_000], admitted=False) == [0, 0]
