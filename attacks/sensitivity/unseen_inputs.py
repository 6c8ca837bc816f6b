"""What a step does in batches that no run draws, and with gradients that no run meets.

A step may choose by a sum that no noise hides: to stop where it is short, to take a step back, to
leave noise out. Where all sums of a run are long, neighbouring runs do the same. So records of a
batch are left without a gradient, up to all of them, and one is added. Where no sum of a run is as
long as one of records that are alike, such records are added one by one. Where a step is given
gradients that are not clipped, and leaves long ones out, it may divide by how many are left: so
records are added far out, beside others there. Where a step averages the gradients of a few records
before it clips, one of them may turn what is left of the others around: so all others have one
gradient, and one record a far longer one, the other way. A claim covers these batches, too.

A step may also take a gradient at a model that a record has moved, and no noise hides. In a run
gradients hardly change with so small a move, and a claim covers functions of which they do. So the
gradients of all records are played as functions that turn around between the two models.

Both are looked at on a small model, in a few rounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, pi
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense import Adjacency, Gradient
from dpaudit.game.step_inputs import WrappedGradient
from dpaudit.training.classification import Batch, BatchGradient

from .alignment import ratio
from .examination import RoundExamination, RoundPair
from .message_move import Row
from .noise_log import plain
from .replay import ALLOWED, NO_MOVES, SAME, replay
from .stand_in import small_problem
from .synthetic_records import FirstUnlike, GivenGradient, RepeatedGradient, VacantPlace
from .world_cache import KeptAnswers
from .worlds import CoupledWorlds, Moves, PlayedWorld, WorldPair, lengths, ones

ROUNDS, LAST = 3, 20  # rounds that are looked at, at most, and the latest one
LATER = 3  # rounds within which what a record moved is noised
MOST = 12  # records that have a gradient, of large batches; and around half of them
FEW = "how far a record moves messages in a batch of which {} of {} records have a gradient"
ALIKE = "how far a record moves messages beside {} of {} records with the same gradient"
DISTANT = 1e6  # times the clip norm, from which on a step may leave records out
FAR_OUT = "how far a record moves messages in a batch with all but {} of {} records far out"
TURNED = "how far a record moves messages against all others of a batch, which have one gradient"
LONG = 100.0  # times the clip norm: others; and times these, the other way
FAILS = (
    "what a step does in a batch of which few records have a gradient, or all the same one: it "
    "raises {}"
)
NUMBER = "how many gradients a step takes: that depends on a record, and no noise hides it"
MOVED = (
    "how far a record moves messages where gradients change with the model at once: one is taken "
    "at a model that the record has moved and no noise hides"
)


def few_with_gradients(
    real: CoupledWorlds, adjacency: Adjacency
) -> tuple[RoundExamination | None, list[Row]]:
    """What is found on a small model; none where it cannot be played.

    Rows are of records that move a message too far. Where noise is moved to hide a record in usual
    batches, and cannot be in these, that is not clear.
    """
    small = small_problem(real)
    if small is None:
        return None, []
    examination, rows = RoundExamination(small, 0, 0, aligns=False), list[Row]()
    state, last = small.start(), min(small.defense.n_rounds, LAST)
    chosen = np.linspace(1, last, min(ROUNDS, last)).round().astype(int).tolist()
    for k in range(1, last + 1):
        try:
            after = examination.next_state(state, k)
        except Exception:  # whatever a step raises that takes the real model alone
            break
        if k in chosen:
            try:
                rows += _Round(examination, state, k, adjacency).rows()
            except Exception as error:  # only these batches fail
                examination.unclear[FAILS.format(type(error).__name__)] = None
                break
        state = after
    return examination, rows


@dataclass
class _Round:
    examination: RoundExamination
    state: Any
    k: int
    adjacency: Adjacency

    def rows(self) -> Iterator[Row]:
        """Rows of messages that a record moves too far; what is unclear is noted."""
        coupled, k = self.examination.coupled, self.k
        oracle = coupled.kept_batches(k)
        pair = RoundPair(
            self.examination, self.state, k, oracle, self.adjacency,
            *self.examination.asked(self.state, k, oracle),
        )  # fmt: skip
        gradient = self._gradient(pair)
        n = oracle.batch.labels.shape[1]
        few = {m: _of_first(oracle, coupled.victim, m) for m in _numbers(n)}
        alike = {m: RepeatedGradient(oracle, coupled.victim, gradient, m) for m in few if m}
        pairs = {m: self._added(KeptAnswers.of(one), gradient) for m, one in few.items()}
        together = {m: self._added(one, gradient) for m, one in alike.items()}
        clips = pair.clips and coupled.defense.clip_norm_in(k) is not None
        far_out = {
            m: self._added(replace(one, times=DISTANT), DISTANT * gradient)
            for m, one in (alike if clips else {}).items()
        }
        against = list(self._turned(oracle, gradient, n, clips)) if n > 1 else []
        usual = pairs[n - 1]
        lag = int(not _moves(usual) and k < coupled.defense.n_rounds)
        several = [*pairs.values(), *together.values(), *far_out.values(), *against]
        several += [(pairs[m][0], pairs[m + 1][0]) for m in pairs if m + 1 in pairs]
        if lag:
            several = [(one.later(), other.later()) for one, other in several]
        furthest = _furthest(several)
        for one, other in furthest:
            self.examination.silent |= self.examination.compare(one, other, self.adjacency)
        yield from self._judged(furthest, pair.norm, lag)
        self._align(usual, {FEW.format(m, n): one for m, one in pairs.items()})
        self._align(usual, {ALIKE.format(m, n): one for m, one in together.items()})
        self._align(usual, {FAR_OUT.format(m, n): one for m, one in far_out.items()})
        for turned in against:
            self._align(usual, {TURNED: turned})
        if fickle := self._fickle(usual):
            rows = list(self._judged([fickle], pair.norm, 0))
            self.examination.unclear |= dict.fromkeys([MOVED] * any(row.counts for row in rows))

    def _gradient(self, pair: RoundPair) -> Tensor:
        """The longest that a record has [d], as long as the clip norm where there is one."""
        coupled, longest = self.examination.coupled, pair.natural()
        X = coupled.defense.models(self.state)[coupled.victim][None]
        gradients = coupled.classification.gradients
        one = longest.input[None, None], longest.label[None, None]
        found = gradients.clipped_sum(X, *one, inf)[0]
        clip_norm = coupled.defense.clip_norm_in(self.k)
        if clip_norm is None:
            return found
        return found * (clip_norm / torch.linalg.vector_norm(found, pair.norm).clamp(min=1e-300))

    def _added(self, oracle: Gradient, gradient: Tensor) -> WorldPair:
        """No record beside those of a batch, or one without a gradient, and one with this one."""
        coupled = self.examination.coupled
        there = PlayedWorld(
            coupled, self.state, self.k, GivenGradient(oracle, coupled.victim, gradient)
        )
        return replace(there, oracle=VacantPlace(oracle, coupled.victim)), there

    def _turned(
        self, oracle: KeptAnswers, gradient: Tensor, n: int, clips: bool
    ) -> Iterator[WorldPair]:
        """The last record of a batch, or the first, is not there, or turns the others around."""
        coupled = self.examination.coupled
        long, times = (LONG, -LONG) if clips else (1.0, -1.0)
        for kind in (RepeatedGradient, FirstUnlike):
            without, turned = (
                kind(oracle, coupled.victim, long * gradient, n - 1, factor)
                for factor in (0.0, times)
            )
            there = PlayedWorld(coupled, self.state, self.k, turned)
            yield replace(there, oracle=without), there

    def _judged(self, pairs: Sequence[WorldPair], norm: int, lag: int) -> Iterator[Row]:
        if pairs:
            kinds = {"few": list(pairs)}
            yield from self.examination.judged(self.k + lag, kinds, self.adjacency, norm)

    def _align(self, usual: WorldPair, pairs: Mapping[str, WorldPair]) -> None:
        """Note the first pair that noise does not hide as it hides the usual one."""
        for lag in range(min(LATER, self.examination.coupled.defense.n_rounds - self.k) + 1):
            most = ratio(usual, lag, self.adjacency)
            if most is None:
                continue
            for said, pair in pairs.items():
                found = ratio(pair, lag, self.adjacency)
                if found is None or found > ALLOWED * max(most, 1.0):
                    self.examination.unclear[said] = None
                    return
            return

    def _fickle(self, usual: WorldPair) -> WorldPair | None:
        """The same worlds with gradients that turn around between two models; None: they are one.

        The models are those at which gradients are taken once noise is moved to hide the record.
        """
        here, there = usual
        victim, moves = here.coupled.victim, replay(here, there, self.adjacency).moves
        one, other = _models(here, NO_MOVES), _models(there, moves)
        if len(one) != len(other):
            self.examination.unclear[NUMBER] = None
        apart = next((pair for pair in zip(one, other, strict=False) if _differ(*pair)), None)
        if apart is None:
            return None
        first = one[0]
        along, before = apart[1] - apart[0], apart[0] - first
        across = along - before * (along @ before) / (before @ before).clamp(min=1e-300)
        wave = across if across.norm() > 1e-6 * along.norm() else along
        wave = pi * wave / (wave @ along)
        fickle = (_Fickle(world.oracle, victim, first, wave) for world in usual)
        return replace(here, oracle=next(fickle)), replace(there, oracle=next(fickle))


def _models(world: PlayedWorld, moves: Moves) -> list[Tensor]:
    """The victim's models [d] at which a round takes gradients, with its noise moved."""
    asked = _Asked(world.oracle, world.coupled.victim)
    replace(world, lag=0, oracle=asked).watched(moves)
    return asked.models


@dataclass(eq=False)
class _Asked(WrappedGradient):
    """Notes the model of the victim at which each gradient is taken."""

    victim: int
    models: list[Tensor] = field(default_factory=list)

    def note(self, X: Tensor, holders: Tensor | None, norm: int) -> None:
        own = _rows_of(self.victim, X, holders)
        self.models.extend(plain(X)[..., own, :].detach().clone())


@dataclass(eq=False)
class _Fickle(WrappedGradient):
    """Gradients of the victim times the cosine of a wave over models, which is 1 at the first."""

    victim: int
    first: Tensor  # [d], a model
    wave: Tensor  # [d]
    _factors: Tensor = field(default_factory=lambda: torch.ones(1))  # [m], of the last question

    def note(self, X: Tensor, holders: Tensor | None, norm: int) -> None:
        waved = torch.cos((plain(X).detach() - self.first) @ self.wave)
        self._factors = torch.where(_rows_of(self.victim, X, holders), waved, 1.0)

    def changed(self, gradients: Tensor) -> Tensor:
        return gradients * self._factors.view(-1, *[1] * (gradients.ndim - 1))


def _rows_of(agent: int, X: Tensor, holders: Tensor | None) -> Tensor:
    """Which rows of X [m, d] are the agent's, [m]."""
    return (torch.arange(X.shape[-2], device=X.device) if holders is None else holders) == agent


def _of_first(oracle: BatchGradient, victim: int, m: int) -> BatchGradient:
    """The oracle in which the first m records of the victim's batch alone have a gradient."""
    inputs, labels, weights = oracle.batch
    weights = ones(oracle.batch) if weights is None else weights.clone()
    weights[victim, m:] = 0.0
    return replace(oracle, batch=Batch(inputs, labels, weights))


def _numbers(n: int) -> list[int]:
    """How many of n records have a gradient beside the one that is added: all, or few and half."""
    if n <= MOST:
        return list(range(n))
    near = range(n // 2 - 2, n // 2 + 3)
    return sorted({*range(MOST - len(near)), *near, n - 1} & {*range(n)})


def _moves(pair: WorldPair) -> dict[str, float]:
    """How far each message of the victim is moved, of those that are."""
    (one, other), coupled = pair, pair[0].coupled
    apart = coupled.differences(one.noisy.sent, other.noisy.sent)
    moved = {name: lengths(x, 2).nan_to_num(inf, inf).item() for name, x in apart.items()}
    return {name: size for name, size in moved.items() if size > 0}


def _furthest(pairs: Sequence[WorldPair]) -> list[WorldPair]:
    """For each message the pair that moves it furthest."""
    best = dict[str, tuple[float, int]]()
    for i, pair in enumerate(pairs):
        for name, size in _moves(pair).items():
            best[name] = max(best.get(name, (0.0, 0)), (size, i))
    return [pairs[i] for i in dict.fromkeys(i for _, i in best.values())]


def _differ(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() > SAME * one.norm().clamp(min=1e-300))
