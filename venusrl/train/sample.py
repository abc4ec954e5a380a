"""What a trained trajectory consists of: exactly the tokens that the engine saw and produced."""

from dataclasses import dataclass


@dataclass
class Sample:
    """One trajectory as trained on.

    ``logprobs`` and ``versions`` are what the engine reported for each token that the policy
    wrote; where ``loss_mask`` is 0 (prompt, observations) they are 0.
    """

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    versions: list[int]
    reward: float
    group: str

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        for name in ("loss_mask", "logprobs", "versions"):
            if len(getattr(self, name)) != length:
                raise ValueError(
                    f"sample of group {self.group!r}: {len(getattr(self, name))} entries in "
                    f"{name} for {length} tokens"
                )
        if length and self.loss_mask[0]:
            raise ValueError(
                f"sample of group {self.group!r}: the first token is trained on, "
                "but nothing comes before it to predict it from"
            )
