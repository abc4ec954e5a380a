"""The model of `rollout_real`: random weights of a size at which prefill takes its time."""

from __future__ import annotations

from pathlib import Path


def save_model(directory: Path, vocabulary: int, positions: int, seed: int = 0) -> int:
    """Writes it; returns how many parameters it has."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(  # type: ignore[no-untyped-call]
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=512,
            intermediate_size=1792,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            max_position_embeddings=positions,
            tie_word_embeddings=True,
            eos_token_id=1,
            pad_token_id=0,
            dtype="float32",
        )
    )
    model.save_pretrained(str(directory))
    return sum(parameter.numel() for parameter in model.parameters())
