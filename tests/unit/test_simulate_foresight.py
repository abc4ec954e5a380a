"""What a simulated run predicts: as a predictor that is asked anew would, but asked less often."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("venusrl.simulate._engines", reason="needs the native build")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from venusrl.schedule.predictor import Progress  # noqa: E402
from venusrl.simulate.foresight import Predicted  # noqa: E402
from venusrl.simulate.workload import LIGHT, draw_group  # noqa: E402

SIZE = 4


def scripts(count, first=0):
    return [draw_group(LIGHT, 0, first + index, SIZE) for index in range(count)]


def taught() -> Predicted:
    foresight = Predicted()
    for script in scripts(20, first=100):
        foresight.finish(script)
    return foresight


def rows(order, turns):
    """The columns of `look`: turns beyond a script's are its end."""
    script = scripts(len(order))
    all_turns = np.concatenate([one.turns for one in script])
    turns = np.minimum(np.asarray(turns).ravel(), all_turns)
    return (
        np.asarray(order),
        np.repeat(np.arange(len(order)), SIZE),
        turns,
        100 * turns,
        turns == all_turns,
        script,
    )


def fresh(foresight, order, group, turns, tokens, done, script):
    found = foresight.predictor.predict(
        Progress(group, turns, tokens, done, np.full(len(order), -1))
    )
    return found.turns, found.tokens


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 6), st.lists(st.integers(0, 15), min_size=SIZE, max_size=SIZE),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    )
)  # fmt: skip
def test_it_says_what_it_would_say_if_asked_anew(looks):
    """Whichever groups come and go, and whatever their turns."""
    foresight = taught()
    for look in looks:
        order = sorted(look)
        columns = rows(order, [look[name] for name in order])
        for found, asked in zip(foresight.look(*columns), fresh(foresight, *columns), strict=True):
            assert found == pytest.approx(asked)


def test_what_it_said_stands_until_a_turn_ends():
    foresight = taught()
    order, group, turns, tokens, done, script = rows([3, 5], [[1, 2, 1, 1], [2, 2, 2, 2]])
    before = foresight.look(order, group, turns, tokens, done, script)[1]
    grown = foresight.look(order, group, turns, tokens + 7, done, script)[1]
    assert grown.tolist() == before.tolist()
    turns = turns + np.asarray([0, 1, 0, 0, 0, 0, 0, 0])
    after = foresight.look(order, group, turns, tokens + 7, done, script)[1]
    assert after[:SIZE].tolist() != before[:SIZE].tolist()
    assert after[SIZE:].tolist() == before[SIZE:].tolist()


def test_what_was_learned_changes_what_is_said():
    foresight = taught()
    columns = rows([0], [[1, 1, 1, 1]])
    before = foresight.look(*columns)[1]
    for script in scripts(3, first=200):
        foresight.finish(script)
    assert foresight.look(*columns)[1].tolist() != before.tolist()


def test_a_script_grows_as_its_engine_sees_it():
    for script in scripts(5):
        for member, grown in enumerate(script.grown()):
            turns = script.turns[member]
            assert len(grown) == turns
            assert grown[-1] == script.grown_tokens[member]
            assert (
                np.diff(grown[:-1]).tolist()
                == (script.generated + script.observed)[member, 1 : turns - 1].tolist()
            )
