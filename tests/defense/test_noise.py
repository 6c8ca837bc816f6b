"""Noise from named streams: scale, repeatability, and the float32 trap of the Laplace tail."""

import math
from typing import Any

import pytest
import torch
from scipy import stats

from dpaudit.defense.noise import Noise, standard_laplace
from dpaudit.errors import PluginError
from dpaudit.rng import Streams

FALSE_FAILURE = 1e-9


def test_the_same_name_gives_the_same_draw() -> None:
    like = torch.empty(50, dtype=torch.float64)
    draw = Noise(Streams(1), 3).gaussian("x", 1.0, like)
    assert torch.equal(draw, Noise(Streams(1), 3).gaussian("x", 1.0, like))
    others = [
        Noise(Streams(2), 3).gaussian("x", 1.0, like),
        Noise(Streams(1), 4).gaussian("x", 1.0, like),
        Noise(Streams(1), 3).gaussian("y", 1.0, like),
    ]
    assert all(not torch.equal(draw, other) for other in others)


def test_gaussian_and_laplace_have_their_distributions() -> None:
    like = torch.empty(200_000, dtype=torch.float64)
    noise = Noise(Streams(11), 1)
    for draws, law in (
        (noise.gaussian("a", 2.5, like), stats.norm(scale=2.5)),
        (noise.laplace("b", 2.5, like), stats.laplace(scale=2.5)),
    ):
        assert stats.kstest(draws.numpy(), law.cdf).pvalue > FALSE_FAILURE


def test_the_scale_is_right_to_a_third_of_a_percent() -> None:
    n, noise = 4_000_000, Noise(Streams(12), 1)
    like = torch.empty(n, dtype=torch.float64)
    tail = stats.norm.isf(FALSE_FAILURE / 2)
    squares = noise.gaussian("a", 2.5, like).square().mean().item() / 2.5**2
    assert abs(squares - 1) < tail * math.sqrt(2 / n)  # var of a standard normal's square is 2
    sizes = noise.laplace("b", 2.5, like).abs().mean().item() / 2.5
    assert abs(sizes - 1) < tail * math.sqrt(1 / n)  # |Laplace| is exponential, variance 1


def test_no_noise_is_exactly_zero() -> None:
    noise, like = Noise(Streams(1), 1), torch.ones(4)
    assert torch.equal(noise.gaussian("x", 0.0, like), torch.zeros(4))
    assert torch.equal(noise.laplace("x", 0.0, like), torch.zeros(4))


def test_laplace_is_finite_where_the_uniform_is_minus_one(monkeypatch) -> None:
    """float32 uniform_(-1, 1) does return -1, about once in 2^24 draws."""
    for dtype, bound in ((torch.float32, 16.7), (torch.float64, 36.8)):
        monkeypatch.setattr(
            torch.Tensor, "uniform_", lambda self, low, high, generator: self.fill_(-1.0)
        )
        draw = standard_laplace(torch.empty(3, dtype=dtype), torch.Generator())
        monkeypatch.undo()
        assert torch.isfinite(draw).all()
        assert (draw < 1 - bound).all()
        assert (draw > -bound).all()


def test_laplace_is_the_inverse_of_its_uniform_draw() -> None:
    for dtype in (torch.float32, torch.float64):
        like = torch.empty(10_000, dtype=dtype)
        u = torch.empty_like(like).uniform_(-1, 1, generator=torch.Generator().manual_seed(5))
        largest = 1 - torch.finfo(dtype).eps / 2
        expected = -u.sign() * torch.log1p(-u.abs().clamp(max=largest).double())
        draws = standard_laplace(like, torch.Generator().manual_seed(5)).double()
        torch.testing.assert_close(draws, expected, rtol=2 * torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize(
    "known_to, said",
    [
        (torch.zeros(3, 1), r"\[3, 1\] of torch.float32"),
        (torch.ones(3, 3, dtype=torch.bool), r"\[3, 3\] of torch.bool"),
        (torch.zeros(1, 1, dtype=torch.long), r"\[1, 1\] of torch.int64"),
        (torch.zeros(3, dtype=torch.long), r"\[3\] of torch.int64"),
        ([[0], [0], [0]], "list"),
    ],
)
def test_who_knows_shared_noise_is_said_row_by_row(known_to: Any, said: str) -> None:
    """An adversary was taken to know less: rows that were not named, or a mask's agents."""
    noise, like = Noise(Streams(3), 1), torch.zeros(2, 3, 4)
    expected = rf'noise.shared\("v"\) is known to {said}; expected .* \[3, n\] of torch.int64'
    with pytest.raises(PluginError, match=expected):
        noise.shared("v", 1.0, like, known_to)
    for right in (torch.zeros(3, 0), torch.zeros(3, 2, dtype=torch.int32)):
        assert noise.shared("v", 1.0, like, right).shape == like.shape
