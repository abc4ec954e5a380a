"""Collects the tokens of one episode exactly as the engine saw and produced them."""

from collections.abc import Sequence

from venusrl.engine.generation import Generation


class Trajectory:
    """Four columns of equal length; the policy's own tokens have loss mask 1.

    Invariant: ``token_ids`` is at every moment the prompt that the next generation gets, so what
    is trained on is what was conditioned on. Text is never encoded a second time.
    """

    def __init__(self, context: Sequence[int]) -> None:
        self.token_ids: list[int] = list(context)
        self.loss_mask: list[int] = [0] * len(context)
        self.logprobs: list[float] = [0.0] * len(context)
        self.versions: list[int] = [0] * len(context)

    def __len__(self) -> int:
        return len(self.token_ids)

    def add_generation(self, generation: Generation) -> None:
        self.token_ids.extend(generation.token_ids)
        self.loss_mask.extend([1] * len(generation.token_ids))
        self.logprobs.extend(generation.logprobs)
        self.versions.extend(generation.versions)

    def add_context(self, token_ids: Sequence[int]) -> None:
        """Tokens that the policy did not choose."""
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([0] * len(token_ids))
        self.logprobs.extend([0.0] * len(token_ids))
        self.versions.extend([0] * len(token_ids))
