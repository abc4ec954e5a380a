"""The optimizer of the warm-up does what torch's does, in another precision."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs the training requirements")

from venusrl.policy.muon import Muon, orthogonalized  # noqa: E402

SHAPES = [(24, 24), (40, 16), (16, 40)]


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_come_near_one_and_their_vectors_stay(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonalized(matrix)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inner = left.T @ found @ right.T
    values = inner.diagonal()
    assert found.dtype == torch.float32
    assert values.min() > 0.6 and values.max() < 1.3
    torch.testing.assert_close(inner, torch.diag(values), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_weights_move_as_with_torchs_own(shape: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(2)
    start = torch.randn(shape, generator=draw)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    settings = {"lr": 0.02, "weight_decay": 0.01}
    optimizers = [Muon([ours], **settings), torch.optim.Muon([theirs], **settings)]
    for _ in range(4):
        gradient = torch.randn(shape, generator=draw)
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    moved = (theirs - start).norm()
    # bfloat16 has three digits.
    assert (ours - theirs).norm() < 0.03 * moved


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimize with Muon: shape \[3\]"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1, weight_decay=0.0)
