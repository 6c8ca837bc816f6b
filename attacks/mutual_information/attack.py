"""How much an adversary's view tells about a private quantity: M-NMI over independent runs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from dpaudit.attack.contract import (
    Attack,
    AttackContext,
    Chooses,
    InvalidOption,
    World,
    late_rounds,
    missing_agent,
)
from dpaudit.attack.information import information_metrics, information_series
from dpaudit.attack.victims import VIEW, refuse_many_unknowns
from dpaudit.checkpoint import Checkpoint, Progress
from dpaudit.defense.contract import Defense
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.information.best_estimate import best_estimate
from dpaudit.information.mnmi import MaximumInformation, maximum_information, without_warnings
from dpaudit.information.reduction import Reduction
from dpaudit.progress import OnStep

from .limits import Limits, beyond, limits
from .limits import about as limits_note
from .samples import (
    Question,
    RoundSamples,
    Samples,
    blocks,
    first_heard,
    heard_rounds,
    last_round,
    samples,
)

SHOWN = 200  # points of the scatter at most
ALPHA = 0.05  # above this p-value nothing was found without noise either
_BLIND_CONTROL = (
    "not even without noise does this message tell anything of the quantity in its own round: that "
    "it tells nothing under the defense is not the defense's merit"
)


class MutualInformation(Attack):
    """Mutual information between a victim's private quantity and a message, by round (M-NMI).

    It plays ``trials`` independent runs of the defense, and of its no-defense twin, in batched
    programs. In each it notes the private quantity of one victim, and what the adversary holds of
    one message that the victim sends, or of what is derived from several (an observable or a
    combination of the defense; or "view", the best linear estimate of the victim's gradients from
    all messages of the rounds around, for any defense). Both are reduced to a few columns, and
    their information is estimated round by round.

    ``reduction`` "aligned" projects a message of the private quantity's dimension on the leading
    ``components`` of that quantity, and then on at most ``view_components`` of its own; "pca" on
    its own alone; "none" leaves all columns. What is reduced tells less, never more.

    Source: Xie, Liu and Chai, eq. (43); ``dpaudit.information.mnmi`` for what stands beside it.
    """

    chooses: ClassVar[Chooses] = {
        "message": ("messages", "observables", "combinations", "views"),
        "private": ("private",),
    }

    message: str  # or "view"
    private: str = "gradient"  # where the defense names none, what agents are answered
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

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[InvalidOption]:
        yield from late_rounds(self.rounds or (), n_rounds)
        yield from missing_agent(self.victim, n_agents)

    def refuse_too_large(self, context: AttackContext, threat_model: ThreatModel) -> None:
        """Raises ConfigError: its model is too large to be played often, or its estimate is."""
        blocks(self.trials, context.setting)
        question, defense = self._question(context, threat_model), context.defense
        if self.message == VIEW and question.victim not in threat_model.agents:
            others = {*defense.messages, *defense.observables, *defense.combinations}
            refuse_many_unknowns(context, threat_model, question.rounds, others)

    def measure(
        self, context: AttackContext, threat_model: ThreatModel, on_step: OnStep
    ) -> list[Finding]:
        """Two findings for each world: the information by round, and the adversary's best guess."""
        question = self._question(context, threat_model)
        if question.victim in threat_model.agents:
            lacks = f"agent {question.victim} is the adversary's own, so nothing is secret to it"
            return [
                self._empty(question, "defense", (f"not available to this adversary: {lacks}",))
            ]
        worlds: dict[World, Defense] = {"defense": context.defense}
        twin = context.defense.without_noise()
        if twin != context.defense:
            worlds["no-defense"] = twin
        n_blocks = len(blocks(self.trials, context.setting))
        total, done = len(worlds) * n_blocks * last_round(question, context.defense), 0

        def on_round() -> None:
            nonlocal done
            done += 1
            on_step(done, total)

        findings: list[Finding] = []
        for world, defense in worlds.items():
            checkpoint = context.checkpoint.stage(world)
            if (last := checkpoint.last()) is not None:
                findings = [Finding.model_validate(found) for found in last.note]
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
            checkpoint.done(Progress({}, [finding.model_dump(mode="json") for finding in findings]))
        return findings

    def _question(self, context: AttackContext, threat_model: ThreatModel) -> Question:
        every = tuple(range(1, context.defense.n_rounds + 1))
        return Question(
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
        context: AttackContext,
        question: Question,
        world: World,
        found: Samples,
        noiseless: bool,
    ) -> list[Finding]:
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
            tells: dict[str, Metric] = {}
            if not _private_is_constant(found):
                tells[Name.INFORMATION] = _zero(self.trials)
            return [self._empty(question, world, (random, *about), tells)]
        checkpoint = context.checkpoint.stage(world).stage("estimates")
        estimated, warned = without_warnings(
            lambda: self._estimate(context, found.rounds, checkpoint)
        )
        notes = (random, *self._method(estimated, found), *about, *warned)
        known: Limits | str = "the noise is off"
        if world == "defense":
            heard = heard_rounds(question, context.defense)
            known = limits(question, context.defense, context.setting, heard)
            notes = (*notes, limits_note(known))
        if world == "no-defense" and estimated.p_value > ALPHA:
            notes = (_BLIND_CONTROL, *notes)
        return [
            self._information(question, world, estimated, list(found.rounds), notes, known),
            self._guess(context, question, world, estimated, found),
        ]

    def _estimate(
        self, context: AttackContext, rounds: Mapping[int, RoundSamples], checkpoint: Checkpoint
    ) -> MaximumInformation:
        return maximum_information(
            [sample.private for sample in rounds.values()],
            [sample.view for sample in rounds.values()],
            context.streams.numpy("estimate"),
            k=self.k,
            reduce_private=Reduction(scale=self.scale),
            reduce_view=Reduction(scale=self.scale),
            n_permutations=self.n_permutations,
            n_splits=self.n_splits,
            checkpoint=checkpoint,
        )

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

    def _information(
        self,
        question: Question,
        world: World,
        found: MaximumInformation,
        rounds: list[int],
        notes: tuple[str, ...],
        known: Limits | str,
    ) -> Finding:
        low = float(found.lows[rounds.index(1)]) if 1 in rounds else 0.0
        metrics = information_metrics(found, shuffled=self.n_permutations > 0)
        if not isinstance(known, str):
            metrics |= known.metrics()
        what = f"{self.private} of agent {question.victim}"
        return self._finding(
            question,
            world,
            f"information about {what}, most in round {rounds[found.round - 1]}",
            metrics,
            (*beyond(known, low), *notes),
            information_series(found, rounds),
        )

    def _guess(
        self,
        context: AttackContext,
        question: Question,
        world: World,
        found: MaximumInformation,
        samples: Samples,
    ) -> Finding:
        top = list(samples.rounds)[found.round - 1]
        private, view, _ = samples.rounds[top]
        guess = best_estimate(private[:, 0], view, context.streams.numpy("best estimate"))
        n = len(guess.private)
        return self._finding(
            replace(question, rounds=(top,)),
            world,
            f"best estimate of the {self.private} of agent {question.victim}",
            {
                Name.VARIANCE_EXPLAINED: Metric(
                    value=guess.explained, low=guess.low, high=guess.high, n=n
                )
            },
            (
                f"{guess.method}, fitted on one third of the trials, chosen on another, tried on "
                "the last; the private quantity is its first component, in the unit it has",
            ),
            {
                Column.PRIVATE: tuple(guess.private[:SHOWN].tolist()),
                Column.ESTIMATE: tuple(guess.estimate[:SHOWN].tolist()),
            },
        )

    def _empty(
        self,
        question: Question,
        world: World,
        notes: tuple[str, ...],
        metrics: dict[str, Metric] | None = None,
    ) -> Finding:
        title = f"information about {self.private} of agent {question.victim}"
        return self._finding(question, world, title, metrics or {}, notes, {})

    def _finding(
        self,
        question: Question,
        world: World,
        title: str,
        metrics: dict[str, Metric],
        notes: tuple[str, ...],
        series: dict[str, tuple[float, ...]],
    ) -> Finding:
        return Finding(
            role=Role.BEST_ESTIMATE if Column.ESTIMATE in series else Role.INFORMATION,
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


def _of_view(question: Question, defense: Defense) -> Iterator[str]:
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


def _private_is_constant(found: Samples) -> bool:
    return set(found.constant.values()) == {"the private quantity"}


def _zero(n: int) -> Metric:
    return Metric(value=0.0, n=n)
