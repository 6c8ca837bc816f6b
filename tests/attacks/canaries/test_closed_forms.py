"""Figures of one run with many canaries, worked out by hand."""

from math import inf, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from dpaudit.accounting.releases import Interval, epsilon
from dpaudit.attacks.canaries.bound import (
    CHECKED,
    GuessPlan,
    SumStatistic,
    _least_beyond,
    not_gaussian,
    sum_test,
)
from dpaudit.attacks.canaries.channels import CanaryChannels, CanaryEvidence, WithCanaries, _sampled
from dpaudit.attacks.canaries.records import train_with_records
from dpaudit.defense.gossip import releases
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Name
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.rng import Streams
from dpaudit.statistics.sums import CanarySum, noise_scale

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
ONE = np.ones(1)


def summed(value: float, rate: float = 1.0) -> SumStatistic:
    """Fifty canaries of either kind, of mu 1 each, under noise of known scale."""
    return SumStatistic(CanarySum(ONE, rate, 50, 50), ONE, value, 1.0, "")


def test_what_testing_the_noise_takes_is_taken_off_alpha() -> None:
    """N(mu, 1/25) at level 1e-4, where alpha is 2e-4."""
    expected = 3 + 0.2 * ndtri(2e-4 - CHECKED)
    assert summed(3.0).factor(2e-4) == pytest.approx(expected, abs=1e-3)
    assert summed(3.0).factor(CHECKED) == 0.0


def test_what_testing_the_noise_takes_is_added_to_a_p_value() -> None:
    assert summed(20.0).p_value(0.1, 1e-5) == pytest.approx(CHECKED, rel=1e-9)


def test_the_error_of_a_factor_is_one_standard_deviation() -> None:
    assert summed(3.0).factor_error == pytest.approx(0.2, rel=1e-3)


def test_noise_at_most_is_one_over_the_factor() -> None:
    found = summed(3.0)
    metrics = found.metrics(0.5, 1e-5, 0.05)
    assert metrics[Name.NOISE_FACTOR].value == pytest.approx(1 / found.factor(0.05))
    assert metrics[Name.MU_LOWER_BOUND].value == pytest.approx(found.factor(0.05))
    assert summed(0.0).metrics(0.5, 1e-5, 0.05)[Name.NOISE_FACTOR].value == inf


def test_a_sum_proves_the_lower_end_of_epsilon() -> None:
    ends = epsilon(releases(ONE / 2, "poisson", 0.5), 1e-5)
    assert ends.low < ends.high
    assert summed(1.0, rate=0.5).epsilon(2.0, 1e-5) == ends.low


def test_the_factor_of_a_claim_is_rounded_up() -> None:
    """By more than the root may be off, 2e-4 of the power of two above it."""
    assert 0.3 + 2e-4 <= _least_beyond(lambda factor: factor - 0.3) <= 0.3 * 1.01
    assert 1.7 + 4e-4 <= _least_beyond(lambda factor: factor - 1.7) <= 1.7 * 1.01


@pytest.mark.parametrize("p, taken", [(CHECKED * 0.49, False), (CHECKED * 0.51, True)])
def test_half_of_it_decides_whether_noise_is_gaussian(monkeypatch, p: float, taken: bool) -> None:
    module = "dpaudit.attacks.canaries.bound"
    monkeypatch.setattr(f"{module}.channel_noise_test", lambda noise, sizes: ("signs", p))
    seen, included = np.random.default_rng(0).normal(size=(40, 1)), np.arange(40) < 20
    found = SumStatistic.of(CanaryEvidence(seen[:, 0], included, CanaryChannels(seen, ONE)), 1.0)
    assert isinstance(found, SumStatistic) is taken
    if isinstance(found, SumStatistic):
        assert found.law.scale == noise_scale(seen[20:], CHECKED / 4)


def test_canaries_that_are_all_left_out_prove_nothing() -> None:
    seen = np.random.default_rng(0).normal(size=(20, 1))
    for included in (np.zeros(20, bool), np.ones(20, bool)):
        found = SumStatistic.of(
            CanaryEvidence(seen[:, 0], included, CanaryChannels(seen, ONE)), 1.0
        )
        assert isinstance(found, str)


def test_guesses_without_an_error_prove_the_root_of_alpha() -> None:
    """q^r = alpha: of ten guesses q is 0.741, of eight 0.688; four prove nothing."""
    power = GuessPlan(100, 10, 0.05).power(Claim(text="small", epsilon=0.5))
    q = 0.05 ** (1 / 10)
    assert power[Name.CEILING].value == pytest.approx(log(q / (1 - q)), abs=1e-5)
    assert power[Name.TRIALS_NEEDED].value == 80
    fifth = GuessPlan(100, 20, 0.05).power(Claim(text="small", epsilon=0.5))
    assert fifth[Name.TRIALS_NEEDED].value == 40
    large = GuessPlan(100, 1, 0.05).power(Claim(text="large", epsilon=40.0))
    assert large[Name.TRIALS_NEEDED].value == inf


def test_without_any_noise_channels_are_not_gaussian(context_of) -> None:
    context = context_of("d-psgd", n_rounds=2)
    game = Game.of(context.defense, context.setting, 1, "add-remove", "poisson")
    said = not_gaussian(Adversary(game, EAVESDROPPER, 2))
    assert said == "a message shows the record without noise"


@pytest.mark.parametrize(
    ("squares", "said"),
    [
        ((0.0, 0.0), "the view shows nothing of the record"),
        ((), "the view shows nothing of the record"),
        ((0.0, 1.0), None),
    ],
)
def test_a_view_of_nothing_has_no_channels(monkeypatch, squares, said) -> None:
    monkeypatch.setattr("dpaudit.attacks.canaries.bound.nonlinearity", lambda *_: None)
    by_use = tuple(Interval(square, 2.0) for square in squares)
    leak = SimpleNamespace(has_laplace=False, noiseless={}, by_use=by_use)
    adversary: Any = SimpleNamespace(leak=leak, game=None, threat_model=EAVESDROPPER, n_rounds=2)
    assert not_gaussian(adversary) == said


def test_an_alpha_that_testing_takes_is_judged_by_guesses(context_of) -> None:
    context = context_of("dp-dpsgd", n_rounds=1, noise_multiplier=1.0)
    game = Game.of(context.defense, context.setting, 1, "add-remove", "poisson")
    adversary, rng = Adversary(game, EAVESDROPPER, 1), np.random.default_rng(0)
    included, seen = rng.random(40) < 0.5, rng.normal(size=(40, 1))
    evidence = CanaryEvidence(seen[:, 0], included, CanaryChannels(seen, ONE))
    claim = Claim(text="small", epsilon=0.5, delta=1e-5)
    for alpha, by_guesses in ((CHECKED, True), (2 * CHECKED, False)):
        guessing = GuessPlan(40, 4, alpha)
        found = sum_test(0, claim, adversary, evidence, None, guessing, "one run")
        assert (Name.GUESSES in found.metrics) is by_guesses


def test_a_short_canary_is_not_lengthened_by_the_clip(context_of, streams) -> None:
    context = context_of("dp-dpsgd", noise_multiplier=1.0)
    real, d = context.problem.gradient(streams, 1, 5), context.setting.d
    oracle = WithCanaries(real, d, 2, 0.5, torch.ones(1), 5)
    assert oracle.clipped_sum(torch.zeros(4, d + 1), 0.7)[2, d].item() == 0.5
    assert oracle.clipped_sum(torch.zeros(4, d + 1), 0.3)[2, d].item() == pytest.approx(0.3)


@pytest.mark.parametrize("rate, drawn", [(0.0, 0), (1.0, 5)])
def test_canaries_of_the_second_set_are_in_every_batch(rate: float, drawn: int) -> None:
    game = SimpleNamespace(sampling_rate=rate)
    found = _sampled(game, 1, 5, Streams(1), 0)  # type: ignore[arg-type]
    assert found.tolist() == [True] * drawn + [False] * (5 - drawn) + [True] * 5


def test_evidence_on_records_is_beside_their_median(context_of) -> None:
    context = context_of("sgp", graph="directed-ring", n_rounds=3)
    found = train_with_records(context, EAVESDROPPER, 1, "crafted", 21, 3, 0, lambda *_: None)
    assert np.median(found.log_ratios) == 0.0
    assert found.log_ratios.min() < 0 < found.log_ratios.max()
