"""What one run with many canaries proves: findings on epsilon and on the noise."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.gradient_reaction import reacting_note, with_every_link
from dpaudit.statistics.bounds import smallest_alpha
from dpaudit.statistics.guesses import (
    correct_guesses,
    epsilon_from_guesses,
    mu_from_ranked_guesses,
    shift_from_guesses,
)

from .channels import Evidence
from .sums import CHECKED, Summed, bound_metrics, by_level, power_metrics

MOST_CANARIES = 10**5  # considered where too few are said to be used


class Guessing(NamedTuple):
    """How many of the canaries are guessed on, fixed before any is seen."""

    canaries: int
    guesses: int
    alpha: float  # of a false lower bound

    def power(self, claim: Claim) -> dict[str, Metric]:
        """What guesses without an error prove, and how many canaries would then do."""
        delta = claimed_delta(claim)
        return {
            Name.CEILING: Metric(value=self._ceiling(self.canaries, delta), n=self.canaries),
            Name.TRIALS_NEEDED: Metric(value=self._needed(claim)),
        }

    def p_value(self, claim: Claim, right: int) -> float:
        """The smallest alpha at which so many right guesses refute the claim."""
        delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
        return smallest_alpha(
            lambda alpha: (
                epsilon_from_guesses(self.canaries, self.guesses, right, delta, alpha) > claimed
            )
        )

    def _ceiling(self, canaries: int, delta: float) -> float:
        guesses = max(1, canaries * self.guesses // self.canaries)
        return epsilon_from_guesses(canaries, guesses, guesses, delta, self.alpha)

    def _needed(self, claim: Claim) -> float:
        """Up to twice too many."""
        needed = 20
        while self._ceiling(needed, claimed_delta(claim)) <= claimed_epsilon(claim):
            needed *= 2
            if needed > MOST_CANARIES:
                return inf
        return needed


def sum_test(
    index: int,
    claim: Claim,
    threat_model: ThreatModel,
    adversary: Adversary,
    evidence: Evidence,
    why: str | None,
    guessing: Guessing,
    common: str,
) -> Finding:
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
    found = Summed.of(evidence, rate) if why is None else why
    if isinstance(found, str):
        notes = (common, f"by guesses, for {found}")
        return guess_test(index, claim, threat_model, adversary.n_rounds, evidence, guessing, notes)
    sizes, n = found.sizes, guessing.canaries
    metrics = bound_metrics(found, claimed_epsilon(claim), delta, alpha)
    metrics |= power_metrics(sizes, rate, n, delta, alpha)
    notes, levels = (common, found.note), by_level(found, delta)
    return _test(index, claim, threat_model, adversary.n_rounds, metrics, notes, levels)


def guess_test(
    index: int,
    claim: Claim,
    threat_model: ThreatModel,
    n_rounds: int,
    evidence: Evidence,
    guessing: Guessing,
    notes: Sequence[str],
) -> Finding:
    """The bound that assumes nothing about the mechanism."""
    m, r, alpha = guessing
    right = correct_guesses(evidence.log_ratios, evidence.included, r)
    delta = claimed_delta(claim)
    metrics: dict[str, Metric] = {
        Name.EPSILON_LOWER_BOUND: Metric(
            value=epsilon_from_guesses(m, r, right, delta, alpha), n=m
        ),
        Name.CLAIMED_EPSILON: Metric(value=claimed_epsilon(claim)),
        Name.DELTA: Metric(value=delta),
        Name.CONFIDENCE: Metric(value=1 - alpha),
        Name.P_VALUE: Metric(value=guessing.p_value(claim, right)),
        Name.GUESSES: Metric(value=r),
        Name.RIGHT_GUESSES: Metric(value=right, n=r),
    }
    said = (*notes, "bound of Steinke, Nasr and Jagielski: any mechanism")
    return _test(index, claim, threat_model, n_rounds, metrics | guessing.power(claim), said)


def _test(
    index: int,
    claim: Claim,
    threat_model: ThreatModel,
    n_rounds: int,
    metrics: dict[str, Metric],
    notes: Sequence[str],
    series: dict[str, tuple[float, ...]] | None = None,
) -> Finding:
    return Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="one run, many canaries",
        claim=index,
        attack="canaries",
        threat_model=threat_model.name,
        rounds=(1, n_rounds),
        world="defense",
        metrics=metrics,
        notes=tuple(notes),
        series=series or {},
    )


def _least_mu(
    evidence: Evidence, why: str | None, guessing: Guessing, right: int
) -> tuple[float, str]:
    """mu at least, from scores if nothing says why not, else from guesses; and how."""
    m, r, alpha = guessing
    found = Summed.of(evidence, 1.0) if why is None else why
    if isinstance(found, str):
        how = f"bound of Xiang et al. (order statistics of Gaussian channels), for {found}"
        return mu_from_ranked_guesses(m, r, right, alpha), how
    return found.factor(alpha) * found.law.mu, found.note


def noise_bound(
    threat_model: ThreatModel,
    adversary: Adversary,
    evidence: Evidence,
    why: str | None,
    guessing: Guessing,
    common: str,
) -> Finding:
    """How much noise there is at most, from canaries in every batch."""
    m, r, alpha = guessing
    right = correct_guesses(evidence.log_ratios, evidence.included, r)
    mu, how = _least_mu(evidence, why, guessing, right)
    return Finding(
        role=Role.NOISE_BOUND,
        kind="empirical-epsilon",
        title="noise of the run, from canaries in every batch",
        attack="canaries",
        threat_model=threat_model.name,
        rounds=(1, adversary.n_rounds),
        world="defense",
        metrics={
            Name.MU_LOWER_BOUND: Metric(value=mu, n=m),
            Name.MU_OF_WHOLE_CURVE: Metric(value=shift_from_guesses(m, r, right, alpha), n=m),
            Name.MU_OF_PROTOCOL: _mu_of_protocol(adversary),
            Name.CONFIDENCE: Metric(value=1 - alpha),
            Name.GUESSES: Metric(value=r),
            Name.RIGHT_GUESSES: Metric(value=right, n=r),
        },
        notes=(
            common,
            how,
            *_reacting(adversary),
            "bound of the whole curve of the Gaussian family by Mahloujifar, Melis and Chaudhuri",
            "these canaries are in every batch, so that sampling hides nothing: mu is of the "
            "noise alone, and is held against no claim",
        ),
    )


def _mu_of_protocol(adversary: Adversary) -> Metric:
    """mu of a record in every batch, by the algebra; both ends where gradients react."""
    mu = float(adversary.leak.by_round.max())
    if adversary.reacts is None:
        return Metric(value=mu)
    view = with_every_link(adversary.threat_model)
    everything = Adversary(adversary.game, view, adversary.n_rounds)
    most = inf if everything.reacts else float(everything.leak.by_round.max())
    return Metric(value=mu, low=mu, high=max(mu, most))


def _reacting(adversary: Adversary) -> Iterator[str]:
    if adversary.reacts is not None:
        yield reacting_note(adversary.reacts)
        yield "no other agent has a gradient on a canary's coordinate: canaries play the lower end"
