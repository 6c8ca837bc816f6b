"""One training run with many canaries: bounds on epsilon and on the noise, without retraining."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from dpaudit.attack.contract import Attack, AttackContext, InvalidOption, Significance, too_long
from dpaudit.defense.claim_accounting import claimed_delta, worst_off
from dpaudit.errors import ConfigError, DpauditError, NotObservable, RunError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.gradient_reaction import with_every_link
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import Nonlinear, nonlinearity
from dpaudit.game.probing.playable_dimension import fewest_coordinates
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.worst_case.agent import of_most_moved_agent
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.needs import training_bytes
from dpaudit.training.pace import seconds_of
from dpaudit.training.sensor_fusion import SensorFusion
from dpaudit.training.train import NOTHING_RECORDED

from .bound import Guessing, guess_test, noise_bound, sum_test
from .channels import channel_sizes, game_in_every_batch, train_with_canaries
from .records import train_with_records
from .sums import not_gaussian, not_separate, power_metrics

NO_NUMBER = (
    "each canary has a coordinate to itself, and the step gives no number of one coordinate "
    "without noise, or has no slope there"
)
FOLLOWED = 2  # rounds in which that is seen


class Canaries(Attack):
    """Trains once, with many canaries at one agent, and guesses which of them were there.

    ``kind`` "gradient" takes orthogonal gradients: each canary has a coordinate of the model to
    itself. "mislabelled" are public records with wrong labels, "crafted" are records of extreme
    values. Channels of gradients that are Gaussian are judged by the sum of what all of them show;
    all else by guesses, on the ``guesses`` canaries with the strongest evidence, whose number is
    fixed here, before any is seen. They bear on claims about the whole run and one record more or
    less; other claims are passed over.
    """

    memory_grows_with: ClassVar[tuple[str, ...]] = ("canaries", "n_rounds")

    kind: Literal["gradient", "mislabelled", "crafted"] = "gradient"
    canaries: Annotated[PositiveInt, Field(ge=20)] = 1000  # of gradients, of each of two sets
    guesses: PositiveInt | None = None  # None: a tenth of the canaries
    n_rounds: PositiveInt | None = None  # the first ones, that are trained; None: all
    alpha: Significance = 0.05  # of a false lower bound

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[InvalidOption]:
        yield from too_long(self.n_rounds, n_rounds)
        if self.guesses is not None and self.guesses > self.canaries:
            yield "guesses", f"there are {self.canaries} canaries; each is guessed once at most"

    def memory(self, context: AttackContext, threat_model: ThreatModel) -> int:
        """A run with wider models, and adversaries; or a run and a gradient for each canary."""
        defense, setting, problem = context.defense, context.setting, context.problem
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
        n_rounds = self._trained(context)
        channels = 32 * self.canaries * n_rounds * defense.batches_per_round
        widened = int(run * wide / setting.d)
        everything = GameShape.of(game, with_every_link(threat_model)).adversary(n_rounds)
        return widened + everything + 2 * (read.adversary(n_rounds) + following + channels)

    def measure(
        self, context: AttackContext, threat_model: ThreatModel, on_step: OnStep
    ) -> list[Finding]:
        claims = self._claimed(context, threat_model)
        if not claims:
            return []
        problem = _on_records(context)
        if context.defense.cyclic:
            raise ConfigError(
                "DPA052",
                "attack canaries: this defense takes batches in turn, in which a canary has its "
                "place by its number; canaries are drawn by chance here",
            )
        if self.kind == "gradient":
            nonlinear = self._nonlinear(context, threat_model, claims)
            if nonlinear is not None and not nonlinear.defined:
                return [_not_available(i, threat_model, NO_NUMBER) for i in claims]
            try:
                return self._by_gradients(context, problem, claims, threat_model, on_step)
            except (ConfigError, RunError):
                raise
            except (DpauditError, ValueError):  # what is foretold of a root or a quotient is none
                if nonlinear is None or nonlinear.quiet:
                    raise
                return [_not_available(i, threat_model, NO_NUMBER) for i in claims]
        return self._by_records(context, problem, claims, threat_model, on_step)

    def _by_gradients(
        self,
        context: AttackContext,
        problem: Classification,
        claims: Mapping[int, Claim],
        threat_model: ThreatModel,
        on_step: OnStep,
    ) -> list[Finding]:
        """A bound on epsilon for each claim, and one on the noise."""
        defense, setting = context.defense, context.setting
        sampled = self._sampled(context, threat_model, claims)
        game, n_rounds = sampled.game, sampled.n_rounds
        always = Adversary(game_in_every_batch(game), threat_model, n_rounds)
        by_sampled, by_always = train_with_canaries(
            defense,
            problem,
            setting,
            sampled,
            always,
            self.canaries,
            context.streams,
            on_step,
            context.checkpoint,
        )
        common = (
            f"one run of {n_rounds} of {defense.n_rounds} rounds with {self.canaries} canaries of "
            f"each kind at agent {game.victim}, each with a coordinate of the model to itself"
        )
        why, guessing = not_gaussian(sampled), self._guessing
        apart = why or not_separate(sampled)
        found = [
            sum_test(i, claim, threat_model, sampled, by_sampled, apart, guessing, common)
            for i, claim in claims.items()
        ]
        return [*found, noise_bound(threat_model, always, by_always, why, guessing, common)]

    def _by_records(
        self,
        context: AttackContext,
        problem: Classification,
        claims: Mapping[int, Claim],
        threat_model: ThreatModel,
        on_step: OnStep,
    ) -> list[Finding]:
        """A bound on epsilon for each claim, if the view gives any gradient of the victim away."""
        assert self.kind != "gradient"
        n_rounds = self._trained(context)
        victim = self._game(context, threat_model, claims).victim
        try:
            evidence = train_with_records(
                context.defense,
                problem,
                context.setting,
                threat_model,
                victim,
                self.kind,
                self.canaries,
                n_rounds,
                context.streams,
                on_step,
                context.checkpoint,
            )
        except NotObservable as reason:
            return [_not_available(i, threat_model, reason) for i in claims]
        common = (
            f"one run of {n_rounds} of {context.defense.n_rounds} rounds with {self.canaries} "
            f"{self.kind} records at agent {victim}, each there by a fair coin"
        )
        return [
            guess_test(i, claim, threat_model, n_rounds, evidence, self._guessing, (common,))
            for i, claim in claims.items()
        ]

    def _trained(self, context: AttackContext) -> int:
        """How many rounds are trained."""
        return min(self.n_rounds or context.defense.n_rounds, context.defense.n_rounds)

    @property
    def _guesses(self) -> int:
        return min(self.guesses or max(1, self.canaries // 10), self.canaries)

    def power(
        self, context: AttackContext, threat_model: ThreatModel, patience: float = inf
    ) -> Iterator[tuple[int, Mapping[str, Metric]]]:
        """By the channels that the protocol gives the canaries; a bound by guesses has a ceiling.

        What guesses are expected to prove is not known.
        """
        claims, guessing = self._claimed(context, threat_model), self._guessing
        if not claims or self.kind != "gradient" or not isinstance(context.problem, Classification):
            return
        nonlinear = self._nonlinear(context, threat_model, claims)
        if nonlinear is not None and not nonlinear.quiet:  # nothing is known before the run
            yield from ((i, guessing.power(claim)) for i, claim in claims.items())
            return
        if patience < inf:
            game, n_rounds = self._game(context, threat_model, claims), self._trained(context)
            if n_rounds * seconds_of(lambda: Adversary(game, threat_model, 1)) > patience:
                return
        sampled = self._sampled(context, threat_model, claims)
        why, sizes = not_gaussian(sampled) or not_separate(sampled), channel_sizes(sampled)
        for i, claim in claims.items():
            if why is None and claimed_delta(claim) > 0:
                rate = sampled.game.sampling_rate
                delta = claimed_delta(claim)
                yield i, power_metrics(sizes, rate, self.canaries, delta, self.alpha)
            else:
                yield i, guessing.power(claim)

    def _claimed(self, context: AttackContext, threat_model: ThreatModel) -> dict[int, Claim]:
        """Claims about the whole run and one record more or less, against this adversary."""
        return {
            i: claim
            for i, claim in enumerate(context.claims)
            if claim.threat_model in (None, threat_model.name)
            and (claim.scope, claim.adjacency) == ("run", "add-remove")
        }

    def _nonlinear(
        self, context: AttackContext, threat_model: ThreatModel, claims: Mapping[int, Claim]
    ) -> Nonlinear | None:
        game = self._game(context, threat_model, claims)
        return nonlinearity(game, threat_model, min(FOLLOWED, game.defense.n_rounds))

    def _sampled(
        self, context: AttackContext, threat_model: ThreatModel, claims: Mapping[int, Claim]
    ) -> Adversary:
        game = self._game(context, threat_model, claims)
        return Adversary(game, threat_model, self._trained(context))

    def _game(
        self, context: AttackContext, threat_model: ThreatModel, claims: Mapping[int, Claim]
    ) -> Game:
        """With canaries that are drawn like records, at the agent that is worst off."""
        first = next(iter(claims.values()))
        victim = worst_off(first, threat_model, context.defense, context.setting)
        game = Game.of(context.defense, context.setting, victim, "add-remove", "poisson")
        if fewest_coordinates(game) > 1:
            return game
        seed = context.streams.numpy("agents of canaries").integers(2**62).item()
        return of_most_moved_agent(game, threat_model, Streams(seed, context.streams.device))

    @property
    def _guessing(self) -> Guessing:
        guesses = min(self.guesses or max(1, self.canaries // 10), self.canaries)
        return Guessing(self.canaries, guesses, self.alpha)


def _on_records(context: AttackContext) -> Classification:
    """The learning problem. Raises ConfigError if there are no records to stand in for."""
    if isinstance(context.problem, SensorFusion) or context.defense.function_distance():
        raise ConfigError(
            "DPA052",
            "attack canaries: canaries stand in for records, and this defense protects an "
            "agent's whole function; use likelihood-ratio",
        )
    return context.problem


def _not_available(index: int, threat_model: ThreatModel, reason: NotObservable | str) -> Finding:
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
