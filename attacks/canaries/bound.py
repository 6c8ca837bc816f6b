"""What one run with many canaries proves: findings on epsilon and on the noise.

Where the canaries' channels are Gaussian, the sum of what they show bounds how many times as loud a
channel is as declared. A channel is a part of the view, so that an epsilon of it is one of the
view: a claim is refuted where the accounted epsilon of the least such channel, at the claim's
delta, exceeds it. That rests on Gaussian noise of one scale, independent between channels, which is
tested on the canaries that are not there and not proven; the scale itself is bounded. Both together
may err with probability ``CHECKED``, which is taken off alpha and added to each p-value.

Elsewhere guesses on single canaries are counted, which assumes nothing about the mechanism.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import epsilon
from dpaudit.attack.figures import of_claim
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.game.filtering.adversary import Adversary, reacting_note, with_every_link
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.statistics.bounds import smallest_alpha
from dpaudit.statistics.guesses import (
    correct_guesses,
    epsilon_from_guesses,
    mu_from_ranked_guesses,
    shift_from_guesses,
)
from dpaudit.statistics.sums import MOST_FACTOR, CanarySum, channel_noise_test, noise_scale

from .channels import CanaryEvidence

MOST_CANARIES = 10**5  # considered where too few are said to be used
CHECKED = 1e-4  # probability of judging correct noise wrong, in its law or its scale
ONE_DEVIATION = 0.15865525393145707  # share of a normal law above one standard deviation
LEVELS = tuple(0.05 / 2**i for i in range(6))  # for up to 32 statements of an audit
NEAR = 2e-4  # relative, of the factor at which an epsilon is reached
NOTE = (
    "bound of the sum of all canaries' scores: holds for Gaussian noise of one scale, independent "
    "between channels, which is tested here on the canaries that are not there (p = {p:.2g}; at "
    "{low:.4g} to {high:.4g} times the declared scale), and not proven"
)


def not_gaussian(adversary: Adversary) -> str | None:
    """Why the channels of an adversary's view are not Gaussian by the protocol; None: they are."""
    leak, game = adversary.leak, adversary.game
    if leak.has_laplace:
        return "the noise is not Gaussian"
    if leak.noiseless:
        return "a message shows the record without noise"
    if not any(squared.low > 0 for squared in leak.by_use):
        return "the view shows nothing of the record"
    if nonlinearity(game, adversary.threat_model, adversary.n_rounds) is not None:
        return "the defense's step is not linear in noise and record"
    return None


def not_separate(adversary: Adversary) -> str | None:
    """Why batches are not separate in a channel; None: they are, or there is only one draw."""
    if adversary.leak.separate or adversary.game.is_lasting:
        return None
    return "a record's effect outlasts its round"


@dataclass(frozen=True)
class SumStatistic:
    """The statistic of one run's canaries."""

    law: CanarySum
    sizes: Array  # [T]
    value: float
    mean_square: float  # of the channels' noise
    note: str

    @classmethod
    def of(cls, evidence: CanaryEvidence, rate: float) -> "SumStatistic | str":
        """The statistic, or why there is none: what the channels' noise is not."""
        assert evidence.channels is not None
        (seen, sizes), included = evidence.channels, np.asarray(evidence.included, bool)
        if included.all() or not included.any():
            return "the coins made all canaries alike"
        noise = seen[~included]
        what, p = channel_noise_test(noise, sizes)
        if p <= CHECKED / 2:
            return f"the noise of the channels is not independent and Gaussian: {what}, p = {p:.1g}"
        scale = noise_scale(noise, CHECKED / 4)
        law = CanarySum(sizes, rate, int(included.sum()), int((~included).sum()), scale)
        note = NOTE.format(p=p, low=scale.low, high=scale.high)
        value, mean_square = law.statistic(seen, sizes, included), float(np.square(noise).mean())
        return cls(law, sizes, value, mean_square, note)

    @classmethod
    def expected(cls, sizes: Array, rate: float, n_canaries: int) -> "SumStatistic":
        """What is to be expected of a run with the declared noise."""
        half = n_canaries // 2
        scale = noise_scale(np.ones((half, len(sizes))), CHECKED / 4)
        law = CanarySum(sizes, rate, n_canaries - half, half, scale)
        return cls(law, sizes, law.mean(), 1.0, "")

    def factor(self, alpha: float) -> float:
        """How many times the declared size the channels exceed."""
        return self.law.largest_refuted(self.value, alpha - CHECKED)

    @cached_property
    def factor_error(self) -> float:
        """The standard error of that factor."""
        middle, below = (self.law.largest_refuted(self.value, p) for p in (0.5, ONE_DEVIATION))
        return middle - below

    def epsilon(self, factor: float, delta: float) -> float:
        """A lower bound on epsilon if the channels are ``factor`` times as large as declared."""
        if factor == 0:
            return 0.0
        multipliers = 1 / (factor * self.sizes)
        how = "none" if self.law.rate == 1 else "poisson"
        return epsilon(dp.releases(multipliers, how, self.law.rate), delta).low  # type: ignore[arg-type]

    def p_value(self, claimed: float, delta: float) -> float:
        """The smallest alpha at which the claim is refuted."""
        factor = _least_beyond(lambda factor: self.epsilon(factor, delta) - claimed)
        return min(1.0, self.law.tail(self.value, factor) + CHECKED)

    def evidence(self) -> dict[str, tuple[float, ...]]:
        """What the bounds follow from."""
        law = self.law
        return {
            da.Evidence.USE_SIZES: tuple(law.sizes.tolist()),
            da.Evidence.USES: tuple(law.uses.astype(float).tolist()),
            da.Evidence.USE_RATE: (law.rate,),
            da.Evidence.SUM: (self.value,),
            da.Evidence.THERE: (float(law.n_present),),
            da.Evidence.MEAN_SQUARE: (self.mean_square,),
        }

    def metrics(self, claimed: float, delta: float, alpha: float) -> dict[str, da.Metric]:
        """What a run's sum proves of epsilon, and says of the claim."""
        n, factor = self.law.n_present + self.law.n_absent, self.factor(alpha)
        bound = self.epsilon(factor, delta)
        error = self.epsilon(factor + self.factor_error, delta) - bound
        metrics: dict[str, da.Metric] = {
            da.Name.EPSILON_LOWER_BOUND: da.Metric(value=bound, n=n, standard_error=error),
            **of_claim(claimed, delta, alpha, self.p_value(claimed, delta)),
            da.Name.CANARIES: da.Metric(value=n),
            da.Name.NOISE_FACTOR: da.Metric(value=1 / factor if factor else inf),
        }
        if self.law.rate == 1:
            metrics[da.Name.MU_LOWER_BOUND] = da.Metric(value=factor * self.law.mu, n=n)
        return metrics


def power_metrics(
    sizes: Array, rate: float, n_canaries: int, delta: float, alpha: float
) -> dict[str, da.Metric]:
    """What could be expected before the run, of the declared noise.

    There is no ceiling: the less noise there really is, the more any number of canaries proves. So
    it is not their number that a refutation needs.
    """
    expected = SumStatistic.expected(sizes, rate, n_canaries)
    return {
        da.Name.CEILING: da.Metric(value=inf, n=n_canaries),
        da.Name.EXPECTED_BOUND: da.Metric(value=expected.epsilon(expected.factor(alpha), delta)),
    }


class GuessPlan(NamedTuple):
    """How many of the canaries are guessed on, fixed before any is seen."""

    canaries: int
    guesses: int
    alpha: float  # probability of a false lower bound

    def right(self, evidence: CanaryEvidence) -> int:
        return correct_guesses(evidence.log_ratios, evidence.included, self.guesses)

    def bound(self, right: int, delta: float, alpha: float) -> float:
        return epsilon_from_guesses(self.canaries, self.guesses, right, delta, alpha)

    def power(self, claim: da.Claim) -> dict[str, da.Metric]:
        """What guesses without an error prove, and how many canaries would then do."""
        delta, needed = claimed_delta(claim), 20

        def ceiling(canaries: int) -> float:
            guesses = max(1, canaries * self.guesses // self.canaries)
            return epsilon_from_guesses(canaries, guesses, guesses, delta, self.alpha)

        while needed <= MOST_CANARIES and ceiling(needed) <= claimed_epsilon(claim):
            needed *= 2  # may be up to twice too many
        return {
            da.Name.CEILING: da.Metric(value=ceiling(self.canaries), n=self.canaries),
            da.Name.TRIALS_NEEDED: da.Metric(value=needed if needed <= MOST_CANARIES else inf),
        }

    def counted(self, right: int) -> dict[str, da.Metric]:
        return {
            da.Name.GUESSES: da.Metric(value=self.guesses),
            da.Name.RIGHT_GUESSES: da.Metric(value=right, n=self.guesses),
        }


def sum_test(
    index: int,
    claim: da.Claim,
    adversary: Adversary,
    evidence: CanaryEvidence,
    why: str | None,
    guessing: GuessPlan,
    common: str,
) -> da.Finding:
    """The test of a claim by the sum of channels; by guesses where these are not Gaussian.

    Which is taken is decided by the protocol and by canaries that are not there. Noise that is as
    declared is taken for something else with probability ``CHECKED`` at most, which is part of
    alpha.

    Args:
        why: the channels of this view are not separate and Gaussian; None: they are.
    """
    rate, delta, alpha = adversary.game.sampling_rate, claimed_delta(claim), guessing.alpha
    if delta == 0:
        why = "the claim has no delta, without which Gaussian noise has no epsilon"
    elif alpha <= CHECKED:
        why = f"alpha is {CHECKED:g} or less, which testing the noise takes"
    found = SumStatistic.of(evidence, rate) if why is None else why
    view, n_rounds = adversary.threat_model, adversary.n_rounds
    if isinstance(found, str):
        notes = (common, f"by guesses, for {found}")
        return guess_test(index, claim, view, n_rounds, evidence, guessing, notes)
    metrics = found.metrics(claimed_epsilon(claim), delta, alpha)
    metrics |= power_metrics(found.sizes, rate, guessing.canaries, delta, alpha)
    certified = tuple(found.epsilon(found.factor(level), delta) for level in LEVELS)
    levels: dict[str, tuple[float, ...]] = {da.Column.LEVEL: LEVELS, da.Column.CERTIFIED: certified}
    finding = claim_finding(index, view, (common, found.note), (1, n_rounds), metrics, levels)
    return finding.model_copy(update={"evidence": found.evidence()})


def guess_test(
    index: int,
    claim: da.Claim,
    threat_model: da.ThreatModel,
    n_rounds: int,
    evidence: CanaryEvidence,
    guessing: GuessPlan,
    notes: Sequence[str],
) -> da.Finding:
    """The bound that assumes nothing about the mechanism."""
    alpha, right = guessing.alpha, guessing.right(evidence)
    delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
    p_value = smallest_alpha(lambda alpha: guessing.bound(right, delta, alpha) > claimed)
    bound = da.Metric(value=guessing.bound(right, delta, alpha), n=guessing.canaries)
    metrics: dict[str, da.Metric] = {
        da.Name.EPSILON_LOWER_BOUND: bound,
        **of_claim(claimed, delta, alpha, p_value),
        **guessing.counted(right),
        **guessing.power(claim),
    }
    said = (*notes, "bound of Steinke, Nasr and Jagielski: any mechanism")
    return claim_finding(index, threat_model, said, (1, n_rounds), metrics)


def claim_finding(
    claim: int,
    threat_model: da.ThreatModel,
    notes: Sequence[str],
    rounds: tuple[int, ...] = (),
    metrics: dict[str, da.Metric] | None = None,
    series: dict[str, tuple[float, ...]] | None = None,
) -> da.Finding:
    """The finding on a claim, by its index."""
    return da.Finding(
        role=da.Role.TEST,
        kind="empirical-epsilon",
        title="one run, many canaries",
        claim=claim,
        attack="canaries",
        threat_model=threat_model.name,
        rounds=rounds,
        world="defense",
        metrics=metrics or {},
        notes=tuple(notes),
        series=series or {},
    )


def noise_bound(
    adversary: Adversary,
    evidence: CanaryEvidence,
    why: str | None,
    guessing: GuessPlan,
    common: str,
) -> da.Finding:
    """How much noise there is at most, from canaries in every batch."""
    (m, r, alpha), right = guessing, guessing.right(evidence)
    found = SumStatistic.of(evidence, 1.0) if why is None else why
    if isinstance(found, str):
        how = f"bound of Xiang et al. (order statistics of Gaussian channels), for {found}"
        mu = mu_from_ranked_guesses(m, r, right, alpha)
    else:
        mu, how = found.factor(alpha) * found.law.mu, found.note
    of_protocol, reacting = _by_algebra(adversary)
    return da.Finding(
        role=da.Role.NOISE_BOUND,
        kind="empirical-epsilon",
        title="noise of the run, from canaries in every batch",
        attack="canaries",
        threat_model=adversary.threat_model.name,
        rounds=(1, adversary.n_rounds),
        world="defense",
        metrics={
            da.Name.MU_LOWER_BOUND: da.Metric(value=mu, n=m),
            da.Name.MU_OF_WHOLE_CURVE: da.Metric(value=shift_from_guesses(m, r, right, alpha), n=m),
            da.Name.MU_OF_PROTOCOL: of_protocol,
            da.Name.CONFIDENCE: da.Metric(value=1 - alpha),
            **guessing.counted(right),
        },
        notes=(
            common,
            how,
            *reacting,
            "bound of the whole curve of the Gaussian family by Mahloujifar, Melis and Chaudhuri",
            "these canaries are in every batch, so that sampling hides nothing: mu is of the "
            "noise alone, and is held against no claim",
        ),
    )


def _by_algebra(adversary: Adversary) -> tuple[da.Metric, tuple[str, ...]]:
    """mu of a record in every batch; both ends, and notes that say so, where gradients react."""
    mu = float(adversary.leak.by_round.max())
    if adversary.reacts is None:
        return da.Metric(value=mu), ()
    view = with_every_link(adversary.threat_model)
    everything = Adversary(adversary.game, view, adversary.n_rounds)
    most = inf if everything.reacts else float(everything.leak.by_round.max())
    relayed = "no other agent has a gradient on a canary's coordinate: canaries play the lower end"
    return da.Metric(value=mu, low=mu, high=max(mu, most)), (
        reacting_note(adversary.reacts),
        relayed,
    )


def _least_beyond(excess: Callable[[float], float]) -> float:
    """The least factor at which a rising excess is positive, rounded up; else the largest."""
    low, high = 0.0, 1.0
    while excess(high) <= 0:
        if high >= MOST_FACTOR:
            return high
        low, high = high, 2 * high
    return float(brentq(excess, low, high, xtol=NEAR * high, rtol=NEAR)) + 2 * NEAR * high
