"""Membership: was this record in the batch that an intercepted gradient came from?"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.accounting.privacy_loss import Array
from dpaudit.attack.membership_rates import membership_rates, rate
from dpaudit.attack.victims import VIEW, gradients_of_window, refuse_many_unknowns, window_of
from dpaudit.game.estimating.estimate import GradientEstimate

CHUNK = 2**27  # bytes of records' gradients at once


class Membership(da.Attack):
    """A matched filter for each record's gradient on the best linear estimate of the batch's.

    The adversary estimates a victim's gradient u with its noise from its view, at the model where
    it was taken, and scores a record by its own clipped gradient g there,

        (g'u - |g|^2 / 2B) / std^2,  or g'u / |g| where the noise is not known or nothing,

    which is the likelihood ratio but for the other records of the batch. Scores are centred and
    scaled over records that nobody holds, the public test set, so that rounds and victims compare.
    Half of those set the thresholds of the stated rates, the other half say what the rates are.
    With ``candidates`` one record of each batch is also matched among others (``is_matched``).

    Source: the estimate as in ``dpaudit.game.estimating.estimate``; TPR at low FPR: Carlini et al.
    2022, arXiv:2112.03570.
    """

    rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    victims: PositiveInt = 8  # agents whose batches are attacked, in each round
    candidates: Annotated[int, Field(ge=2)] | None = None  # one of them in the batch; None: no such

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        return da.late_rounds(self.rounds, n_rounds)

    def refuse(self, learned: da.LoadedProblem, setting: dp.Setting) -> None:
        """Raises DataError: the data are no records, or too few of them are held out."""
        if learned.dataset is None:
            raise da.DataError("DPA033", "these data are no records; membership needs records")
        if len(learned.dataset.x_test) < 40:
            raise da.DataError(
                "DPA032",
                f"membership needs at least 40 records that nobody holds; this data set has "
                f"{len(learned.dataset.x_test)} test records",
            )
        if self.candidates is not None and self.candidates > len(learned.dataset.x_test) + 1:
            raise da.DataError(
                "DPA032",
                f"attack.candidates: all but one of {self.candidates} are records that nobody "
                f"holds; expected 2 to {len(learned.dataset.x_test) + 1}",
            )

    def recording(self, defense: dp.Defense) -> da.Recording:
        """All messages of each round and of those beside it."""
        needed = {j for k in self.rounds for j in window_of(VIEW, k, defense.n_rounds, False)}
        return da.Recording({k: frozenset(defense.messages) for k in sorted(needed)}, {})

    def parts(self, defense: dp.Defense) -> tuple[da.Part, ...]:
        return tuple(da.Part(world) for world in da.WORLDS)

    def refuse_too_large(self, context: da.AttackContext, threat_model: da.ThreatModel) -> None:
        refuse_many_unknowns(context, threat_model, self.rounds)

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        problem, world = context.problem, context.part.world
        assert isinstance(problem, da.Classification)  # the others were refused
        defense = context.defense if world == "defense" else context.defense.without_noise()
        transcript = context.run.transcript(world, context.streams.device)
        rng = context.streams.numpy("victims", threat_model.name)
        order = [int(j) for j in rng.permutation(context.setting.n_agents)]
        order = [j for j in order if j in context.setting.holders]
        victims = [j for j in order if j not in threat_model.agents][: self.victims]
        rng = context.streams.numpy("candidates", threat_model.name)
        scored: list[_Scored] = []
        matched: list[bool] = []
        refusals: list[str] = []
        attacked = sorted(set(self.rounds))  # a round that is named twice counts once
        for done, k in enumerate(attacked, start=1):
            rounds = window_of(VIEW, k, defense.n_rounds, False)
            view = dp.View.of(threat_model, transcript, set(rounds))
            asked = view, rounds, k, victims, len(victims)
            revealed, refused = gradients_of_window(defense, context.setting, *asked)
            for victim, (estimate, *_) in revealed.items():
                batch = _Batch.of(context, problem, defense, k, victim, estimate)
                if not len(batch.inputs):
                    refusals.append(f"{batch.where} drew no record")
                    continue
                scored.append(batch.scored())
                if self.candidates is not None:
                    matched.append(batch.matched(self.candidates, rng))
            refusals += refused
            on_step(done, len(attacked))
        if not scored:
            lacks = next(iter(refusals), "every agent that holds data is the adversary's own")
            return [self._finding(context, threat_model, (f"not available: {lacks}",))]
        return [self._found(context, threat_model, scored, matched, refusals)]

    def _found(
        self,
        context: da.AttackContext,
        threat_model: da.ThreatModel,
        scored: list["_Scored"],
        matched: list[bool],
        refusals: list[str],
    ) -> da.Finding:
        rng = context.streams.numpy("thresholds", threat_model.name)
        n_public = len(scored[0].public)
        for_threshold = rng.permutation(n_public) < n_public // 2
        members = np.concatenate([s.members for s in scored])
        choosing = np.concatenate([s.public[for_threshold] for s in scored])
        counting = np.concatenate([s.public[~for_threshold] for s in scored])
        metrics, rates, series = membership_rates(members, choosing, counting)
        notes = [
            f"{len(members)} records of {len(scored)} batches against {n_public} that nobody "
            f"holds, of which {for_threshold.sum()} set the thresholds",
            "a record that nobody holds is scored once for each batch: intervals count these as "
            "independent",
            *rates,
        ]
        assert isinstance(context.problem, da.Classification)  # the others were refused
        if copies := context.problem.dataset.n_copied:
            notes.append(
                f"{copies} of these {n_public} are copies of records that agents hold: no score "
                "tells them from members"
            )
        if self.candidates is not None and matched:
            metrics[da.Name.MATCHED] = rate(np.array(matched))
            metrics[da.Name.MATCHED_BLINDLY] = da.Metric(value=1 / self.candidates)
            notes.append(
                f"matched: of each batch one record among {self.candidates - 1} that nobody holds, "
                "by an adversary who knows the other records of the batch"
            )
        if refusals:
            notes.append(f"out of reach {len(refusals)} times: {refusals[0]}")
        return self._finding(context, threat_model, tuple(notes), metrics, series)

    def _finding(
        self,
        context: da.AttackContext,
        threat_model: da.ThreatModel,
        notes: tuple[str, ...],
        metrics: Mapping[str, da.Metric] = {},
        series: Mapping[str, tuple[float, ...]] = {},
    ) -> da.Finding:
        return da.Finding(
            role=da.Role.MEMBERSHIP,
            kind="membership",
            title="which records a batch held",
            attack=context.name,
            threat_model=threat_model.name,
            message=VIEW,
            rounds=tuple(sorted(set(self.rounds))),
            world=context.part.world,
            batch_size=context.defense.batch_size,
            metrics=dict(metrics),
            notes=notes,
            series=dict(series),
        )


class _Scored(NamedTuple):
    """Scores of one batch, standardised over records that nobody holds."""

    members: Array  # [records of the batch]
    public: Array  # [records of the test set]


@dataclass(frozen=True, eq=False)
class _Batch:
    """A victim's batch, and what the adversary derived of its gradient."""

    problem: da.Classification
    inputs: Tensor  # inputs of the drawn records
    labels: Tensor
    estimate: GradientEstimate
    clip_norm: float | None
    batch_size: int
    where: str

    @classmethod
    def of(
        cls,
        context: da.AttackContext,
        problem: da.Classification,
        defense: dp.Defense,
        k: int,
        victim: int,
        estimate: GradientEstimate,
    ) -> "_Batch":
        streams = da.Streams(context.seed, context.streams.device)
        drawn = problem.batch(
            streams, k, defense.batch_size, defense.drawing, step=estimate.input.step
        )
        there = slice(None) if drawn.weights is None else drawn.weights[victim] > 0
        records = drawn.inputs[victim][there], drawn.labels[victim][there]
        clip_norm, where = defense.clip_norm_in(k), f"round {k}, agent {victim}"
        return cls(problem, *records, estimate, clip_norm, defense.batch_size, where)

    def gradients(self, inputs: Tensor, labels: Tensor) -> Iterator[Tensor]:
        """Clipped gradients of records at the model of the estimate, [n, d] in parts."""
        model = self.estimate.model
        size = max(1, CHUNK // (model.element_size() * len(model)))
        for x, y in zip(inputs.split(size), labels.split(size), strict=True):
            (each,) = self.problem.gradients.per_record(model[None], x[None], y[None])
            yield each if self.clip_norm is None else dp.clip(each, self.clip_norm)

    def scored(self) -> _Scored:
        fits = [
            _Fits.together(self.gradients(*records), self.estimate.gradient)
            for records in ((self.inputs, self.labels), self._public())
        ]
        by_likelihood = fits[1].are_below_noise(self.estimate)  # the same for members and others
        members, public = (one.scores(by_likelihood, self.batch_size) for one in fits)
        spread = public.std()
        if not np.isfinite(spread) or spread == 0:
            raise da.DpauditError(
                "DPA072", f"scores of {self.where} are no numbers or all the same"
            )
        return _Scored((members - public.mean()) / spread, (public - public.mean()) / spread)

    def matched(self, candidates: int, rng: np.random.Generator) -> bool:
        """Whether one record of the batch is found among records that nobody holds."""
        i = int(rng.integers(len(self.inputs)))
        (record,) = torch.cat([*self.gradients(self.inputs[i : i + 1], self.labels[i : i + 1])])
        total = [g.sum(dim=0) for g in self.gradients(self.inputs, self.labels)]
        others = torch.stack(total).sum(dim=0) - record
        left = self.estimate.gradient - others / self.batch_size
        inputs, labels = self._public()
        chosen = torch.from_numpy(rng.permutation(len(inputs))[: candidates - 1]).to(inputs.device)
        decoys = torch.cat([*self.gradients(inputs[chosen], labels[chosen])])
        return is_matched(left, record, decoys, self.batch_size, rng)

    def _public(self) -> tuple[Tensor, Tensor]:
        data, device = self.problem.dataset, self.inputs.device
        return data.x_test.to(device), data.y_test.to(device)


def is_matched(
    left: Tensor, record: Tensor, decoys: Tensor, batch_size: int, rng: np.random.Generator
) -> bool:
    """Whether the record in the batch is the most likely candidate, to one who knows the others.

    The estimate less the other records' gradients is the record's own, divided by the batch size B,
    under noise that is alike and independent in all coordinates: of candidates with gradients g the
    likeliest is that whose g / B is nearest.

    Args:
        left: [d], the estimate less the other records' share of it.
        record: [d], the clipped gradient of the record in the batch.
        decoys: [m - 1, d], of the other candidates.
        rng: the record's place among the candidates is drawn from it, so that equally likely ones
            are matched as often as by a guess.

    Source: the prior-aware attack of Hayes, Mahloujifar and Balle 2023, arXiv:2302.07225.
    """
    place = int(rng.integers(len(decoys) + 1))
    candidates = torch.cat([decoys[:place], record[None], decoys[place:]])
    distances = candidates.square().sum(dim=1) / (2 * batch_size) - candidates @ left
    return int(distances.argmin()) == place


class _Fits(NamedTuple):
    """How records' gradients fit the estimate of a batch's mean, [n] each."""

    products: Tensor  # products of gradients with the estimate
    squares: Tensor  # squared lengths of gradients

    @classmethod
    def together(cls, parts: Iterable[Tensor], estimate: Tensor) -> "_Fits":
        """The fits of gradients [n, d], given in parts."""
        every = [(g @ estimate, g.square().sum(dim=1)) for g in parts]
        return cls(*map(torch.cat, zip(*every, strict=True)))

    def are_below_noise(self, estimate: GradientEstimate) -> bool:
        """Whether the noise of the estimate is longer than each of these gradients."""
        noise = 0.0 if estimate.std is None else estimate.std**2 * len(estimate.gradient)
        return noise > float(self.squares.max())

    def scores(self, by_likelihood: bool, batch_size: int) -> Array:
        """The likelihood ratio, or else the length of the estimate along the gradient."""
        if by_likelihood:
            found = self.products - self.squares / (2 * batch_size)
        else:
            tiny = torch.finfo(self.squares.dtype).tiny
            found = self.products / self.squares.sqrt().clamp(min=tiny)
        return found.double().cpu().numpy()
