"""What our scheduler is told from outside: its options, and whose turn a request is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from venusrl.engine.settings import require_counts, require_numbers
from venusrl.engine.shared_table import CLAIM_KEYS, Claim

# Priorities as vLLM's queue takes them, lower first: critical, background, not ours.
BACKGROUND = 1 << 32
UNKNOWN = 1 << 33


@dataclass(frozen=True, slots=True)
class Options:
    """`additional_config["venus"]`."""

    table: str  # path of the decisions
    worker: int = 0  # which engine of the table's this is
    report: str | None = None  # path of the table that this engine tells its state in
    check_every: int = 0  # steps between two checks of the invariants; 0: never
    prefill_tokens: int = 256  # of a step in which others decode; 0: all that a step takes
    # Who waits takes what others must compute again once it has waited for so many times as long as
    # that takes; 0: at once.
    wait_factor: float = 1.0
    # With a host tier: a turn that finds no room is passed by those that do, for so long, and
    # nobody is displaced; 0: nobody is passed.
    patience_s: float = 0.0

    def __post_init__(self) -> None:
        owner = "additional_config['venus']"
        for name in ("table", "report"):
            path = getattr(self, name)
            if not (isinstance(path, str) and path) and (name == "table" or path is not None):
                raise ValueError(f"{owner}: {name} is {path!r}, not a path")
        counts = ("worker", "check_every", "prefill_tokens")
        require_counts(owner, 0, **{name: getattr(self, name) for name in counts})
        require_numbers(owner, wait_factor=self.wait_factor, patience_s=self.patience_s)

    @classmethod
    def of(cls, vllm_config: Any) -> Options:
        """ValueError where the configuration does not fit this scheduler."""
        given: Any = (vllm_config.additional_config or {}).get("venus")
        known = {field.name for field in fields(cls)}
        if not isinstance(given, Mapping) or not {"table"} <= set(given) <= known:
            raise ValueError(
                f"start the scheduler: additional_config['venus'] is {given!r}; it takes 'table' "
                f"and may take {sorted(known - {'table'})}"
            )
        if vllm_config.scheduler_config.policy != "priority":
            raise ValueError("start the scheduler: scheduling_policy must be 'priority'")
        if not vllm_config.cache_config.enable_prefix_caching:
            raise ValueError("start the scheduler: enable_prefix_caching must be on")
        if not vllm_config.scheduler_config.enable_chunked_prefill:
            raise ValueError("start the scheduler: enable_chunked_prefill must be on")
        return cls(**given)


@dataclass(slots=True)
class Counts:
    """Since the engine started."""

    steps: int = 0
    displaced: int = 0
    demoted: int = 0  # times that a record had to give blocks back
    demoted_blocks: int = 0
    passed: int = 0  # times that one was left to wait while others behind it had their turn
    released: int = 0
    checked: int = 0


def claim_of(request: Any, rows: int) -> Claim | None:
    """What the sender said; None for nothing, or nonsense: it must not stop the engine."""
    parameters = request.sampling_params
    extra = (parameters and parameters.extra_args) or {}
    slot, trajectory = (extra.get(key) for key in CLAIM_KEYS)
    if not (type(slot) is int and type(trajectory) is int):
        return None
    if not (0 <= slot < rows and 0 <= trajectory < 1 << 63):
        return None
    return Claim(slot, trajectory)
