"""What an engine returns. No vLLM here: episodes and their tests need only this."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Protocol, SupportsIndex


class EngineError(Exception):
    """The engine could not start, died, or refused a request.

    Ends a run; unlike a broken sandbox it is never the failure of one episode.
    """


class WeightsError(EngineError):
    """What was pushed is refused: there is no such file, it holds other weights, its version is not
    newer."""


class RolloutEnded(Exception):
    """A trajectory was given up while its episode ran: it is complete, as failed data."""


def token_list(token_ids: Iterable[SupportsIndex]) -> list[int]:
    """Of numbers of any library. ValueError for what is no whole number."""
    try:
        return [index(token) for token in token_ids]
    except TypeError as error:
        raise ValueError(f"generate: a token id is no whole number: {error}") from error


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class Generation:
    """The sampled tokens exactly as produced, a stop token included.

    ``logprobs[i]`` is the natural logprob of ``token_ids[i]`` under the untempered distribution,
    ``versions[i]`` the number of the weights that produced it.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True)
class Probe:
    """A prompt with its continuation; ``logprobs[0]`` is 0, the first token has none.

    ``compared`` says which tokens to compare: those that a policy chose. What a sandbox printed
    may have a probability of 1e-15, where rounding alone moves the logprob by more than a
    wrong weight would elsewhere.
    """

    token_ids: list[int]
    logprobs: list[float]
    compared: list[bool]


class Generator(Protocol):
    """The part of an engine that an episode uses."""

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Sequence[int],
        temperature: float = 1.0,
    ) -> Generation: ...
