"""Ranks of gradients, without noise and in it, and what was found of a vocabulary."""

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.text import span
from dpaudit.attacks.text.attack import _rates


def sizes(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("S", "rank"),
    [
        (sizes(5.0, 4.0, 3.0, 1e-12), 3),
        (sizes(5.0, 1e-12, 1e-13), 1),
        (sizes(5.0, 1e-12, 0.0), 2),  # the fall to nothing is the largest
        (sizes(5.0, 4.0, 3.0), None),
        (sizes(5.0), None),
        (sizes(), None),
    ],
)
def test_singular_values_fall_to_rounding_at_the_rank(S: Tensor, rank: int | None) -> None:
    assert span._rank_of_exact(S) == rank


def test_values_above_known_noise_are_counted() -> None:
    """The largest singular value of noise is near std (sqrt d + sqrt m)."""
    edge = span._KNOWN * 0.5 * (10 + 4)
    S = sizes(3 * edge, edge * 1.01, edge, edge * 0.99)
    assert span._rank_in_noise(S, 100, 16, 0.5) == 2
    assert span._rank_in_noise(S, 16, 100, 0.5) == 2


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_unknown_noise_is_what_is_alike_behind_the_rank(rank: int) -> None:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(400, 60, generator=generator, dtype=torch.float64)
    strong = torch.eye(400, 60).double()
    strong[:, rank:] = 0.0
    S = torch.linalg.svdvals(noise + 500 * strong)
    assert span._rank_in_noise(S, 400, 60, None) == rank
    assert span._rank_in_noise(S, 400, 60, 1.0) == rank


def test_rates_are_of_tokens_of_the_batch_and_of_all_others() -> None:
    found = torch.tensor([True, True, False, False, True])
    assert _rates(torch.tensor([[0, 2], [2, 0]]), found) == (0.5, pytest.approx(2 / 3))
