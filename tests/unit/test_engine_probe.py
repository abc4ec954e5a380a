from collections.abc import Sequence

import pytest

from venusrl.engine.generation import Probe
from venusrl.engine.probe import LogprobMismatch, compare_logprobs

pytestmark = pytest.mark.unit


def trainer(token_ids: Sequence[int]) -> list[float]:
    return [0.0] + [-1.0] * (len(token_ids) - 1)


def compare(*logprobs: float, compared: Sequence[bool] = (False, True, True)) -> float:
    probe = Probe([7, 8, 9], list(logprobs), list(compared))
    return compare_logprobs([probe], trainer, version=3, tolerance=1e-4)


def test_the_largest_difference_counts() -> None:
    assert compare(0.0, -1.00001, -1.00005) == pytest.approx(5e-5)
    assert compare(0.0, -1.0, -1.0) == 0.0


def test_tokens_that_nobody_chose_are_left_out() -> None:
    assert compare(0.0, -40.0, -1.0, compared=(False, False, True)) == 0.0


@pytest.mark.parametrize("wrong", [-1.01, -0.99, float("nan"), float("-inf")])
def test_a_difference_above_the_tolerance_stops_and_says_where(wrong: float) -> None:
    with pytest.raises(LogprobMismatch, match=r"version 3.*token 1 \(id 8\)"):
        compare(0.0, wrong, -1.0)


def test_not_a_number_is_not_hidden_by_what_follows() -> None:
    with pytest.raises(LogprobMismatch):
        compare(0.0, float("nan"), -1.0)


def test_comparing_nothing_is_no_agreement() -> None:
    with pytest.raises(ValueError, match="no probes"):
        compare_logprobs([], trainer, version=1, tolerance=1.0)
