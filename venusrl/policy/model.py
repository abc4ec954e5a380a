"""The shape of the policy: a small Qwen3, float32, at most three million parameters."""

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

MAX_PARAMETERS = 3_000_000
# Rows of the embedding are a multiple of this, which keeps the matrix products aligned.
_VOCABULARY_MULTIPLE = 64


def policy_config(tokenizer: PreTrainedTokenizerBase) -> Qwen3Config:
    """The configuration of a fresh policy for ``tokenizer``."""
    vocabulary = -(-len(tokenizer) // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        # Untied: engines that hold a prepared copy of the head would otherwise have to refresh
        # it separately after each weight update.
        tie_word_embeddings=False,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def new_policy(tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen3ForCausalLM:
    """A fresh policy whose weights depend on ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(policy_config(tokenizer))  # type: ignore[no-untyped-call]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MAX_PARAMETERS:
        raise ValueError(
            f"build the policy: {parameters} parameters, more than {MAX_PARAMETERS}; "
            f"the vocabulary has {len(tokenizer)} entries"
        )
    return model


def load_model(directory: Path | str) -> PreTrainedModel:
    """Load any Hugging Face causal language model from ``directory`` in float32."""
    model = AutoModelForCausalLM.from_pretrained(
        str(directory), dtype=torch.float32, local_files_only=True
    )
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"load {directory}: {type(model).__name__} is not a causal LM")
    return model
