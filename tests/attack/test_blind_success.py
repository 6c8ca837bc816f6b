"""How often a guess that sees nothing comes near: brackets that hold, and cases known exactly."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.attack.blind_success import PublicClass, blind_success
from dpaudit.data.datasets import Dataset

MSE = np.array([0.0, 0.01, 1.0, 100.0])


def images(values: list[float]) -> Tensor:
    """Of one grey each, [m, 1, 8, 8]: the error of two is the square of their difference."""
    return torch.tensor(values)[:, None, None, None].expand(-1, 1, 8, 8)


def test_images_far_apart_are_equally_likely_ones() -> None:
    public = PublicClass(images([0.0, 10.0, 20.0]), MSE[:2])
    kappa = public.kappa(images([30.0])[0])
    assert kappa.low == pytest.approx(0.25)
    assert kappa.high == pytest.approx(0.25)
    assert public.alone == pytest.approx(1 / 3)


def test_a_ball_between_two_images_holds_both() -> None:
    """Their middle is within 1 of both, none of them is within 1 of the other."""
    kappa = PublicClass(images([0.0, 10.0]), np.array([1.0])).kappa(images([1.9])[0])
    assert kappa.low == pytest.approx(1 / 3)
    assert kappa.high == pytest.approx(2 / 3)


def test_without_public_images_nothing_is_known() -> None:
    public = PublicClass(torch.zeros(0, 1, 8, 8), MSE)
    assert public.kappa(images([1.0])[0]).high == pytest.approx(1.0)
    assert public.alone == pytest.approx(1.0)


def test_guesses_keep_to_the_upper_and_the_best_to_the_lower() -> None:
    """2,000 guesses, among them all means of two images."""
    rng = np.random.default_rng(4)
    pool = torch.from_numpy(rng.normal(size=(40, 1, 8, 8)) * rng.choice([0.2, 1.0], (40, 1, 1, 1)))
    mse = np.array([0.05, 0.2, 0.6, 1.0])
    kappa = PublicClass(pool[1:], mse).kappa(pool[0])
    flat = pool.flatten(1).numpy()
    pairs = rng.integers(40, size=(2000, 2))
    means = [flat[1:].mean(axis=0, keepdims=True), np.zeros((1, 64))]
    guesses = np.concatenate([flat[pairs].mean(axis=1), flat, *means])
    errors = ((guesses[:, None] - flat) ** 2).mean(axis=2)  # [guesses, images]
    best = [(errors <= limit).mean(axis=1).max() for limit in mse]
    assert (kappa.low <= np.array(best) + 1e-12).all()
    assert (np.array(best) <= kappa.high + 1e-12).all()
    assert kappa.high[0] < 1


def test_the_prior_is_that_of_the_targets_label() -> None:
    """Of a class with fewer public images a target is guessed more often."""
    x = torch.cat([images([0.0, 10.0, 20.0]), images([-30.0])])
    data = Dataset("d", x, torch.tensor([0, 0, 0, 1]), x, torch.tensor([0, 0, 0, 1]), ("a", "b"))
    ssim = np.array([0.5])
    for label, kappa in ((0, 1 / 4), (1, 1 / 2)):
        found = blind_success(data, [images([50.0])[0]], [label], MSE[:1], ssim)
        assert found.kappa.high == pytest.approx(kappa)
    both = blind_success(data, list(images([50.0, 60.0])), [0, 1], MSE[:1], ssim)
    assert both.kappa.high == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert 0 <= both.by_ssim[0] <= 1
