"""One training run with many canaries: bounds on epsilon and on the noise, without retraining."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from dpaudit.attack.contract import Attack, Bench, Misfit, Significance, too_long
from dpaudit.defense.claim_accounting import account_claim, claimed_delta, claimed_epsilon
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.game.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.needs import GameShape
from dpaudit.progress import OnStep
from dpaudit.statistics.bounds import smallest_alpha
from dpaudit.statistics.guesses import (
    correct_guesses,
    epsilon_from_guesses,
    mu_from_ranked_guesses,
    shift_from_guesses,
)
from dpaudit.training.classification import Classification
from dpaudit.training.needs import training_bytes
from dpaudit.training.sensor_fusion import SensorFusion
from dpaudit.training.train import NOTHING_RECORDED

from .channels import Evidence, game_in_every_batch, train_with_canaries
from .records import train_with_records

MOST_CANARIES = 10**5  # considered where too few are said to be used


class Canaries(Attack):
    """Trains once, with many canaries at one agent, and guesses which of them were there.

    ``kind`` "gradient" takes orthogonal gradients: each canary has a coordinate of the model to
    itself. "mislabelled" are public records with wrong labels, "crafted" are records of extreme
    values. The guesses are on the ``guesses`` canaries with the strongest evidence; their number is
    fixed here, before any is seen. They bear on claims about the whole run and one record more or
    less; other claims are passed over.
    """

    memory_grows_with: ClassVar[tuple[str, ...]] = ("canaries", "n_rounds")

    kind: Literal["gradient", "mislabelled", "crafted"] = "gradient"
    canaries: Annotated[PositiveInt, Field(ge=20)] = 1000  # of gradients, of each of two sets
    guesses: PositiveInt | None = None  # None: a tenth of the canaries
    n_rounds: PositiveInt | None = None  # the first ones, that are trained; None: all
    alpha: Significance = 0.05  # of a false lower bound

    def misfits(self, n_rounds: int, n_agents: int) -> Iterator[Misfit]:
        yield from too_long(self.n_rounds, n_rounds)
        if self.guesses is not None and self.guesses > self.canaries:
            yield "guesses", f"there are {self.canaries} canaries; each is guessed once at most"

    def memory(self, bench: Bench, threat_model: ThreatModel) -> int:
        """One run with wider models and two adversaries, or with a gradient for each canary."""
        defense, setting, problem = bench.defense, bench.setting, bench.problem
        if not isinstance(problem, Classification):
            return 0  # refused
        run = training_bytes(defense, problem, setting, NOTHING_RECORDED)
        if self.kind != "gradient":
            shape = problem.dataset.x.shape[1:]
            each = problem.gradients.pass_bytes(self.canaries, 1, shape)
            return run + each + self.canaries * (16 * setting.d + 24 * self.canaries)
        game = Game.of(defense, setting, 0, "add-remove", "poisson")
        read, wide = GameShape.of(game, threat_model), setting.d + 2 * self.canaries
        following = read.footprint.round(1, self.canaries, 8) + 32 * self.canaries * read.observed
        return (
            int(run * wide / setting.d) + 2 * read.adversary(self._trained(bench)) + 2 * following
        )

    def measure(self, bench: Bench, threat_model: ThreatModel, on_step: OnStep) -> list[Finding]:
        claims = {
            i: claim
            for i, claim in enumerate(bench.claims)
            if claim.threat_model in (None, threat_model.name)
            and (claim.scope, claim.adjacency) == ("run", "add-remove")
        }
        if not claims:
            return []
        problem = _on_records(bench)
        if bench.defense.cyclic:
            raise ConfigError(
                "attack canaries: this defense takes batches in turn, in which a canary has its "
                "place by its number; canaries are drawn by chance here"
            )
        first = next(iter(claims.values()))
        victim = account_claim(first, threat_model, bench.defense, bench.setting).victim
        if self.kind == "gradient":
            return self._by_gradients(bench, problem, claims, threat_model, victim, on_step)
        return self._by_records(bench, problem, claims, threat_model, victim, on_step)

    def _by_gradients(
        self,
        bench: Bench,
        problem: Classification,
        claims: Mapping[int, Claim],
        threat_model: ThreatModel,
        victim: int,
        on_step: OnStep,
    ) -> list[Finding]:
        """A bound on epsilon for each claim, and one on the noise."""
        defense, setting, n_rounds = bench.defense, bench.setting, self._trained(bench)
        game = Game.of(defense, setting, victim, "add-remove", "poisson")
        sampled = Adversary(game, threat_model, n_rounds)
        always = Adversary(game_in_every_batch(game), threat_model, n_rounds)
        by_sampled, by_always = train_with_canaries(
            defense,
            problem,
            setting,
            sampled,
            always,
            self.canaries,
            bench.streams,
            on_step,
            bench.kept,
        )
        common = (
            f"one run of {n_rounds} of {defense.n_rounds} rounds with {self.canaries} canaries of "
            f"each kind at agent {victim}, each with a coordinate of the model to itself"
        )
        found = [
            self._epsilon(i, claim, threat_model, by_sampled, n_rounds, common)
            for i, claim in claims.items()
        ]
        return [*found, self._noise(threat_model, always, by_always, n_rounds, common)]

    def _by_records(
        self,
        bench: Bench,
        problem: Classification,
        claims: Mapping[int, Claim],
        threat_model: ThreatModel,
        victim: int,
        on_step: OnStep,
    ) -> list[Finding]:
        """A bound on epsilon for each claim, if the view gives any gradient of the victim away."""
        assert self.kind != "gradient"
        n_rounds = self._trained(bench)
        try:
            evidence = train_with_records(
                bench.defense,
                problem,
                bench.setting,
                threat_model,
                victim,
                self.kind,
                self.canaries,
                n_rounds,
                bench.streams,
                on_step,
                bench.kept,
            )
        except NotObservable as reason:
            return [_not_available(i, threat_model, reason) for i in claims]
        common = (
            f"one run of {n_rounds} of {bench.defense.n_rounds} rounds with {self.canaries} "
            f"{self.kind} records at agent {victim}, each there by a fair coin"
        )
        return [
            self._epsilon(i, claim, threat_model, evidence, n_rounds, common)
            for i, claim in claims.items()
        ]

    def _trained(self, bench: Bench) -> int:
        """How many rounds are trained."""
        return min(self.n_rounds or bench.defense.n_rounds, bench.defense.n_rounds)

    @property
    def _guesses(self) -> int:
        return min(self.guesses or max(1, self.canaries // 10), self.canaries)

    def _epsilon(
        self,
        index: int,
        claim: Claim,
        threat_model: ThreatModel,
        found: Evidence,
        n_rounds: int,
        common: str,
    ) -> Finding:
        """The bound that assumes nothing about the mechanism."""
        m, r, right = self.canaries, self._guesses, correct_guesses(*found, self._guesses)
        delta = claimed_delta(claim)
        bound = epsilon_from_guesses(m, r, right, delta, self.alpha)
        return Finding(
            role=Role.TEST,
            kind="empirical-epsilon",
            title="one run, many canaries",
            claim=index,
            attack="canaries",
            threat_model=threat_model.name,
            rounds=(1, n_rounds),
            world="defense",
            metrics={
                Name.EPSILON_LOWER_BOUND: Metric(value=bound, n=m),
                Name.CLAIMED_EPSILON: Metric(value=claimed_epsilon(claim)),
                Name.DELTA: Metric(value=delta),
                Name.CONFIDENCE: Metric(value=1 - self.alpha),
                Name.P_VALUE: Metric(value=self._p_value(claim, right)),
                Name.GUESSES: Metric(value=r),
                Name.RIGHT_GUESSES: Metric(value=right, n=r),
                Name.CEILING: Metric(value=self._ceiling(m, delta)),
                Name.TRIALS_NEEDED: Metric(value=self._needed(claim)),
            },
            notes=(common, "bound of Steinke, Nasr and Jagielski: any mechanism"),
        )

    def _ceiling(self, canaries: int, delta: float) -> float:
        """What guesses without an error prove."""
        guesses = max(1, canaries * self._guesses // self.canaries)
        return epsilon_from_guesses(canaries, guesses, guesses, delta, self.alpha)

    def _needed(self, claim: Claim) -> float:
        """Canaries of which a perfect attack would refute the claim, up to twice too many."""
        needed = 20
        while self._ceiling(needed, claimed_delta(claim)) <= claimed_epsilon(claim):
            needed *= 2
            if needed > MOST_CANARIES:
                return inf
        return needed

    def _p_value(self, claim: Claim, right: int) -> float:
        """The smallest alpha at which these guesses refute the claim."""
        m, r, delta = self.canaries, self._guesses, claimed_delta(claim)
        claimed = claimed_epsilon(claim)
        return smallest_alpha(
            lambda alpha: epsilon_from_guesses(m, r, right, delta, alpha) > claimed
        )

    def _noise(
        self,
        threat_model: ThreatModel,
        adversary: Adversary,
        found: Evidence,
        n_rounds: int,
        common: str,
    ) -> Finding:
        """How much noise there is at most, from canaries in every batch."""
        m, r, right = self.canaries, self._guesses, correct_guesses(*found, self._guesses)
        return Finding(
            role=Role.NOISE_BOUND,
            kind="empirical-epsilon",
            title="noise of the run, from canaries in every batch",
            attack="canaries",
            threat_model=threat_model.name,
            rounds=(1, n_rounds),
            world="defense",
            metrics={
                Name.MU_LOWER_BOUND: Metric(
                    value=mu_from_ranked_guesses(m, r, right, self.alpha), n=m
                ),
                Name.MU_OF_WHOLE_CURVE: Metric(
                    value=shift_from_guesses(m, r, right, self.alpha), n=m
                ),
                Name.MU_OF_PROTOCOL: Metric(value=float(adversary.leak.by_round.max())),
                Name.CONFIDENCE: Metric(value=1 - self.alpha),
                Name.GUESSES: Metric(value=r),
                Name.RIGHT_GUESSES: Metric(value=right, n=r),
            },
            notes=(
                common,
                "bounds of Xiang et al. (order statistics of Gaussian channels) and of "
                "Mahloujifar, Melis and Chaudhuri (whole curve of the Gaussian family)",
                "these canaries are in every batch, so that sampling hides nothing: mu is of the "
                "noise alone, and is held against no claim",
            ),
        )


def _on_records(bench: Bench) -> Classification:
    """The learning problem. Raises ConfigError if there are no records to stand in for."""
    if isinstance(bench.problem, SensorFusion) or bench.defense.function_distance():
        raise ConfigError(
            "attack canaries: canaries stand in for records, and this defense protects an "
            "agent's whole function; use likelihood-ratio"
        )
    return bench.problem


def _not_available(index: int, threat_model: ThreatModel, reason: NotObservable) -> Finding:
    """What this adversary's view does not allow, said instead of left out."""
    return Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="one run, many canaries",
        claim=index,
        attack="canaries",
        threat_model=threat_model.name,
        world="defense",
        notes=(f"not available to this adversary: {reason}",),
    )
