"""The GRPO objective against numbers worked out by hand and against finite differences."""

import math

import pytest

torch = pytest.importorskip("torch", reason="needs the training requirements")

from venusrl.train.grpo import group_advantages, grpo_loss  # noqa: E402


def loss_of(logprob, old, advantage, mask=1.0, **settings):
    """The loss of a single token."""
    column = [[value] for value in (logprob, old, advantage, mask)]
    new, was, gain, keep = (torch.tensor(value, dtype=torch.float64) for value in column)
    return grpo_loss(new, was, None, gain, keep, **settings)


class TestAdvantages:
    def test_reward_minus_group_mean(self):
        found = group_advantages([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], list("aaaabb"))
        assert found.values == [0.75, -0.25, -0.25, -0.25, 0.5, -0.5]
        assert (found.groups, found.flat_groups) == (2, 0)

    def test_groups_may_be_interleaved(self):
        found = group_advantages([1.0, 1.0, 0.0, 0.0], ["a", "b", "a", "b"])
        assert found.values == [0.5, 0.5, -0.5, -0.5]

    def test_group_without_spread_is_exactly_zero_and_counted(self):
        found = group_advantages([0.1] * 3 + [1.0, 0.0], list("aaabb"))
        assert found.values[:3] == [0.0, 0.0, 0.0]
        assert (found.groups, found.flat_groups) == (2, 1)

    def test_standard_deviation(self):
        # Mean 1/4, variance 3/16: the success stands sqrt(3) deviations above.
        found = group_advantages([1.0, 0.0, 0.0, 0.0], list("aaaa"), normalise_std=True)
        assert found.values == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3)

    def test_lengths_must_match(self):
        with pytest.raises(ValueError, match="2 rewards for 1 groups"):
            group_advantages([1.0, 0.0], ["a"])


class TestClipping:
    """With old probability 0.5, a new one of 0.5 * r has the ratio r."""

    @pytest.mark.parametrize(
        ("ratio", "advantage", "expected"),
        [
            (1.0, 2.0, -2.0),
            (1.1, 2.0, -2.2),
            # Above the range, and the advantage pulls further up: the bound holds.
            (1.5, 2.0, -2.56),
            # Below it, the advantage pulls back: no bound, the gradient must stay.
            (0.5, 2.0, -1.0),
            (0.5, -2.0, 1.6),
            (1.5, -2.0, 3.0),
        ],
    )
    def test_by_hand(self, ratio, advantage, expected):
        terms = loss_of(
            math.log(0.5 * ratio), math.log(0.5), advantage, clip_low=0.2, clip_high=0.28
        )
        assert float(terms.loss) == pytest.approx(expected)

    def test_clipped_tokens_are_counted_and_have_no_gradient(self):
        new = torch.log(torch.tensor([0.9, 0.55, 0.2, 0.9])).requires_grad_()
        old = torch.log(torch.full((4,), 0.5))
        gains = torch.tensor([1.0, 1.0, -1.0, -1.0])
        terms = grpo_loss(new, old, None, gains, torch.ones(4), clip_low=0.2, clip_high=0.2)
        terms.loss.backward()
        assert int(terms.clipped) == 2
        assert new.grad[0] == 0 and new.grad[2] == 0
        assert new.grad[1] == pytest.approx(-1.1)
        assert new.grad[3] == pytest.approx(1.8)

    def test_ratio_statistics(self):
        new = torch.log(torch.tensor([0.9, 0.45, 0.1]))
        old = torch.log(torch.full((3,), 0.5))
        terms = grpo_loss(new, old, None, torch.ones(3), torch.tensor([1.0, 1.0, 0.0]))
        assert float(terms.tokens) == 2
        assert float(terms.ratio_sum) == pytest.approx(2.7)
        assert float(terms.ratio_max) == pytest.approx(1.8)
        expected_kl = (1.8 - 1 - math.log(1.8)) + (0.9 - 1 - math.log(0.9))
        assert float(terms.approx_kl_sum) == pytest.approx(expected_kl, rel=1e-5)


class TestMask:
    def test_masked_tokens_count_for_nothing_even_when_infinite(self):
        new = torch.tensor([math.log(0.5), -1e4, 3.0]).requires_grad_()
        old = torch.tensor([math.log(0.5), 1e4, -math.inf])
        terms = grpo_loss(new, old, None, torch.ones(3), torch.tensor([1.0, 0.0, 0.0]))
        terms.loss.backward()
        assert float(terms.loss.detach()) == pytest.approx(-1.0)
        assert new.grad.tolist() == pytest.approx([-1.0, 0.0, 0.0])

    def test_loss_is_a_sum_over_tokens_so_micro_batches_add_up(self):
        torch.manual_seed(0)
        new, old, gains = (torch.randn(6, 5) * 0.1 for _ in range(3))
        mask = (torch.rand(6, 5) > 0.4).float()
        whole = grpo_loss(new, old, None, gains, mask).loss
        parts = [
            grpo_loss(new[rows], old[rows], None, gains[rows], mask[rows]).loss
            for rows in (slice(0, 2), slice(2, 6))
        ]
        assert float(whole) == pytest.approx(float(sum(parts)), rel=1e-5)


class TestKl:
    def test_k3_by_hand(self):
        # p = 0.5, p_ref = 0.25: r = 0.5, k3 = 0.5 - 1 - log 0.5.
        new, ref = torch.log(torch.tensor([0.5])), torch.log(torch.tensor([0.25]))
        terms = grpo_loss(new, new, ref, torch.zeros(1), torch.ones(1), kl_coef=0.1)
        assert float(terms.loss) == pytest.approx(0.1 * (-0.5 + math.log(2)), rel=1e-5)

    def test_without_a_coefficient_the_reference_is_ignored(self):
        new = torch.log(torch.tensor([0.5]))
        terms = grpo_loss(new, new, new - 3, torch.ones(1), torch.ones(1))
        assert float(terms.loss) == pytest.approx(-1.0)


def test_gradient_matches_finite_differences():
    torch.manual_seed(3)
    logits = torch.randn(7, 5, dtype=torch.float64)
    targets = torch.randint(5, (7,))
    old = torch.log_softmax(logits, -1)[range(7), targets]
    ref = torch.log_softmax(torch.randn(7, 5, dtype=torch.float64), -1)[range(7), targets]
    # Away from the old policy, so that some ratios lie beyond the bounds.
    logits = (logits + 0.6 * torch.randn(7, 5, dtype=torch.float64)).requires_grad_()
    gains = torch.randn(7, dtype=torch.float64)
    mask = torch.tensor([1, 1, 0, 1, 1, 1, 1], dtype=torch.float64)

    def objective(values):
        new = torch.log_softmax(values, -1)[range(7), targets]
        return grpo_loss(new, old, ref, gains, mask, kl_coef=0.05)

    assert 0 < int(objective(logits).clipped) < 6, "the case should cover both branches"
    assert torch.autograd.gradcheck(lambda values: objective(values).loss, (logits,))
