"""How much longer a trajectory will go on, from what has been seen so far.

The logarithm of a trajectory's turns is taken as: a mean of its group, which siblings share, plus
its own deviation. The mean of a group is unknown but for what its siblings show: one that
finished shows its length; one that is still under way shows only that it is *longer* than now.
Leaving the second kind out is what misleads in lockstep, where the finished siblings are the
short ones. So the posterior of the group's mean takes both, and what a trajectory has left
follows from it given how far it got (residual life). The prior is the population of groups
already trained, or, for a task seen in earlier epochs, what its trajectories took then.

Only what is past goes in; lengths that are still to come never do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from venusrl.schedule.snapshot import Bools, Floats, Ints

# The group's mean is integrated over these standard deviations of its prior.
# Turns of the population that weigh as much as what a group, or a trajectory, shows of its own.
PRIOR_TURNS = 10.0
# The first turns of a trajectory are not like the others; its own rate counts from here on.
OWN_RATE_TURNS = 3
# A median knows as much of a normal mean as a mean of this many times fewer values.
MEDIAN_COST = np.pi / 2
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
    drift: float = 0.05  # variance of a task's mean from one epoch to the next
    tasks: dict[int, Moments] = field(default_factory=dict)

    def finish(self, task: int, totals: Ints) -> None:
        log = np.log(np.maximum(1, totals))
        self.level.add(float(log.mean()))
        if len(log) > 1:
            self.within.add(float(log.var(ddof=1)), len(log) - 1)
        if task >= 0:
            history = self.tasks.setdefault(task, Moments(0.0, 0.0, 0.0))
            history.add(float(log.mean()), len(log))

    def prior(self, task: Ints) -> tuple[Floats, Floats]:
        """Mean and variance of the mean logarithm of groups."""
        between = max(0.02, self.level.variance)
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

    def expect(
        self, group: Ints, task: Ints, so_far: Ints, finished: Bools, bound: Floats
    ) -> tuple[Floats, Floats]:
        """What each trajectory takes in all, given that it takes more than `bound`, in the mean;
        and the standard deviation of its logarithm."""
        sigma = float(np.sqrt(self.within.mean))
        mean, variance = self.prior(task)
        mu = mean[:, None] + np.sqrt(variance)[:, None] * GRID  # [group, grid]
        mine = mu[group]  # [trajectory, grid]
        reached = (np.log(bound)[:, None] - mine) / sigma
        tail = upper_tail(reached)
        weight = np.zeros(mu.shape)
        np.add.at(weight, group[~finished], np.log(tail[~finished]))
        # Of the finished ones the median: lengths have longer tails than the logarithm cuts off.
        log = np.log(np.maximum(1, so_far[finished]))
        which, count, middle = medians(group[finished], log)
        miss = (middle[:, None] - mu[which]) / sigma
        weight[which] -= 0.5 * (np.maximum(1, count / MEDIAN_COST))[:, None] * miss**2
        weight -= 0.5 * GRID**2
        weight = np.exp(weight - weight.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        total = np.exp(mine + 0.5 * sigma**2) * upper_tail(reached - sigma) / tail
        total = np.sum(weight[group] * np.maximum(total, bound[:, None]), axis=1)
        center = np.sum(weight * mu, axis=1, keepdims=True)
        spread = np.sum(weight * (mu - center) ** 2, axis=1)
        return total, np.sqrt(spread[group] + sigma**2)


@dataclass
class LengthPredictor:
    """Learns from groups as they finish. Its beliefs before anything is seen are weak, and wide."""

    turns: Quantity = field(
        default_factory=lambda: Quantity(Moments(3.0, 0.5, 1.0), Moments(0.25, 0.0, 2.0))
    )
    tokens: Quantity = field(
        default_factory=lambda: Quantity(Moments(9.0, 0.5, 1.0), Moments(0.25, 0.0, 2.0))
    )
    turn_tokens: Moments = field(default_factory=lambda: Moments(500.0, 0.0, 1.0))

    def finish(self, task: int, turns: Ints, tokens: Ints) -> None:
        """All trajectories of a group are finished: their turns and tokens in all."""
        self.turns.finish(task, turns)
        self.tokens.finish(task, tokens)
        self.turn_tokens.add(float(tokens.sum() / max(1, turns.sum())))

    def predict(self, progress: Progress) -> Prediction:
        """What is under way goes on for half a turn at least: it would be finished otherwise."""
        least = progress.tokens + 0.5 * self.turn_tokens.mean
        now = (progress.group, progress.task)
        turns, spread = self.turns.expect(
            *now, progress.turns, progress.finished, progress.turns + 0.5
        )
        tokens, _ = self.tokens.expect(*now, progress.tokens, progress.finished, least)
        left = ~progress.finished
        tokens = tokens - progress.tokens
        beside = self.beside_finished(progress)
        tokens = np.where(np.isnan(beside), tokens, beside)
        # Finished siblings show totals; without any, what it adds per turn is worth as much.
        alone = np.bincount(progress.group, progress.finished, len(progress.task)) == 0
        own = alone[progress.group] & (progress.turns >= OWN_RATE_TURNS)
        by_rate = self.tokens_per_turn(progress) * (turns - progress.turns)
        tokens = np.where(own, 0.5 * (tokens + by_rate), tokens)
        return Prediction(
            turns=np.where(left, turns - progress.turns, 0.0),
            tokens=np.where(left, tokens, 0.0),
            spread=np.where(left, spread, 0.0),
        )

    def beside_finished(self, progress: Progress) -> Floats:
        """Tokens still to come of one whose siblings that began are all finished; nan for others.

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
        between, within = max(0.02, self.tokens.level.variance), self.tokens.within.mean
        trust = between / (between + within / np.maximum(1, number / MEDIAN_COST))
        total = np.exp(self.tokens.level.mean + 0.5 * (between + within))
        away = (median - 0.5 * total)[progress.group] - progress.tokens
        expected = 0.5 * total + trust[progress.group] * away
        scale = 0.5 * total * np.sqrt(np.expm1(within))
        left = scale * np.logaddexp(0.0, expected / scale)
        return np.where((number > 0)[progress.group], left, np.nan)

    def tokens_per_turn(self, progress: Progress) -> Floats:
        """Of each trajectory: its own, its group's and the population's, by what each has seen."""
        groups = len(progress.task)
        tokens = np.bincount(progress.group, progress.tokens, groups)
        turns = np.bincount(progress.group, progress.turns, groups)
        shared = (tokens + PRIOR_TURNS * self.turn_tokens.mean) / (turns + PRIOR_TURNS)
        own = progress.tokens + PRIOR_TURNS * shared[progress.group]
        return np.asarray(own / (progress.turns + PRIOR_TURNS))


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
