"""The table of a sandbox's life."""

from __future__ import annotations

import itertools

import pytest

from sandboxd.lifecycle import TRANSITIONS, Event, ImpossibleEvent, State, next_state


def test_a_sandbox_lives_and_ends() -> None:
    state = State.CREATING
    for event in (Event.READY, Event.EXPIRED, Event.INIT_DIED, Event.DESTROYED):
        state = next_state(state, event)
    assert state is State.GONE


def test_nothing_happens_after_the_end() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is State.GONE]


def test_the_only_way_out_of_each_state_is_through_stopping() -> None:
    into_gone = {state for (state, _), after in TRANSITIONS.items() if after is State.GONE}
    assert into_gone == {State.STOPPING}


def test_every_state_but_the_last_can_reach_the_last() -> None:
    reach = {State.GONE}
    for _ in State:
        reach |= {before for (before, _), after in TRANSITIONS.items() if after in reach}
    assert reach == set(State)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_what_the_table_lacks_is_refused(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(ImpossibleEvent, match=event.value):
            next_state(state, event)
