"""What the strongest adversary of a threat model learns: exact, from the protocol's own algebra.

Around a run with no record in it, a defense is a linear system: the state and the messages of a
round are linear in the state before, in the noise and in the record's gradient. The adversary knows
that system, so it runs the protocol along with the agents and keeps an estimate of what it cannot
see (a Kalman filter). Each round it subtracts from what it intercepted all that it could foretell,
noise it already holds included. What is left is a combination of fresh noise and the record's
gradient, and is whitened. Summed over rounds the whitened shifts are the exact leak of the view,
mu^2 = a' (B B')^+ a for messages O = A G + B Z: nothing in a view tells more about the record.

A record's effect on a combination of messages without noise is an infinite leak, and is named.

The system is not written down for each defense but probed: one step from many states at once. It is
exact where the defense is linear in its noise (all gossip and push-sum methods here); ``spread`` of
the scores on real runs, and bounds that assume nothing, show where it is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isinf, sqrt
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dpaudit.accounting.releases import Mechanism
from dpaudit.defense.gossip import releases
from dpaudit.defense.transcript import Capture, Sent
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph

from .game import Game
from .tape import AskedNoise, Tape

RANK = 1e-9  # of the largest singular value: below it a combination of messages has no noise
NOISELESS = 1e-6  # of a record's effect: what may be left of it where there is no noise to hide it
FORGOTTEN = 1e-9  # of a record's effect: a smaller remnant in the state is rounding
NEGLIGIBLE = 1e-12  # in nats: a loss that changes no epsilon anyone reads
MOST_DRAWS = 4000  # noises of a round: the matrices of a round take their square

EVERY_ROUND = 0  # the inclusion that stands for a record used in all rounds


class Unhidden(NamedTuple):
    """A combination of messages that has no noise, but the record in it."""

    message: str  # the one with the largest part in it
    combination: Tensor  # [n_observations]: 1 with the record, 0 without


class Reading(NamedTuple):
    """How the adversary reads one round."""

    messages: list[tuple[str, int]]  # what each observation is: message (or draw), row of payload
    whiten: Tensor  # [n_observations, rank]: to independent noise of variance 1
    gain: Tensor  # [rank, state]: what that tells about the state
    shifts: dict[int, Tensor]  # round in which the record was used -> what it adds here, [rank]
    leaks: dict[int, Unhidden]  # the same -> what shows the record without noise
    draws: Tensor  # [rank, n_draws]: the noise of the round itself as the adversary estimates it
    laplace: Tensor  # [n_draws] bool
    exact: bool  # whether ``draws`` recovers every Laplace draw exactly


@dataclass(frozen=True)
class Leak:
    """All of what a view tells about one record, in standard deviations of the noise."""

    by_round: Tensor  # [n_rounds]: mu of a record used in that round alone; infinite: no noise
    unhidden: dict[int, str]  # round -> message that shows the record without noise
    pure: Tensor  # [n_rounds]: the loss of a record used there under Laplace noise, nan elsewhere
    parts: tuple[float, ...]  # the losses of single Laplace draws, of a record used in all rounds
    separate: bool  # whether a record used in one round shows in that round alone

    def mechanism(self, game: Game, in_round: int | None) -> Mechanism:
        """The leak as releases: of one round, of each, or of all together if all use the record.

        A release states its noise for one canary, and accounting knows what a draw of it displaces.
        """
        pure = bool((~self.pure.isnan()).all()) and len(self.pure) > 0
        if pure and self.parts and not self.unhidden:
            return releases([1 / loss for loss in self.parts], "none", 1.0, "laplace")
        size = self.pure if pure else self.by_round
        if in_round is not None:
            size = size[in_round - 1 : in_round]
        multipliers = [
            0.0 if isinf(x) else game.effect / x for x in size.tolist() if x > NEGLIGIBLE
        ]
        how = "none" if game.sampling_rate == 1 else game.sampling
        family: Literal["laplace", "gaussian"] = "laplace" if pure else "gaussian"
        return releases(multipliers, how, game.sampling_rate, family) if multipliers else ()


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
        self.rounds = list(self._learn())

    @property
    def leak(self) -> Leak:
        """The exact leak of each round's use of the record, through this round and all later."""
        used = sorted({j for r in self.rounds for j in (*r.shifts, *r.leaks)})
        squares, pure = dict.fromkeys(used, 0.0), dict.fromkeys(used, 0.0)
        unhidden: dict[int, str] = {}
        parts: list[float] = []
        for r in self.rounds:
            for j, shift in r.shifts.items():
                squares[j] += float(shift @ shift)
                moved = (shift @ r.draws)[r.laplace].abs() * sqrt(2)
                pure[j] += moved.sum().item() if r.exact and r.laplace.any() else float("nan")
                parts += [] if j != EVERY_ROUND else moved[moved > NEGLIGIBLE].tolist()
            for j, leak in r.leaks.items():
                squares[j] = pure[j] = float("inf")
                unhidden.setdefault(j, leak.message)
        return Leak(
            torch.tensor([sqrt(squares[j]) for j in used], dtype=torch.float64),
            unhidden,
            torch.tensor([pure[j] for j in used], dtype=torch.float64),
            tuple(parts),
            all(
                j in (k, EVERY_ROUND) or not shift.abs().max() > 0
                for k, r in enumerate(self.rounds, start=1)
                for j, shift in r.shifts.items()
                if len(shift)
            ),
        )

    def observe(self, k: int, sent: Capture, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k: the messages of the view, and own noise."""
        seen = self.all_observations(k, sent, units)
        return seen[..., [self._column]] if self._is_one_message(k) else seen

    def all_observations(self, k: int, sent: Capture, units: Mapping[str, Tensor]) -> Tensor:
        """Those of ``observe``, whether or not only one message is read."""
        graph = self.game.setting.network.at(k)
        columns = [sent[name].payload[..., rows, 0] for name, rows in self._rows(sent).items()] + [
            units[name][..., rows, 0]
            for name, rows in self._own(
                {n: AskedNoise("gaussian", u.shape) for n, u in units.items()}, graph
            ).items()
        ]
        return torch.cat(columns, dim=-1)

    def _is_one_message(self, k: int) -> bool:
        return self._one_message and k == self.n_rounds

    def _learn(self) -> Iterator[Reading]:
        """Probe each round of the protocol in turn, and carry the uncertainty on."""
        state: Any = self.game.start(1, torch.float64, torch.device("cpu"))
        width = flat_state(state).shape[-1]
        spread = torch.zeros(0, width, dtype=torch.float64)  # rows: factor of the covariance
        remnants: dict[int, Tensor] = {}  # of records used before, in the state, [width]
        for k in range(1, self.n_rounds + 1):
            old = torch.stack([*remnants.values()]) if remnants else spread[:0]
            out = _Probe(self, state, k).play(spread, old)
            if self._is_one_message(k):
                self._column = out.most_telling
                out = out.of_one_message(self._column)
            found = _Filter.of(out)
            reading, remnants = self._read(out, found, len(spread), list(remnants), k)
            yield reading
            state = out.next_state
            spread = _compressed(out.state_noise - found.V.mT @ found.gain)  # (I - V'V) C

    def _read(
        self, out: "_Probed", found: "_Filter", n_states: int, used: list[int], k: int
    ) -> tuple[Reading, dict[int, Tensor]]:
        """How round k is read, and what is left of each use of the record in the state."""
        shifts: dict[int, Tensor] = {}
        leaks: dict[int, Unhidden] = {}
        kept: dict[int, Tensor] = {}
        for j, (seen, left) in self._effects(out, used, k).items():
            shift = seen @ found.whiten
            bare = seen - found.U @ (found.U.mT @ seen)
            if bare.numel() and bare.abs().max() > NOISELESS * out.scale:
                message = out.messages[int(bare.abs().argmax())][0]
                leaks[j] = Unhidden(message, bare / (bare @ bare))
            shifts[j] = shift
            left = left - shift @ found.gain
            if left.abs().max() > FORGOTTEN * out.scale:
                kept[j] = left
        draws = found.V[:, n_states:]
        identity = torch.eye(draws.shape[1], dtype=torch.float64)
        known = (draws.mT @ draws - identity)[out.laplace].abs()
        exact = not n_states and (known.numel() == 0 or known.max().item() < 1e-6)
        return (
            Reading(
                out.messages, found.whiten, found.gain, shifts, leaks, draws, out.laplace, exact
            ),
            kept,
        )

    def _effects(self, out: "_Probed", used: list[int], k: int) -> dict[int, tuple[Tensor, Tensor]]:
        """What each use of the record so far adds to observations and to the state."""
        effects = dict(zip(used, zip(out.remnants_seen, out.remnants, strict=True), strict=True))
        fresh = EVERY_ROUND if self.game.is_lasting else k
        seen, left = effects.pop(fresh, (0.0, 0.0))
        effects[fresh] = out.record_seen + seen, out.record + left
        return effects

    def _rows(self, sent: Capture) -> dict[str, Tensor]:
        """The rows of each message's payload that the view holds."""
        return {
            name: visible_rows(message, self.threat_model)
            for name, message in sent.items()
            if self._messages is None or name in self._messages
        }

    def _own(self, draws: Mapping[str, AskedNoise], graph: Graph) -> dict[str, Tensor]:
        """The rows of each draw that the adversary's own agents made: by agent, or by sender."""
        agents = torch.tensor(self.threat_model.agents, dtype=torch.long)
        own = {}
        for name, draw in draws.items():
            rows = draw.shape[-2]
            makers = torch.arange(graph.n_agents) if rows == graph.n_agents else graph.senders
            if len(agents) and rows == len(makers):
                own[name] = torch.isin(makers, agents).nonzero().flatten()
        return own


class _Probed(NamedTuple):
    """What a step makes of noise, of the record and of earlier records, one unit of each."""

    round: int
    messages: list[tuple[str, int]]
    observed_noise: Tensor  # [spread + draws, n]: what each unit of noise does to observations
    state_noise: Tensor  # [spread + draws, width]: and to the state after the round
    laplace: Tensor  # [draws] bool
    record_seen: Tensor  # [n]
    record: Tensor  # [width]
    remnants_seen: Tensor  # [n_old, n]
    remnants: Tensor  # [n_old, width]
    next_state: Any  # of the run without noise and record
    scale: float  # size of the record's effect, which errors are relative to

    @property
    def most_telling(self) -> int:
        """The observation with the largest effect of the record in units of its own noise."""
        noise = torch.linalg.vector_norm(self.observed_noise, dim=0)
        certain = torch.where(self.record_seen.abs() > NOISELESS * self.scale, torch.inf, 0.0)
        return int(torch.where(noise > 0, self.record_seen.abs() / noise, certain).argmax())

    def of_one_message(self, column: int) -> "_Probed":
        """The same, with only this observation made."""
        one = [column]
        return self._replace(
            messages=[self.messages[column]],
            observed_noise=self.observed_noise[:, one],
            record_seen=self.record_seen[one],
            remnants_seen=self.remnants_seen[:, one],
        )


class _Filter(NamedTuple):
    """What a round's observations tell about the noise: A' = U S V with A, C as in ``_Probed``."""

    U: Tensor  # [n_observations, rank]
    V: Tensor  # [rank, spread + draws]
    whiten: Tensor  # U / S
    gain: Tensor  # V C

    @classmethod
    def of(cls, out: _Probed) -> "_Filter":
        """Raises DpauditError if the run without records is not finite."""
        A, C = out.observed_noise, out.state_noise
        if not all(bool(t.isfinite().all()) for t in (A, C, out.record_seen, out.record)):
            raise DpauditError(
                f"round {out.round}: messages or states are not finite even in a run without "
                "records; expected options of the defense under which it does not overflow"
            )
        U, S, V = torch.linalg.svd(A.mT, full_matrices=False)
        rank = int((RANK * S.max() < S).sum()) if S.numel() and S.max() > 0 else 0
        U, S, V = U[:, :rank], S[:rank], V[:rank]
        return cls(U, V, U / S, V @ C)


class _Probe:
    """One step of the protocol, from many states and with many noises at once."""

    def __init__(self, adversary: Adversary, state: Any, k: int) -> None:
        self._adversary, self._state, self._k = adversary, state, k
        self._game = adversary.game
        self._graph = self._game.setting.network.at(k)

    def play(self, spread: Tensor, remnants: Tensor) -> _Probed:
        asked = Tape()
        self._step(self._state, asked, torch.zeros(1, dtype=torch.float64))
        draws = asked.draws
        sizes = {name: draw.shape[-2] for name, draw in draws.items()}
        first = 1 + len(remnants) + len(spread)  # trial of the first draw
        trials = first + sum(sizes.values()) + 1  # base, remnants, spread, noise, record
        if trials > MOST_DRAWS:
            raise ConfigError(
                f"graph: round {self._k} draws {sum(sizes.values())} noises; its exact leak is "
                f"computed for {MOST_DRAWS} at most; audit fewer agents or a sparser graph"
            )
        start = flat_state(self._state).expand(trials, -1).clone()
        start[1:first] += torch.cat([remnants, spread])
        units = _one_of_each(sizes, trials, first)
        drawn = torch.zeros(trials, dtype=torch.float64)
        drawn[-1] = 1.0

        state, sent = self._step(state_of(self._state, start), Tape(units), drawn)
        observed = self._adversary.all_observations(self._k, sent, units)
        after = flat_state(state)
        moved, left = observed - observed[0], after - after[0]
        laplace = [draws[m].family == "laplace" for m, size in sizes.items() for _ in range(size)]
        noise, old = slice(1 + len(remnants), trials - 1), slice(1, 1 + len(remnants))
        return _Probed(
            round=self._k,
            messages=self._named(sent, draws),
            observed_noise=moved[noise],
            state_noise=left[noise],
            laplace=torch.tensor(laplace, dtype=torch.bool),
            record_seen=moved[-1],
            record=left[-1],
            remnants_seen=moved[old],
            remnants=left[old],
            next_state=state_of(self._state, after[:1]),
            scale=max((t[-1].abs().max().item() for t in (moved, left) if t.shape[1]), default=0.0),
        )

    def _step(self, state: Any, noise: Tape, drawn: Tensor) -> tuple[Any, Capture]:
        gradient = self._game.gradient(drawn)
        round = self._game.defense.step(state, self._k, self._graph, gradient, noise)
        return round.state, round.sent

    def _named(self, sent: Capture, draws: Mapping[str, AskedNoise]) -> list[tuple[str, int]]:
        rows = self._adversary._rows(sent) | {
            f"own noise of {name}": rows
            for name, rows in self._adversary._own(draws, self._graph).items()
        }
        return [(name, int(row)) for name, of in rows.items() for row in of]


def _one_of_each(sizes: Mapping[str, int], trials: int, first: int) -> dict[str, Tensor]:
    """Draws [trials, size, 1] by name: from trial ``first`` on each has one draw of one unit."""
    units = {}
    for name, size in sizes.items():
        units[name] = torch.zeros(trials, size, 1, dtype=torch.float64)
        units[name][first + torch.arange(size), torch.arange(size), 0] = 1.0
        first += size
    return units


def flat_state(state: Any) -> Tensor:
    """The floating tensors of a state that have trials in front, [trials, width]."""
    return torch.cat([t.flatten(1) for t in _varying(state).values()], dim=1)


def state_of(like: Any, flat: Tensor) -> Any:
    """The same state with these values [trials, width] in it."""
    parts, start = {}, 0
    for name, tensor in _varying(like).items():
        size = tensor[0].numel()
        part = flat[:, start : start + size].to(tensor.dtype)
        parts[name] = part.reshape(len(flat), *tensor.shape[1:])
        start += size
    return like._replace(**parts)


def _varying(state: Any) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in state._asdict().items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.ndim >= 3
    }


def visible_rows(sent: Sent, threat_model: ThreatModel) -> Tensor:
    """Which rows of the payload an adversary can read; encrypted ones only with the key."""
    senders, receivers = sent.senders.tolist(), sent.receivers.tolist()
    seen = torch.tensor([threat_model.sees(j, i) for j, i in zip(senders, receivers, strict=True)])
    if sent.readers is not None:
        seen &= torch.isin(sent.readers, torch.tensor(threat_model.agents, dtype=torch.long))
    return sent.rows[seen.bool()].unique() if len(senders) else sent.rows


def _compressed(factor: Tensor) -> Tensor:
    """Rows with the same Gram matrix, of which none is zero."""
    if not factor.any():
        return factor[:0]
    _, S, V = torch.linalg.svd(factor, full_matrices=False)
    keep = RANK * S.max() < S
    return S[keep, None] * V[keep]
