"""Retrace by hand, and against a recursion in plain Python."""

import pytest
import torch

from trainers.targets.retrace import retrace


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_returns_by_hand():
    """Last 1 + 0.5 * 8 = 5; before it 2 + 0.5 * (4 + 0.5 * (5 - 3)) = 4.5, which the first does not believe: 3 + 1."""
    found = retrace(column(3, 2, 1), column(0.5, 0.5, 0.5), column(2, 4, 8), column(9, 9, 3), column(1, 0, 0.5))
    assert found.tolist() == [4.0, 4.5, 5.0]


def test_an_end_has_no_future():
    assert retrace(column(3, 2), column(0, 0.5), column(7, 2), column(0, 1), column(1, 1)).tolist() == [3.0, 3.0]


def test_lambda_of_one_and_greedy_play_give_the_rewards_and_the_last_value():
    """Where q is the value, 1 + 0.9 * (2 + 0.9 * (3 + 0.9 * 10)), whatever the values between."""
    value, q = column(5, -7, 10), column(4, 5, -7)
    found = retrace(column(1, 2, 3), column(0.9, 0.9, 0.9), value, q, column(1, 1, 1))
    assert found[0].item() == pytest.approx(1 + 0.9 * (2 + 0.9 * (3 + 0.9 * 10)))


def test_it_is_the_sum_of_discounted_errors():
    """Munos et al. 2016, equation 3: q + sum over t of the product of gamma c, times the error of step t."""
    torch.manual_seed(1)
    reward, value, q = (torch.randn(6, dtype=torch.float64) for _ in range(3))
    discount, trace = (torch.rand(6, dtype=torch.float64) for _ in range(2))
    expected, weight = q[0].item(), 1.0
    for t in range(6):
        expected += weight * (reward[t] + discount[t] * value[t] - q[t]).item()
        if t < 5:
            weight *= (discount[t] * trace[t + 1]).item()
    assert retrace(reward, discount, value, q, trace)[0].item() == pytest.approx(expected)
