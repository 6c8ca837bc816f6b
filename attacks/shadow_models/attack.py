"""Which records did the agents train on? By many runs of the same algorithm on other records."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, PositiveInt

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.accounting.privacy_loss import Array
from dpaudit.attack.membership_rates import Rates, membership_rates

from .scores import (
    FEWEST,
    Mask,
    References,
    Variances,
    is_scored,
    lira_offline,
    lira_online,
    rmia,
    tuned_offline_a,
)
from .shadows import RecordAssignment, RecordStatistics, deal, models_seen, train_shadows

SEQUENCE = 8  # rounds of a sequence, if none are named
FEWEST_RECORDS = 40  # least size of the test set
MOST_PAIRS = 2 * 10**8  # pairs of a run and a record's statistic


class ShadowModels(da.Attack):
    """LiRA and RMIA from the last model, or from the sequence of models that links carry.

    ``shadows`` reference runs and ``targets`` attacked runs train the same defense from the same
    initial model, each on records of its own (``shadows.deal``). A score is computed of every
    record that could be in a run, by the reference runs alone, and is compared with whether it was.
    Half of the attacked runs choose the thresholds. An adversary that reads links sees the models
    that ``message`` carries, of which it takes the mean over senders.
    """

    chooses: ClassVar[da.Chooses] = {"message": ("messages",)}
    final_model = ("white-box", "black-box")

    shadows: Annotated[int, Field(ge=8)] = 64  # reference runs
    targets: Annotated[int, Field(ge=2)] = 16  # runs that are attacked
    variances: Variances = "pooled"  # for LiRA: one for all records; "own": one for each
    message: str | None = None  # name of the message with models; None: "x"
    rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = (
        None  # rounds whose models on links are observed; None: 8, evenly spaced
    )

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        return da.late_rounds(self.rounds or (), n_rounds)

    def refuse(self, learned: da.LoadedProblem, setting: dp.Setting) -> None:
        """Raises DataError: the data are no records, or too few of them are held out."""
        if learned.dataset is None:
            raise da.DataError("DPA033", "these data are no records; shadow-models needs records")
        if (n := len(learned.dataset.x_test)) < FEWEST_RECORDS:
            raise da.DataError(
                "DPA032",
                f"shadow-models needs at least {FEWEST_RECORDS} records that nobody holds; this "
                f"data set has {n} test records",
            )
        pairs = (self.shadows + self.targets) * SEQUENCE * (learned.n_records or 0)
        if pairs > MOST_PAIRS:
            raise da.ConfigError(
                "DPA022",
                f"attack.shadows: {self.shadows + self.targets} runs with {learned.n_records:,} "
                f"records have {pairs:.1g} statistics; expected at most {MOST_PAIRS:.0g}",
            )

    def parts(self, defense: dp.Defense) -> tuple[da.Part, ...]:
        return tuple(da.Part(world) for world in da.WORLDS)

    def refuse_too_large(self, context: da.AttackContext, threat_model: da.ThreatModel) -> None:
        """Called before anything is run. Raises ConfigError: no message named carries models."""
        messages = context.defense.messages
        if not threat_model.has_final_model and self._message not in messages:
            raise da.ConfigError(
                "DPA052",
                f'attack shadow-models: no message is called "{self._message}"; expected message = '
                f"the one that carries models, of {', '.join(messages)}",
            )

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        problem = context.problem
        assert isinstance(problem, da.Classification)  # the others were refused
        hides = context.part.world == "defense"
        defense = context.defense if hides else context.defense.without_noise()
        rng = context.streams.numpy("records", threat_model.name)
        dealt = deal(problem, self.shadows + self.targets, threat_model.agents, rng)
        rounds = self._rounds(threat_model, defense.n_rounds)
        if why_not := self._too_few(dealt.included):
            refusal = (f"not available: {why_not}",)
            return [self._finding(context, threat_model, rounds, "membership", refusal)]
        with_gradients = threat_model.has_final_model and threat_model.access == "white-box"
        watched = partial(models_seen, defense, threat_model, self._message)
        seen = train_shadows(context, defense, dealt, rounds, watched, with_gradients, on_step)
        if seen is None:
            why = f'not available: {threat_model.name} reads no link with "{self._message}"'
            return [self._finding(context, threat_model, rounds, "membership", (why,))]
        what = "log odds of the label" + " and log norm of the gradient" * with_gradients
        several = f"{seen.records.shape[2]} of {defense.n_rounds} rounds"
        when = "the last round" if threat_model.has_final_model else several
        notes = (
            f"{self.shadows} reference runs and {self.targets} attacked ones on records dealt "
            f"anew; by the {what} after {when}",
            "a record is scored in each attacked run: intervals count these as independent",
        )
        return [
            self._finding(context, threat_model, rounds, title, notes, scored)
            for title, scored in self._scored(dealt, seen)
        ]

    def _too_few(self, included: Mask) -> str | None:
        """Why no rate of runs and records [n_runs, n_records] can be counted; None: it can."""
        n = self.shadows
        fit = is_scored(included[:n])
        counted = included[n + self.targets // 2 :, fit]
        if counted.any() and not counted.all():
            return None
        return (
            f"of {len(fit):,} records, {fit.sum():,} are in {FEWEST} or more of {n} reference runs "
            f"and left out of {FEWEST} or more, and no attacked run tells members of these from "
            "others; expected more shadows and targets, or more test records"
        )

    def _scored(
        self, dealt: RecordAssignment, seen: RecordStatistics
    ) -> Iterator[tuple[str, "_Scored"]]:
        """The scores of each method, with its name."""
        n, fit = self.shadows, is_scored(dealt.included[: self.shadows])
        some, truth = seen.records[:, fit], dealt.included[:, fit]
        left_out = int((~fit).sum())

        def scored(scores: Array) -> _Scored:
            return _Scored(scores, truth[n:], left_out)

        every = some.reshape(*some.shape[:2], -1)
        of_all = every[n:], References(every[:n], truth[:n])
        yield "LiRA, online", scored(lira_online(*of_all, self.variances))
        yield "LiRA, offline", scored(lira_offline(*of_all, self.variances))
        odds, public = some[..., 0], seen.public[..., 0]  # log odds of probabilities
        of_odds = odds[n:], References(odds[:n], truth[:n]), public[n:], public[:n]
        yield "RMIA, online", scored(rmia(*of_odds))
        a = tuned_offline_a(of_odds[1], of_odds[3])
        yield f"RMIA, offline (a = {a:.1f})", scored(rmia(*of_odds, offline_a=a))

    @property
    def _message(self) -> str:
        return self.message or "x"

    def _rounds(self, threat_model: da.ThreatModel, n_rounds: int) -> tuple[int, ...]:
        if threat_model.has_final_model:
            return (n_rounds,)
        if self.rounds is not None:
            return tuple(sorted(set(self.rounds)))
        return tuple(np.unique(np.linspace(1, n_rounds, SEQUENCE).round().astype(int)).tolist())

    def _finding(
        self,
        context: da.AttackContext,
        threat_model: da.ThreatModel,
        rounds: tuple[int, ...],
        title: str,
        notes: tuple[str, ...],
        scored: "_Scored | None" = None,
    ) -> da.Finding:
        found = Rates({}, (), {}) if scored is None else scored.rates()
        return da.Finding(
            role=da.Role.MEMBERSHIP,
            kind="membership",
            title=title,
            attack=context.name,
            threat_model=threat_model.name,
            message="final model" if threat_model.has_final_model else self._message,
            rounds=rounds,
            world=context.part.world,
            batch_size=context.defense.batch_size,
            metrics=found.metrics,
            notes=(*notes, *found.notes),
            series=found.series,
        )


class _Scored(NamedTuple):
    """Scores of attacked runs, and the truth."""

    scores: Array  # [n_runs, n_records]
    included: Mask  # [n_runs, n_records]
    left_out: int  # records that too few reference runs had, or had not

    def rates(self) -> Rates:
        """Half of the runs choose the thresholds; the other half says what the rates are."""
        half = len(self.scores) // 2
        choosing = self.scores[:half][~self.included[:half]]
        scores, included = self.scores[half:], self.included[half:]
        members, others = scores[included], scores[~included]
        found = membership_rates(members, choosing, others)
        less = (
            f"{self.left_out} records are in too few reference runs, or in too many, to be scored"
        )
        notes = (f"{len(members):,} members and {len(others):,} others",)
        return found._replace(notes=(*notes, *[less] * bool(self.left_out), *found.notes))
