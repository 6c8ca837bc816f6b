"""What training refuses."""

from math import inf, nan

import pytest
import torch

from dpaudit.training.train import _all_finite

LARGE = 3e38  # two of them overflow float32


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([0.0, -1.0], True),
        ([LARGE, LARGE, 1.0], True),
        ([LARGE, -LARGE, nan], False),
        ([1.0, inf], False),
        ([inf, -inf], False),
        ([LARGE, LARGE, -inf], False),
    ],
)
def test_numbers_that_overflow_only_in_their_sum_are_finite(
    values: list[float], finite: bool
) -> None:
    assert _all_finite(torch.tensor(values)) == finite
