"""How much longer a trajectory will go on, from what has been seen so far.

The logarithm of a trajectory's length is taken as: a mean of its group, which siblings share, plus
its own deviation. How much of the variance siblings share is learned; where nothing shows that they
share any, they say nothing. The mean of a group is unknown but for what its siblings show: one that
finished shows its length; one that is still under way shows only that it is *longer* than now.
Leaving the second kind out is what misleads in lockstep, where the finished siblings are the
short ones. So the posterior of the group's mean takes both. Turns are counted for those under way,
tokens for those that finished: a trajectory that has added many tokens need not go on for long.
The prior is the population of groups already trained, or, for a task seen in earlier epochs, what
its trajectories took then. What a trajectory's own progress says is learned (`landmarks.py`).

Only what is past goes in; lengths that are still to come never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from venusrl.schedule.landmarks import Landmarks, landmark
from venusrl.schedule.snapshot import Bools, Floats, Ints

# Standard errors of a slope of its own progress by which a trajectory is not ordered beside its
# finished siblings by the distance to their median.
OWN_WAY = 2.0
FEW = 4
LEAST_SIGMA = 0.05  # of the logarithm among siblings, where all seen were equal
# A median knows as much of a normal mean as a mean of this many times fewer values.
MEDIAN_COST = np.pi / 2
# The group's mean is integrated over these standard deviations of its prior.
GRID = np.linspace(-3.0, 3.0, 13)


def upper_tail(x: Floats) -> Floats:
    """1 - Φ(x), to 1e-7 (Abramowitz and Stegun 26.2.17), and never quite 0."""
    a = np.abs(x)
    t = 1.0 / (1.0 + 0.2316419 * a)
    poly = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = np.exp(-0.5 * a * a) * poly * 0.3989422804014327
    return np.asarray(np.maximum(np.where(x >= 0, tail, 1.0 - tail), 1e-300))


def medians(group: Ints, values: Floats) -> tuple[Ints, Ints, Floats]:
    """The groups that occur, how often, and the median of the values of each."""
    order = np.lexsort((values, group))
    which, first, count = np.unique(group[order], return_index=True, return_counts=True)
    ordered = values[order]
    low, high = first + (count - 1) // 2, first + count // 2
    return which, count, 0.5 * (ordered[low] + ordered[high])


def mean_beyond(mu: Floats, sigma: Floats | float, bound: Floats) -> Floats:
    """Mean of exp(N(mu, sigma²)) given that it exceeds `bound` > 0."""
    reached = (np.log(bound) - mu) / sigma
    share = upper_tail(reached - sigma) / upper_tail(reached)
    return np.maximum(np.exp(mu + 0.5 * np.square(sigma)) * share, bound)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known now, one row per trajectory; `task` is one per group, -1 where it has no name.

    `turns` and `tokens` (of the context, without the prompt) are so far, or in all where
    `finished`.
    """

    group: Ints
    turns: Ints
    tokens: Ints
    finished: Bools
    task: Ints


@dataclass(frozen=True, slots=True)
class Prediction:
    """0 for what is finished."""

    turns: Floats  # still to come, in the mean
    tokens: Floats  # by which the context still grows
    spread: Floats  # standard deviation of the logarithm of the turns in all


@dataclass
class Moments:
    """Weighted mean and variance of observations, beginning with a belief worth `weight` of
    them."""

    mean: float
    variance: float
    weight: float

    def add(self, value: float, weight: float = 1.0) -> None:
        total = self.weight + weight
        delta = value - self.mean
        self.mean += delta * weight / total
        self.variance += (weight / total) * (delta * (value - self.mean) - self.variance)
        self.weight = total


@dataclass
class Quantity:
    """What is learned of one quantity of trajectories, turns or tokens, on a logarithmic scale."""

    level: Moments  # means of groups
    within: Moments  # its `mean` is the variance among siblings
    believed: float = 0.5  # variance of what siblings share, before FEW groups are seen
    share: Moments = field(default_factory=lambda: Moments(0.0, 0.0, 0.0))  # 1 / siblings
    drift: float = 0.05  # variance of a task's mean from one epoch to the next
    tasks: dict[int, Moments] = field(default_factory=dict)

    def finish(self, task: int, totals: Ints) -> None:
        log = np.log(np.maximum(1, totals))
        self.level.add(float(log.mean()))
        self.share.add(1 / len(log))
        if len(log) > 1:
            self.within.add(float(log.var(ddof=1)), len(log) - 1)
        if task >= 0:
            self.remember(task, totals)

    def remember(self, task: int, totals: Ints) -> None:
        log = np.log(np.maximum(1, totals))
        self.tasks.setdefault(task, Moments(0.0, 0.0, 0.0)).add(float(log.mean()), len(log))

    @property
    def sigma(self) -> float:
        return max(LEAST_SIGMA, float(np.sqrt(self.within.mean)))

    @property
    def between(self) -> float:
        """Variance of what siblings share: of the means of groups, less what chance gives them. 0
        where it is within a standard error of what chance gives: an order by it would be by lot."""
        groups = self.level.weight
        if groups < FEW:
            return self.believed
        chance = self.within.mean * self.share.mean
        spread = self.level.variance * groups / (groups - 1)
        return spread - chance if spread > chance * (1 + np.sqrt(2 / (groups - 1))) else 0.0

    def prior(self, task: Ints) -> tuple[Floats, Floats]:
        """Mean and variance of the mean logarithm of groups."""
        between = self.between
        mean = np.full(len(task), self.level.mean)
        variance = np.full(len(task), between)
        for row in np.flatnonzero(task >= 0).tolist() if self.tasks else ():
            history = self.tasks.get(int(task[row]))
            if history is None:
                continue
            noise = self.within.mean / history.weight + self.drift
            trust = between / (between + noise)
            mean[row] += trust * (history.mean - self.level.mean)
            variance[row] = between * (1 - trust)
        return mean, variance


@dataclass
class LengthPredictor:
    """Learns from groups as they finish. Its beliefs before anything is seen are weak, and wide."""

    turns: Quantity = field(
        default_factory=lambda: Quantity(Moments(3.0, 0.0, 0.0), Moments(0.25, 0.0, 2.0))
    )
    tokens: Quantity = field(
        default_factory=lambda: Quantity(Moments(9.0, 0.0, 0.0), Moments(0.25, 0.0, 2.0))
    )
    landmarks: Landmarks = field(default_factory=Landmarks)

    def finish(self, task: int, grown: Sequence[Ints]) -> None:
        """A group is finished: for each of its trajectories the tokens that the first k + 1 turns
        added to the context."""
        self.turns.finish(task, np.asarray([len(one) for one in grown]))
        self.tokens.finish(task, np.asarray([one[-1] for one in grown]))
        self.landmarks.learn(grown)

    def remember(self, task: int, grown: Sequence[Ints]) -> None:
        """As `finish`, of the task alone: the population learns nothing."""
        self.turns.remember(task, np.asarray([len(one) for one in grown]))
        self.tokens.remember(task, np.asarray([one[-1] for one in grown]))

    def predict(self, progress: Progress) -> Prediction:
        """What is under way goes on for half a turn at least: it would be finished otherwise."""
        group, turns = progress.group, progress.turns + 0.5
        mean, variance = self.turns.prior(progress.task)
        mu = mean[:, None] + np.sqrt(variance)[:, None] * GRID  # [group, grid]
        sigma = self.turns.sigma
        reached = (np.log(turns)[:, None] - mu[group]) / sigma  # [trajectory, grid]
        tail = upper_tail(reached)
        weight, shift = self.posterior(progress, np.log(tail))
        total = np.exp(mu[group] + 0.5 * sigma**2) * upper_tail(reached - sigma) / tail
        total = np.sum(weight[group] * np.maximum(total, turns[:, None]), axis=1)
        center = np.sum(weight * mu, axis=1, keepdims=True)
        spread = np.sqrt(np.sum(weight * (mu - center) ** 2, axis=1)[group] + sigma**2)
        more = total - progress.turns
        fit, at = self.landmarks.fit(), landmark(progress.turns)
        if fit is None:
            tokens = more * np.exp(self.tokens.level.mean - self.turns.level.mean)
        else:
            own = np.log1p(progress.tokens) - fit.added[at]
            own = np.where(progress.turns > 0, fit.slope[at] * own, 0.0)
            tokens = np.exp(fit.left[at] + own + shift)
        beside = self.beside_finished(progress)
        if fit is not None:
            beside = np.where(fit.z[at] > OWN_WAY, np.nan, beside)
        tokens = np.where(np.isnan(beside), tokens, beside)
        left = ~progress.finished
        return Prediction(
            turns=np.where(left, more, 0.0),
            tokens=np.where(left, tokens, 0.0),
            spread=np.where(left, spread, 0.0),
        )

    def posterior(self, progress: Progress, log_tail: Floats) -> tuple[Floats, Floats]:
        """The weights of GRID for each group, and by how much each trajectory's log tokens are
        moved by what is known beside its own progress.

        `log_tail` [trajectory, grid]: log probability of having more turns than now.
        """
        group, finished = progress.group, progress.finished
        mean, variance = self.tokens.prior(progress.task)
        scale = np.sqrt(variance)
        log_weight = np.tile(-0.5 * GRID**2, (len(mean), 1))
        np.add.at(log_weight, group[~finished], log_tail[~finished])
        # Of the finished ones the median: lengths have longer tails than the logarithm cuts off.
        log = np.log(np.maximum(1, progress.tokens[finished]))
        which, count, middle = medians(group[finished], log)
        mu = mean[which, None] + scale[which, None] * GRID
        miss = (middle[:, None] - mu) / self.tokens.sigma
        log_weight[which] -= 0.5 * (np.maximum(1, count / MEDIAN_COST))[:, None] * miss**2
        weight, alone = normalized(log_weight), normalized(log_tail - 0.5 * GRID**2)
        known = (weight[group] - alone) @ GRID
        return weight, mean[group] - self.tokens.level.mean + scale[group] * known

    def beside_finished(self, progress: Progress) -> Floats:
        """Tokens still to come of one whose siblings that began are all finished; nan for others,
        and where siblings have nothing in common.

        How far it is from their median, shrunk towards the population by how few they are: in the
        order of that distance, which no tail of a distribution turns round.
        """
        groups = len(progress.task)
        under_way = np.bincount(progress.group, ~progress.finished & (progress.turns > 0), groups)
        finished = progress.finished
        which, count, middle = medians(
            progress.group[finished], progress.tokens[finished].astype(float)
        )
        median, number = np.zeros(groups), np.zeros(groups)
        alone = under_way[which] <= 1
        median[which[alone]], number[which[alone]] = middle[alone], count[alone]
        between, within = self.tokens.between, self.tokens.sigma**2
        if between == 0.0:
            return np.full(len(progress.group), np.nan)
        trust = between / (between + within / np.maximum(1, number / MEDIAN_COST))
        total = np.exp(self.tokens.level.mean + 0.5 * (between + within))
        away = (median - 0.5 * total)[progress.group] - progress.tokens
        expected = 0.5 * total + trust[progress.group] * away
        scale = 0.5 * total * np.sqrt(np.expm1(within))
        left = scale * np.logaddexp(0.0, expected / scale)
        return np.where((number > 0)[progress.group], left, np.nan)


def normalized(log_weight: Floats) -> Floats:
    """Weights that sum to 1 in each row."""
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


@dataclass
class ToolClock:
    """How long a tool that has worked for a while will still work, from all tool times so far."""

    log_s: Moments = field(default_factory=lambda: Moments(0.0, 1.0, 2.0))

    def finish(self, tool_s: float) -> None:
        self.log_s.add(float(np.log(max(tool_s, 1e-3))))

    def residual_s(self, elapsed_s: Floats) -> Floats:
        sigma = max(0.1, float(np.sqrt(self.log_s.variance)))
        elapsed = np.maximum(elapsed_s, 1e-3)
        mu = np.full(len(elapsed), self.log_s.mean)
        return np.asarray(mean_beyond(mu, sigma, elapsed) - elapsed)
