"""Many runs of a defense with and without a record, scored by the strongest adversary.

The runs are those of the implementation under test. The score is the adversary's log likelihood
ratio under the noise that the defense asks for, and sampling: ln(1 - q + q e^llr) for each round.
Bounds made from it hold whatever the implementation really does; only their power rests on the
scores being the right ones. Where they are not, a score that is learned from other runs may do
better: noise that repeats itself, say, shows in the covariance of the innovations.

Third agents may have losses of their own that relay a record: steep where it decides, flat
elsewhere. An agent that is neither the victim nor the adversary has a batch of records that are all
alike, whose gradient at its model theta is

    sign C clamp(slope (theta - centre), -1, 1),

C being what the defense clips to, or as long as the canary's where it clips nothing. It is that of
a smooth loss (of Huber's, or of its negative), and decides at the centre: half-way between the
models that the agent has with and without the record, without noise, when it first differs.
Batches of the rounds before have records without a gradient.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import floor, log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array
from dpaudit.checkpoint import NO_CHECKPOINT, Checkpoint, Progress
from dpaudit.defense import DpauditError, Gradient, Messages, ThreatModel
from dpaudit.game.filtering.adversary import Adversary, Innovation, KalmanFilter
from dpaudit.game.filtering.leak import EVERY_ROUND, RoundReading
from dpaudit.game.game import CanaryGradient, Game
from dpaudit.game.matrices import times
from dpaudit.game.probing.observer import Observer
from dpaudit.game.step_inputs import ChosenNoise, RecordedNoise, WatchedGradient
from dpaudit.progress import OnStep
from dpaudit.rng import Streams

STEEP = 30.0  # slopes, by the standard deviation of the noise in the model
PILOT = 400  # runs that give that deviation
REACHED = 1e-6  # effects of the record below this share of that deviation have not arrived
FEATURES = 192  # innovations kept of a run, for learned scores and the test of the noise
BLOCK = 40_000  # messages of a round that are simulated at once for each world
ASKED = 1.05  # times as many blocks as before are asked about next
POINTS = 80  # points of a trade-off curve
CERTAIN = 30.0  # nats that a record seen without noise is worth
SHRINKAGE = 1e-3  # shrinkage of the learned covariance towards its diagonal
FOLDS = 10  # parts of the runs that a score is learned from


@dataclass(frozen=True, eq=False)
class SteepLosses:
    """The losses of all agents, one sign for all of them."""

    centre: Tensor  # [n_agents]
    slope: Tensor  # [n_agents]; 0: no gradient
    first: Tensor  # [n_agents], the round from which on there is one
    sign: float  # 1: pulls towards the centre, as convex losses do; -1: pushes away from it

    @classmethod
    def of(cls, game: Game, agents: tuple[int, ...], n_rounds: int) -> "SteepLosses":
        """For each of ``agents``, at the first model of its own that the record reaches.

        The record is used in round 1. Without noise it is there in one run and not in the other.
        """
        centre, slope, first = torch.zeros(3, game.setting.n_agents, dtype=torch.float64)
        for k, askers, models in _models(game, n_rounds):
            moved, spread = models[1] - models[0], models[2:].std(dim=0)
            reached = (moved.abs() > REACHED * spread) & (spread > 0)
            for i, agent in enumerate(askers):
                if reached[i] and agent in agents and not first[agent]:
                    centre[agent] = models[:2, i].mean()
                    slope[agent], first[agent] = STEEP / spread[i], k
        return cls(centre, slope, first, 1.0)

    def opposite(self) -> "SteepLosses":
        return replace(self, sign=-self.sign)

    def beside(self, canary: CanaryGradient, k: int) -> "CanaryAmongOthers":
        """The oracle of round k."""
        return CanaryAmongOthers(canary, replace(self, slope=self.slope * (self.first <= k)))

    def at(self, X: Tensor, holders: Tensor | None) -> Tensor:
        """The gradients at X [..., m, d], in units of the longest."""
        rows = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        centre, slope = (t.to(X)[rows, None] for t in (self.centre, self.slope))
        return self.sign * (slope * (X - centre)).clamp(-1, 1)


@dataclass(frozen=True, eq=False)
class CanaryAmongOthers(Gradient):
    """The canary, and beside it third agents with losses of their own."""

    canary: CanaryGradient
    losses: SteepLosses

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.canary.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.canary(X, holders) + self.canary.length * self.losses.at(X, holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        longest = self.batch_size * min(self.canary.length, clip_norm)
        own = self.canary.clipped_sum(X, clip_norm, holders, norm)
        return own + longest * self.losses.at(X, holders)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        each = self.canary.per_record(X, holders, own)
        at = X if own else X[..., None, :]
        steep = self.canary.length * self.losses.at(at.movedim(-2, -3), holders).movedim(-3, -2)
        b = max(self.batch_size, each.shape[-2])
        padded = each.new_zeros(*each.shape[:-2], b, each.shape[-1])
        padded[..., : each.shape[-2], :] = each
        return padded + steep if not own else each + steep

    def at_step(self, s: int) -> "CanaryAmongOthers":
        return replace(self, canary=self.canary.at_step(s))


def _models(game: Game, n_rounds: int) -> Iterator[tuple[int, list[int], Tensor]]:
    """By round, whose gradients are asked for and at which models [2 + PILOT, n_asked].

    First without noise and record, then with the record, then with noise alone.
    """
    generator, trials = torch.Generator().manual_seed(0), 2 + PILOT
    state = game.start(trials)
    for k in range(1, n_rounds + 1):
        drawn = torch.zeros(trials, dtype=torch.float64)
        drawn[1] = float(k == 1)
        canary, asked = game.gradient(drawn), ChosenNoise()
        game.step(state, k, canary, asked)
        units = asked.zeros(trials)
        for draws in units.values():
            draws[2:].normal_(generator=generator)
        watched = WatchedGradient(canary)
        state = game.step(state, k, watched, ChosenNoise(units)).state
        if watched.models:
            yield k, watched.askers, watched.asked_at(trials)


class ProjectionAdversary:
    """An adversary that reads the first ``n_rounds`` along the record of a game.

    A model of one coordinate says little of a step that takes the mean over coordinates away,
    divides by the norm of all of them or gives no number there, as a standard deviation of one is
    none. So the step is played at more, of which the record moves the first, or all alike. The
    adversary knows that direction and takes the part of every message along it. No algebra predicts
    that part, so a score is learned from other runs. It is a test like any other: what it certifies
    holds, and how much it misses is not known.
    """

    def __init__(self, game: Game, threat_model: ThreatModel, n_rounds: int) -> None:
        self.game, self.threat_model, self.n_rounds = game, threat_model, n_rounds
        self._observer = Observer(game, threat_model)

    @property
    def observed(self) -> int:
        """Numbers that are read of the first round."""
        asked = ChosenNoise()
        return len(self._observer.named(1, self.game.first_sent(asked), asked.draws))

    def observe(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """What it reads of a round [trials, n], its own noise too."""
        along = self.game.along_record
        read = {name: replace(s, payload=along(s.payload)) for name, s in sent.items()}
        own = {name: along(drawn) for name, drawn in units.items()}
        return self._observer.all_observations(k, read, own)


@dataclass(frozen=True, eq=False)
class ScoredRuns:
    """What the adversary made of runs of one world."""

    scores: Array  # [trials], log likelihood ratio of the record being there; 0: none is known
    # [trials, at most FEATURES], of the first rounds in which the record can be: whitened
    # innovations, or what is heard along
    features: Array


class Worlds(NamedTuple):
    without: ScoredRuns
    with_record: ScoredRuns

    @property
    def scores(self) -> tuple[Array, Array]:
        return self.without.scores, self.with_record.scores


def play(
    adversary: Adversary | ProjectionAdversary,
    trials: int,
    streams: Streams,
    in_round: int | None = None,
    game: Game | None = None,
    on_round: OnStep = lambda done, total: None,
    dtype: torch.dtype = torch.float64,
    checkpoint: Checkpoint = NO_CHECKPOINT,
    others: SteepLosses | None = None,
    enough: Callable[[Worlds], bool] | None = None,
) -> Worlds:
    """Both worlds, ``trials`` runs of each, in blocks that fit in the processor's cache.

    Args:
        in_round: the only round in which the record may be drawn; None: in any.
        game: what is really played, if it is another game than the adversary believes in.
        others: losses of third agents; None: they have no gradients.
        enough: whether the runs so far will do; asked between blocks, of many in each twentieth, so
            that all answers take time in proportion to the runs. None: they never will.

    Raises:
        DpauditError: a score is NaN.
    """
    rows = adversary.observed + 2 * adversary.game.setting.n_agents
    n_blocks = -(-trials // block_of(rows, adversary.game.played))
    blocks = _blocks_of(checkpoint.last())
    for i, part in list(enumerate(np.array_split(np.arange(trials), n_blocks)))[len(blocks) :]:
        if enough is not None and _is_due(len(blocks)) and enough(_together(blocks)):
            break

        def counted(done: int, total: int, i: int = i) -> None:
            on_round(i * total + done, n_blocks * total)

        own = streams.child("block", i)
        with torch.inference_mode():
            blocks.append(_block(adversary, len(part), own, in_round, game, counted, dtype, others))
        checkpoint.keep(partial(_progress_of, blocks))
    checkpoint.done(_progress_of(blocks))
    return _together(blocks)


def _is_due(n_blocks: int) -> bool:
    """Whether these are the first blocks that are ``ASKED`` to another whole power."""
    if n_blocks < 2:
        return n_blocks == 1
    return floor(log(n_blocks, ASKED)) > floor(log(n_blocks - 1, ASKED))


def _together(blocks: list[Worlds]) -> Worlds:
    def joined_runs(runs: tuple[ScoredRuns, ...]) -> ScoredRuns:
        scores, features = zip(*((one.scores, one.features) for one in runs), strict=True)
        return ScoredRuns(np.concatenate(scores), np.concatenate(features))

    return Worlds(*map(joined_runs, zip(*blocks, strict=True)))


def block_of(rows: int, coordinates: int) -> int:
    """Runs of each world that are played at once, of so many rows of so many coordinates."""
    return max(50, BLOCK // (rows * coordinates))


def _progress_of(blocks: list[Worlds]) -> Progress:
    return Progress.of(
        *(
            [[torch.from_numpy(run.scores), torch.from_numpy(run.features)] for run in block]
            for block in blocks
        )
    )


def _blocks_of(last: Progress | None) -> list[Worlds]:
    return [
        Worlds(*(ScoredRuns(*(tensor.cpu().numpy() for tensor in run)) for run in block))
        for block in (last.parts if last else ())
    ]


def _block(
    adversary: Adversary | ProjectionAdversary,
    trials: int,
    streams: Streams,
    in_round: int | None,
    game: Game | None,
    on_round: OnStep,
    dtype: torch.dtype,
    others: SteepLosses | None,
) -> Worlds:
    game, device = game or adversary.game, streams.device
    present = torch.arange(2 * trials, device=device) >= trials
    sign = torch.where(present, 1.0, -1.0 if game.is_replacement else 0.0).to(dtype)
    state = game.start(2 * trials, dtype, device, game.played)
    ratios = None
    if isinstance(adversary, Adversary):
        # each coordinate is a trial of its own to the adversary, who reads one
        start = game.start(2 * trials * game.played, dtype, device)
        ratios = _RatiosOfRuns(adversary, start, 2 * trials, game.played)
    features: list[Tensor] = []
    for k in range(1, adversary.n_rounds + 1):
        noise, used = RecordedNoise(streams, k), in_round in (None, k) and game.uses(k)
        draws = [("sampling", k, s) if s else ("sampling", k) for s in range(game.batches)]
        drawn = [
            game.draw(2 * trials, streams(*name), device).to(dtype) * sign * used for name in draws
        ]
        gradient: Gradient = game.played_gradient(*drawn)
        if others is not None:
            gradient = others.beside(game.gradient(*drawn), k)
        state, sent, *_ = game.step(state, k, gradient, noise)
        hear = adversary.observe if ratios is None else ratios.update
        heard = hear(k, sent, noise.units)
        if k >= (in_round or 1) and sum(f.shape[1] for f in features) < FEATURES:
            features.append(heard)
        on_round(k, adversary.n_rounds)
    kept = torch.cat(features, dim=1)[:, :FEATURES].double().cpu().numpy()
    scores = np.zeros(2 * trials) if ratios is None else ratios.scores(in_round)
    if np.isnan(scores).any():
        raise DpauditError(
            "DPA046",
            f"{int(np.isnan(scores).sum())} of {len(scores)} runs played against "
            f'"{adversary.threat_model.name}" have NaN as their score; expected messages that are '
            "numbers: the defense overflows or divides by 0",
        )
    return Worlds(
        ScoredRuns(scores[:trials], kept[:trials]), ScoredRuns(scores[trials:], kept[trials:])
    )


class _RatiosOfRuns:
    """Log likelihood ratios of runs, of which the adversary reads each coordinate by itself."""

    def __init__(self, adversary: Adversary, start: object, trials: int, d: int) -> None:
        self._trials, self._d = trials, d
        self._kalman = KalmanFilter(adversary, start)
        self._ratios = LogRatios(adversary.game, trials)

    def update(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """The whitened innovations of round k that are well above rounding, [trials, n]."""
        if self._d > 1:
            d = self._d
            sent = {m: replace(s, payload=_by_coordinate(s.payload, d)) for m, s in sent.items()}
            units = {m: _by_coordinate(drawn, d) for m, drawn in units.items()}
        innovation = self._kalman.update(k, sent, units)
        self._ratios.add(innovation)
        resolved = innovation.reading.resolved.to(innovation.whitened.device)
        return innovation.whitened[:, resolved].reshape(self._trials, -1)

    def scores(self, in_round: int | None) -> Array:
        return np.asarray(self._ratios.scores(in_round).double().cpu().numpy())


def _by_coordinate(values: Tensor, d: int) -> Tensor:
    """[trials, rows, d] as models of one coordinate, [trials d, rows, 1].

    A message of another width, as a count, is read beside each of the coordinates as it is.
    """
    if values.shape[-1] != d:
        return values.repeat_interleave(d, dim=0)
    return values.movedim(-1, 1).flatten(0, 1).unsqueeze(-1)


class LearnedScore:
    """Linear discriminant of the innovations, from runs that are not counted.

    It is 0 half-way between the means of the two worlds.
    """

    def __init__(self, training: Worlds) -> None:
        worlds = [world.features for world in training]
        without, with_record = (features.mean(axis=0) for features in worlds)
        centred = np.concatenate([worlds[0] - without, worlds[1] - with_record])
        covariance = centred.T @ centred / max(len(centred) - 2, 1)
        spread = np.diag(covariance).copy()
        covariance[np.diag_indices_from(covariance)] += SHRINKAGE * spread + 1e-12
        self._direction = np.linalg.solve(covariance, with_record - without)
        self._middle = (without + with_record) / 2 @ self._direction

    def __call__(self, played: ScoredRuns) -> Array:
        return played.features @ self._direction - self._middle


def cross_fitted(training: Worlds) -> tuple[Array, Array]:
    """Learned scores of both worlds' runs, each by a score learned from the other folds' runs."""
    scores = [np.empty(len(world.scores)) for world in training]
    for fold in range(FOLDS):
        held_out = [np.arange(len(s)) % FOLDS == fold for s in scores]
        learned = LearnedScore(_part(training, [~part for part in held_out]))
        for s, part, world in zip(scores, held_out, _part(training, held_out), strict=True):
            s[part] = learned(world)
    return scores[0], scores[1]


def _part(worlds: Worlds, kept: list[Array]) -> Worlds:
    parts = zip(worlds, kept, strict=True)
    return Worlds(*(ScoredRuns(world.scores[part], world.features[part]) for world, part in parts))


def error_rates(without: Array, with_record: Array) -> tuple[Array, Array]:
    """False positive and negative rates at ``POINTS`` thresholds, by rising false positives."""
    thresholds = np.quantile(np.concatenate([without, with_record]), np.linspace(1, 0, POINTS))
    fpr = 1 - np.searchsorted(np.sort(without), thresholds, side="right") / len(without)
    fnr = np.searchsorted(np.sort(with_record), thresholds, side="right") / len(with_record)
    return fpr, fnr


class LogRatios:
    """Log likelihood ratios of the record having been used, round by round, on the run."""

    def __init__(self, game: Game, trials: int) -> None:
        self._game, self._trials = game, trials
        self._present: dict[int, Tensor] = {}
        self._opposite: dict[int, Tensor] = {}

    def progress(self) -> list[dict[int, Tensor]]:
        """All that was added; ``resume`` takes it back."""
        return [self._present, self._opposite]

    def resume(self, present: dict[int, Tensor], opposite: dict[int, Tensor]) -> None:
        self._present, self._opposite = present, opposite

    def add(self, innovation: Innovation) -> None:
        reading, surprise, y = innovation
        for j, shift in reading.shifts.items():
            self._add(self._present, j, _log_ratio(reading, y, shift.to(y)))
            if self._game.is_replacement:
                self._add(self._opposite, j, _log_ratio(reading, y, -shift.to(y)))
        for j, combination in reading.shown.items():
            certain = CERTAIN * (surprise @ combination.to(y)).clamp(-1, 1)
            self._add(self._present, j, certain)
            if self._game.is_replacement:
                self._add(self._opposite, j, -certain)

    def scores(self, in_round: int | None) -> Tensor:
        total = torch.zeros(self._trials, dtype=torch.float64)
        for j in self._present:
            if in_round is None or j == EVERY_ROUND or in_round == -(-j // self._game.batches):
                total = total + self._sampled(self._present[j]).cpu()
                if self._game.is_replacement:
                    total = total - self._sampled(self._opposite[j]).cpu()
        return total

    def _sampled(self, log_ratio: Tensor) -> Tensor:
        q = self._game.sampling_rate
        if q == 1:
            return log_ratio
        missed = torch.full_like(log_ratio, float(np.log1p(-q)))
        return torch.logaddexp(missed, log_ratio + float(np.log(q)))

    def _add(self, to: dict[int, Tensor], j: int, log_ratio: Tensor) -> None:
        log_ratio = log_ratio.view(self._trials, -1).sum(1)  # over coordinates
        to[j] = to[j] + log_ratio if j in to else log_ratio


def _log_ratio(reading: RoundReading, y: Tensor, shift: Tensor) -> Tensor:
    """ln p(y - shift)/p(y) of innovations [trials, rank]; of single draws where they are known."""
    y = y[:, : len(shift)]
    if not (reading.exact and reading.has_laplace):
        return y @ shift - shift @ shift / 2
    laplace = reading.laplace.to(y.device)
    z, c = times(y, reading.draws), times(shift, reading.draws)
    gaussian = (z[:, ~laplace].square() - (z - c)[:, ~laplace].square()).sum(1) / 2
    sizes = z[:, laplace].abs() - (z - c)[:, laplace].abs()
    return gaussian + sizes.sum(1) * 2**0.5
