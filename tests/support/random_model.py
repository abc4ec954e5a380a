"""Small models with random weights for real engines, far from uniform, so that any fault shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 192


def random_tokens(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(2, VOCABULARY) for _ in range(count)]


def random_model(
    directory: Path, seed: int, *, tied: bool, positions: int = 512
) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=96,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=3,
            head_dim=32,
            max_position_embeddings=positions,
            tie_word_embeddings=tied,
            eos_token_id=1,
            pad_token_id=0,
            dtype="float32",
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                # Far from uniform, so that wrong weights show.
                parameter.mul_(4.0)
    model.save_pretrained(str(directory))
    return model


def logprobs_of(model: Qwen3ForCausalLM) -> Callable[[Sequence[int]], list[float]]:
    def compute(token_ids: Sequence[int]) -> list[float]:
        ids = torch.tensor([list(token_ids)])
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
        return [0.0, *table[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()]

    return compute
