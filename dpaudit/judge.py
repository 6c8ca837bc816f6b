"""From claims, declared mechanisms and evidence to verdicts."""

from collections.abc import Sequence
from typing import NamedTuple

from dpaudit.accounting import Adjacency, Interval, Mechanism, epsilon
from dpaudit.claim import Claim
from dpaudit.defense import Bracket, Defense, Setting
from dpaudit.errors import ConfigError
from dpaudit.result import Finding, JudgedClaim, Metric, Restated, Verdict
from dpaudit.threat import ThreatModel
from dpaudit.tradeoff import gaussian_epsilon

RESTATED_DELTA = 1e-5  # for claims that name no delta


class Accounted(NamedTuple):
    """Exact accounting of one claim against one threat model, for the agent that is worst off."""

    epsilon: Interval
    victim: int
    assumptions: tuple[str, ...]


def account(
    claim: Claim, threat_model: ThreatModel, defense: Defense, setting: Setting
) -> Accounted:
    """The epsilon that the defense's declared releases give, at the claim's delta and scope.

    Function and agent-identity claims are restated for adding or removing one record.

    Raises:
        ConfigError: the adversary's agents are all there are, so nobody is left to protect.
    """
    victims = [i for i in range(setting.n_agents) if i not in threat_model.agents]
    if not victims:
        raise ConfigError(f'threat_model "{threat_model.name}": no agent is left to attack')
    brackets = [defense.mechanism(setting, threat_model, victim) for victim in victims]
    known: dict[Mechanism, Interval] = {}
    candidates = []
    for victim, bracket in zip(victims, brackets, strict=True):
        interval = _interval(bracket, claim, known)
        candidates.append(Accounted(interval, victim, bracket.assumptions))
    return max(candidates, key=lambda accounted: (accounted.epsilon.low, accounted.epsilon.high))


def accounting_finding(claim: Claim, threat_model: ThreatModel, accounted: Accounted) -> Finding:
    """The evidence that accounting gives; ``unsupported`` if even the least exceeds the claim."""
    low, high = accounted.epsilon
    exceeded = low > claimed_epsilon(claim)
    return Finding(
        kind="accounting",
        title=claim.text,
        threat_model=threat_model.name,
        metrics={
            "epsilon": Metric(value=high, low=low, high=high),
            "claimed epsilon": Metric(value=claimed_epsilon(claim)),
            "delta": Metric(value=_delta(claim)),
        },
        verdict=Verdict.UNSUPPORTED if exceeded else None,
        notes=(f"worst off: agent {accounted.victim}", *accounted.assumptions),
    )


def judge(
    claim: Claim, threat_model: ThreatModel, findings: Sequence[Finding], because: Sequence[int]
) -> JudgedClaim:
    """The verdict on a claim against one threat model from the findings that bear on it.

    A reconstruction, however good, certifies no lower bound on epsilon, so without accounting
    against the claim and without a test that could refute it the verdict is ``underpowered``.
    """
    accounting = next(findings[i] for i in because if findings[i].kind == "accounting")
    bounds = accounting.metrics["epsilon"]
    low, high = float(bounds.low or 0), float(bounds.high or 0)
    verdict, reason = _verdict(claim, low, high)
    return JudgedClaim(
        text=claim.text,
        sentence=claim.sentence(),
        epsilon=claim.epsilon,
        delta=claim.delta,
        mu=claim.mu,
        scope=claim.scope,
        adjacency=claim.adjacency,
        threat_model=threat_model.name,
        restated=Restated(
            epsilon=bounds,
            delta=_delta(claim),
            adjacency=_adjacency(claim),
            assumptions=accounting.notes,
        ),
        verdict=verdict,
        confidence=None,
        because=tuple(because),
        reason=reason,
    )


def claimed_epsilon(claim: Claim) -> float:
    """The claim as an epsilon at its delta (a mu-GDP claim at delta 1e-5)."""
    if claim.mu is not None:
        return gaussian_epsilon(_delta(claim), claim.mu)
    assert claim.epsilon is not None
    return claim.epsilon


def _verdict(claim: Claim, low: float, high: float) -> tuple[Verdict, str]:
    claimed = claimed_epsilon(claim)
    if low == float("inf"):
        return Verdict.REFUTED, "A message that depends on the data is sent with no noise at all."
    if low > claimed:
        return (
            Verdict.UNSUPPORTED,
            f"The noise really drawn gives epsilon between {low:.3g} and {high:.3g} at delta "
            f"{_delta(claim):g} to this adversary; {claimed:g} is claimed.",
        )
    supported = "supports the claim" if high <= claimed else "does not settle the claim"
    return (
        Verdict.UNDERPOWERED,
        f"Accounting {supported} (epsilon between {low:.3g} and {high:.3g}, {claimed:g} claimed), "
        "and no attack in this audit could certify a lower bound on epsilon.",
    )


def _interval(bracket: Bracket, claim: Claim, known: dict[Mechanism, Interval]) -> Interval:
    ends = []
    for mechanism in (bracket.least, bracket.most):
        key = tuple(_in_scope(mechanism, claim))
        if key not in known:
            known[key] = epsilon(key, _delta(claim), _adjacency(claim))
        ends.append(known[key])
    return Interval(ends[0].low, ends[1].high)


def _in_scope(mechanism: Mechanism, claim: Claim) -> Mechanism:
    """The whole run, or the round with the least noise."""
    if claim.scope == "run" or not mechanism:
        return mechanism
    least = min(mechanism, key=lambda release: release.noise_multiplier)
    return (least.model_copy(update={"count": 1}),)


def _delta(claim: Claim) -> float:
    return claim.delta if claim.delta > 0 else RESTATED_DELTA


def _adjacency(claim: Claim) -> Adjacency:
    return "replace-one" if claim.adjacency == "replace-one" else "add-remove"
