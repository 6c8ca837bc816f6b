"""What the strongest adversary of a threat model learns, from the protocol's own algebra.

Around a run with no record in it, a defense is a linear system: the state and the messages of a
round are linear in the state before, in the noise and in the record's gradient. The adversary knows
that system, so it runs the protocol along with the agents and keeps an estimate of what it cannot
see (a Kalman filter). Each round it subtracts from what it intercepted all that it could foretell,
noise it already holds included. What is left is a combination of fresh noise and the record's
gradient, and is whitened. Summed over rounds the whitened shifts are the leak of the view,
mu^2 = a' (B B')^+ a for messages O = A G + B Z: of gradients G that are given, nothing in a view
tells more. So it is exact for averaging, and in training where the view tells every model that a
gradient is taken at. Elsewhere agents may relay more (``reacts``), and it is a lower end.

A record's effect on a combination of messages without noise is an infinite leak, and is named.

The system is not written down for each defense but probed: one step from many states at once. It is
exact where the defense is linear in its noise (all gossip and push-sum methods here); ``spread`` of
the scores on real runs, and bounds that assume nothing, show where it is not.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from scipy import sparse
from torch import Tensor

from dpaudit.defense.transcript import Messages
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.probing.dense_probe import Filter, Probe, Probed
from dpaudit.game.probing.locality import NotLocal
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.states import flat_state

from .gradient_reaction import Reaction, reaction
from .kalman import LOCAL, LocalFilter, LocalProbed, steps_of
from .leak import EVERY_ROUND, Leak, Reading, leak_of
from .record_uses import Use
from .relevance import ahead
from .sparse_reaction import local_reaction

ProbedRound = TypeVar("ProbedRound", Probed, LocalProbed)
FORGOTTEN = 1e-9  # of a record's effect: a smaller remnant in the state is rounding
RESOLVED = 1e-9  # of the largest number in messages: less noise may be rounding in a run


class Telling(NamedTuple):
    of_round: int  # whose batch is told
    told_in: int  # the first round that does
    alone: bool  # whether each round tells of one round's batches at most, and no two of the same


class Adversary:
    """Reads rounds one after the other; knows everything but whether the record is there.

    Args:
        game: the defense and the record.
        threat_model: whose view it is.
        n_rounds: how many rounds are read.
        one_message: of the last round, only the message that tells most about the record.
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
        self._column: int | None = None  # of the last round's observations, if one is read alone
        self._largest = 0.0  # number in the messages of the rounds so far, and of their noise
        self.reacts: Reaction | None = None  # a gradient at a model that the view does not tell
        self.rounds = self._rounds()

    @cached_property
    def leak(self) -> Leak:
        """The exact leak of each round's use of the record, through this round and all later."""
        return leak_of(self.rounds, self.game)

    @property
    def observed(self) -> int:
        """Numbers that are read of the first round."""
        return len(self.rounds[0].messages)

    def most_telling(self) -> Telling:
        """The round whose batch is told best where it is told first; round 1 if none is told."""
        first, alone = dict[int, tuple[float, int]](), True  # by round: how well it is told, where
        for told_in, reading in enumerate(self.rounds, 1):
            here = reading.told()
            alone &= len(here) <= 1 and here.keys().isdisjoint(first)
            for k, size in here.items():
                first.setdefault(k, (size, told_in))
        k = max(first, key=lambda k: first[k][0], default=1)
        return Telling(k, first[k][1] if first else 1, alone)

    def _rounds(self) -> list[Reading]:
        """How each is read. Of many agents by sparse matrices, where a step reaches few others.

        Raises:
            ConfigError: too many agents whose noise hangs together.
        """
        why = None
        if self.game.setting.n_agents >= LOCAL:
            try:
                return list(self._learn_locally())
            except NotLocal as reason:
                why, self.reacts, self._largest = reason, None, 0.0
        return list(self._learn(why))

    def observe(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k: the messages of the view, and own noise."""
        seen = self._observer.all_observations(k, sent, units)
        return seen if self._column is None or k < self.n_rounds else seen[..., [self._column]]

    def _of_one_message(self, out: ProbedRound) -> ProbedRound:
        """Of the last round the most telling observation alone, if one message of it is read."""
        if not self._one_message or out.round < self.n_rounds or not out.messages:
            return out
        self._column = out.most_telling
        return out.of_one_message(self._column)

    def _learn_locally(self) -> Iterator[Reading]:
        """As ``_learn``, by parts that hang together. Raises NotLocal."""
        steps = steps_of(self._observer, self.n_rounds)
        width, scale = steps[0].record.shape[1], 0.0
        spread, remnants = sparse.csr_array((0, width)), dict[Use, Tensor]()
        nothing = torch.zeros(0, width, dtype=torch.float64)
        for step, later in zip(steps, ahead(self._observer, steps), strict=True):
            old = torch.stack([*remnants.values()]) if remnants else nothing
            out = LocalProbed.of(step, spread, old, later.relevant)
            scale = max(scale, out.scale)
            out = out._replace(scale=scale)
            self.reacts = self.reacts or local_reaction(self.threat_model, out, later)
            out = self._of_one_message(out)
            found = LocalFilter.of(out, spread.shape[0])
            reading, remnants = self._read(out, found, list(remnants))
            yield reading
            spread = found.unknown(out)

    def _learn(self, why: NotLocal | None) -> Iterator[Reading]:
        """Probe each round of the protocol in turn, and carry the uncertainty on.

        ``why``: what keeps its steps from being probed for many agents at once.
        """
        state: Any = self.game.start(1, torch.float64, torch.device("cpu"))
        width = flat_state(state).shape[-1]
        spread = torch.zeros(0, width, dtype=torch.float64)  # rows: factor of the covariance
        remnants: dict[Use, Tensor] = {}  # of uses before, in the state, [width]
        scale = 0.0  # of a record's effect so far: in some rounds its agent takes no step
        for k in range(1, self.n_rounds + 1):
            old = torch.stack([*remnants.values()]) if remnants else spread[:0]
            out = _probed(self._observer, state, k, spread, old, why)
            last = k == self.n_rounds
            scale = max(scale, out.scale)
            out = out._replace(scale=scale)
            self.reacts = self.reacts or reaction(self._observer, state, out, last)
            out = self._of_one_message(out)
            found = Filter.of(out)
            reading, remnants = self._read(out, found, list(remnants))
            yield reading
            state = out.next_state
            spread = found.unknown(out)

    def _read(
        self, out: Probed | LocalProbed, found: Filter | LocalFilter, used: list[Use]
    ) -> tuple[Reading, dict[Use, Tensor]]:
        """How a round is read, and what is left of each use of the record in the state."""
        k = out.round
        fresh = [(self._inclusion(k, s), k, point) for point, s in enumerate(out.steps)]
        uses = [*used, *fresh]
        seen = torch.cat([out.remnants_seen, out.record_seen])
        shifts, noiseless = found.shifts(seen), found.noiseless(seen)
        left = torch.cat([out.remnants, out.record]) - found.foretold(shifts)
        kept = {
            use: rest
            for use, rest in zip(uses, left, strict=True)
            if rest.abs().max() > FORGOTTEN * out.scale
        }
        parts = found.parts(shifts, out.laplace)
        return Reading(
            out.messages,
            parts.whiten,
            parts.gain,
            dict(zip(uses, parts.shifts, strict=True)),
            self._summed(uses, parts.shifts),
            self._resolved(parts.stds, out.largest),
            self._shown(uses, noiseless, found.least_noiseless * out.scale),
            self._named_noiseless(uses, noiseless, out.messages, found.least_noiseless * out.scale),
            parts.draws,
            parts.laplace,
            parts.exact,
            parts.has_laplace,
        ), kept

    def _resolved(self, stds: Tensor, largest: float) -> Tensor:
        """Which innovations are well above what rounding adds to them in a run, [rank] bool."""
        self._largest = max(self._largest, largest, *stds.tolist())
        return stds > RESOLVED * self._largest

    def _inclusion(self, k: int, step: int) -> int:
        """Whether the record is there is drawn once, or once a round, or for each batch."""
        if self.game.is_lasting:
            return EVERY_ROUND
        own = 0 if self.game.sampling_rate == 1 else step
        return (k - 1) * self.game.batches + own + 1

    def _summed(self, uses: list[Use], effects: Tensor) -> dict[int, Tensor]:
        """Of a record whose gradient is the same at all points, by inclusion."""
        total: dict[int, Tensor] = {}
        for use, effect in zip(uses, effects, strict=True):
            j = use[0]
            total[j] = total[j] + effect if j in total else effect
        return total

    def _shown(self, uses: list[Use], noiseless: Tensor, least: float) -> dict[int, Tensor]:
        """What shows that record without noise: 1 with it, 0 without."""
        return {
            j: rest / (rest @ rest)
            for j, rest in self._summed(uses, noiseless).items()
            if rest.numel() and rest.abs().max() > least
        }

    def _named_noiseless(
        self, uses: list[Use], noiseless: Tensor, messages: list[tuple[str, int]], least: float
    ) -> dict[int, str]:
        """The messages that show some record's gradient at some point without noise."""
        return {
            use[0]: messages[int(rest.abs().argmax())][0]
            for use, rest in zip(uses, noiseless, strict=True)
            if rest.numel() and rest.abs().max() > least
        }


def _probed(
    observer: Observer,
    state: Any,
    k: int,
    spread: Tensor,
    remnants: Tensor,
    why: NotLocal | None,
) -> Probed:
    """The probe of a round; more remnants than the state has numbers are moved by its basis."""
    width = spread.shape[1]
    if len(remnants) <= width:
        return Probe(observer, state, k, why).play(spread, remnants)
    out = Probe(observer, state, k, why).play(spread, torch.eye(width, dtype=torch.float64))
    return out._replace(
        remnants_seen=remnants @ out.remnants_seen,
        remnants=remnants @ out.remnants,
        models_remnants=remnants @ out.models_remnants,
    )
