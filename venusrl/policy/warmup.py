"""Making the policy that reinforcement learning starts from: supervised on demonstrations.

The start is mediocre because some demonstrations make plausible mistakes (tasks/flaw_mix.py), not
because training stops early: the policy knows how to copy any name exactly, and what is left for
reward to teach is which of its habits are right.

Everything follows from the seed: tasks, demonstrations, initial weights and order of batches. On
one kind of processor with one number of threads the result is the same to the bit.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3ForCausalLM

from venusrl.policy.conversation import NativeConversation, conversation_for
from venusrl.policy.model import new_policy
from venusrl.policy.muon import Muon
from venusrl.policy.tokenizer import build_tokenizer
from venusrl.tasks import FIXED_FRAGMENTS, Demonstration, Task, warmup_corpus
from venusrl.train.checkpoint import save_checkpoint
from venusrl.train.likelihood import chosen_logprobs
from venusrl.train.packing.padding import pad_batch, plan_batches


@dataclass(frozen=True)
class WarmupConfig:
    """Settings of the warm-up; the defaults take some minutes on two cores."""

    steps: int = 600
    # Small: copying appears after a number of steps, whatever their size.
    batch_size: int = 32
    # Of Muon, for the matrices inside the network.
    matrix_learning_rate: float = 0.02
    weight_decay: float = 0.01
    # Of AdamW, for the head and the scales, and for the embedding: a token's embedding moves only
    # when the token occurs, and each rare sentence of a note has a meaning of its own.
    learning_rate: float = 2e-3
    embedding_learning_rate: float = 4e-3
    adam_betas: tuple[float, float] = (0.9, 0.98)
    rise_steps: int = 30
    # The rates stay at their peak and fall to zero over the last part (a trapezoid).
    fall_fraction: float = 0.4
    max_grad_norm: float = 1.0
    # Padded tokens of one forward pass: large enough for fast matrix products, small enough
    # that sequences of different length rarely share a rectangle.
    max_batch_tokens: int = 4096


@dataclass(frozen=True)
class WarmupProgress:
    """Reported after every step. ``loss`` is nats per command token."""

    step: int
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class EncodedDemonstration:
    token_ids: list[int]
    # 1 where the policy itself would have written the token.
    loss_mask: list[int]


Corpus = Iterable[tuple[Task, Demonstration]]


def encode_demonstration(
    conversation: NativeConversation, task: Task, demonstration: Demonstration
) -> EncodedDemonstration:
    """Lay a demonstration out as an episode; only the commands are to be learnt."""
    ids = conversation.start(task.prompt)
    mask = [0] * len(ids)
    for index, step in enumerate(demonstration.steps):
        if index:
            context = conversation.observe(demonstration.steps[index - 1].observation)
            ids += context
            mask += [0] * len(context)
        command = conversation.write(step.command)
        ids += command
        mask += [1] * len(command)
    return EncodedDemonstration(ids, mask)


def make_policy(
    seed: int,
    out_dir: Path | str,
    on_progress: Callable[[WarmupProgress], None] | None = None,
    config: WarmupConfig | None = None,
    corpus: Corpus | None = None,
) -> Path:
    """Make a policy from ``seed`` and write it to ``out_dir`` in the Hugging Face layout."""
    config = config or WarmupConfig()
    if corpus is None:
        corpus = warmup_corpus(seed, config.steps * config.batch_size)
    tokenizer = build_tokenizer(FIXED_FRAGMENTS)
    conversation = conversation_for(tokenizer)
    assert isinstance(conversation, NativeConversation)
    model = new_policy(tokenizer, seed)
    examples = (encode_demonstration(conversation, task, shown) for task, shown in corpus)
    _fit(model, examples, int(tokenizer.pad_token_id), config, on_progress)
    directory = Path(out_dir)
    save_checkpoint(model, tokenizer, directory)
    return directory


def _fit(
    model: Qwen3ForCausalLM,
    examples: Iterator[EncodedDemonstration],
    pad_id: int,
    config: WarmupConfig,
    on_progress: Callable[[WarmupProgress], None] | None,
) -> None:
    started = time.monotonic()
    optimizer = _Optimizer(model, config)
    for step in range(config.steps):
        batch = list(islice(examples, config.batch_size))
        if not batch:
            raise ValueError(
                f"warm up the policy: the corpus ended after {step} of {config.steps} steps"
            )
        loss = _accumulate_gradient(model, batch, pad_id, config.max_batch_tokens)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step(_rate(step, config))
        if on_progress is not None:
            seconds = time.monotonic() - started
            on_progress(WarmupProgress(step + 1, config.steps, loss, seconds))


class _Optimizer:
    """Muon for the matrices inside the network, AdamW for everything else.

    Muon makes each update of a matrix orthogonal. Copying names appears after a quarter of the
    steps that AdamW needs.
    """

    def __init__(self, model: PreTrainedModel, config: WarmupConfig) -> None:
        embedding = model.get_input_embeddings().weight
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        ends = [embedding, head.weight]
        inner = [p for p in model.parameters() if p.ndim == 2 and all(p is not e for e in ends)]
        scales = [p for p in model.parameters() if p.ndim < 2]
        self._parts: list[torch.optim.Optimizer] = [
            Muon(inner, lr=config.matrix_learning_rate, weight_decay=config.weight_decay),
            torch.optim.AdamW(
                [
                    {"params": [*scales, ends[1]], "lr": config.learning_rate},
                    {"params": [embedding], "lr": config.embedding_learning_rate},
                ],
                betas=config.adam_betas,
                weight_decay=0.0,
                fused=True,
            ),
        ]
        self._groups = [group for part in self._parts for group in part.param_groups]
        self._peaks = [float(group["lr"]) for group in self._groups]

    def step(self, rate: float) -> None:
        """Apply the gradients at ``rate`` times the peak learning rates, then clear them."""
        for group, peak in zip(self._groups, self._peaks, strict=True):
            group["lr"] = peak * rate
        for part in self._parts:
            part.step()
            part.zero_grad(set_to_none=True)


def _rate(step: int, config: WarmupConfig) -> float:
    """The learning rate at ``step`` as a fraction of its peak."""
    rise = (step + 1) / max(1, config.rise_steps)
    fall = (config.steps - step) / max(1.0, config.fall_fraction * config.steps)
    return min(1.0, rise, fall)


def _matrix_precision() -> AbstractContextManager[object]:
    """bfloat16 products where the processor multiplies it natively, which is faster; else float32.

    The weights themselves, their gradients and the loss are float32 either way.
    """
    able = torch.cpu.get_capabilities()
    if able.get("avx512_bf16") or able.get("amx_bf16"):
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return nullcontext()


def _accumulate_gradient(
    model: PreTrainedModel,
    batch: Sequence[EncodedDemonstration],
    pad_id: int,
    max_batch_tokens: int,
) -> float:
    """Add the gradient of the batch's mean loss per command token; return that loss."""
    tokens = sum(sum(example.loss_mask) for example in batch)
    total = 0.0
    for rows in plan_batches([len(example.token_ids) for example in batch], max_batch_tokens):
        padded = pad_batch(
            [batch[row].token_ids for row in rows],
            pad_id,
            {"mask": [batch[row].loss_mask for row in rows]},
        )
        with _matrix_precision():
            found = chosen_logprobs(model, padded.token_ids, padded.values["mask"].bool())
        loss = -found.logprobs.sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    if not math.isfinite(total):
        raise ArithmeticError(f"warm up the policy: the loss is {total}")
    return total
