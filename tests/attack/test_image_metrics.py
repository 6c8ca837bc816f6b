"""Scores against known values, scikit-image and scipy; the blind baseline sees public data only."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from skimage.metrics import structural_similarity

from dpaudit.attack.image_metrics import PSNR_CAP, Scores, blind, estimates, interval, paired, score
from dpaudit.errors import DpauditError

RANGE = (-1.0, 1.0)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize("offset", [0.1, 0.5, 2.0])
def test_a_constant_offset_has_its_square_as_mse(offset: float) -> None:
    truth = torch.full((2, 3, 1, 8, 8), -1.0)
    scores = score(truth, truth + offset, RANGE)
    assert scores.mse == pytest.approx(offset**2)
    assert scores.psnr == pytest.approx(10 * math.log10(4 / offset**2))


def test_psnr_and_ssim_depend_on_the_value_range() -> None:
    truth = torch.zeros(1, 1, 1, 8, 8)
    scores = score(truth, truth + 0.1, (0.0, 1.0))
    assert scores.psnr == pytest.approx(20.0)
    c1 = 0.01**2  # (K1 * data range)^2; flat images leave only the luminance term
    assert scores.ssim == pytest.approx(c1 / (0.1**2 + c1))


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_is_that_of_scikit_image_averaged_over_the_batch(channels: int) -> None:
    truth, other = images(2, 1, channels, 9, 12), images(2, 1, channels, 9, 12, seed=1)
    expected = [
        np.mean(
            [structural_similarity(*p, win_size=7, data_range=2) for p in zip(t, o, strict=True)]
        )
        for t, o in zip(truth[:, 0].double().numpy(), other[:, 0].double().numpy(), strict=True)
    ]
    assert score(truth, other, RANGE).ssim == pytest.approx(expected)


def test_ssim_of_one_window_is_its_published_formula() -> None:
    x, y = images(7, 7).double(), images(7, 7, seed=1).double()
    covariance = torch.cov(torch.stack([x.flatten(), y.flatten()]))  # unbiased, n - 1
    c1, c2 = (0.01 * 2) ** 2, (0.03 * 2) ** 2
    expected = ((2 * x.mean() * y.mean() + c1) * (2 * covariance[0, 1] + c2)) / (
        (x.mean() ** 2 + y.mean() ** 2 + c1) * (covariance.trace() + c2)
    )
    assert score(x.expand(1, 1, 1, 7, 7), y.expand(1, 1, 1, 7, 7), RANGE).ssim == pytest.approx(
        float(expected)
    )


def test_a_permuted_batch_is_aligned_back_exactly() -> None:
    truth = images(3, 6, 1, 8, 8)
    shuffle = torch.stack(
        [torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    )
    scores = score(truth, truth.take_along_dim(shuffle[..., None, None, None], 1), RANGE)
    assert torch.equal(scores.order, shuffle.argsort(1))
    assert (scores.mse == 0).all()
    assert scores.ssim == pytest.approx(1.0)


def test_alignment_minimises_the_total_error() -> None:
    truth = torch.tensor([0.0, 0.4]).view(1, 2, 1, 1, 1).expand(1, 2, 1, 7, 7)
    guess = torch.tensor([0.3, -0.9]).view(1, 2, 1, 1, 1).expand(1, 2, 1, 7, 7)
    scores = score(truth, guess, RANGE)  # 0.3 is nearest to both
    assert scores.order.tolist() == [[1, 0]]
    assert scores.mse == pytest.approx((0.9**2 + 0.1**2) / 2)


def test_identical_images_score_the_capped_psnr() -> None:
    truth = images(1, 2, 1, 8, 8)
    half = truth.clone()
    half[0, 1] += 0.2  # 20 dB
    assert score(truth, truth, RANGE).psnr == pytest.approx(PSNR_CAP)
    assert score(truth, half, RANGE).psnr == pytest.approx((PSNR_CAP + 20) / 2)


def test_images_smaller_than_the_window_are_refused_in_one_line() -> None:
    truth = images(1, 1, 1, 8, 6)
    with pytest.raises(DpauditError, match=r"window of 7 x 7 .* got \[1, 8, 6\]") as error:
        score(truth, truth, RANGE)
    assert "\n" not in str(error.value)


def test_a_reconstruction_of_another_shape_is_refused() -> None:
    with pytest.raises(DpauditError, match=r"\[1, 2, 1, 8, 8\].*\[1, 3, 1, 8, 8\]"):
        score(images(1, 3, 1, 8, 8), images(1, 2, 1, 8, 8), RANGE)


def test_interval_is_scipys_student_interval() -> None:
    values = np.random.default_rng(3).normal(2.0, 3.0, 8)
    low, high = stats.t.interval(0.95, 7, values.mean(), stats.sem(values))
    assert interval(values) == pytest.approx((values.mean(), low, high, 8, stats.sem(values)))


@pytest.mark.parametrize("n", [2, 3])
def test_too_few_cases_have_no_interval_but_a_standard_error(n: int) -> None:
    values = [0.5, 0.7, 0.9][:n]
    assert interval(values) == pytest.approx((np.mean(values), None, None, n, stats.sem(values)))


def test_a_single_case_has_neither() -> None:
    assert interval([0.5]) == (0.5, None, None, 1, None)


def test_an_infinite_case_leaves_the_error_unknown() -> None:
    with warnings.catch_warnings(action="error"):
        assert interval([1.0, np.inf, 2.0, 3.0]) == (np.inf, None, None, 4, None)


@pytest.mark.parametrize("share, n", [(0.0, 4), (1.0, 9)])
def test_shares_that_do_not_vary_have_the_exact_interval(share: float, n: int) -> None:
    exact = stats.binomtest(round(share * n), n).proportion_ci(0.95, method="exact")
    assert interval([share] * n, (0.0, 1.0))[1:3] == pytest.approx((exact.low, exact.high))


def test_no_interval_leaves_the_range_of_its_metric() -> None:
    far = np.array([0.0, 0.0, 0.0, 60.0])  # Student's interval goes far beyond all of the ranges
    found = estimates(Scores(far, far, far / 60, torch.zeros(4, 1)), range(4))
    assert found["mse"].low == 0
    assert found["psnr"].high == PSNR_CAP
    assert interval([-1.0, 1.0, 1.0, 1.0], (-1, 1)).high == 1
    assert interval([0.0, 0.0, 0.0, 1.0], (0, 1)).low == 0
    assert paired([1, -1, 1, -1], [-1, 1, -1, 1])[1:3] == (-2, 2)


def test_paired_differences_do_not_see_what_both_share() -> None:
    shared = np.random.default_rng(4).normal(0, 100, 6)
    estimate = paired(shared + 0.25, shared)
    assert estimate == pytest.approx((0.25, 0.25, 0.25, 6, 0))


def test_estimates_and_gains_name_every_score() -> None:
    one = np.array([1.0, 3.0])
    scores = Scores(one, one * 10, one / 10, torch.zeros(2, 1))
    assert {k: e.value for k, e in estimates(scores, "ab").items()} == {
        "mse": 2,
        "psnr": 20,
        "ssim": 0.2,
    }


def test_the_blind_baseline_is_of_images_of_other_classes() -> None:
    public, classes = images(30, 1, 8, 8), torch.arange(30) % 3
    labels = torch.tensor([[0, 1], [2, 2], [1, 0]]).repeat(200, 1)
    guess = blind(labels, public, classes, torch.Generator().manual_seed(0))
    which = (guess.other_class[:, :, None] == public).flatten(3).all(-1)  # [m, B, n]
    assert (which.sum(-1) == 1).all()
    assert (classes[which.long().argmax(-1)] != labels).all()
    assert len(which.long().argmax(-1).unique()) == 30  # missed with probability 3e-17
    assert torch.equal(guess.mean_image, public.mean(0).expand(600, 2, 1, 8, 8))


def test_the_blind_baseline_needs_two_public_classes() -> None:
    with pytest.raises(DpauditError, match="two classes"):
        blind(torch.zeros(1, 1), images(4, 1, 8, 8), torch.ones(4), torch.Generator())
