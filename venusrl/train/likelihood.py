"""Log-probabilities of given tokens under a causal language model."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True)
class TokenLikelihood:
    """For each chosen position, in row-major order: the token's logprob, and the entropy there."""

    logprobs: Tensor
    entropies: Tensor | None


def chosen_logprobs(
    model: PreTrainedModel, token_ids: Tensor, chosen: Tensor, *, entropy: bool = False
) -> TokenLikelihood:
    """Logprobs of the tokens where ``chosen`` is true, given all tokens before them.

    ``token_ids`` is padded on the right (packing/padding.py), therefore no attention mask. The
    softmax runs over the chosen positions only; most tokens of a trajectory are context.
    """
    if chosen[:, 0].any():
        raise ValueError("logprobs: position 0 is chosen, but has no context to be predicted from")
    logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
    picked = chosen[:, 1:].bool()
    log_probs = torch.log_softmax(logits[picked].float(), dim=-1)
    targets = token_ids[:, 1:][picked]
    logprobs = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    entropies = None
    if entropy:
        with torch.no_grad():
            entropies = -(log_probs.exp() * log_probs).sum(-1)
    return TokenLikelihood(logprobs, entropies)
