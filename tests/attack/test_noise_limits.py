"""Reference figures of the noise: the attacker they describe, played; and check values."""

import math

import pytest
import torch
from scipy.stats import chi2
from torch import nn

from dpaudit.attack.blind_success import bits, together, without_prior

FALSE_FAILURE = 1e-9  # probability that a correct figure fails a statistical test, over fresh seeds


def clipped_gradient(x: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Of one record at a linear layer without bias, [n_classes, N], by autograd."""
    torch.manual_seed(1)
    layer = nn.Linear(len(x), 10, bias=False).double()
    nn.functional.cross_entropy(10 * layer(x)[None], torch.tensor([3])).backward()
    gradient = layer.weight.grad
    assert gradient.norm() > clip_norm  # so that it is clipped
    return gradient * (clip_norm / gradient.norm())


def test_projecting_on_the_direction_errs_as_much_as_stated() -> None:
    """Squared errors sum to s^2 |X|^2 times a chi-square of N trials degrees of freedom."""
    C, s, N, trials = 2.0, 0.3, 49, 400
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(N, generator=generator, dtype=torch.float64) * 2 - 1
    gradient = clipped_gradient(x, C)
    u = gradient @ x
    u = u / u.norm()
    noise = C * s * torch.randn(trials, *gradient.shape, generator=generator, dtype=torch.float64)
    estimates = x.norm() / C * torch.einsum("c,tcn->tn", u, gradient + noise)
    found = (estimates - x).square().mean().item()
    expected = without_prior(s, x.square().sum().item())
    low, high = chi2.interval(1 - FALSE_FAILURE, N * trials)
    assert low < N * trials * found / expected < high
    assert high - low < 0.15 * N * trials  # so that a factor beside the truth is found


def test_check_values_of_a_large_image() -> None:
    """N = 3072, s = 0.01, |X|^2 = 700, pixels in [0, 1]: MSE 0.07, 11.55 dB."""
    mse = without_prior(0.01, 700)
    assert mse == pytest.approx(0.07)
    assert -10 * math.log10(mse) == pytest.approx(11.55, abs=0.005)


def test_messages_on_one_record_add_their_precisions() -> None:
    assert together([0.5]) == pytest.approx(0.5)
    assert together([0.5] * 4) == pytest.approx(0.25)
    assert together([3.0, 4.0]) == pytest.approx(2.4)


def test_bits_are_those_of_a_gaussian_channel_and_add_up() -> None:
    """d = 4, signal of norm 1: a quarter of power in each coordinate against the noise's."""
    assert bits([0.5], 4, 1) == pytest.approx(2 * math.log2(1 + 0.25 / 0.25))
    assert bits([1.0], 4, 2) == pytest.approx(bits([0.5], 4, 1))  # a mean over two records
    assert bits([0.5, 1.0], 4, 1) == pytest.approx(2 + 2 * math.log2(1.25))
