"""What the strongest adversary of a threat model learns, from the protocol's own algebra.

Around a run with no record in it, a defense is a linear system: the state and the messages of a
round are linear in the state before, in the noise and in the record's gradient. The adversary knows
that system, so it runs the protocol along with the agents and keeps an estimate of what it cannot
see (a Kalman filter). Each round it subtracts its prediction, with the noise that it already holds,
from what it intercepted. The rest is a combination of fresh noise and the record's gradient, and is
whitened. Summed over rounds the whitened shifts are the leak of the view, mu^2 = a' (B B')^+ a for
messages O = A G + B Z: of gradients G that are given, nothing in a view reveals more. So it is
exact for averaging, and in training where the view reveals every model that a gradient is taken at.
Elsewhere agents may relay more (``reacts``), and it is a lower end.

A record's effect on a combination of messages without noise is an infinite leak, and is named.

Agents may relay what they learn, though the view does not show it. An agent trains on what it
receives: its gradient is a function of its model, which moves with the record. Where the view
determines that model, before the gradient shows, the gradient is a function of what the adversary
holds already, and the algebra is exact round by round (sequential releases of equal covariance).
Where it does not, a loss that is steep there turns a small shift of the hidden model into a large
one of the next message: the algebra is then a lower end, and an adversary of every link is the
upper end. Round 1 is taken at initial models, which are public. So averaging, and runs whose
gradients move nothing, stay exact; so does any view in which every message is seen, if messages
determine models.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense.transcript import Messages, refuse_other_messages
from dpaudit.files.threat import ThreatModel
from dpaudit.game import matrices
from dpaudit.game.game import Game
from dpaudit.game.matrices import Array, Mask, Matrix, NotLocal, column_norms, times
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.probed_round import NOISELESS, Answers, DenseProbes, ProbedRound, Probes
from dpaudit.game.probing.sparse_probe import SPARSE_FROM, SparseProbes
from dpaudit.game.step_inputs import CanaryGradient, ChosenNoise, flat_state, state_of

from .leak import EVERY_ROUND, Leak, RoundReading, Use, leak_of
from .linear_view import LinearView
from .narrow_view import NarrowView

FORGOTTEN = 1e-9  # a smaller residual of a record's effect in the state is rounding
RESOLVED = 1e-9  # less noise, relative to the largest number in messages, may be rounding

LEAST_NOISELESS = 1e-8  # NOISELESS for rounds whose singular values are of similar size
ROUNDING = 1e-12  # relative to what a number of the state may hold: less is rounding
LOST = 1e-14  # times the condition number of a round: what its linear algebra is off by
RECOVERED = 1e-12  # share of a draw's variance that is left when it is recovered exactly


class Update(NamedTuple):
    """What the adversary makes of a round, and what it does not know after it."""

    reading: RoundReading
    stds: Tensor  # [rank]: of each innovation before it is whitened, in units of messages
    residuals: Tensor  # [n_uses, width]: the record's effect on the state that is not known
    factor: Matrix  # [*, width]: of the covariance of the state after the round


def kalman_update(out: ProbedRound, uses: list[Use]) -> Update:
    """The Kalman update of A' = U S V, with A and C the noise of observations and state.

    Before a round the adversary does not know the state up to a covariance, of which it keeps a
    factor. The innovation is the part of the observations that it does not predict; whitened, it
    has independent entries of variance 1. The gain V C times it is what the adversary then believes
    of the state, and (I - V'V) C is the factor after it. The record reaches the first innovations
    alone, and the noise of the round is estimated by these. Matrices are dense or sparse as those
    of the probe are.

    Args:
        uses: of the record, as they are numbered in ``out``: earlier ones and those of the round.

    Raises:
        NotLocal: too much of a sparse round hangs together.
    """
    seen, C = out.records_seen, out.noise.state
    V, S, U, block = matrices.factors(out.noise.seen)
    whiten, gain = matrices.scaled(U, 1 / S), V @ C
    effects = seen @ whiten
    reached = np.isin(block, block[effects.any(axis=0)])
    order = np.concatenate([np.flatnonzero(reached), np.flatnonzero(~reached)])
    first = order[: int(reached.sum())]
    shifts, stds = torch.from_numpy(effects[:, first]), torch.from_numpy(S[order])
    draws = V[:, out.n_states :]
    of_first = draws[first]
    drawn = column_norms(of_first) > 0
    left = 1 - column_norms(draws)[out.laplace.numpy()] ** 2
    noiseless = torch.from_numpy(seen - (seen @ U) @ U.T)  # the effect where there is no noise
    least = max(LEAST_NOISELESS, 100 * LOST * _condition_number(S))
    least = min(NOISELESS, least) * out.scale  # less of it is rounding
    reading = RoundReading(
        messages=out.messages,
        whiten=whiten[:, order],
        gain=gain[order],
        columns=dict(zip(uses, shifts, strict=True)),
        shifts=_by_inclusion(uses, shifts),
        resolved=stds > RESOLVED * max(out.largest, *stds.tolist(), 0.0),
        shown={
            j: rest / (rest @ rest)
            for j, rest in _by_inclusion(uses, noiseless).items()
            if (rest.abs() > least).any()
        },
        noiseless={
            use[0]: out.messages[int(rest.abs().argmax())][0]
            for use, rest in zip(uses, noiseless, strict=True)
            if (rest.abs() > least).any()
        },
        draws=of_first[:, np.flatnonzero(drawn)],
        laplace=out.laplace[torch.from_numpy(drawn)],
        exact=not out.n_states and bool(left.max(initial=0.0) < RECOVERED),
        has_laplace=bool(out.laplace.any()),
    )
    state = np.concatenate([out.earlier.state, out.record.state])
    residuals = torch.from_numpy(state - effects @ gain)
    return Update(reading, stds, residuals, _unknown(C, C - V.T @ gain, S))


def _unknown(C: Matrix, left: Matrix, S: Array) -> Matrix:
    """A factor of what is ``left`` of the covariance with factor C after the round.

    Each number of the state is measured by its size in C: of a number that the round reveals the
    difference leaves rounding, which is no noise and must not become the noise of a later round.
    """
    sizes = column_norms(C)
    units = np.where(sizes > 0, sizes, 1.0)
    least = max(ROUNDING, LOST * _condition_number(S))
    return matrices.scaled(matrices.compressed(matrices.scaled(left, 1 / units), least), units)


def _condition_number(S: Array) -> float:
    """The largest singular value over the smallest; 1 if there are none."""
    return float(S.max() / S.min()) if S.size else 1.0


class RevealedBatch(NamedTuple):
    of_round: int  # the round whose batch is revealed
    in_round: int  # the first round that reveals it
    alone: bool  # whether each round reveals one round's batches at most, no two of the same


class Adversary:
    """Reads rounds one after the other; knows everything but whether the record is there.

    Args:
        game: the defense and the record.
        threat_model: whose view it is.
        n_rounds: how many rounds are read.
        one_message: of the last round, only the message that reveals most of the record.
        messages: those that are read; None: all.
    """

    def __init__(
        self,
        game: Game,
        threat_model: ThreatModel,
        n_rounds: int,
        one_message: bool = False,
        messages: frozenset[str] | None = None,
    ) -> None:
        self._observer = Observer(game, threat_model, messages)
        self.game, self.threat_model, self.n_rounds = game, threat_model, n_rounds
        self._one_message = one_message
        self._column: int | None = None  # column of the last observations, if one is read alone
        self.reacts: Reaction | None = None  # a gradient at a hidden model
        self.rounds = self._rounds()

    @cached_property
    def leak(self) -> Leak:
        """The exact leak of each round's use of the record, through this round and all later."""
        return leak_of(self.rounds, self.game)

    @property
    def observed(self) -> int:
        """Numbers that are read of the first round."""
        return len(self.rounds[0].messages)

    def most_revealing(self) -> RevealedBatch:
        """The batch that is revealed best where it first is; that of round 1 if none is."""
        first, alone = dict[int, tuple[float, int]](), True  # round -> how well, and where
        for k, reading in enumerate(self.rounds, 1):
            here = reading.reveals()
            alone &= len(here) <= 1 and here.keys().isdisjoint(first)
            for of_round, size in here.items():
                first.setdefault(of_round, (size, k))
        best = max(first, key=lambda of_round: first[of_round][0], default=1)
        return RevealedBatch(best, first[best][1] if first else 1, alone)

    def observe(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k: the messages of the view, and own noise."""
        seen = self._observer.all_observations(k, sent, units)
        return seen if self._column is None or k < self.n_rounds else seen[..., [self._column]]

    def _rounds(self) -> list[RoundReading]:
        """How each is read. Of many agents by sparse matrices, where a step reaches few others.

        Raises:
            ConfigError: too many agents whose noise hangs together.
        """
        why = None
        if self.game.setting.n_agents >= SPARSE_FROM:
            try:
                probes = SparseProbes(self._observer, self.n_rounds)
                view = NarrowView.of(probes, self.game.setting.n_agents)
                return list(self._filtered(probes) if view is None else self._narrow(view))
            except NotLocal as reason:
                why, self.reacts = reason, None
        return list(self._filtered(DenseProbes(self._observer, self.n_rounds, why)))

    def _narrow(self, view: NarrowView) -> Iterator[RoundReading]:
        """Each round of a view of few messages of many agents; no covariance is carried on."""
        scale = most = 0.0
        uses: list[Use] = []
        for k in range(1, self.n_rounds + 1):
            out = view.innovation(k)
            scale = max(scale, out.scale)
            out = replace(out, scale=scale, largest=max(most, out.largest))
            if self.reacts is None:
                known = np.isin(out.askers, self.threat_model.agents)
                model = next(view.hidden_models(k, known), None)
                self.reacts = None if model is None else Reaction(k, out.askers[model])
            uses += [(self._inclusion(k, s), k, point) for point, s in enumerate(out.steps)]
            moved = np.abs(out.records_seen).max(axis=1, initial=0.0) > FORGOTTEN * scale
            moved[len(moved) - len(out.steps) :] = True
            shown = [use for use, is_moved in zip(uses, moved, strict=True) if is_moved]
            read = out.of_uses(moved)
            if self._one_message and k == self.n_rounds and out.messages:
                self._column, read = read.of_one_message()
            reading, stds, *_ = kalman_update(read, shown)
            most = max(out.largest, *stds.tolist(), 0.0)
            yield view.noted(k, out, reading, self._column)

    def _filtered(self, probes: Probes) -> Iterator[RoundReading]:
        """Each round of the protocol in turn, with the uncertainty carried on. Raises NotLocal."""
        factor = probes.nothing
        width = factor.shape[1]
        residuals: dict[Use, Tensor] = {}  # earlier use -> its residual in the state, [width]
        scale = 0.0  # size of a record's effect so far: agents may skip rounds
        most = 0.0  # the largest number so far in messages, and of their noise
        for k in range(1, self.n_rounds + 1):
            left = [rest.numpy() for rest in residuals.values()]
            out = probes.round(k, factor, np.stack(left) if left else np.zeros((0, width)))
            scale = max(scale, out.scale)
            out = replace(out, scale=scale, largest=max(most, out.largest))
            if self.reacts is None:
                self.reacts = reaction(self.threat_model, out, partial(probes.answers, k))
            if self._one_message and k == self.n_rounds and out.messages:
                self._column, out = out.of_one_message()
            fresh = [(self._inclusion(k, s), k, point) for point, s in enumerate(out.steps)]
            uses = [*residuals, *fresh]
            reading, stds, left_over, factor = kalman_update(out, uses)
            most = max(out.largest, *stds.tolist(), 0.0)
            residuals = {
                use: rest
                for use, rest in zip(uses, left_over, strict=True)
                if rest.abs().max() > FORGOTTEN * scale
            }
            yield reading

    def linear_view(self, most: int) -> LinearView:
        """All rounds at once; whitened if there would be more than ``most`` entries of noise."""
        observed = sum(len(reading.messages) for reading in self.rounds)
        if self.game.setting.n_agents < SPARSE_FROM:
            stacked = self._stacked(most // max(1, observed))
            if stacked is not None:
                return stacked
        return LinearView.whitened([reading.columns for reading in self.rounds])

    def _stacked(self, most: int) -> LinearView | None:
        """By what each draw of all rounds does to each observation; None: more than ``most``."""
        probes = DenseProbes(self._observer, self.n_rounds)
        factor, old = probes.nothing, np.zeros((0, probes.nothing.shape[1]))
        uses: list[Use] = []
        blocks: list[tuple[Array, Array]] = []
        for k in range(1, self.n_rounds + 1):
            out = probes.round(k, factor, old)
            if self._one_message and k == self.n_rounds and out.messages:
                _, out = out.of_one_message()
            uses += [(self._inclusion(k, s), k, point) for point, s in enumerate(out.steps)]
            factor, old = out.noise.state, np.concatenate([out.earlier.state, out.record.state])
            blocks.append((out.records_seen, out.noise.seen))
            if len(factor) > most:
                return None
        return LinearView.stacked(uses, blocks)

    def _inclusion(self, k: int, step: int) -> int:
        """Whether the record is there is drawn once, or once a round, or for each batch."""
        if self.game.is_lasting:
            return EVERY_ROUND
        own = 0 if self.game.sampling_rate == 1 else step
        return (k - 1) * self.game.batches + own + 1


def _by_inclusion(uses: list[Use], effects: Tensor) -> dict[int, Tensor]:
    """The sums of effects [n_uses, n] of a record whose gradient is the same at all points."""
    total: dict[int, Tensor] = {}
    for (j, *_), effect in zip(uses, effects, strict=True):
        total[j] = total[j] + effect if j in total else effect
    return total


class Reaction(NamedTuple):
    """A gradient at a model that a view does not determine."""

    round: int
    agent: int


def reacting_note(found: Reaction) -> str:
    """What that means for figures of the algebra, for people."""
    return (
        f"gradients that react: in round {found.round} agent {found.agent} takes a gradient at a "
        "model that the view does not reveal, and may relay what it learns there. The figure takes "
        "gradients as given, so it is the lower end. The upper end is the figure of an adversary "
        "that reads every link, where the messages reveal all models"
    )


def with_every_link(threat_model: ThreatModel) -> ThreatModel:
    """An adversary that knows the same and reads every link."""
    return threat_model.model_copy(update={"kind": "external", "links": None, "region": None})


def reaction(
    threat_model: ThreatModel, out: ProbedRound, answers: Callable[[], Answers]
) -> Reaction | None:
    """The first gradient of a round that reacts to what the view does not show; None: none does.

    Args:
        answers: what the gradients of the round reach.

    Raises:
        NotLocal: too much of a sparse round hangs together.
    """
    known = np.isin(out.askers, threat_model.agents)
    noise, record = out.noise.models, np.concatenate([out.earlier.models, out.record.models])
    if not (_models_moved(noise, record, out) & ~known).any():
        return None
    shows, before = answers()
    V, S, U, _ = matrices.factors(out.noise.seen[:, before], NOISELESS)
    gain = V @ noise  # about models, before their gradients show
    record = record - ((out.records_seen[:, before] @ U) / S) @ gain
    hidden = _models_moved(noise - V.T @ gain, record, out)
    first = np.flatnonzero(hidden & shows & ~known)
    return Reaction(out.round, out.askers[int(first[0])]) if len(first) else None


def _models_moved(noise: Matrix, record: Array, out: ProbedRound) -> Mask:
    """Which models [n_asked] noise or record moves, by what they do to each."""
    least = NOISELESS * max(matrices.largest(out.noise.models), matrices.largest(out.noise.state))
    by_noise = np.asarray((abs(noise) > least).sum(0)) > 0
    return by_noise | (np.abs(record) > NOISELESS * out.scale).any(axis=0)


class Innovation(NamedTuple):
    """The part of a round's observations that was not predicted."""

    reading: RoundReading
    raw: Tensor  # [trials, n_observations]
    whitened: Tensor  # [trials, rank]: independent noise of variance 1, if there is no record


class KalmanFilter:
    """Runs the protocol along with the agents, of many trials at once.

    Args:
        adversary: whose view it is, and how it reads each round.
        state: of all trials before round 1, which is public.
    """

    def __init__(self, adversary: Adversary, state: Any) -> None:
        self._adversary, self._like = adversary, state
        self.believed = flat_state(state)  # [trials, width], of the agents' states

    def progress(self) -> list[Any]:
        """All that it believes; ``resume`` takes it back."""
        return [self._like._asdict(), self.believed]

    def resume(self, like: Mapping[str, Tensor], believed: Tensor) -> None:
        self._like, self.believed = type(self._like)(**like), believed

    def update(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Innovation:
        """Round k: ``sent`` by the agents, with noise of which ``units`` were drawn.

        Raises:
            ConfigError: without data and noise the round would have sent other messages.
        """
        adversary, game = self._adversary, self._adversary.game
        nobody = game.gradient(self.believed.new_zeros(len(self.believed)))
        predicted = game.step(state_of(self._like, self.believed), k, nobody, ChosenNoise())
        refuse_other_messages(k, sent, predicted.sent)
        silent = {name: torch.zeros_like(drawn) for name, drawn in units.items()}
        raw = adversary.observe(k, sent, units) - adversary.observe(k, predicted.sent, silent)
        reading = adversary.rounds[k - 1]
        whitened = times(raw, reading.whiten)
        self._like = predicted.state
        self.believed = flat_state(predicted.state) + times(whitened, reading.gain)
        return Innovation(reading, raw, whitened)


class LeakByAgent(NamedTuple):
    """Leak of the records of some agents, each used in some rounds or in some way."""

    H: Tensor  # [n_agents, n_uses, n_uses]: Gram matrices of the whitened shifts
    noiseless: dict[int, str]  # agent -> the message that shows its record without noise


def leak_by_agent(adversary: Adversary, agents: Sequence[int], rounds: Tensor) -> LeakByAgent:
    """The leak of a record of each of the ``agents``, used in ``rounds`` [n_uses].

    How the adversary filters messages depends on the noise alone. So the filter is found once, and
    what each use of each agent's record changes is sent through it.

    The adversary's game is about a record that is there for certain, of any agent. Trial i has the
    record of one agent in one round. Nothing else is random, so innovations are that record alone.
    """
    every = torch.arange(adversary.n_rounds) + 1
    return _followed(adversary, agents, (rounds[:, None] == every).double())[0]


def size_by_agent(
    adversary: Adversary, agents: Sequence[int], patterns: int
) -> tuple[LeakByAgent, Tensor]:
    """About how much a record of each agent leaks that is used in every round.

    Each use has a random sign, in so many patterns. The mean of the diagonal of H is, over signs,
    the sum of mu^2 of all uses. With it what each round has of the sum of the diagonal,
    [n_agents, n_rounds].
    """
    signs = torch.randint(
        0, 2, (patterns, adversary.n_rounds), generator=torch.Generator().manual_seed(0)
    )
    return _followed(adversary, agents, 2.0 * signs.double() - 1)


def _followed(
    adversary: Adversary, agents: Sequence[int], uses: Tensor
) -> tuple[LeakByAgent, Tensor]:
    """What a record of each agent leaks that is used as often in each round, [n_uses, n_rounds]."""
    game, n_uses = adversary.game, len(uses)
    H = torch.zeros(len(agents), n_uses, n_uses, dtype=torch.float64)
    noiseless: dict[int, str] = {}
    by_round = torch.zeros(len(agents), adversary.n_rounds, dtype=torch.float64)
    victims = torch.tensor(agents).repeat_interleave(n_uses)
    state = game.start(len(victims))
    kalman, batch_size = KalmanFilter(adversary, state), game.silent().batch_size
    scale = torch.zeros(len(victims), 1, dtype=torch.float64)  # size of each record's effect
    for k in range(1, adversary.n_rounds + 1):
        drawn = uses[:, k - 1].repeat(len(agents))
        gradient, tape = CanaryGradient(victims, game.length, drawn, batch_size), ChosenNoise()
        state, sent, *_ = game.step(state, k, gradient, tape)
        own = {m: torch.zeros(d.shape, dtype=torch.float64) for m, d in tape.draws.items()}
        reading, raw, whitened = kalman.update(k, sent, own)
        if bool(drawn.any()):
            hidden = flat_state(state) - kalman.believed
            moved = torch.cat([raw, hidden], dim=1).abs().amax(dim=1, keepdim=True)
            scale = torch.where(drawn[:, None] != 0, torch.maximum(scale, moved), scale)
        shifts = whitened.view(len(agents), n_uses, -1)
        H += shifts @ shifts.mT
        by_round[:, k - 1] = shifts.square().sum(dim=(1, 2))
        U = torch.from_numpy(reading.whiten / column_norms(reading.whiten))
        shown = (raw - raw @ U @ U.mT).abs() > NOISELESS * scale
        for i in shown.any(dim=1).nonzero().flatten().tolist():
            message = reading.messages[int(shown[i].int().argmax())][0]
            noiseless.setdefault(agents[i // n_uses], message)
    return LeakByAgent(H, noiseless), by_round
