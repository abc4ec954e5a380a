"""Types of the C++ module. The implementation is native/simulate; constants are in `hardware`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

class Engines:
    """Engines and trajectories of one run. Columns are views: what happens is seen in them."""

    def __init__(
        self,
        *,
        overhead_s: float,
        weights_s: float,
        read_s: float,
        compute_s: float,
        attend_s: float,
        reload_s: float,
        writeback_s: float,
        kv_capacity: int,
        host_capacity: int,
        step_tokens: int,
        max_running: int,
        block_tokens: int,
        by_rank: bool,
        by_level: bool,
        displace: bool,
        patience_s: float,
        prefill_tokens: int,
        reserve_tokens: int,
        evict_tokens: int,
        engines: int,
        rows: int,
        groups: int,
    ) -> None: ...
    def start(
        self,
        row: int,
        group: int,
        prompt: int,
        generated: NDArray[np.int64],
        observed: NDArray[np.int64],
        tool_s: NDArray[np.floating[Any]],
        /,
    ) -> None:
        """A new trajectory in an empty row; its first turn asks at once."""

    def retire(self, row: int, /) -> None:
        """The row is empty, and its blocks are gone."""

    def place(
        self,
        rows: NDArray[np.int64],
        critical: NDArray[np.bool_],
        rank: NDArray[np.int64],
        admitted: NDArray[np.bool_],
        level: NDArray[np.int64],
        worker: NDArray[np.int64],
        /,
    ) -> None:
        """Puts a decision into effect. Rows that generate keep their worker until the turn ends."""

    def advance(self, until: float, /) -> int:
        """Runs until the time (s) or until trajectories complete; returns how many did."""

    def counts(self) -> dict[str, float]:
        """Sums over the engines: prefilled, decoded, reloaded, written_back, preempted, asked,
        hit, steps, busy_s, prefill_s. Tokens but for preempted and steps; asked: context of
        admitted turns; hit: of it on the GPU; prefill_s: by which prefill made steps longer."""

    def memory(self) -> list[tuple[int, int]]:
        """Tokens on the GPU and in the host tier of each engine."""

    @property
    def now(self) -> float: ...
    @property
    def phase(self) -> NDArray[np.int64]: ...
    @property
    def turn(self) -> NDArray[np.int64]: ...
    @property
    def context(self) -> NDArray[np.int64]: ...
    @property
    def to_generate(self) -> NDArray[np.int64]: ...
    @property
    def kv(self) -> NDArray[np.int64]: ...
    @property
    def host(self) -> NDArray[np.int64]: ...
    @property
    def arrival(self) -> NDArray[np.int64]: ...
    @property
    def since(self) -> NDArray[np.float64]: ...
    @property
    def worker(self) -> NDArray[np.int64]: ...
    @property
    def moved_turn(self) -> NDArray[np.int64]: ...
    @property
    def admitted(self) -> NDArray[np.uint8]: ...
