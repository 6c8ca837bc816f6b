"""What the measured releases of a program add up to, for a claim and an adversary."""

from math import hypot, inf

from dpaudit.accounting.releases import Interval, Release, epsilon
from dpaudit.defense.claim_accounting import (
    Accounted,
    claimed_delta,
    claimed_epsilon,
    record_adjacency,
)
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.case import CAPTURED

from .measured import Leak
from .worlds import Pair, Worlds

SLACK = 1e-3  # relative, of what is measured in single precision


class _Victim:
    """What one adversary reads of one victim's record in the measured rounds."""

    def __init__(
        self, config: CapturedConfig, worlds: Worlds, claim: Claim, model: ThreatModel, victim: int
    ) -> None:
        adjacency = record_adjacency(claim)
        self.victim = victim
        self.by_round: dict[int, tuple[Pair, Leak]] = {
            k: neighbours.worst(victim, model, adjacency) for k, neighbours in worlds.rounds.items()
        }
        self.sure = [leak for _, leak in self.by_round.values() if not leak.upper]
        self.bare = next((leak.bare for leak in self.sure if leak.bare is not None), None)
        self.epsilon = self._epsilon(config, claim)

    def _epsilon(self, config: CapturedConfig, claim: Claim) -> float:
        """A lower end, by the rounds that give one: of all of them, or of the worst."""
        if self.bare is not None:
            return inf
        delta, record = claimed_delta(claim), config.record
        mechanisms = [
            [
                Release(
                    family=family,
                    noise_multiplier=(1 + SLACK) / size,
                    sampling=record.sampling,
                    sampling_rate=record.sampling_rate,
                )
                for family, size in (("gaussian", leak.mu), ("laplace", leak.epsilon))
                if size > 0
            ]
            for leak in self.sure
        ]
        if claim.scope == "run":
            mechanisms = [[release for some in mechanisms for release in some]]
        pure = all(release.family == "laplace" for some in mechanisms for release in some)
        if delta == 0 and not pure:
            return inf  # Gaussian noise has no epsilon there
        return max((epsilon(some, delta).low for some in mechanisms if some), default=0.0)


def measured_accounting(
    index: int, config: CapturedConfig, worlds: Worlds, claim: Claim, model: ThreatModel
) -> tuple[Finding, Accounted]:
    """The evidence that measured releases give; ``unsupported`` if they exceed the claim.

    Records that were not tried may move messages further, and rounds that were not measured add to
    these: a lower end, without an upper one. Rounds in which the adversary has not read all that
    was sent before, or in which several draws hide one number, give an upper figure, and count
    nothing.
    """
    victims = [v for v in config.record.victims if v not in model.agents]
    found = [_Victim(config, worlds, claim, model, v) for v in victims]
    worst = max(found, key=lambda one: one.epsilon)
    low = worst.epsilon
    delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
    mus = {k: leak.mu for k, (_, leak) in worst.by_round.items()}
    notes = list(_notes(config, worst))
    finding = Finding(
        role=Role.MEASURED,
        kind="accounting",
        title="measured releases, accounted",
        claim=index,
        attack=CAPTURED,
        threat_model=model.name,
        message=None if worst.bare is None else str(worst.bare),
        adjacency=claim.adjacency,
        rounds=tuple(worst.by_round),
        metrics={
            Name.EPSILON: Metric(value=inf, low=low, high=inf),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=delta),
            Name.LARGEST_MU_OF_A_ROUND: Metric(value=max(mus.values())),
            Name.MU_OF_MEASURED_ROUNDS: Metric(value=hypot(*mus.values())),
        },
        verdict=Verdict.UNSUPPORTED if low > claimed else None,
        notes=tuple(notes),
        series={Column.ROUND: tuple(mus), Column.MU: tuple(mus.values())},
    )
    return finding, Accounted(Interval(low, inf), delta, worst.victim, tuple(notes))


def _notes(config: CapturedConfig, worst: _Victim) -> list[str]:
    k = max(worst.by_round, key=lambda k: worst.by_round[k][1].size)
    pair, _ = worst.by_round[k]
    notes = [
        f"agent {worst.victim}; in round {k} the record {pair[0]} and {pair[1]} differ most, of "
        f"{len(config.record.hows())} ways that were tried; others may differ more",
        f"{len(worst.by_round)} rounds were measured, and others are not counted",
    ]
    if worst.bare is not None:
        notes.append(f"{worst.bare} moves with the record, and no noise that was named hides it")
    if uncounted := [k for k, (_, leak) in worst.by_round.items() if leak.upper]:
        notes.append(
            f"rounds {', '.join(map(str, uncounted))} count nothing: this adversary has not read "
            "all that was sent before, or several draws hide one number, so that what was measured "
            "of them is an upper figure"
        )
    if config.record.sampling == "none":
        notes.append("the record is in the batches of these rounds, and the adversary knows it")
    return notes
