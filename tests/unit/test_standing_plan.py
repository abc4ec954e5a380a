"""What is launched ahead follows from what was asked for lately."""

from __future__ import annotations

from sandboxd.launch_request import Limits
from sandboxd.standing_plan import Adjustment, Demand, Shape, next_adjustment

LIMITS = Limits(memory_bytes=1 << 30, pids=64, cpu_cores=1.0, disk_bytes=None)


def shape(name: str, tenant_uid: int = 0) -> Shape:
    return Shape(tenant_uid, name, None, LIMITS)


def test_one_request_wants_none_and_two_want_as_many_as_were_asked_for() -> None:
    demand = Demand(limit=8, window_s=10.0)
    demand.note(shape("a"), 3, 0.0)
    assert demand.wanted(0.0) == {}
    demand.note(shape("a"), 1, 1.0)
    assert demand.wanted(1.0) == {shape("a"): 4}


def test_requests_leave_the_window_one_by_one() -> None:
    demand = Demand(limit=8, window_s=10.0)
    for now in (0.0, 1.0, 2.0):
        demand.note(shape("a"), 1, now)
    assert demand.wanted(9.9) == {shape("a"): 3}
    assert demand.wanted(10.0) == {shape("a"): 2}
    assert demand.wanted(11.0) == {}
    demand.note(shape("a"), 1, 11.5)
    assert demand.wanted(11.5) == {shape("a"): 2}
    assert demand.wanted(30.0) == {}
    demand.note(shape("a"), 1, 30.0)
    assert demand.wanted(30.0) == {}


def test_the_limit_is_shared_equally_and_what_is_asked_for_in_turn_changes_nothing() -> None:
    demand = Demand(limit=8, window_s=10.0)
    names = "abc" * 4
    for name in names:
        demand.note(shape(name), 2, 0.0)
    shares = {shape("a"): 2, shape("b"): 2, shape("c"): 2}
    assert demand.wanted(0.0) == shares
    for name in names:
        demand.note(shape(name), 1, 0.0)
        assert demand.wanted(0.0) == shares


def test_one_that_wants_little_leaves_the_rest_to_the_others() -> None:
    demand = Demand(limit=8, window_s=10.0)
    for name, count in (("a", 1), ("a", 1), ("b", 5), ("b", 5)):
        demand.note(shape(name), count, 0.0)
    assert demand.wanted(0.0) == {shape("a"): 2, shape("b"): 6}


def test_of_too_many_those_that_were_asked_for_last_stand() -> None:
    demand = Demand(limit=2, window_s=10.0)
    for name in "aabbcca":
        demand.note(shape(name), 1, 0.0)
    assert demand.wanted(0.0) == {shape("a"): 1, shape("c"): 1}


def test_tenants_do_not_share_a_shape() -> None:
    demand = Demand(limit=8, window_s=10.0)
    demand.note(shape("a", 1), 1, 0.0)
    demand.note(shape("a", 2), 1, 0.0)
    assert demand.wanted(0.0) == {}


def test_what_was_forgotten_has_to_be_asked_for_twice_again() -> None:
    demand = Demand(limit=8, window_s=10.0)
    for name in ("a", "a", "b", "b"):
        demand.note(shape(name), 1, 0.0)
    demand.forget(lambda each: each.image == "a")
    demand.note(shape("a"), 1, 0.0)
    assert demand.wanted(0.0) == {shape("b"): 2}


def test_removals_come_before_launches_until_all_is_as_wanted() -> None:
    wanted, standing = {shape("a"): 2, shape("b"): 1}, {shape("b"): 2, shape("c"): 1}
    steps = []
    while (step := next_adjustment(wanted, standing)) is not None:
        steps.append(step)
        standing[step.shape] = standing.get(step.shape, 0) + (1 if step.launch else -1)
    assert steps == [
        Adjustment(shape("b"), launch=False),
        Adjustment(shape("c"), launch=False),
        Adjustment(shape("a"), launch=True),
        Adjustment(shape("a"), launch=True),
    ]
    assert {each: count for each, count in standing.items() if count} == wanted
