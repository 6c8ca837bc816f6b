"""One training run with many canaries: bounds on epsilon and on the noise, without retraining."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

import dpaudit.attack as da
from dpaudit.defense.claim_accounting import claimed_delta, worst_off
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import Nonlinear, fewest_coordinates, nonlinearity
from dpaudit.game.released_model import as_seen_by
from dpaudit.game.worst_case.record import of_most_moved_agent
from dpaudit.training.costs import seconds_of
from dpaudit.training.sensor_fusion import SensorFusion

from .bound import (
    GuessPlan,
    claim_finding,
    guess_test,
    noise_bound,
    not_gaussian,
    not_separate,
    power_metrics,
    sum_test,
)
from .channels import channel_sizes, train_with_canaries
from .records import train_with_records

NO_NUMBER = (
    "each canary has a coordinate to itself, and the step gives no number of one coordinate "
    "without noise, or has no slope there"
)
FOLLOWED = 2  # rounds in which that is seen


class Canaries(da.Attack):
    """Trains once, with many canaries at one agent, and guesses which of them were there.

    ``kind`` "gradient" takes orthogonal gradients: each canary has a coordinate of the model to
    itself. "mislabelled" are public records with wrong labels, "crafted" are records of extreme
    values. Channels of gradients that are Gaussian are judged by the sum of what all of them show;
    all else by guesses, on the ``guesses`` canaries with the strongest evidence, whose number is
    fixed here, before any is seen. They bear on claims about the whole run and one record more or
    less; other claims are passed over.
    """

    final_model = ("white-box", "black-box")

    kind: Literal["gradient", "mislabelled", "crafted"] = "gradient"
    canaries: Annotated[PositiveInt, Field(ge=20)] = 1000  # number of canaries in each of two sets
    guesses: PositiveInt | None = None  # None: a tenth of the canaries
    references: Annotated[int, Field(ge=8)] = 16  # runs that calibrate records of a final model
    n_rounds: PositiveInt | None = None  # the first ones, that are trained; None: all
    alpha: da.Significance = 0.05  # probability of a false lower bound

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        yield from da.too_long(self.n_rounds, n_rounds)
        if self.guesses is not None and self.guesses > self.canaries:
            yield "guesses", f"there are {self.canaries} canaries; each is guessed once at most"

    def refuse_too_large(self, context: da.AttackContext, threat_model: da.ThreatModel) -> None:
        """Called before anything is run. Raises ConfigError: a final model cannot be read so."""
        if not threat_model.has_final_model:
            return
        who = f'"{threat_model.name}" has the'
        if self.n_rounds not in (None, context.defense.n_rounds):
            said = (
                f"n_rounds: {who} model after all {context.defense.n_rounds} rounds; leave it out"
            )
            raise da.ConfigError("DPA052", f"attack canaries: {said}")
        if self.kind == "gradient" and threat_model.access == "black-box":
            said = f'kind = "gradient": {who} losses of a model, and these canaries are parameters'
            raise da.ConfigError("DPA052", f"attack canaries: {said}", 'use kind = "mislabelled"')

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        claims = self._claimed(context, threat_model)
        if not claims:
            return []
        if isinstance(context.problem, SensorFusion) or context.defense.function_distance():
            raise da.ConfigError(
                "DPA052",
                "attack canaries: canaries stand in for records, and this defense protects an "
                "agent's whole function; use likelihood-ratio",
            )
        if context.defense.cyclic:
            raise da.ConfigError(
                "DPA052",
                "attack canaries: this defense takes batches in turn, in which a canary has its "
                "place by its number; canaries are drawn by chance here",
            )
        seen = replace(context, defense=as_seen_by(threat_model, context.defense))
        game = self._game(seen, threat_model, claims)
        if self.kind != "gradient":
            return self._by_records(context, game.victim, claims, threat_model, on_step)
        nonlinear = self._nonlinear(game, threat_model)
        refusal = f"not available to this adversary: {NO_NUMBER}"
        none = [claim_finding(i, threat_model, (refusal,)) for i in claims]
        if nonlinear is not None and not nonlinear.defined:
            return none
        try:
            return self._by_gradients(seen, game, claims, threat_model, on_step)
        except (da.ConfigError, da.RunError):
            raise
        except (da.DpauditError, ValueError):  # the prediction of a root or a quotient may be none
            if nonlinear is None or nonlinear.quiet:
                raise
            return none

    def _by_gradients(
        self,
        context: da.AttackContext,
        game: Game,
        claims: Mapping[int, da.Claim],
        threat_model: da.ThreatModel,
        on_step: da.OnStep,
    ) -> list[da.Finding]:
        """A bound on epsilon for each claim, and one on the noise."""
        n_rounds, guessing = self._trained(context), self._guessing
        sampled = Adversary(game, threat_model, n_rounds)
        always = Adversary(replace(game, sampling_rate=1.0), threat_model, n_rounds)
        by_sampled, by_always = train_with_canaries(
            context, sampled, always, self.canaries, on_step
        )
        common = (
            f"one run of {n_rounds} of {context.defense.n_rounds} rounds with {self.canaries} "
            f"canaries of each kind at agent {game.victim}, each with a coordinate of the model to "
            "itself"
        )
        why = not_gaussian(sampled)
        apart = why or not_separate(sampled)
        found = [
            sum_test(i, claim, sampled, by_sampled, apart, guessing, common)
            for i, claim in claims.items()
        ]
        return [*found, noise_bound(always, by_always, why, guessing, common)]

    def _by_records(
        self,
        context: da.AttackContext,
        victim: int,
        claims: Mapping[int, da.Claim],
        threat_model: da.ThreatModel,
        on_step: da.OnStep,
    ) -> list[da.Finding]:
        """A bound on epsilon for each claim, if the view gives any gradient of the victim away."""
        assert self.kind != "gradient"
        n_rounds = self._trained(context)
        try:
            evidence = train_with_records(
                context,
                threat_model,
                victim,
                self.kind,
                self.canaries,
                n_rounds,
                self.references,
                on_step,
            )
        except da.NotObservable as reason:
            refusal = f"not available to this adversary: {reason}"
            return [claim_finding(i, threat_model, (refusal,)) for i in claims]
        common = (
            f"one run of {n_rounds} of {context.defense.n_rounds} rounds with {self.canaries} "
            f"{self.kind} records at agent {victim}, each there by a fair coin"
        )
        if threat_model.has_final_model:
            common += (
                f"; by the log density ratio of its score in {self.references} runs of the "
                "adversary, which knows all other records"
            )
        return [
            guess_test(i, claim, threat_model, n_rounds, evidence, self._guessing, (common,))
            for i, claim in claims.items()
        ]

    def _trained(self, context: da.AttackContext) -> int:
        """How many rounds are trained."""
        return min(self.n_rounds or context.defense.n_rounds, context.defense.n_rounds)

    def power(
        self, context: da.AttackContext, threat_model: da.ThreatModel, patience: float = inf
    ) -> Iterator[tuple[int, Mapping[str, da.Metric]]]:
        """By the channels that the protocol gives the canaries; a bound by guesses has a ceiling.

        What guesses are expected to prove is not known.
        """
        claims, guessing = self._claimed(context, threat_model), self._guessing
        if (
            not claims
            or self.kind != "gradient"
            or not isinstance(context.problem, da.Classification)
        ):
            return
        context = replace(context, defense=as_seen_by(threat_model, context.defense))
        game, n_rounds = self._game(context, threat_model, claims), self._trained(context)
        nonlinear = self._nonlinear(game, threat_model)
        if nonlinear is not None and not nonlinear.quiet:  # nothing is known before the run
            yield from ((i, guessing.power(claim)) for i, claim in claims.items())
            return
        if patience < inf and patience < n_rounds * seconds_of(
            lambda: Adversary(game, threat_model, 1)
        ):
            return
        sampled = Adversary(game, threat_model, n_rounds)
        why, sizes = not_gaussian(sampled) or not_separate(sampled), channel_sizes(sampled)
        for i, claim in claims.items():
            delta = claimed_delta(claim)
            if why is None and delta > 0:
                rate = game.sampling_rate
                yield i, power_metrics(sizes, rate, self.canaries, delta, self.alpha)
            else:
                yield i, guessing.power(claim)

    def _claimed(
        self, context: da.AttackContext, threat_model: da.ThreatModel
    ) -> dict[int, da.Claim]:
        """Claims about the whole run and one record more or less, against this adversary."""
        return {
            i: claim
            for i, claim in enumerate(context.claims)
            if claim.threat_model in (None, threat_model.name)
            and (claim.scope, claim.adjacency) == ("run", "add-remove")
        }

    def _nonlinear(self, game: Game, threat_model: da.ThreatModel) -> Nonlinear | None:
        return nonlinearity(game, threat_model, min(FOLLOWED, game.defense.n_rounds))

    def _game(
        self,
        context: da.AttackContext,
        threat_model: da.ThreatModel,
        claims: Mapping[int, da.Claim],
    ) -> Game:
        """The game whose canaries are drawn like records, at the agent that is worst off."""
        first = next(iter(claims.values()))
        victim = worst_off(first, threat_model, context.defense, context.setting)
        game = Game.of(context.defense, context.setting, victim, "add-remove", "poisson")
        if fewest_coordinates(game) > 1:
            return game
        return of_most_moved_agent(game, threat_model, context.streams.child("agents of canaries"))

    @property
    def _guessing(self) -> GuessPlan:
        guesses = min(self.guesses or max(1, self.canaries // 10), self.canaries)
        return GuessPlan(self.canaries, guesses, self.alpha)
