"""What comes first to our policy, and how much memory it gives away where there is a host tier."""

from __future__ import annotations

from dataclasses import replace

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from tests.support.schedule import make_snapshot  # noqa: E402
from venusrl.schedule.priority import Priority  # noqa: E402
from venusrl.schedule.snapshot import Costs, Level, Phase  # noqa: E402


def test_what_is_complete_comes_last_and_keeps_nothing():
    snapshot = make_snapshot(
        group=[0, 0, 1],
        context=[90_000, 30_000, 50_000],
        phase=[Phase.DONE, Phase.WAITING, Phase.WAITING],
        worker=[0, -1, -1],
        kv=[90_000, 0, 0],
    )
    decision = Priority()(snapshot)
    assert decision.rank.tolist() == [2, 0, 1]
    assert decision.level.tolist() == [Level.UNUSED, Level.HIGH, Level.HIGH]
    assert decision.critical.tolist() == [False, True, False]


def test_of_a_group_the_longest_context_comes_first():
    snapshot = make_snapshot(group=[0, 0, 0, 1], context=[10_000, 30_000, 20_000, 90_000])
    assert Priority()(snapshot).rank.tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize(
    ("version", "phase", "ranks"),
    [
        ([4, 4, 4], Phase.WAITING, [1, 0, 2, 3]),
        # The last is forced.
        ([4, 4, 0], Phase.WAITING, [2, 1, 3, 0]),
        # What is complete is nothing that a group has left.
        ([4, 4, 4], Phase.DONE, [2, 3, 0, 1]),
    ],
)
def test_groups_with_most_left_come_first_where_that_is_asked_for(version, phase, ranks):
    snapshot = make_snapshot(
        group=[0, 0, 1, 2],
        context=[5_000, 6_000, 4_000, 4_000],
        phase=[Phase.WAITING, phase, Phase.WAITING, Phase.WAITING],
        remaining=[3_000, 9_000, 8_000, 8_000],
        version=version,
        now=4,
    )
    assert Priority(order="longest")(snapshot).rank.tolist() == ranks


def test_by_default_the_oldest_group_comes_first_whatever_is_predicted():
    snapshot = make_snapshot(group=[0, 1], context=[4_000] * 2, remaining=[1_000, 9_000])
    assert Priority()(snapshot).rank.tolist() == [0, 1]


def test_contexts_are_counted_with_half_of_what_a_turn_adds():
    def admitted(memory):
        snapshot = make_snapshot(
            group=[0, 1], context=[300] * 2, prompt=0, turns=[1] * 2, capacity=[memory]
        )
        return Priority()(snapshot).admitted.sum()

    # 450 each, of 95 %.
    assert (admitted(948), admitted(947)) == (2, 1)


def capacity(context, phase, *, admitted=None, host=(4_000_000,), costs=None):
    snapshot = make_snapshot(
        group=range(len(context)),
        context=context,
        phase=phase,
        worker=[0] * len(context),
        admitted=[True] * len(context) if admitted is None else admitted,
        capacity=[100_000] * len(host),
        host=host,
    )
    snapshot = replace(snapshot, costs=costs or snapshot.costs)
    live = snapshot.trajectories.phase != Phase.DONE
    return Priority().capacity(snapshot, live).tolist()


def test_with_a_host_tier_memory_is_given_away_as_often_as_tools_leave_it_free():
    # 60,000 idle of 100,000 under way, and of a quarter of the GPU's memory: 0.48.
    expected = [pytest.approx(100_000 * 1.25 / 0.52 / 0.95)]
    assert capacity([60_000, 40_000], [Phase.TOOL, Phase.RUNNING]) == expected
    # Who is complete or held back has no part in it.
    phases = [Phase.TOOL, Phase.RUNNING, Phase.DONE, Phase.TOOL]
    inside = [True, True, True, False]
    assert capacity([60_000, 40_000, 70_000, 70_000], phases, admitted=inside) == expected
    # Ten times as much at most.
    assert capacity([10**6], [Phase.TOOL]) == [pytest.approx(100_000 * 1.25 / 0.1 / 0.95)]


def test_no_more_is_given_away_than_host_memory_holds_at_a_low_price():
    idle = ([60_000, 40_000], [Phase.TOOL, Phase.RUNNING])
    assert capacity(*idle, host=[0, 50_000]) == [100_000, 145_000]
    assert capacity(*idle, host=[0]) == [100_000]
    dear = Costs(recompute_s=10e-6, reload_s=3e-6)
    assert capacity(*idle, costs=dear) == [100_000]
    cheap = Costs(recompute_s=20e-6, reload_s=3e-6)
    assert capacity(*idle, costs=cheap)[0] > 200_000
