"""Does the engine hold the weights that it should? Compares logprobs with the trainer's."""

from collections.abc import Callable, Sequence

from venusrl.engine.generation import Probe


class LogprobMismatch(Exception):
    """Engine and trainer disagree; training on such samples would be off-policy unnoticed."""


def compare_logprobs(
    probes: Sequence[Probe],
    trainer_logprobs: Callable[[Sequence[int]], Sequence[float]],
    *,
    version: int,
    tolerance: float,
) -> float:
    """The largest absolute difference over the compared tokens of all probes.

    Raises:
        LogprobMismatch: it is above ``tolerance``, or not a number.
    """
    if not probes:
        raise ValueError(f"compare logprobs at version {version}: no probes")
    largest = 0.0
    where = ""
    for number, probe in enumerate(probes):
        expected = trainer_logprobs(probe.token_ids)
        columns = zip(probe.logprobs, expected, probe.compared, strict=True)
        for position, (ours, theirs, compared) in enumerate(columns):
            if not compared:
                continue
            difference = abs(ours - theirs)
            # Written so that NaN counts as a difference.
            if not difference <= largest:
                largest = difference
                where = (
                    f"probe {number}, token {position} (id {probe.token_ids[position]}): "
                    f"engine {ours:.6f}, trainer {theirs:.6f}"
                )
            if largest != largest:
                break
    if not largest <= tolerance:
        raise LogprobMismatch(
            f"compare logprobs after pushing version {version}: they differ by {largest:.2e}, "
            f"more than {tolerance:.0e}, at {where}; the engine does not hold the trainer's weights"
        )
    return largest
