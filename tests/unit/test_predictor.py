"""Lengths from what is past: the arithmetic, censoring, history, and the evaluation on a file."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from click.testing import CliRunner  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from venusrl.cli import main  # noqa: E402
from venusrl.predictor.evaluate import evaluate, recall  # noqa: E402
from venusrl.predictor.lengths import (  # noqa: E402
    MAX_TRIALS,
    LengthsError,
    Trajectory,
    read_lengths,
)
from venusrl.schedule.landmarks import spearman  # noqa: E402
from venusrl.schedule.predictor import (  # noqa: E402
    LengthPredictor,
    Progress,
    ToolClock,
    mean_beyond,
    medians,
    upper_tail,
)


def ints(values):
    return np.asarray(values, np.int64)


def taught(groups=300, sigma=0.9, icc=0.6, seed=0):
    """By groups of eight with log-normal turns of median 30, of 1,000 tokens each."""
    random, predictor = np.random.default_rng(seed), LengthPredictor()
    for _ in range(groups):
        turns = draw(random, 8, sigma, icc)
        predictor.finish(-1, grown(turns))
    return predictor


def grown(turns):
    """Trajectories of turns of 1,000 tokens each."""
    return [1000 * np.arange(1, count + 1) for count in turns]


def draw(random, count, sigma=0.9, icc=0.6):
    log = math.sqrt(icc) * random.standard_normal() + math.sqrt(1 - icc) * random.standard_normal(
        count
    )
    return np.maximum(1, np.rint(30 * np.exp(sigma * log))).astype(np.int64)


def left(predictor, siblings, task=-1):
    """Prediction for the first of one group of (turns, finished)."""
    turns = ints([turns for turns, _ in siblings])
    found = predictor.predict(
        Progress(
            np.zeros(len(turns), int),
            turns,
            turns * 1000,
            np.asarray([done for _, done in siblings]),
            ints([task]),
        )
    )
    return found.turns[0], found.tokens[0], found.spread[0]


class TestArithmetic:
    def test_upper_tail(self):
        x = np.linspace(-6, 6, 100)
        exact = [0.5 * math.erfc(value / math.sqrt(2)) for value in x]
        assert np.allclose(upper_tail(x), exact, atol=2e-7)

    def test_mean_beyond(self):
        drawn = np.exp(1.0 + 0.5 * np.random.default_rng(0).standard_normal(400_000))
        for bound in (0.5, 3.0, 8.0):
            found = mean_beyond(np.asarray([1.0]), 0.5, np.asarray([bound]))[0]
            assert found == pytest.approx(drawn[drawn > bound].mean(), rel=0.02)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5)), min_size=1))
    def test_medians(self, pairs):
        group, values = ints([g for g, _ in pairs]), np.asarray([v for _, v in pairs])
        which, count, middle = medians(group, values)
        assert which.tolist() == sorted(set(group.tolist()))
        for name, number, value in zip(which, count, middle, strict=True):
            mine = values[group == name]
            assert number == len(mine)
            assert value == pytest.approx(np.median(mine))


class TestPredictor:
    def test_the_population_is_learned(self):
        turns, tokens, spread = left(taught(), [(0, False)])
        # exp(log 30 + 0.9²/2) is 45.
        assert turns == pytest.approx(45, rel=0.12)
        assert tokens == pytest.approx(45_000, rel=0.12)
        assert spread == pytest.approx(0.9, rel=0.1)

    def test_a_finished_sibling_moves_it_and_narrows_it(self):
        predictor = taught()
        alone, _, wide = left(predictor, [(1, False)])
        long, _, narrow = left(predictor, [(1, False), (150, True)])
        short, _, _ = left(predictor, [(1, False), (5, True)])
        assert short < alone < long
        assert narrow < wide

    def test_siblings_that_still_run_say_that_they_are_longer(self):
        """Lockstep: the only finished one is short, and that is not the whole story."""
        predictor = taught()
        naive, _, _ = left(predictor, [(10, False), (4, True)])
        censored, _, _ = left(predictor, [(10, False), (4, True)] + [(10, False)] * 6)
        assert censored > 1.5 * naive

    def test_what_has_gone_on_for_long_goes_on_for_long(self):
        predictor = taught()
        assert left(predictor, [(100, False)])[0] > left(predictor, [(20, False)])[0]

    def test_nothing_is_left_of_what_is_finished(self):
        assert left(taught(), [(12, True), (3, False)])[:2] == (0.0, 0.0)

    def test_history_of_a_task_is_its_prior(self):
        predictor = taught()
        predictor.finish(7, grown([200] * 8))
        assert left(predictor, [(0, False)], task=7)[0] > 3 * left(predictor, [(0, False)])[0]

    @settings(deadline=None, max_examples=30)
    @given(
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, 300), st.booleans()),
            min_size=1,
            max_size=40,
        )
    )
    def test_every_prediction_is_a_number(self, rows):
        group, turns, done = zip(*rows, strict=True)
        found = taught(groups=20).predict(
            Progress(ints(group), ints(turns), ints(turns) * 900, np.asarray(done), ints([-1] * 6))
        )
        for column in (found.turns, found.tokens, found.spread):
            assert np.isfinite(column).all()
            assert (column >= 0).all()

    def test_it_orders_as_well_as_the_data_allow(self):
        """The correlation of one sibling with another is the ICC; of three, √(3/(1+2·ICC))·ICC."""
        random, predictor = np.random.default_rng(5), taught()
        for siblings, least in ((1, 0.5), (3, 0.62)):
            found, truth = [], []
            for _ in range(400):
                turns = draw(random, siblings + 1)
                found.append(left(predictor, [(1, False)] + [(t, True) for t in turns[1:]])[0])
                truth.append(turns[0] - 1)
            assert spearman(np.asarray(found), np.asarray(truth, float)) > least


def test_a_tool_that_has_worked_for_long_works_for_long():
    clock = ToolClock()
    for seconds in np.exp(1.2 * np.random.default_rng(0).standard_normal(500)):
        clock.finish(float(seconds))
    fresh, old = clock.residual_s(np.asarray([0.0, 20.0]))
    assert fresh == pytest.approx(math.exp(0.72), rel=0.2)
    assert old > 2 * fresh


class TestEvaluation:
    def test_spearman(self):
        values = np.asarray([3.0, 1.0, 2.0])
        assert spearman(values, values**3) == pytest.approx(1.0)
        assert spearman(values, -values) == pytest.approx(-1.0)
        assert spearman(np.ones(3), values) == 0.0

    def test_recall_counts_equal_predictions_as_a_lot(self):
        truth = np.arange(100.0)
        assert recall(truth, truth) == 1.0
        assert recall(-truth, truth) == 0.0
        assert recall(np.zeros(100), truth) == pytest.approx(0.1)

    def test_a_population_of_strangers_says_nothing_at_the_first_turn(self):
        """All alike so far and no sibling known: no order, rather than one that is wrong."""
        random = np.random.default_rng(1)
        tasks = [
            [Trajectory(np.full(t, 10).cumsum()) for t in draw(random, 4) + 1] for _ in range(20)
        ]
        scores = {(s.condition, s.turn): s for s in evaluate(tasks, resamples=20)}
        assert scores["0 siblings", 1].spearman == pytest.approx(0.0, abs=1e-9)
        assert scores["3 siblings", 1].spearman > 0.4
        assert scores["history", 1].spearman > 0.4

    @pytest.mark.parametrize("seed", range(3))
    def test_finished_siblings_are_worth_what_their_median_is_worth(self, seed):
        random = np.random.default_rng(seed)
        tasks = [
            [Trajectory(random.lognormal(3, 1, t).astype(int).cumsum() + 1)
             for t in draw(random, 4) + 1]
            for _ in range(12)
        ]  # fmt: skip
        for score in evaluate(tasks, resamples=2):
            if score.condition in ("1 siblings", "3 siblings"):
                assert score.spearman >= score.sibling_median - 1e-9

    def file(self, tmp_path, text):
        path = tmp_path / "lengths.csv"
        path.write_text(text)
        return path

    def test_messages_become_turns(self, tmp_path):
        path = self.file(
            tmp_path,
            "task_id,trial,turn,kind,tokens\n"
            "a,0,0,system,1000\na,0,1,act,5\na,0,1,tool,7\na,0,2,act,3\n"
            "b,0,1,act,4\nb,1,1,user,9\n",
        )
        tasks = read_lengths(path)
        assert [[t.grown.tolist() for t in task] for task in tasks] == [[[12, 15]], [[4]]]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("task_id,trial,turn,kind\n", "no column tokens"),
            ("task_id,trial,turn,kind,tokens\na,0,1,act,-4\n", "line 2: tokens is '-4'"),
            ("task_id,trial,turn,kind,tokens\na,0,1,act,x\n", "line 2: tokens is 'x'"),
            ("task_id,trial,turn,kind,tokens\na,0,1,act\n", "line 2: no tokens"),
            ("task_id,trial,turn,kind,tokens\na,0,1,act,4_0\n", "line 2: tokens is '4_0'"),
            ("task_id,trial,turn,kind,tokens\na,0,1,act," + "9" * 5000, "line 2: tokens is '99"),
            ("task_id,trial,turn,kind,tokens\na,0,1,act," + "9" * 200_000, "after line 1: field"),
            ("task_id,trial,turn,kind,tokens\na,0,1,act,4\n", "two are needed"),
            ("task_id,trial,turn,kind,tokens\na,0,x,act,4\n", "line 2: turn is 'x'"),
            (
                "task_id,trial,turn,kind,tokens\na,0,2,act,4\nb,0,1,act,4\na,0,1,tool,4\n",
                "line 4: turn 1 after turn 2",
            ),
            # As in a file that holds all rows twice.
            ("task_id,trial,turn,kind,tokens\na,0,1,act,4\na,0,1,act,4\n", "turn 1 after turn 1"),
            (
                "task_id,trial,turn,kind,tokens\n"
                + "".join(f"a,{trial},1,act,4\n" for trial in range(MAX_TRIALS + 1)),
                "line 66: task 'a' has more than 64 trials",
            ),
        ],
    )
    def test_what_is_wrong_with_a_file_is_said(self, tmp_path, text, said):
        with pytest.raises(LengthsError, match=said):
            read_lengths(self.file(tmp_path, text))

    def test_a_byte_order_mark_is_no_part_of_a_column(self, tmp_path):
        text = "\ufefftask_id,trial,turn,kind,tokens\na,0,1,act,5\nb,0,1,act,4\n"
        assert len(read_lengths(self.file(tmp_path, text))) == 2

    def test_what_is_not_text_is_said(self, tmp_path):
        path = tmp_path / "lengths.csv"
        path.write_bytes(b"task_id,trial,turn,kind,tokens\n\xff,0,1,act,5\n")
        with pytest.raises(LengthsError, match=r"after line 1: .*utf-8"):
            read_lengths(path)

    def test_the_command_prints_every_condition(self, tmp_path):
        random, lines = np.random.default_rng(2), ["task_id,trial,turn,kind,tokens"]
        for task in range(12):
            for trial, turns in enumerate(draw(random, 4)):
                lines += [f"{task},{trial},{turn},act,20" for turn in range(turns)]
        path = self.file(tmp_path, "\n".join(lines))
        done = CliRunner().invoke(
            main, ["predictor", "evaluate", str(path), "--resamples", "10"], catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        for name in ("0 siblings", "1 siblings", "3 siblings", "lockstep", "history"):
            assert done.output.count(name) == 3

    def test_a_file_without_a_column_fails_the_command(self, tmp_path):
        path = self.file(tmp_path, "task_id\n1\n")
        done = CliRunner().invoke(main, ["predictor", "evaluate", str(path)])
        assert done.exit_code == 1
        assert "no column trial" in done.output

    def test_the_command_takes_no_fewer_resamples_than_one(self, tmp_path):
        path = self.file(tmp_path, "task_id,trial,turn,kind,tokens\na,0,1,act,5\nb,0,1,act,4\n")
        done = CliRunner().invoke(main, ["predictor", "evaluate", str(path), "--resamples", "0"])
        assert (done.exit_code, done.exception.__class__) == (2, SystemExit)
        assert "--resamples" in done.output
