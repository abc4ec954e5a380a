"""Batches of similar length, padded on the right.

Padding stands only after a sequence's own tokens, so plain causal attention never lets a real
token see it: no attention mask is needed, which keeps the fast attention kernels usable. Sorting
by length keeps the padding itself to a few percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Partition the indices into batches whose padded area is at most ``max_tokens``.

    Neighbours in length share a batch. A single sequence longer than ``max_tokens`` gets a batch
    of its own rather than an error: the limit bounds memory, it is not a property of the data.
    """
    if max_tokens < 1:
        raise ValueError(f"plan batches: max_tokens is {max_tokens}, must be positive")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    width = 0
    for index in order:
        if not batches or (len(batches[-1]) + 1) * width > max_tokens:
            batches.append([])
            width = max(lengths[index], 1)
        batches[-1].append(index)
    return batches


@dataclass(frozen=True)
class PaddedBatch:
    """Token ids and per-token values, all of one shape (sequences, width)."""

    token_ids: Tensor
    values: dict[str, Tensor]


def pad_batch(
    token_ids: Sequence[Sequence[int]],
    pad_id: int,
    values: dict[str, Sequence[Sequence[float]]] | None = None,
) -> PaddedBatch:
    """Pad ``token_ids`` with ``pad_id`` and each of ``values`` with 0."""
    width = max(len(row) for row in token_ids)
    ids = torch.full((len(token_ids), width), pad_id, dtype=torch.long)
    for row, tokens in enumerate(token_ids):
        ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    padded: dict[str, Tensor] = {}
    for name, rows in (values or {}).items():
        table = torch.zeros((len(token_ids), width), dtype=torch.float32)
        for row, (tokens, row_values) in enumerate(zip(token_ids, rows, strict=True)):
            if len(row_values) != len(tokens):
                raise ValueError(
                    f"pad {name}: {len(row_values)} values for {len(tokens)} tokens in row {row}"
                )
            table[row, : len(tokens)] = torch.tensor(row_values, dtype=torch.float32)
        padded[name] = table
    return PaddedBatch(ids, padded)
