"""Every sequence lands in exactly one batch, no batch is too large, padding stays harmless."""

import pytest

torch = pytest.importorskip("torch", reason="needs the training requirements")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from venusrl.train.packing.padding import pad_batch, plan_batches  # noqa: E402
from venusrl.train.sample import Sample  # noqa: E402


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 200))
def test_plan_partitions_within_the_limit(lengths, max_tokens):
    batches = plan_batches(lengths, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        area = len(batch) * max(lengths[index] for index in batch)
        assert area <= max_tokens or len(batch) == 1


def test_neighbours_in_length_share_a_batch():
    assert plan_batches([3, 30, 4, 29], 60) == [[1, 3], [2, 0]]


def test_limit_must_be_positive():
    with pytest.raises(ValueError, match="max_tokens is 0"):
        plan_batches([1], 0)


def test_padding():
    batch = pad_batch([[7, 8, 9], [5]], 1, {"mask": [[0, 1, 1], [1]]})
    assert batch.token_ids.tolist() == [[7, 8, 9], [5, 1, 1]]
    assert batch.values["mask"].tolist() == [[0, 1, 1], [1, 0, 0]]


def test_padding_refuses_values_of_another_length():
    with pytest.raises(ValueError, match="pad mask: 1 values for 2 tokens in row 0"):
        pad_batch([[7, 8]], 1, {"mask": [[0]]})


def test_sample_refuses_uneven_fields():
    with pytest.raises(ValueError, match="1 entries in logprobs for 2 tokens"):
        Sample([1, 2], [0, 1], [0.0], [0, 0], 1.0, "g")


def test_sample_refuses_to_train_on_its_first_token():
    with pytest.raises(ValueError, match="first token"):
        Sample([1, 2], [1, 1], [0.0, 0.0], [0, 0], 1.0, "g")
