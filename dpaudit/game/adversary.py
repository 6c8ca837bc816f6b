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
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.accounting.releases import Mechanism
from dpaudit.defense.gossip import releases
from dpaudit.defense.transcript import Capture, Sent
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph

from .directions import Squared, worst_directions
from .game import Game
from .probe import NOISELESS, RANK, Filter, Probe, Probed, compressed
from .reacting import Reaction, reaction
from .states import flat_state
from .tape import AskedNoise
from .uses import Use, independent
from .uses import grams as grams_of

FORGOTTEN = 1e-9  # of a record's effect: a smaller remnant in the state is rounding
NEGLIGIBLE = 1e-12  # in nats: a loss that changes no epsilon anyone reads

EVERY_ROUND = 0  # the inclusion that stands for a record used in all rounds


class Reading(NamedTuple):
    """How the adversary reads one round."""

    messages: list[tuple[str, int]]  # what each observation is: message (or draw), row of payload
    whiten: Tensor  # [n_observations, rank]: to independent noise of variance 1
    gain: Tensor  # [rank, state]: what that tells about the state
    columns: dict[Use, Tensor]  # what each use of the record adds here, [rank]
    shifts: dict[int, Tensor]  # summed by inclusion: the gradient is the same at all points
    shown: dict[int, Tensor]  # inclusion -> combination of observations that shows it without noise
    bare: dict[int, str]  # inclusion -> message that shows it without noise at some point
    draws: Tensor  # [rank, n_draws]: the noise of the round itself as the adversary estimates it
    laplace: Tensor  # [n_draws] bool
    exact: bool  # whether ``draws`` recovers every Laplace draw exactly


@dataclass(frozen=True)
class Leak:
    """All of what a view tells about one record, in standard deviations of the noise.

    A record's gradient is taken at several points, which differ by model or round, and has another
    direction at each: mu is that of the worst directions (``directions``).
    """

    by_use: tuple[Squared, ...]  # mu^2 of a record in that batch alone, or used in all rounds
    unhidden: dict[int, str]  # use -> message that shows the record without noise
    pure: Tensor  # by use: the loss of a record used there under Laplace noise, nan elsewhere
    parts: tuple[float, ...]  # the losses of single Laplace draws, of a record used in all rounds
    separate: bool  # whether a record in one batch shows in that round alone, with no other batch
    has_laplace: bool
    batches: int = 1  # of a round, which are consecutive uses
    apart: tuple[float, ...] | None = None  # mu^2 of independent releases of which this is a part

    @property
    def by_round(self) -> Tensor:
        """mu of a record in one batch of that round alone, the worst; infinite: no noise."""
        mu = torch.tensor([sqrt(squared.low) for squared in self.by_use], dtype=torch.float64)
        return mu.view(-1, self.batches).amax(1) if len(mu) > 1 else mu

    @property
    def shown(self) -> tuple[int, str] | None:
        """The first round in which a message shows the record without noise, and the message."""
        for j, message in self.unhidden.items():
            return max(1, _round_of(j, self.batches)), message
        return None

    @property
    def is_pure(self) -> bool:
        """Whether the view gives every Laplace draw that hides the record."""
        return bool((~self.pure.isnan()).all()) and len(self.pure) > 0

    @property
    def is_proven(self) -> bool:
        """Whether the mu of the view is of Gaussian noise, or the losses of single draws are known.

        What a view gives of Laplace draws that it does not recover is neither family.
        """
        return self.is_pure or not self.has_laplace

    def mechanism(self, game: Game, in_round: int | None, high: bool = False) -> Mechanism:
        """The leak as releases: of one round, of each, or of all together if all use the record.

        A release states its noise for one canary, and accounting knows what a draw of it displaces.

        Args:
            high: of the upper ends of mu.
        """
        if self.is_pure and self.parts and not self.unhidden:
            return releases([1 / loss for loss in self.parts], "none", 1.0, "laplace")
        ends = [sqrt(squared.high if high else squared.low) for squared in self.by_use]
        if high and self.apart is not None:
            ends = [sqrt(square) for square in self.apart]
        size = self.pure.tolist() if self.is_pure else ends
        if in_round is not None:
            size = size[(in_round - 1) * self.batches : in_round * self.batches]
        multipliers = [0.0 if x == inf else game.displacement / x for x in size if x > NEGLIGIBLE]
        how = "none" if game.sampling_rate == 1 else game.sampling
        if not multipliers:
            return ()
        family: NoiseFamily = "laplace" if self.is_pure else "gaussian"
        return releases(multipliers, how, game.sampling_rate, family)


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
        self._messages = messages
        self.game, self.threat_model, self.n_rounds = game, threat_model, n_rounds
        self._one_message, self._column = one_message, 0
        self._known_to: dict[int, Mapping[str, Tensor]] = {}
        self._visible: dict[tuple[int, str], Tensor] = {}  # rows of payloads, by round and message
        self.reacts: Reaction | None = None  # a gradient at a model that the view does not tell
        self.rounds = list(self._learn())

    @cached_property
    def leak(self) -> Leak:
        """The exact leak of each round's use of the record, through this round and all later."""
        used = self._inclusions()
        columns = [r.columns for r in self.rounds]
        found = grams_of(columns, lambda use: use[0])
        grams = dict.fromkeys(used, torch.zeros(0, 0, dtype=torch.float64))
        grams |= {j: H for j, (_, H) in found.items()}
        pure = dict.fromkeys(used, 0.0)
        unhidden, parts = dict[int, str](), list[float]()
        for r in self.rounds:
            for j, shift in r.shifts.items():
                moved = (shift @ r.draws)[r.laplace].abs() * sqrt(2)
                pure[j] += moved.sum().item() if r.exact and r.laplace.any() else float("nan")
                parts += [] if j != EVERY_ROUND else moved[moved > NEGLIGIBLE].tolist()
            for j, message in r.bare.items():
                pure[j] = inf
                unhidden.setdefault(j, message)
        d = self.game.coordinates
        by_use = tuple(
            Squared(inf, inf) if j in unhidden else worst_directions(grams[j], d) for j in used
        )
        separate = self._is_separate()
        apart = {} if separate else independent(columns)
        return Leak(
            by_use,
            unhidden,
            torch.tensor([pure[j] for j in used], dtype=torch.float64),
            tuple(parts),
            separate,
            any(bool(r.laplace.any()) for r in self.rounds),
            self.game.batches,
            None if separate else tuple(inf if j in unhidden else apart.get(j, 0.0) for j in used),
        )

    def _inclusions(self) -> list[int]:
        """Of a record that is used for certain there is one; of another, one for each batch."""
        if self.game.is_lasting:
            return [EVERY_ROUND]
        return list(range(1, self.n_rounds * self.game.batches + 1))

    def _is_separate(self) -> bool:
        """Whether each inclusion shows in its own round alone, and apart from others of it."""
        for k, r in enumerate(self.rounds, start=1):
            uses = [use for use, column in r.columns.items() if column.any()]
            shown = {use[0] for use in uses}
            if any(_round_of(j, self.game.batches) not in (k, EVERY_ROUND) for j in shown):
                return False
            if len(shown) > 1 and (r.laplace.any() or not _are_apart(uses, r.columns)):
                return False
        return True

    def observe(self, k: int, sent: Capture, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k: the messages of the view, and own noise."""
        seen = self.all_observations(k, sent, units)
        return seen[..., [self._column]] if self._is_one_message(k) else seen

    def all_observations(self, k: int, sent: Capture, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k, even where only one message of it is read."""
        graph = self.game.setting.network.at(k)
        columns = [
            _picked(sent[name].payload, rows) for name, rows in self._rows(k, sent).items()
        ] + [
            _picked(units[name], rows)
            for name, rows in self._own(
                k, {n: AskedNoise("gaussian", u.shape) for n, u in units.items()}, graph
            ).items()
        ]
        return torch.cat(columns, dim=-1)

    def told(self, k: int, known_to: Mapping[str, Tensor]) -> None:
        """Who knows the rows of the draws of round k that agents share."""
        self._known_to[k] = dict(known_to)

    def _is_one_message(self, k: int) -> bool:
        return self._one_message and k == self.n_rounds

    def _learn(self) -> Iterator[Reading]:
        """Probe each round of the protocol in turn, and carry the uncertainty on."""
        state: Any = self.game.start(1, torch.float64, torch.device("cpu"))
        width = flat_state(state).shape[-1]
        spread = torch.zeros(0, width, dtype=torch.float64)  # rows: factor of the covariance
        remnants: dict[Use, Tensor] = {}  # of uses before, in the state, [width]
        scale = 0.0  # of a record's effect so far: in some rounds its agent takes no step
        for k in range(1, self.n_rounds + 1):
            old = torch.stack([*remnants.values()]) if remnants else spread[:0]
            out = _probed(self, state, k, spread, old)
            last = k == self.n_rounds
            self.reacts = self.reacts or reaction(self, self.threat_model, state, out, last)
            scale = max(scale, out.scale)
            out = out._replace(scale=scale)
            if self._is_one_message(k):
                self._column = out.most_telling
                out = out.of_one_message(self._column)
            found = Filter.of(out)
            reading, remnants = self._read(out, found, len(spread), list(remnants))
            yield reading
            state = out.next_state
            spread = compressed(out.state_noise - found.V.mT @ found.gain)  # (I - V'V) C

    def _read(
        self, out: Probed, found: Filter, n_states: int, used: list[Use]
    ) -> tuple[Reading, dict[Use, Tensor]]:
        """How a round is read, and what is left of each use of the record in the state."""
        k = out.round
        fresh = [(self._inclusion(k, s), k, point) for point, s in enumerate(out.steps)]
        uses = [*used, *fresh]
        seen = torch.cat([out.remnants_seen, out.record_seen])
        shifts = seen @ found.whiten
        bare = seen - seen @ found.U @ found.U.mT
        left = torch.cat([out.remnants, out.record]) - shifts @ found.gain
        kept = {
            use: rest
            for use, rest in zip(uses, left, strict=True)
            if rest.abs().max() > FORGOTTEN * out.scale
        }
        draws = found.V[:, n_states:]
        identity = torch.eye(draws.shape[1], dtype=torch.float64)
        known = (draws.mT @ draws - identity)[out.laplace].abs()
        exact = not n_states and (known.numel() == 0 or known.max().item() < 1e-6)
        return Reading(
            out.messages,
            found.whiten,
            found.gain,
            dict(zip(uses, shifts, strict=True)),
            self._summed(uses, shifts),
            self._shown(uses, bare, out),
            self._named_bare(uses, bare, out),
            draws,
            out.laplace,
            exact,
        ), kept

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

    def _shown(self, uses: list[Use], bare: Tensor, out: Probed) -> dict[int, Tensor]:
        """What shows that record without noise: 1 with it, 0 without."""
        return {
            j: rest / (rest @ rest)
            for j, rest in self._summed(uses, bare).items()
            if rest.numel() and rest.abs().max() > NOISELESS * out.scale
        }

    def _named_bare(self, uses: list[Use], bare: Tensor, out: Probed) -> dict[int, str]:
        """The messages that show some record's gradient at some point without noise."""
        return {
            use[0]: out.messages[int(rest.abs().argmax())][0]
            for use, rest in zip(uses, bare, strict=True)
            if rest.numel() and rest.abs().max() > NOISELESS * out.scale
        }

    def _rows(self, k: int, sent: Capture) -> dict[str, Tensor]:
        """The rows of each message's payload that the view holds, the same in all plays of k."""
        read = {m: s for m, s in sent.items() if self._messages is None or m in self._messages}
        for name in read:
            if (k, name) not in self._visible:
                self._visible[k, name] = visible_rows(read[name], self.threat_model)
        return {name: self._visible[k, name] for name in read}

    def named(
        self, k: int, sent: Capture, draws: Mapping[str, AskedNoise], graph: Graph
    ) -> list[tuple[str, int]]:
        """What each observation is: message, or draw of the adversary's own, and row."""
        rows = self._rows(k, sent) | {
            f"own noise of {name}": rows for name, rows in self._own(k, draws, graph).items()
        }
        return [(name, int(row)) for name, of in rows.items() for row in of]

    def _own(self, k: int, draws: Mapping[str, AskedNoise], graph: Graph) -> dict[str, Tensor]:
        """The rows of each draw that the adversary's own agents made: by agent, or by sender.

        Of a draw that agents share, those that one of its agents knows.
        """
        agents = torch.tensor(self.threat_model.agents, dtype=torch.long)
        own = {}
        for name, draw in draws.items():
            known_to = self._known_to.get(k, {}).get(name)
            if known_to is not None:
                own[name] = torch.isin(known_to, agents).any(dim=1).nonzero().flatten()
                continue
            rows = draw.shape[-2]
            makers = torch.arange(graph.n_agents) if rows == graph.n_agents else graph.senders
            if len(agents) and rows == len(makers):
                own[name] = torch.isin(makers, agents).nonzero().flatten()
        return own


def _round_of(inclusion: int, batches: int) -> int:
    """The round of an inclusion, by its number; ``EVERY_ROUND`` of one in all."""
    return EVERY_ROUND if inclusion == EVERY_ROUND else -(-inclusion // batches)


def _are_apart(uses: list[Use], columns: Mapping[Use, Tensor]) -> bool:
    """Whether uses by different inclusions move independent noise: orthogonal columns."""
    S = torch.stack([columns[use] for use in uses])
    H, inclusions = S @ S.mT, torch.tensor([use[0] for use in uses])
    between = H[inclusions[:, None] != inclusions]
    return bool(between.abs().max() <= RANK * H.diagonal().max())


def _probed(adversary: Adversary, state: Any, k: int, spread: Tensor, remnants: Tensor) -> Probed:
    """The probe of a round; more remnants than the state has numbers are moved by its basis."""
    width = spread.shape[1]
    if len(remnants) <= width:
        return Probe(adversary, state, k).play(spread, remnants)
    out = Probe(adversary, state, k).play(spread, torch.eye(width, dtype=torch.float64))
    return out._replace(
        remnants_seen=remnants @ out.remnants_seen,
        remnants=remnants @ out.remnants,
        models_remnants=remnants @ out.models_remnants,
    )


def _picked(values: Tensor, rows: Tensor) -> Tensor:
    """These rows, by rising number, of values [..., n_rows, 1]; a range is not copied."""
    n = len(rows)
    if n and int(rows[-1]) - int(rows[0]) == n - 1:
        return values[..., int(rows[0]) : int(rows[0]) + n, 0]
    return values[..., 0].index_select(-1, rows)


def visible_rows(sent: Sent, threat_model: ThreatModel) -> Tensor:
    """Which rows of the payload an adversary can read; encrypted ones only with the key."""
    senders, receivers = sent.senders.tolist(), sent.receivers.tolist()
    seen = torch.tensor([threat_model.sees(j, i) for j, i in zip(senders, receivers, strict=True)])
    if sent.readers is not None:
        seen &= torch.isin(sent.readers, torch.tensor(threat_model.agents, dtype=torch.long))
    return sent.rows[seen.bool()].unique() if len(senders) else sent.rows
