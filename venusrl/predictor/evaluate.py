"""What the predictor is worth: rank correlation with what was still to come, and the long ones
found.

Every trajectory is predicted after its turn 1, 3 and 10, if it goes on after it. Tasks are split
into two halves; each is predicted by a predictor that has seen the other half only, so every task
is new to it, and correlations are of one half, averaged over both. (Leaving out one task at a
time would give each its own population, which is shorter the longer the task is: a constant would
correlate negatively.) `siblings`: so many trajectories of the same task are finished, the others
have not begun; every choice of them is a case, or some that are drawn where there are many.
`lockstep`: all siblings are at the same turn, so
the finished ones are the short ones. `history`: the siblings ran an epoch ago.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from venusrl.predictor.lengths import Trajectory
from venusrl.schedule.landmarks import spearman
from venusrl.schedule.predictor import LengthPredictor, Progress
from venusrl.schedule.snapshot import Floats, Ints

TURNS = (1, 3, 10)
SIBLINGS = (0, 1, 3)
LONGEST = 0.1
ROWS = 1 << 16  # trajectories that are predicted at once
CHOICES = 16  # of siblings, at most, for one trajectory


@dataclass(frozen=True, slots=True)
class Case:
    """One trajectory at one turn, with what is known of its siblings: (trajectory, turns so
    far)."""

    task: int
    target: Trajectory
    siblings: tuple[tuple[Trajectory, int], ...]


@dataclass(frozen=True, slots=True)
class Score:
    condition: str
    turn: int
    cases: int
    spearman: float
    low: float  # 95 %, over tasks drawn again
    high: float
    recall: float  # of the tenth with most to come, found in the predicted tenth
    sibling_median: float | None  # its Spearman; None without a finished sibling
    progress: float  # Spearman of minus the tokens so far


def finished(trajectory: Trajectory) -> tuple[Trajectory, int]:
    return trajectory, trajectory.turns


def choices(others: list[Trajectory], count: int) -> Iterator[tuple[Trajectory, ...]]:
    """All choices of `count`, or CHOICES different ones by lot; the same in every call."""
    if math.comb(len(others), count) <= CHOICES:
        yield from itertools.combinations(others, count)
        return
    random = np.random.default_rng(len(others))
    seen: set[tuple[int, ...]] = set()
    while len(seen) < CHOICES:
        drawn = tuple(sorted(random.choice(len(others), count, replace=False).tolist()))
        if drawn not in seen:
            seen.add(drawn)
            yield tuple(others[index] for index in drawn)


def conditions() -> Iterator[tuple[str, Callable[[list[Trajectory], int, int], list[Case]]]]:
    """Names, and who makes the cases of (trajectories of a task, number of the task, turn)."""
    for count in SIBLINGS:

        def some(task: list[Trajectory], number: int, turn: int, count: int = count) -> list[Case]:
            return [
                Case(number, target, tuple(map(finished, chosen)))
                for index, target in enumerate(task)
                if target.turns > turn
                for chosen in choices(task[:index] + task[index + 1 :], count)
            ]

        yield f"{count} siblings", some

    def lockstep(task: list[Trajectory], number: int, turn: int) -> list[Case]:
        return [
            Case(
                number,
                target,
                tuple((o, min(turn, o.turns)) for o in task[:index] + task[index + 1 :]),
            )
            for index, target in enumerate(task)
            if target.turns > turn
        ]

    yield "lockstep", lockstep

    def history(task: list[Trajectory], number: int, turn: int) -> list[Case]:
        return [
            Case(number, target, ()) for target in task if target.turns > turn and len(task) > 1
        ]

    yield "history", history


def predict(predictor: LengthPredictor, cases: list[Case], turn: int, task: Ints) -> Floats:
    """Tokens that the target of each case still adds; `task`: its name, -1 for none."""
    found: list[Floats] = [np.zeros(0)]
    for part in parts(cases):
        group, turns, tokens, done = [], [], [], []
        for number, case in enumerate(cases[part]):
            for trajectory, so_far in ((case.target, turn), *case.siblings):
                group.append(number)
                turns.append(so_far)
                tokens.append(int(trajectory.grown[so_far - 1]))
                done.append(so_far == trajectory.turns)
        progress = Progress(
            np.asarray(group),
            np.asarray(turns),
            np.asarray(tokens),
            np.asarray(done),
            task[part],
        )
        left = predictor.predict(progress).tokens
        found.append(left[np.flatnonzero(np.diff(group, prepend=-1))])
    return np.concatenate(found)


def parts(cases: list[Case]) -> Iterator[slice]:
    """Of so many trajectories each that memory does not grow with the file."""
    begin = rows = 0
    for index, case in enumerate(cases):
        rows += 1 + len(case.siblings)
        if rows >= ROWS or index + 1 == len(cases):
            yield slice(begin, index + 1)
            begin, rows = index + 1, 0


def taught(tasks: list[list[Trajectory]], half: int) -> LengthPredictor:
    """By the tasks that are not of this half."""
    predictor = LengthPredictor()
    for number, task in enumerate(tasks):
        if number % 2 != half:
            predictor.finish(-1, [trajectory.grown for trajectory in task])
    return predictor


def evaluate(tasks: list[list[Trajectory]], resamples: int = 400, seed: int = 0) -> list[Score]:
    scores = []
    for name, cases_of in conditions():
        for turn in TURNS:
            cases = [case for n, task in enumerate(tasks) for case in cases_of(task, n, turn)]
            if all(len({c.task for c in cases if c.task % 2 == half}) >= 2 for half in (0, 1)):
                predicted = predict_all(tasks, cases, turn, known=name == "history")
                random = np.random.default_rng(seed)
                scores.append(score(name, turn, cases, predicted, tasks, resamples, random))
    return scores


def predict_all(
    tasks: list[list[Trajectory]], cases: list[Case], turn: int, *, known: bool
) -> Floats:
    """`known`: the other trajectories of a case's task were seen in an earlier epoch."""
    found = np.zeros(len(cases))
    for half in (0, 1):
        rows = np.flatnonzero([case.task % 2 == half for case in cases])
        predictor, names = taught(tasks, half), np.full(len(rows), -1)
        if known:
            # Each case leaves itself out of what its task is known for: a name of its own.
            names = rows
            for row in rows.tolist():
                others = [t for t in tasks[cases[row].task] if t is not cases[row].target]
                predictor.remember(row, [other.grown for other in others])
        found[rows] = predict(predictor, [cases[row] for row in rows], turn, names)
    return found


def score(
    name: str,
    turn: int,
    cases: list[Case],
    predicted: Floats,
    tasks: list[list[Trajectory]],
    resamples: int,
    random: np.random.Generator,
) -> Score:
    task = np.asarray([case.task for case in cases])
    so_far = np.asarray([case.target.grown[turn - 1] for case in cases], float)
    left = np.asarray([case.target.tokens for case in cases]) - so_far
    low, high = bootstrap(predicted, left, task, resamples, random)
    medians = None
    if any(t.turns == turns for case in cases for t, turns in case.siblings):
        population = [
            float(np.median([t.tokens for n, task in enumerate(tasks) if n % 2 != half
                             for t in task]))
            for half in (0, 1)
        ]  # fmt: skip
        totals = [sibling_median(case, population[case.task % 2]) for case in cases]
        medians = np.asarray(totals) - so_far
    return Score(
        condition=name,
        turn=turn,
        cases=len(cases),
        spearman=by_half(spearman, predicted, left, task),
        low=low,
        high=high,
        recall=by_half(recall, predicted, left, task),
        sibling_median=None if medians is None else by_half(spearman, medians, left, task),
        progress=by_half(spearman, -so_far, left, task),
    )


def by_half(worth: Callable[[Floats, Floats], float], a: Floats, b: Floats, task: Ints) -> float:
    """The mean of what it is in either half of the tasks, weighted by cases."""
    halves = [np.flatnonzero(task % 2 == half) for half in (0, 1)]
    return sum(len(rows) * worth(a[rows], b[rows]) for rows in halves) / len(a)


def sibling_median(case: Case, population: float) -> float:
    """Tokens in all of the finished siblings; of all trajectories where none is finished."""
    totals = [t.tokens for t, turns in case.siblings if t.turns == turns]
    return float(np.median(totals)) if totals else population


def bootstrap(
    predicted: Floats, left: Floats, task: Ints, resamples: int, random: np.random.Generator
) -> tuple[float, float]:
    """95 % interval of Spearman; tasks are drawn, because cases of one are not independent."""
    names = np.unique(task)
    rows = {name: np.flatnonzero(task == name) for name in names.tolist()}
    drawn = []
    for _ in range(resamples):
        chosen = [random.choice(names[names % 2 == half], (names % 2 == half).sum())
                  for half in (0, 1)]  # fmt: skip
        index = np.concatenate([rows[name] for half in chosen for name in half.tolist()])
        drawn.append(by_half(spearman, predicted[index], left[index], task[index]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def recall(predicted: Floats, left: Floats) -> float:
    """Share of the longest tenth found; equal predictions count as drawn by lot."""
    count = max(1, round(LONGEST * len(left)))
    longest = np.argsort(-left, kind="stable")[:count]
    edge = np.sort(predicted)[-count]
    surely = predicted > edge
    lot = predicted == edge
    chance = (count - surely.sum()) / max(1, lot.sum())
    return float((surely[longest] + lot[longest] * chance).sum() / count)
