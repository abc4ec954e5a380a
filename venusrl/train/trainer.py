"""One GRPO update at a time on a Hugging Face causal language model."""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from venusrl.policy.model import load_model
from venusrl.train.checkpoint import save_checkpoint, weight_tensors
from venusrl.train.grpo import Advantages, group_advantages, grpo_loss
from venusrl.train.likelihood import chosen_logprobs
from venusrl.train.packing.padding import pad_batch, plan_batches
from venusrl.train.sample import Sample


@dataclass(frozen=True)
class GrpoConfig:
    """Settings of the update. The defaults suit the small policy made by policy/warmup.py."""

    learning_rate: float = 1e-3
    # The rate rises linearly over the first steps: Adam's second moments are noise until then.
    warmup_steps: int = 2
    # With a total, the rate falls linearly to `final_rate_fraction` of its peak at that step.
    total_steps: int | None = None
    final_rate_fraction: float = 0.1
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    normalise_std: bool = False
    # Gradient steps per batch: each of `epochs` passes cuts the groups into `minibatches`.
    minibatches: int = 1
    epochs: int = 1
    # Padded tokens per forward pass; bounds memory, does not change the gradient.
    max_batch_tokens: int = 16_384
    seed: int = 0


@dataclass(frozen=True)
class StepStats:
    """What one step did. Means are over the trained tokens of all its gradient steps."""

    step: int
    loss: float
    ratio_mean: float
    ratio_max: float
    clip_fraction: float
    approx_kl: float
    entropy: float
    grad_norm: float
    learning_rate: float
    tokens: int
    samples: int
    groups: int
    flat_groups: int
    seconds: float


class Trainer:
    """Owns the trained model, its optimizer and the step count."""

    def __init__(self, model_dir: Path | str, config: GrpoConfig | None = None) -> None:
        self.config = config or GrpoConfig()
        self.model = load_model(model_dir)
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(model_dir), local_files_only=True
        )
        # No dropout, ever: the ratio compares with what the engine, which has none, computed.
        self.model.train(False)
        self._reference = None
        if self.config.kl_coef:
            self._reference = load_model(model_dir).train(False)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.config.learning_rate,
            betas=self.config.adam_betas,
            weight_decay=self.config.weight_decay,
            fused=True,
        )
        self._random = random.Random(self.config.seed)
        self.steps = 0

    def step(self, samples: Sequence[Sample]) -> StepStats:
        """Update the policy on whole groups of ``samples``.

        A batch in which no group has spread changes nothing and is reported with zero tokens.
        """
        started = time.monotonic()
        config = self.config
        advantages = group_advantages(
            [sample.reward for sample in samples],
            [sample.group for sample in samples],
            normalise_std=config.normalise_std,
        )
        rate = self._set_learning_rate()
        totals = _Totals()
        for _ in range(config.epochs):
            for part in self._minibatches(samples, advantages):
                self._gradient_step(samples, advantages.values, part, totals)
        self.steps += 1
        return totals.stats(
            step=self.steps,
            learning_rate=rate,
            samples=len(samples),
            advantages=advantages,
            seconds=time.monotonic() - started,
        )

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """The logprob of every token given those before it; 0 for the first, which has none."""
        if len(token_ids) < 2:
            return [0.0] * len(token_ids)
        ids = torch.tensor([list(token_ids)], dtype=torch.long)
        chosen = torch.ones_like(ids, dtype=torch.bool)
        chosen[:, 0] = False
        with torch.no_grad():
            found = chosen_logprobs(self.model, ids, chosen)
        return [0.0, *found.logprobs.tolist()]

    def state_for_engine(self) -> dict[str, Tensor]:
        """The weights by their Hugging Face names, as an engine loads them."""
        return weight_tensors(self.model)

    def save(self, directory: Path | str) -> None:
        """Write a checkpoint that ``transformers`` and vLLM load."""
        save_checkpoint(self.model, self.tokenizer, Path(directory))

    def _set_learning_rate(self) -> float:
        config = self.config
        rate = config.learning_rate * min(1.0, (self.steps + 1) / max(1, config.warmup_steps))
        if config.total_steps:
            progress = min(1.0, self.steps / config.total_steps)
            rate *= 1.0 - (1.0 - config.final_rate_fraction) * progress
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _minibatches(self, samples: Sequence[Sample], advantages: Advantages) -> list[list[int]]:
        """Indices of the samples that teach something, whole groups together."""
        members: dict[str, list[int]] = {}
        for index, sample in enumerate(samples):
            # Without a KL term a sample of zero advantage has no gradient: spare its forward.
            teaches = advantages.values[index] != 0.0 or self._reference is not None
            if teaches and any(sample.loss_mask):
                members.setdefault(sample.group, []).append(index)
        groups = list(members.values())
        self._random.shuffle(groups)
        count = max(1, min(self.config.minibatches, len(groups)))
        parts: list[list[int]] = [[] for _ in range(count)]
        for position, group in enumerate(groups):
            parts[position % count].extend(group)
        return [part for part in parts if part]

    def _gradient_step(
        self,
        samples: Sequence[Sample],
        advantages: Sequence[float],
        part: Sequence[int],
        totals: "_Totals",
    ) -> None:
        config = self.config
        tokens = sum(sum(samples[index].loss_mask) for index in part)
        self._optimizer.zero_grad(set_to_none=True)
        lengths = [len(samples[index].token_ids) for index in part]
        for batch in plan_batches(lengths, config.max_batch_tokens):
            rows = [samples[part[position]] for position in batch]
            padded = pad_batch(
                [row.token_ids for row in rows],
                int(self.tokenizer.pad_token_id or 0),
                {
                    "mask": [row.loss_mask for row in rows],
                    "old": [row.logprobs for row in rows],
                    "advantage": [
                        [advantages[part[position]]] * len(row.token_ids)
                        for position, row in zip(batch, rows, strict=True)
                    ],
                },
            )
            chosen = padded.values["mask"].bool()
            found = chosen_logprobs(self.model, padded.token_ids, chosen, entropy=True)
            reference = None
            if self._reference is not None:
                with torch.no_grad():
                    reference = chosen_logprobs(self._reference, padded.token_ids, chosen).logprobs
            terms = grpo_loss(
                found.logprobs,
                padded.values["old"][chosen],
                reference,
                padded.values["advantage"][chosen],
                torch.ones_like(found.logprobs),
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                kl_coef=config.kl_coef,
            )
            (terms.loss / tokens).backward()  # type: ignore[no-untyped-call]
            totals.tokens += int(terms.tokens)
            totals.loss += float(terms.loss.detach())
            totals.ratio += float(terms.ratio_sum)
            totals.ratio_max = max(totals.ratio_max, float(terms.ratio_max))
            totals.clipped += float(terms.clipped)
            totals.approx_kl += float(terms.approx_kl_sum)
            assert found.entropies is not None
            totals.entropy += float(found.entropies.sum())
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm))
        if not math.isfinite(norm):
            raise ArithmeticError(
                f"training step {self.steps + 1}: the gradient norm is {norm}; weights unchanged"
            )
        totals.grad_norms.append(norm)
        self._optimizer.step()


class _Totals:
    """Sums over the gradient steps of one step, turned into means at its end."""

    def __init__(self) -> None:
        self.tokens = 0
        self.loss = 0.0
        self.ratio = 0.0
        self.ratio_max = 0.0
        self.clipped = 0.0
        self.approx_kl = 0.0
        self.entropy = 0.0
        self.grad_norms: list[float] = []

    def stats(
        self,
        *,
        step: int,
        learning_rate: float,
        samples: int,
        advantages: Advantages,
        seconds: float,
    ) -> StepStats:
        tokens = max(1, self.tokens)
        return StepStats(
            step=step,
            loss=self.loss / tokens,
            ratio_mean=self.ratio / tokens,
            ratio_max=self.ratio_max,
            clip_fraction=self.clipped / tokens,
            approx_kl=self.approx_kl / tokens,
            entropy=self.entropy / tokens,
            grad_norm=sum(self.grad_norms) / max(1, len(self.grad_norms)),
            learning_rate=learning_rate,
            tokens=self.tokens,
            samples=samples,
            groups=advantages.groups,
            flat_groups=advantages.flat_groups,
            seconds=seconds,
        )
