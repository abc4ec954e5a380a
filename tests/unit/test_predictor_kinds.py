"""Lengths of many kinds: prediction is nowhere worse than the siblings' median, nor than none.

Each kind is what some workload could look like, drawn from a seed, with nothing of it told to the
predictor. Correlations are means of several files, and may miss by two standard errors: a hundred
trajectories show ±0.2 by chance.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

np = pytest.importorskip("numpy", reason="needs numpy")

from venusrl.predictor.evaluate import CHOICES, Score, choices, evaluate  # noqa: E402
from venusrl.predictor.lengths import Trajectory  # noqa: E402

FILES = 3
Random = np.random.Generator
Task = list[Trajectory]


def trajectory(tokens) -> Trajectory:
    return Trajectory(np.cumsum(np.maximum(1, np.rint(tokens)).astype(np.int64)))


def log_normal(
    random: Random,
    *,
    tasks: int = 24,
    siblings: tuple[int, ...] = (4,),
    median: float = 12.0,
    sigma: float = 0.7,  # of the logarithm of turns
    shared: float = 0.6,  # of its variance, by siblings
    tokens_sigma: float = 0.8,  # from turn to turn
    task_sigma: float = 0.0,  # of the tokens of a turn, from task to task
    own_sigma: float = 0.0,  # and from trajectory to trajectory
) -> list[Task]:
    found = []
    for _ in range(tasks):
        count = int(random.choice(siblings))
        common, verbose = random.standard_normal(), task_sigma * random.standard_normal()
        own = np.sqrt(1 - shared) * random.standard_normal(count)
        log = np.log(median) + sigma * (np.sqrt(shared) * common + own)
        found.append(
            [
                trajectory(
                    200 * np.exp(verbose + own_sigma * random.standard_normal()
                                 + tokens_sigma * random.standard_normal(turns))
                )
                for turns in np.maximum(1, np.rint(np.exp(log))).astype(int)
            ]
        )  # fmt: skip
    return found


def memoryless(random: Random) -> list[Task]:
    """Every turn is the last with the same probability: nothing can be known."""
    return [
        [trajectory(random.lognormal(5, 0.8, turns)) for turns in random.geometric(0.08, 4)]
        for _ in range(24)
    ]


def ageing(random: Random) -> list[Task]:
    """The longer it has gone on, the sooner it ends."""
    return [
        [trajectory(random.lognormal(5, 0.8, 1 + int(15 * random.weibull(3)))) for _ in range(4)]
        for _ in range(24)
    ]


def budgets(random: Random) -> list[Task]:
    """Whoever has used more tokens has fewer left."""
    found = []
    for size in random.lognormal(8.5, 0.3, 24):
        task = []
        for budget in size * random.lognormal(0, 0.2, 4):
            tokens = random.lognormal(5.7, 0.8, 400)
            turns = 1 + int(np.searchsorted(tokens.cumsum(), budget))
            tokens[turns - 1] -= tokens[:turns].sum() - budget
            task.append(trajectory(tokens[:turns]))
        found.append(task)
    return found


def two_kinds(random: Random) -> list[Task]:
    """Short or long by lot, whatever the task."""
    return [
        [
            trajectory(random.lognormal(5, 0.6, int(turns)))
            for turns in np.where(
                random.random(4) < 0.3, random.integers(30, 50, 4), random.integers(2, 8, 4)
            )
        ]
        for _ in range(24)
    ]


KINDS: dict[str, Callable[[Random], list[Task]]] = {
    "shared": log_normal,
    "eight siblings": lambda random: log_normal(random, siblings=(8,), tasks=16),
    "no task effect": lambda random: log_normal(random, shared=0.0),
    "memoryless": memoryless,
    "ageing": ageing,
    "budgets": budgets,
    "two kinds": two_kinds,
    "heavy-tailed turns": lambda random: log_normal(random, sigma=1.4, shared=0.3),
    "heavy-tailed tokens": lambda random: log_normal(random, tokens_sigma=2.0),
    "verbose tasks": lambda random: log_normal(random, shared=0.0, task_sigma=0.8),
    "verbose trajectories": lambda random: log_normal(random, shared=0.0, own_sigma=0.8),
    "two to sixteen siblings": lambda random: log_normal(
        random, siblings=tuple(range(2, 17)), tasks=14
    ),
    "tasks of one trial": lambda random: log_normal(random, siblings=(1, 1, 4), tasks=36),
    "single trials": lambda random: log_normal(random, siblings=(1,), tasks=96),
    "short": lambda random: log_normal(random, median=2.0, sigma=0.5),
    "as many turns": lambda random: log_normal(random, sigma=0.0),
    "all the same": lambda random: log_normal(random, sigma=0.0, tokens_sigma=0.0),
}


def scores_of(kind: str) -> dict[tuple[str, int], list[Score]]:
    found: dict[tuple[str, int], list[Score]] = {}
    for seed in range(FILES):
        for score in evaluate(KINDS[kind](np.random.default_rng(seed)), resamples=20):
            found.setdefault((score.condition, score.turn), []).append(score)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_is_predicted_worse_than_by_the_median_or_not_at_all(kind):
    found = scores_of(kind)
    for (condition, turn), scores in found.items():
        # Without siblings every trajectory is one case.
        chance = 2 / np.sqrt(sum(score.cases for score in found["0 siblings", turn]))
        reached = np.mean([score.spearman for score in scores])
        assert reached >= -chance, (condition, turn)
        medians = [s.sibling_median for s in scores if s.sibling_median is not None]
        if len(medians) == len(scores):
            # Of a difference chance is larger.
            assert reached >= np.mean(medians) - np.sqrt(2) * chance, (condition, turn)


def test_what_is_all_the_same_has_no_order():
    for scores in scores_of("all the same").values():
        assert {score.spearman for score in scores} == {0.0}
        assert [score.recall for score in scores] == pytest.approx([0.1] * FILES, abs=0.03)


def test_verbose_trajectories_are_known_by_what_they_have_said():
    """Where their siblings' median would put them the wrong way round."""
    scores = scores_of("verbose trajectories")["3 siblings", 10]
    assert np.mean([score.sibling_median for score in scores]) < -0.2
    assert np.mean([score.spearman for score in scores]) > 0.2


class TestChoices:
    """Of siblings: all where they are few, some of many, and never one twice."""

    def task(self, count):
        return [trajectory([1.0] * (turns + 1)) for turns in range(count)]

    def test_few(self):
        assert len(list(choices(self.task(3), 1))) == 3
        assert len(list(choices(self.task(3), 3))) == 1
        assert list(choices(self.task(2), 3)) == []
        assert list(choices([], 0)) == [()]

    def test_many(self):
        found = [tuple(map(id, chosen)) for chosen in choices(self.task(60), 3)]
        assert len(set(found)) == len(found) == CHOICES
        assert all(len(set(chosen)) == 3 for chosen in found)
