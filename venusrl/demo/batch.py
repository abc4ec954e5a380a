"""From episodes to what the trainer gets. Pure."""

import random
from collections.abc import Sequence

from venusrl.episode import Episode, Outcome
from venusrl.train.sample import Sample


def training_samples(
    episodes: Sequence[Episode], shuffle: random.Random | None = None
) -> list[Sample]:
    """One sample per episode that has a reward.

    With ``shuffle``, the rewards of each group change places among its members. A group of which
    only one member has a reward is left out: it has no baseline.
    """
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.outcome is not Outcome.FAILED:
            groups.setdefault(episode.group, []).append(episode)
    samples: list[Sample] = []
    for members in groups.values():
        if len(members) < 2:
            continue
        rewards = [episode.reward for episode in members]
        if shuffle is not None:
            shuffle.shuffle(rewards)
        samples.extend(
            episode.sample(reward) for episode, reward in zip(members, rewards, strict=True)
        )
    return samples
