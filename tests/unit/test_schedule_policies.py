"""Every policy, over a cluster in miniature: conservation, no starvation, the bound, no
livelock."""

from __future__ import annotations

from dataclasses import replace

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.support.schedule import Rounds, check, make_snapshot  # noqa: E402
from venusrl.schedule.baselines import (  # noqa: E402
    Fcfs,
    LongestFirst,
    OldestFirst,
    ProgramPause,
    ShortestFirst,
)
from venusrl.schedule.packing import Packing  # noqa: E402
from venusrl.schedule.priority import LEAST_RELEASE_S, Priority, mean_growth  # noqa: E402
from venusrl.schedule.snapshot import NOWHERE, Level, Phase  # noqa: E402

POLICIES = {
    "priority": Priority(),
    "longest group first": Priority(order="longest"),
    "fcfs": Fcfs(),
    "fcfs, capped": Fcfs(cap=3),
    "oldest first": OldestFirst(cap=3),
    "longest first": LongestFirst(cap=3),
    "shortest first": ShortestFirst(cap=3),
    "pause": ProgramPause(),
}


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    workers=st.integers(1, 3),
    batch=st.integers(1, 3),
    extra=st.integers(0, 3),
    longest=st.integers(1, 12),
    spare=st.integers(0, 20_000),
)
def test_everything_is_trained_once_and_in_time(name, seed, workers, batch, extra, longest, spare):
    lengths = np.random.default_rng(seed).integers(1, longest + 1, (3 * batch, 3))
    # Barely one maximal context, prompt included, and what a turn adds; sometimes more.
    capacity = np.full(workers, 1000 + 1000 * longest + spare)
    rounds = Rounds(
        POLICIES[name],
        lengths,
        batch=batch,
        in_flight=min(batch + extra, 3 * batch),
        max_staleness=2,
        capacity=capacity,
    )
    rounds.run(limit=40 * int(lengths.sum()) + 40)
    assert sorted(group for _, group, _ in rounds.trained) == list(range(len(lengths)))
    assert all(step - version <= 2 for step, _, version in rounds.trained)
    if isinstance(POLICIES[name], Priority):
        for turns in rounds.moves.values():
            assert len(turns) == len(set(turns)), "moved twice within a turn"


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_decision_on_any_snapshot_is_sound(data):
    n = data.draw(st.integers(1, 40))
    workers = data.draw(st.integers(1, 4))
    random = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    phase = random.integers(0, 4, n)
    # What runs has a place.
    worker = np.where(phase == Phase.RUNNING, random.integers(0, workers, n),
                      random.integers(-1, workers, n))  # fmt: skip
    admitted = (worker >= 0) & (random.random(n) < 0.7) & (phase != Phase.DONE)
    turns = random.integers(0, 9, n)
    snapshot = make_snapshot(
        group=np.sort(random.integers(0, 8, n)),
        context=random.integers(1000, 60_000, n),
        phase=phase,
        worker=worker,
        admitted=admitted,
        turns=turns,
        moved_turn=np.where(random.random(n) < 0.3, turns, -1),
        remaining=random.random(n) * 50_000,
        kv=random.integers(0, 2, n) * 1000,
        tool_s=np.where(phase == Phase.TOOL, random.exponential(10.0, n), 0.0),
        # Workers need not be equal, nor hold every context.
        capacity=random.integers(5_000, 200_000, workers),
        slots=random.integers(1, 9, workers),
        host=data.draw(st.sampled_from([0, 300_000])),
        prompt=data.draw(st.sampled_from([1, 1_000, 30_000])),  # some contexts are shorter
        block=data.draw(st.sampled_from([1, 16, 128])),
        batch=2,
    )
    for policy in POLICIES.values():
        decision = policy(snapshot)
        check(snapshot, decision)
        if isinstance(policy, Priority):
            check_priority(snapshot, decision)


def check_priority(snapshot, decision):
    """What ours keeps beyond what all do."""
    rows, workers = snapshot.trajectories, snapshot.workers
    moved = decision.migrations(snapshot)
    again = moved[rows.moved_turn[moved] == rows.turns[moved]]
    outgrown = rows.context_tokens[again] > workers.kv_capacity[rows.worker[again]]
    assert np.all(outgrown), "moved twice within a turn"
    before = np.bincount(rows.worker[rows.admitted], minlength=len(workers))
    after = np.bincount(decision.worker[decision.admitted], minlength=len(workers))
    assert np.all(after <= np.maximum(before, workers.slots))
    # Nobody is sent to where its context cannot be held, unless no worker can hold it.
    sent = np.union1d(moved, np.flatnonzero(decision.admitted & (rows.worker == NOWHERE)))
    size = rows.context_tokens[sent]
    assert np.all(np.minimum(size, workers.kv_capacity.max())
                  <= workers.kv_capacity[decision.worker[sent]])  # fmt: skip
    # Somebody runs wherever somebody did whose tool has not worked for long.
    stays = rows.admitted & (rows.phase != Phase.DONE) & (rows.tool_s <= LEAST_RELEASE_S)
    assert np.all(after[np.unique(rows.worker[stays])] > 0)


def test_what_only_the_larger_worker_holds_waits_for_it():
    def decide(context, first):
        return Priority()(
            make_snapshot(
                group=[0, 1],
                context=[first, context],
                worker=[1, -1],
                admitted=[True, False],
                kv=[first, 0],
                capacity=[20_000, 100_000],
            )
        ).worker.tolist()

    assert decide(18_000, first=90_000) == [1, 0]
    assert decide(30_000, first=90_000) == [1, -1]
    assert decide(30_000, first=50_000) == [1, 1]
    assert decide(130_000, first=50_000) == [1, -1]


def test_one_that_has_moved_and_outgrown_its_worker_may_move_again():
    def decide(context):
        return Priority()(
            make_snapshot(
                group=[0],
                context=[context],
                worker=[0],
                turns=[3],
                moved_turn=[3],
                capacity=[20_000, 100_000],
            )
        ).worker.tolist()

    assert decide(18_000) == [0]
    assert decide(30_000) == [1]


def test_nobody_moves_to_a_worker_that_is_too_small_or_has_no_seat():
    def decide(capacity, slots):
        return Priority()(
            make_snapshot(
                group=[0, 1, 2, 3],
                context=[60_000, 60_000, 20_000, 2_000],
                phase=[Phase.TOOL] * 4,
                worker=[0, 0, 0, 1],
                admitted=[True] * 4,
                turns=[20] * 4,
                kv=[60_000, 60_000, 20_000, 2_000],
                capacity=[200_000, capacity],
                slots=[64, slots],
            )
        ).worker.tolist()

    assert decide(200_000, 2) == [0, 0, 1, 1]
    assert decide(200_000, 1) == [0, 0, 0, 1]
    assert decide(15_000, 2) == [0, 0, 0, 1]


def test_settings_that_say_nothing_are_refused():
    for wrong in ({"order": "newest"}, {"growth_tokens": -1.0}, {"growth_tokens": np.nan},
                  {"host_share": -0.1}, {"overbook": 0.0}):  # fmt: skip
        with pytest.raises(ValueError, match=f"priority: {next(iter(wrong))} is"):
            Priority(**wrong)


def test_a_context_shorter_than_its_prompt_gives_no_room_to_others():
    snapshot = make_snapshot(
        group=[0, 0, 1],
        context=[10, 10, 60_000],
        prompt=50_000,
        turns=[5, 5, 5],
        capacity=[100_000],
    )
    decision = Priority()(snapshot)
    assert decision.admitted.tolist() == [True, True, False]


def test_memory_decides_how_many_run():
    snapshot = make_snapshot(group=[0, 0, 1, 1], context=[33_000] * 4, capacity=[100_000])
    # 33,000 for the first with its prompt, 32,000 for its sibling; one more passes 95 %.
    decision = Priority()(snapshot)
    assert decision.admitted.tolist() == [True, True, False, False]


def test_contexts_are_counted_with_half_of_what_a_turn_adds_here():
    def admitted(turns, **settings):
        snapshot = make_snapshot(
            group=list(range(8)), context=[400] * 8, prompt=100, turns=[turns] * 8, capacity=[3_000]
        )
        return Priority(**settings)(snapshot).admitted.sum()

    assert mean_growth(np.array([600, 50, 200]), np.array([3, 0, 1])) == 200
    assert mean_growth(np.array([0, 0]), np.array([0, 0])) == 0
    # 400 each of 2,850; with half of 300 or of 30 on top; or with what is set.
    assert (admitted(0), admitted(1), admitted(10)) == (7, 5, 6)
    assert admitted(10, growth_tokens=500.0) == 3


def test_who_is_inside_needs_no_more_than_half_a_turn_to_stay():
    def stays(context):
        snapshot = make_snapshot(
            group=[0, 1],
            context=[40_000, context],
            prompt=0,
            phase=[Phase.RUNNING] * 2,
            worker=[0, 0],
            admitted=[True, True],
            turns=[40, 40],
            kv=[40_000, context],
            capacity=[100_000],
        )
        return bool(Priority(growth_tokens=500.0)(snapshot).admitted[1])

    assert stays(59_000)
    assert not stays(59_500)


def test_a_prompt_is_counted_once_per_worker():
    alone = make_snapshot(group=[0, 1, 2], context=[30_000] * 3, prompt=29_000, capacity=[80_000])
    together = make_snapshot(group=[0] * 3, context=[30_000] * 3, prompt=29_000, capacity=[80_000])
    assert Priority()(alone).admitted.sum() == 2
    assert Priority()(together).admitted.sum() == 3


def test_the_last_in_rank_gives_way_when_memory_is_full_and_only_then():
    def decide(context):
        return Priority()(
            make_snapshot(
                group=[0, 1, 2],
                context=context,
                worker=[0] * 3,
                admitted=[True] * 3,
                kv=context,
                capacity=[100_000],
            )
        )

    assert decide([40_000, 30_000, 20_000]).admitted.all()
    full = decide([50_000, 30_000, 21_000])
    assert full.admitted.tolist() == [True, True, False]
    assert full.level.tolist() == [Level.HIGH, Level.HIGH, Level.LOW]


def test_between_the_marks_nobody_comes_and_nobody_goes():
    snapshot = make_snapshot(
        group=[0, 1, 2],
        context=[50_000, 43_500, 2_000],
        worker=[0, 0, -1],
        admitted=[True, True, False],
        kv=[50_000, 43_500, 0],
        capacity=[100_000],
    )
    assert Priority()(snapshot).admitted.tolist() == [True, True, False]


def test_contexts_are_counted_in_whole_blocks():
    def admitted(block):
        snapshot = make_snapshot(
            group=[0] * 9, context=[1_010] * 9, capacity=[1_260], block=block, prompt=1_000
        )
        return Priority()(snapshot).admitted.sum()

    # 1,197 tokens are 197 beside the prompt.
    assert (admitted(1), admitted(32)) == (9, 6)


def test_a_turn_under_way_keeps_its_memory_until_it_ends_admitted_or_not():
    def decide(phase, context):
        return Priority()(
            make_snapshot(
                group=[0, 1, 2],
                context=[60_000, context, 25_000],
                phase=[Phase.RUNNING, phase, Phase.WAITING],
                worker=[0, 0, -1],
                admitted=[True, True, False],
                kv=[60_000, context, 0],
                capacity=[100_000],
            )
        ).admitted.tolist()

    assert decide(Phase.TOOL, 50_000) == [True, False, True]
    assert decide(Phase.RUNNING, 50_000) == [True, False, False]

    # Once there is room for it, it is admitted again where it runs.
    snapshot = make_snapshot(
        group=[0, 1, 2],
        context=[40_000, 50_000, 25_000],
        phase=[Phase.RUNNING, Phase.RUNNING, Phase.WAITING],
        worker=[0, 0, -1],
        admitted=[True, False, False],
        kv=[40_000, 50_000, 0],
        capacity=[100_000],
    )
    decision = Priority()(snapshot)
    assert decision.admitted.tolist() == [True, True, False]


def test_forced_groups_come_before_older_ones_and_are_critical():
    snapshot = make_snapshot(
        group=[0, 1], context=[60_000] * 2, version=[3, 0], now=4, capacity=[100_000]
    )
    decision = Priority()(snapshot)
    assert decision.admitted.tolist() == [False, True]
    assert decision.critical.tolist() == [False, True]


def test_where_a_step_needs_every_group_the_shortest_context_of_all_comes_first():
    def rank(batch):
        snapshot = make_snapshot(
            group=[0, 0, 1, 1, 2],
            context=[2_000, 5_000, 9_000, 1_500, 3_000],
            phase=[Phase.WAITING, Phase.WAITING, Phase.WAITING, Phase.DONE, Phase.WAITING],
            batch=batch,
        )
        return Priority()(snapshot).rank.tolist()

    assert rank(batch=2) == [1, 0, 2, 4, 3]
    assert rank(batch=3) == [0, 2, 3, 4, 1]


def test_siblings_go_where_their_prompt_is_while_memory_is_scarce():
    def decide(others, **settings):
        return Priority(packing=Packing(**settings))(
            make_snapshot(
                group=[0, 0] + [1] * others,
                context=[10_000, 10_000] + [60_000] * others,
                worker=[1, -1] + [-1] * others,
                admitted=[True, False] + [False] * others,
                kv=[10_000, 0] + [0] * others,
                capacity=[90_000, 90_000],
            )
        ).worker.tolist()[:2]

    assert decide(others=4) == [1, 1]
    assert decide(others=4, siblings_together=False) == [1, 0]
    assert decide(others=0) == [1, 0]


def test_a_sibling_waits_for_room_beside_its_prompt_while_others_take_the_rest():
    def decide(others):
        return Priority()(
            make_snapshot(
                group=[0, 0] + [1] * others,
                context=[80_000, 30_000] + [20_000] * others,
                worker=[1, -1] + [-1] * others,
                admitted=[True, False] + [False] * others,
                kv=[80_000, 0] + [0] * others,
                capacity=[90_000, 90_000],
            )
        ).worker.tolist()

    busy = decide(others=8)
    assert busy[:2] == [1, -1]
    assert 0 in busy[2:]
    # Nobody else has a use for the room: it need not wait.
    assert decide(others=0) == [1, 0]


def test_siblings_take_room_elsewhere_that_nobody_else_wants():
    def workers(other):
        return Priority()(
            make_snapshot(
                group=[0] * 5,
                context=[80_000] + [30_000] * 4,
                worker=[1] + [-1] * 4,
                admitted=[True] + [False] * 4,
                kv=[80_000] + [0] * 4,
                capacity=[other, 90_000],
            )
        ).worker.tolist()

    # They need more than there is.
    assert workers(other=90_000) == [1, 0, 0, -1, -1]
    assert workers(other=50_000) == [1, 0, -1, -1, -1]


def test_what_host_memory_holds_draws_back_as_what_the_gpu_holds_does():
    def decide(held):
        snapshot = make_snapshot(
            group=[0, 1], context=[30_000, 20_000], worker=[0, 0], admitted=[True, False],
            kv=[30_000, 0], capacity=[90_000, 90_000], host=100_000,
        )  # fmt: skip
        rows = replace(snapshot.trajectories, host_tokens=np.asarray([0, held]))
        return Priority()(replace(snapshot, trajectories=rows)).worker.tolist()

    assert decide(0) == [0, 1]
    assert decide(20_000) == [0, 0]


def test_where_nothing_is_scarce_new_ones_go_where_fewest_run():
    """Not where most room is: what is small there will grow."""
    snapshot = make_snapshot(
        group=[0, 0, 0, 1, 2, 2],
        context=[2_000, 2_000, 2_000, 30_000, 1_000, 1_000],
        worker=[0, 0, 0, 1, -1, -1],
        admitted=[True] * 4 + [False] * 2,
        turns=[5, 5, 5, 5, 0, 0],
        kv=[2_000, 2_000, 2_000, 30_000, 0, 0],
        capacity=[100_000, 100_000],
    )
    assert Priority(migrate=False)(snapshot).worker.tolist() == [0, 0, 0, 1, 1, 1]


def test_an_idle_worker_is_given_something_once_nobody_waits():
    moved = make_snapshot(
        group=[0, 1, 2],
        context=[20_000, 20_000, 9_000],
        phase=[Phase.TOOL] * 3,
        worker=[0, 0, 0],
        admitted=[True] * 3,
        turns=[20, 20, 20],
        kv=[20_000, 20_000, 9_000],
        capacity=[60_000, 60_000],
    )
    assert Priority()(moved).worker.tolist() == [0, 0, 1]
    assert Priority(migrate=False)(moved).worker.tolist() == [0, 0, 0]


def test_a_host_tier_lets_tools_leave_their_memory_to_others():
    def admitted(host):
        return Priority()(
            make_snapshot(
                group=[0, 1, 2, 3],
                context=[40_000] * 4,
                phase=[Phase.TOOL, Phase.TOOL, Phase.WAITING, Phase.WAITING],
                worker=[0, 0, -1, -1],
                admitted=[True, True, False, False],
                kv=[40_000, 40_000, 0, 0],
                capacity=[100_000],
                host=host,
            )
        ).admitted.sum()

    assert admitted(0) == 2
    assert admitted(400_000) > 2
    # Host memory is a limit too.
    assert admitted(10_000) == 2


def held_by_tools(tool_s, waiting=True, release=True, capacity=100_000):
    """Whether one whose tool works for so long keeps its place, where another waits or none."""
    decision = Priority(release=release)(
        make_snapshot(
            group=[0, 1],
            context=[0.6 * capacity, 0.6 * capacity if waiting else 2_000],
            phase=[Phase.TOOL, Phase.WAITING],
            worker=[0, -1],
            admitted=[True, False],
            kv=[0.6 * capacity, 0],
            tool_s=[tool_s, 0.0],
            capacity=[2 * capacity if not waiting else capacity],
        )
    )
    assert decision.admitted[1] == (not waiting or not decision.admitted[0])
    return bool(decision.admitted[0]), Level(decision.level[0])


def test_who_waits_gets_the_place_of_a_tool_that_works_for_thrice_what_memory_takes_to_compute():
    # 100,000 tokens take 7.4 s.
    assert held_by_tools(22.0) == (True, Level.HIGH)
    assert held_by_tools(22.5) == (False, Level.LOW)
    assert held_by_tools(22.5, release=False) == (True, Level.HIGH)
    # No place is given away before 10 s.
    assert held_by_tools(9.0, capacity=30_000) == (True, Level.HIGH)
    assert held_by_tools(11.0, capacity=30_000) == (False, Level.LOW)
    # Nobody needs it.
    assert held_by_tools(1000.0, waiting=False) == (True, Level.HIGH)


def test_pause_takes_acting_programs_first_then_small_ones():
    snapshot = make_snapshot(
        group=[0, 1, 2, 3],
        context=[40_000, 30_000, 20_000, 30_000],
        phase=[Phase.TOOL, Phase.RUNNING, Phase.RUNNING, Phase.TOOL],
        worker=[0] * 4,
        admitted=[True] * 4,
        capacity=[95_000],
    )
    assert ProgramPause()(snapshot).admitted.tolist() == [True, True, True, False]
    tighter = make_snapshot(
        group=[0, 1],
        context=[40_000, 30_000],
        phase=[Phase.RUNNING] * 2,
        worker=[0] * 2,
        admitted=[True] * 2,
        capacity=[60_000],
    )
    assert ProgramPause()(tighter).admitted.tolist() == [True, False]


def test_pause_resumes_those_under_way_before_new_ones():
    snapshot = make_snapshot(
        group=[0, 1],
        context=[40_000, 40_000],
        turns=[0, 3],
        capacity=[60_000],
    )
    assert ProgramPause()(snapshot).admitted.tolist() == [False, True]
