"""Who fits where: memory, prompts, places and siblings, without what a policy makes of them."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from tests.support.schedule import make_snapshot  # noqa: E402
from venusrl.schedule.packing import WINDOW, Packing, pack  # noqa: E402
from venusrl.schedule.snapshot import Phase  # noqa: E402

ALL_OF_IT = Packing(admit_mark=1.0)


def packed(need, *, capacity, settings=ALL_OF_IT, prompt=0, **columns):
    """In the order of the rows; `need` is without prompts. A group for each unless it is said."""
    rows = np.arange(len(need))
    columns.setdefault("group", rows)
    snapshot = make_snapshot(context=need, capacity=capacity, prompt=prompt, **columns)
    nobody = np.zeros(len(need), bool)
    return pack(snapshot, rows, np.asarray(need, float), np.asarray(capacity), settings, nobody)


def stay(need, worker, **more):
    """Who stays, of those who are all inside."""
    inside = [True] * len(need)
    return packed(need, worker=worker, admitted=inside, kv=need, **more).admitted.tolist()


def test_each_worker_keeps_the_first_that_fit_it():
    # Together 40, 80, 120 on the one, 60 and 110 on the other.
    found = stay([40, 60, 40, 50, 40], [0, 1, 0, 1, 0], capacity=[100, 100])
    assert found == [True, True, True, False, False]


@pytest.mark.parametrize(("memory", "last"), [(100, True), (99, False)])
def test_those_who_stay_pay_for_each_prompt_once(memory, last):
    # On the first worker 50 + 10, 10 and 20 + 10; on the second the same prompt, once more.
    found = stay(
        [10, 10, 10, 10],
        [0, 0, 1, 0],
        group=[0, 0, 0, 1],
        prompt=[50, 20],
        capacity=[memory, 60],
    )
    assert found == [True, True, True, last]


def test_the_first_of_a_worker_stays_whatever_its_size():
    assert stay([300, 40, 10], [0, 1, 0], capacity=[100, 100]) == [True, True, False]


def test_an_empty_worker_takes_one_of_any_size():
    found = packed(
        [60, 150, 150],
        worker=[0, -1, -1],
        admitted=[True, False, False],
        kv=[60, 0, 0],
        capacity=[100, 100],
    )
    assert found.admitted.tolist() == [True, True, False]
    assert found.worker.tolist() == [0, 1, -1]
    assert found.waiting == 1


@pytest.mark.parametrize(("slots", "by_worker"), [([1, 3], [1, 3]), ([0, 4], [0, 4])])
def test_no_worker_runs_more_than_it_has_slots(slots, by_worker):
    found = packed([1] * 6, capacity=[100, 100], slots=slots)
    assert np.bincount(found.worker[found.admitted], minlength=2).tolist() == by_worker


def test_of_workers_that_run_as_many_the_one_with_most_room_is_taken():
    found = packed(
        [50, 10, 1],
        worker=[0, 1, -1],
        admitted=[True, True, False],
        kv=[50, 10, 0],
        capacity=[100, 100],
    )
    assert found.worker.tolist() == [0, 1, 1]


def test_a_sibling_goes_beside_any_of_its_prompts_that_leaves_it_room():
    # The prompt is on both; others want more than is left.
    found = packed(
        [95, 60, 30, 40],
        group=[0, 0, 0, 1],
        worker=[0, 1, -1, -1],
        admitted=[True, True, False, False],
        kv=[95, 60, 0, 0],
        capacity=[100, 100],
    )
    assert found.worker.tolist() == [0, 1, 1, -1]


@pytest.mark.parametrize(("stranger", "elsewhere"), [(50, 1), (51, 0)])
def test_siblings_take_from_elsewhere_only_what_is_half_free(stranger, elsewhere):
    found = packed(
        [stranger, 80, 30, 30, 30],
        group=[0, 1, 1, 1, 1],
        worker=[0, 1, -1, -1, -1],
        admitted=[True, True, False, False, False],
        kv=[stranger, 80, 0, 0, 0],
        capacity=[100, 100],
    )
    assert found.worker.tolist() == [0, 1] + [0] * elsewhere + [-1] * (3 - elsewhere)


@pytest.mark.parametrize(
    ("phase", "moved_turn", "kv", "worker"),
    [
        (Phase.WAITING, 2, 0, 1),
        (Phase.WAITING, 2, 10, 0),  # where its blocks are
        (Phase.WAITING, 3, 0, 0),
        (Phase.RUNNING, 2, 0, 0),
    ],
)
def test_one_that_comes_back_goes_elsewhere_between_turns_and_once_in_each(
    phase, moved_turn, kv, worker
):
    found = packed(
        [60, 20],
        phase=[Phase.WAITING, phase],
        worker=[0, 0],
        admitted=[True, False],
        turns=[3, 3],
        moved_turn=[-1, moved_turn],
        kv=[60, kv],
        capacity=[100, 100],
    )
    assert found.admitted.tolist() == [True, True]
    assert found.worker.tolist() == [0, worker]


def test_one_decision_looks_at_the_first_that_could_fit():
    found = packed([1] * (WINDOW + 9), capacity=[10_000], slots=10_000)
    assert found.admitted.tolist() == [True] * WINDOW + [False] * 9
    # Those that could not are not counted.
    found = packed([200] * WINDOW + [1], capacity=[100], slots=9, settings=Packing())
    assert found.admitted[0] and not found.admitted[1:].any(), "alone, whatever its size"
    found = packed(
        [50] + [200] * WINDOW + [1],
        worker=[0] + [-1] * (WINDOW + 1),
        admitted=[True] + [False] * (WINDOW + 1),
        capacity=[100],
    )
    assert np.flatnonzero(found.admitted).tolist() == [0, WINDOW + 1]
