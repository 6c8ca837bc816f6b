"""The sum of all canaries' channels in the attack: when it is taken, and how often it errs."""

from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.canaries.bound import CHECKED, GuessPlan, SumStatistic, not_gaussian, sum_test
from dpaudit.attacks.canaries.channels import CanaryChannels, CanaryEvidence
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Finding, Name
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.registry import load_plugin

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
SMALL = Claim(text="small", epsilon=0.5, delta=1e-5)
PURE = Claim(text="pure", epsilon=0.5)


def drawn(rng: np.random.Generator, m: int, sizes: np.ndarray) -> CanaryEvidence:
    """Of canaries in every batch, with noise as it is declared."""
    included = rng.random(m) < 0.5
    seen = rng.normal(size=(m, len(sizes))) + sizes * included[:, None]
    return CanaryEvidence(seen @ sizes - sizes @ sizes / 2, included, CanaryChannels(seen, sizes))


def finding_of(context: AttackContext, **options: Any) -> Finding:
    attack = load_plugin("attacks", "canaries")(**options)
    return attack.measure(context, EAVESDROPPER, lambda done, total: None)[0]


def test_one_run_proves_most_of_a_sampled_claim_by_the_sum(context_of) -> None:
    """40 guesses without any error would prove 2.54. ``power`` expects the same before the run."""
    context = context_of("dp-dpsgd", n_rounds=20, noise_multiplier=0.7)
    found = finding_of(context, canaries=400)
    assert Name.GUESSES not in found.metrics
    assert found.metrics["canaries"].value == 400
    assert found.metrics["epsilon lower bound"].value > 5
    assert found.metrics["p-value"].value == pytest.approx(CHECKED)
    assert found.metrics["epsilon lower bound"].standard_error > 0
    assert "bound of the sum" in found.notes[1]
    attack = load_plugin("attacks", "canaries")(canaries=400)
    [(claim, power)] = attack.power(context, EAVESDROPPER)
    assert claim == 0
    for name in (Name.CEILING, Name.EXPECTED_BOUND):
        assert power[name] == found.metrics[name]
    assert power[Name.CEILING].value == inf
    assert Name.TRIALS_NEEDED not in {*power, *found.metrics}
    levels, certified = found.series[Column.LEVEL], found.series[Column.CERTIFIED]
    assert levels[0] == 0.05
    assert certified[0] == found.metrics["epsilon lower bound"].value
    assert list(certified) == sorted(certified, reverse=True)


@pytest.mark.parametrize("claim, why", [(PURE, "no delta"), (SMALL, "not Gaussian")])
def test_guesses_stand_in_where_channels_are_not_gaussian(context_of, claim, why) -> None:
    context = context_of("pedfl", claims=(claim,), n_rounds=2, epsilon=1.0)
    found = finding_of(context, canaries=40)
    assert found.metrics["guesses"].value == 4
    assert why in found.notes[1]
    attack = load_plugin("attacks", "canaries")(canaries=40)
    [(_, power)] = attack.power(context, EAVESDROPPER)
    assert power == {name: found.metrics[name] for name in (Name.CEILING, Name.TRIALS_NEEDED)}


def test_noise_that_is_not_independent_is_judged_by_guesses(context_of) -> None:
    """All canaries share a part of their noise: of the protocol this is not known beforehand."""
    context = context_of("dp-dpsgd", n_rounds=3, noise_multiplier=1.0)
    game = Game.of(context.defense, context.setting, 1, "add-remove", "poisson")
    adversary, rng = Adversary(game, EAVESDROPPER, 3), np.random.default_rng(1)
    assert not_gaussian(adversary) is None
    evidence = drawn(rng, 400, np.ones(3))
    seen = evidence.channels.seen + 0.7 * rng.normal(size=(1, 3))
    shared = evidence._replace(channels=evidence.channels._replace(seen=seen))
    found = sum_test(0, SMALL, adversary, shared, None, GuessPlan(400, 40, 0.05), "one run")
    assert found.metrics["guesses"].value == 40
    assert "not independent and Gaussian" in found.notes[1]
    assert isinstance(SumStatistic.of(evidence, 1.0), SumStatistic)


def test_a_tight_claim_is_refuted_in_5_percent_of_audits() -> None:
    """400 audits of mu 1 over two rounds, with all that is spent on testing the noise; fails
    wrongly with probability 1e-6."""
    rng, sizes, false = np.random.default_rng(8), np.array([0.6, 0.8]), 0
    claimed = gaussian_epsilon(1e-5, 1.0)
    for _ in range(400):
        found = SumStatistic.of(drawn(rng, 300, sizes), 1.0)
        assert isinstance(found, SumStatistic)
        false += found.p_value(claimed, 1e-5) <= 0.05
    assert false <= binom.isf(1e-6, 400, 0.05)


def test_bound_and_p_value_of_a_claim_agree() -> None:
    rng, sizes = np.random.default_rng(5), np.array([0.6, 0.8])
    found = SumStatistic.of(drawn(rng, 300, sizes), 1.0)
    assert isinstance(found, SumStatistic)
    bound = found.epsilon(found.factor(0.05), 1e-5)
    assert found.p_value(bound, 1e-5) == pytest.approx(0.05, rel=0.02)


def test_half_of_the_noise_doubles_what_is_proven() -> None:
    """The scale of the noise is measured: channels as large under half of the noise are mu 2."""
    rng, sizes = np.random.default_rng(5), np.full(20, 1 / 20**0.5)
    evidence = drawn(rng, 1000, 2 * sizes)
    halved = evidence._replace(channels=CanaryChannels(evidence.channels.seen / 2, sizes))
    found = SumStatistic.of(halved, 1.0)
    assert isinstance(found, SumStatistic)
    assert 1.6 < found.factor(0.05) * found.law.mu < 2.0


def test_coins_that_all_fall_alike_prove_nothing() -> None:
    evidence = drawn(np.random.default_rng(5), 20, np.ones(1))
    assert isinstance(SumStatistic.of(evidence._replace(included=np.ones(20, bool)), 1.0), str)
