"""The GRPO objective: plain tensor arithmetic, no model and no I/O.

Group Relative Policy Optimisation (Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300): the
advantage of a sample is its reward minus the mean reward of the samples of the same prompt, and
the policy follows PPO's clipped ratio. Two choices from later work:

- the loss is a mean over *tokens* of the whole batch, not over samples, so that long answers
  weigh what they are long (Yu et al. 2025, "DAPO", arXiv:2503.14476, §3.3), and the clip range
  may be wider above than below (§3.1, "clip-higher");
- dividing by the group's standard deviation is optional: it gives easy and hard prompts more
  weight than middling ones (Liu et al. 2025, "Dr. GRPO", arXiv:2503.20783).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Rewards of one group closer than this count as equal; the group then teaches nothing.
SPREAD_EPSILON = 1e-6


@dataclass(frozen=True)
class Advantages:
    """One advantage per sample, in the samples' order, and what the groups looked like."""

    values: list[float]
    groups: int
    flat_groups: int


def group_advantages(
    rewards: Sequence[float], groups: Sequence[str], *, normalise_std: bool = False
) -> Advantages:
    """Reward minus the mean of its group; exactly zero in a group without spread."""
    if len(rewards) != len(groups):
        raise ValueError(f"group advantages: {len(rewards)} rewards for {len(groups)} groups")
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    values = [0.0] * len(rewards)
    flat = 0
    for indices in members.values():
        own = [rewards[index] for index in indices]
        if max(own) - min(own) < SPREAD_EPSILON:
            flat += 1
            continue
        mean = sum(own) / len(own)
        scale = 1.0
        if normalise_std:
            scale = (sum((reward - mean) ** 2 for reward in own) / len(own)) ** 0.5
        for index in indices:
            values[index] = (rewards[index] - mean) / scale
    return Advantages(values, groups=len(members), flat_groups=flat)


@dataclass(frozen=True)
class GrpoTerms:
    """The loss and the sums that describe it; all are sums over unmasked tokens, not means."""

    loss: Tensor
    tokens: Tensor
    ratio_sum: Tensor
    ratio_max: Tensor
    clipped: Tensor
    approx_kl_sum: Tensor


def grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.0,
) -> GrpoTerms:
    """The summed loss over tokens with ``mask`` 1; divide by the batch's tokens for the mean.

    All tensors have the shape of ``logprobs``. A sum, so that a batch cut into micro-batches
    has exactly the gradient of the whole. ``old_logprobs`` are those of the policy that sampled
    (the engine's); ``ref_logprobs`` belong to the policy that the KL term holds on to.

    KL is estimated per token by k3 = r - 1 - log r with r = p_ref / p, unbiased and never
    negative (Schulman 2020, "Approximating KL divergence").
    """
    keep = mask.to(logprobs.dtype)
    # Masked places may hold anything, also values whose exponential overflows.
    log_ratio = torch.where(mask.bool(), logprobs - old_logprobs, 0.0)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective = torch.minimum(ratio * advantages, bounded * advantages)
    loss = -(objective * keep).sum()
    if kl_coef and ref_logprobs is not None:
        log_ref = torch.where(mask.bool(), ref_logprobs - logprobs, 0.0)
        loss = loss + kl_coef * ((log_ref.exp() - 1.0 - log_ref) * keep).sum()
    with torch.no_grad():
        # A token is clipped where the bound, not the ratio, decides: its gradient is zero.
        clipped = ((bounded * advantages < ratio * advantages) & mask.bool()).sum()
        approx_kl = ((ratio - 1.0 - log_ratio) * keep).sum()
        largest = (ratio * keep).max() if ratio.numel() else torch.zeros(())
        return GrpoTerms(
            loss=loss,
            tokens=keep.sum(),
            ratio_sum=(ratio * keep).sum(),
            ratio_max=largest,
            clipped=clipped,
            approx_kl_sum=approx_kl,
        )
