"""The Muon optimizer in float32.

`torch.optim.Muon` multiplies in bfloat16 whatever the processor; on one without instructions for
it, such a product takes a hundred times as long and the warm-up more than an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

# Jordan et al. 2024, "Muon: an optimizer for hidden layers": the quintic whose slope at zero is
# steepest. Five rounds bring singular values near 1 (about 0.7 to 1.2), not exactly to it.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
SMALLEST_NORM = 1e-7


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values brought near 1 (Newton-Schulz); shape ``[m, n]``."""
    a, b, c = COEFFICIENTS
    # The smaller side first: the squared matrix is as small as it can be.
    tall = matrix.size(0) > matrix.size(1)
    found = matrix.T if tall else matrix
    found = found / found.norm().clamp(min=SMALLEST_NORM)
    for _ in range(ROUNDS):
        square = found @ found.T
        polynomial = torch.addmm(square, square, square, beta=b, alpha=c)
        found = torch.addmm(found, polynomial, found, beta=a)
    return found.T if tall else found


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalized momentum of each matrix; for matrices only.

    ``lr`` is the size of a step of a square matrix: that of one with more rows than columns is
    larger by the square root of their ratio. Momentum is Nesterov's.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
    ) -> None:
        matrices = list(params)
        for matrix in matrices:
            if matrix.ndim != 2:
                raise ValueError(f"optimize with Muon: shape {list(matrix.shape)} is no matrix's")
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply the gradients; matrices without one stay as they are."""
        if closure is not None:
            raise TypeError("optimize with Muon: a closure is not supported")
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, matrix.grad, group)

    def _move(self, matrix: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        average = state["momentum"].lerp_(gradient, 1 - group["momentum"])
        update = orthogonalized(gradient.lerp(average, group["momentum"]))
        rows, columns = matrix.shape
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))
