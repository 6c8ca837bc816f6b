"""How much an adversary's view reveals about a private quantity: M-NMI over independent runs."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attack.figures import information_metrics, information_series
from dpaudit.attack.victims import VIEW, refuse_many_unknowns
from dpaudit.information.best_estimate import best_estimate
from dpaudit.information.capacity import (
    of_bit_in_gaussian,
    of_bit_in_randomised_response,
    of_number_in_gaussian,
    of_pure_epsilon,
    of_vector_in_gaussian,
)
from dpaudit.information.mnmi import MaximumInformation, maximum_information, without_warnings
from dpaudit.information.reduction import Reduction

from .samples import (
    RevealedQuantity,
    Samples,
    blocks,
    first_heard,
    heard_rounds,
    last_round,
    samples,
)

SHOWN = 200  # points of the scatter at most
ALPHA = 0.05  # a larger p-value without noise means that nothing was found there either
_BLIND_CONTROL = (
    "not even without noise does this message tell anything of the quantity in its own round: that "
    "it tells nothing under the defense is not the defense's merit"
)


class Limits(NamedTuple):
    """Bits, at most; infinite without noise."""

    batch: float  # about the gradient of a whole batch
    number: float  # about one record that moves a message by its sensitivity
    presence: float  # whether one record was used, a fair bit

    def metrics(self) -> dict[str, da.Metric]:
        return {
            da.Name.CAPACITY: da.Metric(value=self.batch),
            da.Name.CAPACITY_FOR_A_NUMBER: da.Metric(value=self.number),
            da.Name.CAPACITY_FOR_PRESENCE: da.Metric(value=self.presence),
        }


class MutualInformation(da.Attack):
    """Mutual information between a victim's private quantity and a message, by round (M-NMI).

    It plays ``trials`` independent runs of the defense, and of its no-defense twin, in batched
    programs. In each it notes the private quantity of one victim, and what the adversary holds of
    one message that the victim sends, or of what is derived from several (an observable or a
    combination of the defense; or "view", the best linear estimate of the victim's gradients from
    all messages of the rounds around, for any defense). Both are reduced to a few columns, and
    their information is estimated round by round.

    ``reduction`` "aligned" projects a message of the private quantity's dimension on the leading
    ``components`` of that quantity, and then on at most ``view_components`` of its own; "pca" on
    its own alone; "none" leaves all columns. What is reduced reveals less, never more.

    Source: Xie, Liu and Chai, eq. (43); ``dpaudit.information.mnmi`` for what stands beside it.
    """

    chooses: ClassVar[da.Chooses] = {
        "message": ("messages", "observables", "combinations", "views"),
        "private": ("private",),
    }

    message: str  # or "view"
    private: str = "gradient"  # "gradient", or a quantity of the defense
    victim: NonNegativeInt | None = None  # None: the first honest agent that the adversary hears
    rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None  # None: all
    trials: PositiveInt = 1_000
    k: PositiveInt = 3  # neighbours
    n_permutations: NonNegativeInt = 99
    n_splits: NonNegativeInt = 20
    reduction: Literal["aligned", "pca", "none"] = "aligned"
    components: PositiveInt = 1
    view_components: PositiveInt = 3
    scale: Literal["standardise", "normal-scores", "none"] = "standardise"

    @model_validator(mode="after")
    def _enough_trials(self) -> Self:
        halves = 2 if self.n_splits else 1
        columns = self.components + self.view_components
        least = max(halves * (self.k + 1), columns + 1, 12)
        if self.trials < least:
            raise ValueError(
                f"trials = {self.trials}; k = {self.k} neighbours, {columns} columns and an "
                f"interval from halves of the trials need at least {least}"
            )
        return self

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        yield from da.late_rounds(self.rounds or (), n_rounds)
        yield from da.missing_agent(self.victim, n_agents)

    def refuse_too_large(self, context: da.AttackContext, threat_model: da.ThreatModel) -> None:
        """Raises ConfigError: its model is too large to be played often, or its estimate is."""
        blocks(self.trials, context.setting)
        question, defense = self._question(context, threat_model), context.defense
        if self.message == VIEW and question.victim not in threat_model.agents:
            others = {*defense.messages, *defense.observables, *defense.combinations}
            refuse_many_unknowns(context, threat_model, question.rounds, others)

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        """Two findings for each world: the information by round, and the adversary's best guess."""
        question = self._question(context, threat_model)
        if question.victim in threat_model.agents:
            lacks = f"agent {question.victim} is the adversary's own, so nothing is secret to it"
            return [
                self._empty(question, "defense", (f"not available to this adversary: {lacks}",))
            ]
        worlds: dict[da.World, dp.Defense] = {"defense": context.defense}
        twin = context.defense.without_noise()
        if twin != context.defense:
            worlds["no-defense"] = twin
        n_blocks = len(blocks(self.trials, context.setting))
        total, done = len(worlds) * n_blocks * last_round(question, context.defense), 0

        def on_round() -> None:
            nonlocal done
            done += 1
            on_step(done, total)

        findings: list[da.Finding] = []
        for world, defense in worlds.items():
            checkpoint = context.checkpoint.stage(world)
            if (last := checkpoint.last()) is not None:
                findings = [da.Finding.model_validate(found) for found in last.note]
                continue
            found = samples(
                question,
                defense,
                context.problem,
                context.setting,
                context.streams,
                self.trials,
                on_round,
                context.checkpoint.stage(world).stage("samples"),
            )
            findings += self._findings(context, question, world, found, twin == context.defense)
            checkpoint.done(
                da.Progress({}, [finding.model_dump(mode="json") for finding in findings])
            )
        return findings

    def _question(
        self, context: da.AttackContext, threat_model: da.ThreatModel
    ) -> RevealedQuantity:
        every = tuple(range(1, context.defense.n_rounds + 1))
        return RevealedQuantity(
            message=self.message,
            private=self.private,
            victim=first_heard(context.setting, threat_model)
            if self.victim is None
            else self.victim,
            threat_model=threat_model,
            rounds=every if self.rounds is None else tuple(sorted(set(self.rounds))),
            reduction=self.reduction,
            components=self.components,
            view_components=self.view_components,
        )

    def _findings(
        self,
        context: da.AttackContext,
        question: RevealedQuantity,
        world: da.World,
        found: Samples,
        noiseless: bool,
    ) -> list[da.Finding]:
        about = (*_of_view(question, context.defense), *_left_out(found))
        if not found.rounds and not found.constant:
            first = next(iter(found.unseen.values()))
            return [self._empty(question, world, (f"not available to this adversary: {first}",))]
        noise = "no noise" if world == "no-defense" else "the noise"
        noise = "whatever the defense draws itself" if noiseless else noise
        random = (
            f"random over the {self.trials} runs: {context.problem.varies}, and {noise}; all else "
            "is the same in every run"
        )
        if noiseless:
            about = (*about, "the defense draws no noise that could be turned off: no twin")
        if not found.rounds:
            nothing: dict[str, da.Metric] = {}
            if set(found.constant.values()) != {"the private quantity"}:
                nothing[da.Name.INFORMATION] = da.Metric(value=0.0, n=self.trials)
            return [self._empty(question, world, (random, *about), nothing)]
        rounds = list(found.rounds)
        estimated, warned = without_warnings(
            lambda: maximum_information(
                [sample.private for sample in found.rounds.values()],
                [sample.view for sample in found.rounds.values()],
                context.streams.numpy("estimate"),
                k=self.k,
                reduce_private=Reduction(scale=self.scale),
                reduce_view=Reduction(scale=self.scale),
                n_permutations=self.n_permutations,
                n_splits=self.n_splits,
                checkpoint=context.checkpoint.stage(world).stage("estimates"),
            )
        )
        notes = (random, *self._method(estimated, found), *about, *warned)
        metrics = information_metrics(estimated, shuffled=self.n_permutations > 0)
        if world == "defense":
            heard = heard_rounds(question, context.defense)
            known = limits(question, context.defense, context.setting, heard)
            low = float(estimated.lows[rounds.index(1)]) if 1 in rounds else 0.0
            notes = (*beyond(known, low), *notes, limits_note(known))
            metrics |= {} if isinstance(known, str) else known.metrics()
        elif estimated.p_value > ALPHA:
            notes = (_BLIND_CONTROL, *notes)
        what = f"{self.private} of agent {question.victim}"
        title = f"information about {what}, most in round {rounds[estimated.round - 1]}"
        series = information_series(estimated, rounds)
        return [
            self._finding(question, world, title, metrics, notes, series),
            self._guess(context, question, world, estimated, found),
        ]

    def _method(self, found: MaximumInformation, samples: Samples) -> Iterator[str]:
        top = list(samples.rounds)[found.round - 1]
        yield f"reduction, in round {top}: {samples.rounds[top].reduction}, {self.scale}"
        yield (
            f"KSG, k = {self.k}, max-norm; M-NMI divides by self-information, what the estimator "
            f"makes of I(V; V) at n = {found.n}: compare it at equal n and k only"
        )
        if self.n_permutations:
            yield (
                "the p-value and the baseline hold the maximum over rounds against the maxima of "
                f"{self.n_permutations} shuffles of the trials; without a leak the p-value is at "
                "most u with probability at most u"
            )
        if self.n_splits:
            yield "the 95% interval holds for all rounds together, and so for their maximum"

    def _guess(
        self,
        context: da.AttackContext,
        question: RevealedQuantity,
        world: da.World,
        found: MaximumInformation,
        samples: Samples,
    ) -> da.Finding:
        top = list(samples.rounds)[found.round - 1]
        private, view, _ = samples.rounds[top]
        guess = best_estimate(private[:, 0], view, context.streams.numpy("best estimate"))
        explained = da.Metric(
            value=guess.explained, low=guess.low, high=guess.high, n=len(guess.private)
        )
        return self._finding(
            replace(question, rounds=(top,)),
            world,
            f"best estimate of the {self.private} of agent {question.victim}",
            {da.Name.VARIANCE_EXPLAINED: explained},
            (
                f"{guess.method}, fitted on one third of the trials, chosen on another, tried on "
                "the last; the private quantity is its first component, in the unit it has",
            ),
            {
                da.Column.PRIVATE: tuple(guess.private[:SHOWN].tolist()),
                da.Column.ESTIMATE: tuple(guess.estimate[:SHOWN].tolist()),
            },
        )

    def _empty(
        self,
        question: RevealedQuantity,
        world: da.World,
        notes: tuple[str, ...],
        metrics: dict[str, da.Metric] | None = None,
    ) -> da.Finding:
        title = f"information about {self.private} of agent {question.victim}"
        return self._finding(question, world, title, metrics or {}, notes, {})

    def _finding(
        self,
        question: RevealedQuantity,
        world: da.World,
        title: str,
        metrics: dict[str, da.Metric],
        notes: tuple[str, ...],
        series: dict[str, tuple[float, ...]],
    ) -> da.Finding:
        return da.Finding(
            role=da.Role.BEST_ESTIMATE if da.Column.ESTIMATE in series else da.Role.INFORMATION,
            kind="mutual-information",
            title=title,
            attack="mutual-information",
            threat_model=question.threat_model.name,
            message=self.message,
            rounds=question.rounds,
            world=world,
            metrics=metrics,
            notes=notes,
            series=series,
        )


def _of_view(question: RevealedQuantity, defense: dp.Defense) -> Iterator[str]:
    """What was asked of a defense beside what it names itself."""
    if question.message == VIEW:
        yield (
            f"the view is the best unbiased linear estimate of each gradient of agent "
            f"{question.victim} in the round, from all messages of that round, the one before and "
            "the one after; how they depend on it is probed on the defense's own step"
        )
    if question.overhears(defense):
        yield f"the gradient is the first that agent {question.victim} is answered in the round"


def _left_out(found: Samples) -> Iterator[str]:
    """Rounds without an estimate, and why."""
    if found.unseen and (found.rounds or found.constant):
        ks = list(found.unseen)
        yield f"{_rounds(ks)} not available to this adversary: {found.unseen[ks[0]]}"
    for side in dict.fromkeys(found.constant.values()):
        ks = [k for k, constant in found.constant.items() if constant == side]
        yield f"{_rounds(ks)}: {side} is the same in all runs, so there are 0 bits to be told"


def _rounds(ks: list[int]) -> str:
    return f"round {ks[0]}" if len(ks) == 1 else f"{len(ks)} rounds from {ks[0]} to {ks[-1]}"


def limits(
    question: RevealedQuantity, defense: dp.Defense, setting: dp.Setting, n_heard: int
) -> Limits | str:
    """Limits in bits for as many rounds as are observed of one batch, or why none is known.

    In round 1 the model is public and the same in all trials, so that a victim's gradient is a
    function of its batch. Later gradients depend on the model too, and so on all noise before them,
    which a view may hold: an estimate of such a round is held against nothing.

    A batch is a vector of as many clip norms as it has records, or of one where the whole is
    clipped. Releases of a round are taken to have the least noise of the run.
    """
    if question.private != "gradient":
        return f'none is derived for the private quantity "{question.private}"'
    if defense.batches_per_round > 1:
        return "none is derived for several batches in a round"
    if defense.function_distance() is not None or defense.clip_norm_in(1) is None:
        return "nothing bounds the norm of a gradient"
    releases = defense.mechanism(setting, question.threat_model, question.victim).most
    if not releases:
        return "the defense declares no release of it to this adversary"
    if any(release.noise_multiplier == 0 for release in releases):
        return Limits(inf, inf, inf)
    least = min(releases, key=lambda release: release.noise_multiplier)
    each = max(1, -(-sum(release.count for release in releases) // defense.n_rounds))
    n, mu = each * n_heard, 1 / least.noise_multiplier
    all_held = defense.drawing == "poisson"
    b = setting.sizes[question.victim] if all_held else defense.batch_size
    b = 1 if defense.protects == "user" else b
    if least.family == "laplace":
        one, whole = of_bit_in_randomised_response(mu), of_pure_epsilon(2 * b * mu)
        return Limits(n * whole, n * of_pure_epsilon(mu), n * one)
    together = n**0.5 * mu
    return Limits(
        n * of_vector_in_gaussian(setting.d, b * mu),
        of_number_in_gaussian(together),
        of_bit_in_gaussian(together),
    )


def beyond(known: Limits | str, low: float) -> tuple[str, ...]:
    """What it means if the lower end of the estimate of round 1 exceeds the limit of its batch."""
    if isinstance(known, str) or not low > known.batch:
        return ()
    return (
        f"beyond the noise: at least {low:.3g} bits in round 1, where the declared noise lets "
        f"{known.batch:.3g} through at most; this speaks against the noise",
    )


def limits_note(known: Limits | str) -> str:
    """What the limits are, for a reader."""
    if isinstance(known, str):
        return f"no capacity of the noise beside the estimate: {known}"
    return (
        "capacity: what the declared noise lets through of the gradient of a batch at most, which "
        "limits the estimate in round 1; and of one record, a number or its presence; an estimate "
        "below them proves nothing"
    )
