"""Which groups a step takes: the bound holds whatever becomes complete when."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from venusrl.schedule.staleness import (  # noqa: E402
    latest_steps,
    require_feasible,
    select_batch,
)


def select(version, complete, *, step, batch, max_staleness, drop=False):
    found = select_batch(
        np.asarray(version),
        np.arange(len(version)),
        np.asarray(complete, bool),
        step=step,
        batch=batch,
        max_staleness=max_staleness,
        drop=drop,
    )
    return found and (sorted(found.trained.tolist()), found.dropped.tolist())


def test_the_oldest_complete_groups_are_taken():
    assert select([0] * 4, [0, 1, 1, 1], step=0, batch=2, max_staleness=4) == ([1, 2], [])


def test_forced_groups_are_taken_before_older_ones():
    assert select([3, 0], [1, 1], step=4, batch=1, max_staleness=4) == ([1], [])


def test_too_few_complete_groups_are_waited_for():
    assert select([0] * 3, [1, 0, 0], step=0, batch=2, max_staleness=4) is None


def test_a_group_at_the_bound_is_waited_for():
    assert select([0, 3, 3], [0, 1, 1], step=3, batch=2, max_staleness=4) is not None
    assert select([0, 4, 4], [0, 1, 1], step=4, batch=2, max_staleness=4) is None


def test_with_drop_it_goes_and_is_named():
    assert select([0, 4, 4], [0, 1, 1], step=4, batch=2, max_staleness=4, drop=True) == (
        [1, 2],
        [0],
    )


def test_nothing_is_dropped_that_is_complete_or_has_time_left():
    found = select([0, 1, 4], [1, 0, 1], step=4, batch=2, max_staleness=4, drop=True)
    assert found == ([0, 2], [])


def test_groups_of_one_deadline_queue_behind_each_other():
    latest = latest_steps(np.zeros(5, int), np.arange(5), 2, 4)
    assert latest.tolist() == [2, 3, 3, 4, 4]


def test_what_no_order_could_keep_is_refused():
    require_feasible(4, 12, 2)
    require_feasible(4, 4, 2)
    require_feasible(1, 1, 0)
    with pytest.raises(ValueError, match="at most 12"):
        require_feasible(4, 13, 2)
    with pytest.raises(ValueError, match="fewer"):
        require_feasible(4, 3, 2)
    with pytest.raises(ValueError, match="fewer"):
        require_feasible(0, 0, 2)


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 5),
    extra=st.integers(0, 12),
    bound=st.integers(0, 4),
    seed=st.integers(0, 2**31),
)
def test_no_group_is_ever_older_than_the_bound(batch, extra, bound, seed):
    in_flight = min(batch + extra, batch * (bound + 1))
    random = np.random.default_rng(seed)
    version, order = np.zeros(in_flight, int), np.arange(in_flight)
    complete = np.zeros(in_flight, bool)
    trained, step = [], 0
    while step < 12:
        found = select_batch(version, order, complete, step=step, batch=batch, max_staleness=bound)
        if found is None:
            # Something incomplete becomes complete, in an order that means harm.
            complete[random.choice(np.flatnonzero(~complete))] = True
            continue
        rows = found.trained
        assert len(set(rows.tolist())) == batch
        assert complete[rows].all()
        assert (step - version[rows] <= bound).all()
        trained += order[rows].tolist()
        order[rows] = order.max() + 1 + np.arange(batch)
        step += 1
        version[rows], complete[rows] = step, False
    assert len(set(trained)) == len(trained) == 12 * batch
