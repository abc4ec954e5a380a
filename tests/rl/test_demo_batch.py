"""What reaches the trainer, and what an evaluation says."""

import random
from collections import Counter

import pytest

from venusrl.demo.batch import training_samples
from venusrl.demo.evaluation import Evaluation, summarise
from venusrl.demo.summary import Summary
from venusrl.episode import Episode, Outcome, SandboxTimes

pytestmark = pytest.mark.rl


def episode(group: str, outcome: Outcome, family: str = "create", token: int = 5) -> Episode:
    return Episode(
        task_id="t",
        family=family,
        group=group,
        trajectory_id="tr-1",
        prompt="p",
        outcome=outcome,
        failure="broken" if outcome is Outcome.FAILED else None,
        turns=[],
        token_ids=[1, token],
        loss_mask=[0, 1],
        logprobs=[0.0, -1.0],
        versions=[0, 3],
        times=SandboxTimes(),
        generate_s=0.0,
        total_s=0.0,
    )


SOLVED, UNSOLVED, FAILED = Outcome.SOLVED, Outcome.UNSOLVED, Outcome.FAILED


def test_failed_episodes_and_lonely_ones_are_not_trained_on() -> None:
    samples = training_samples(
        [
            episode("a", SOLVED),
            episode("a", FAILED),
            episode("a", UNSOLVED),
            episode("b", SOLVED),
            episode("b", FAILED),
        ]
    )
    assert [(s.group, s.reward) for s in samples] == [("a", 1.0), ("a", 0.0)]


def test_shuffling_moves_rewards_within_groups_only_and_leaves_tokens_alone() -> None:
    episodes = [
        episode(group, SOLVED if number < solved else UNSOLVED, token=10 + number)
        for group, solved in (("a", 3), ("b", 8))
        for number in range(16)
    ]
    plain = training_samples(episodes)
    shuffled = training_samples(episodes, random.Random(0))
    assert [s.token_ids for s in shuffled] == [s.token_ids for s in plain]
    assert [s.reward for s in shuffled] != [s.reward for s in plain]
    count = Counter((s.group, s.reward) for s in shuffled)
    assert count == Counter((s.group, s.reward) for s in plain)


def test_an_evaluation_counts_failed_episodes_apart() -> None:
    episodes = [
        episode("1", SOLVED, "create"),
        episode("2", UNSOLVED, "move"),
        episode("3", SOLVED, "move"),
        episode("4", FAILED, "move"),
    ]
    found = summarise("before", 0, False, episodes, 1.0)
    assert found.reward == pytest.approx(2 / 3)
    assert found.standard_error == pytest.approx((2 / 9 / 3) ** 0.5)
    assert found.families == {"create": 1.0, "move": 0.5}
    assert (found.episodes, found.failed) == (4, 1)


def test_an_evaluation_in_which_everything_failed_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"all 2 episodes failed.*broken"):
        summarise("before", 0, False, [episode("1", FAILED)] * 2, 1.0)


def test_the_summary_has_every_key_whatever_the_run_came_to() -> None:
    summary = Summary(seed=0, shuffled=False)
    keys = {
        "reward_before",
        "reward_after",
        "greedy_before",
        "greedy_after",
        "episodes",
        "failed_episodes",
        "commands",
        "daemon_commands",
        "templates",
        "forks",
        "memory_saved_bytes",
        "seconds",
        "max_abs_logprob_diff",
    }
    assert keys <= set(summary.record())
    summary.evaluations.append(Evaluation("before", 0, True, 0.25, 0.0, 4, 0, {}, 1.0))
    assert summary.record()["greedy_before"] == 0.25
    assert summary.record()["reward_before"] is None
