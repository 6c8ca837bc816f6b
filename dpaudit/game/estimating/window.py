"""How the messages of a few rounds depend on what is not known, probed on a defense's own step.

Every unknown is moved a little either way from one run of noise without records: each number of the
state before the rounds, each gradient that is asked for in them, each draw of noise.

Of many agents those that do not meet are moved in one trial, as in ``sparse_probe``. A trial of a
random half of each colour must move what is put down to that half. Both hold for steps that are not
linear, too.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dpaudit.defense import Defense, Gradient, Messages, Noise, NotObservable, Setting, ThreatModel
from dpaudit.game.matrices import Array, Indices, NotLocal, largest
from dpaudit.game.probing.observer import senders_by_row, visible_rows
from dpaudit.game.probing.probed_round import anywhere
from dpaudit.game.probing.sparse_probe import HOPS, RELATIVE, Units, agents_of, footprints, in_parts
from dpaudit.game.step_inputs import (
    ChosenNoise,
    GivenInputs,
    NumberedInputs,
    RequestedNoise,
    flat_state,
    state_of,
    varying,
)
from dpaudit.rng import Streams

WIDTH = 32  # coordinates of the model that is probed
STEP = 1e-2  # size of a probe
MOST_UNKNOWNS = 6000
_MOVED = 2**27  # bytes of the unknowns' coordinates, in worlds that are played at once
ROUNDING = 1e-11  # effects below this share of the largest are rounding


class GradientInput(NamedTuple):
    """One gradient that messages depend on."""

    round: int
    agent: int
    point: int  # index among the batches and models that the round asked at
    step: int = 0  # the local step whose batch it is of


class WindowRequests(NamedTuple):
    """What the rounds of a window ask of gradients and of noise, and what they send."""

    inputs: list[GradientInput]
    calls: dict[int, list[Tensor]]  # round -> input of each row, for each call
    noise: dict[int, Mapping[str, RequestedNoise]]  # round -> name -> noise
    sent: dict[int, Messages]

    @classmethod
    def of(cls, defense: Defense, setting: Setting, rounds: range, state: Any) -> "WindowRequests":
        """From a state before the rounds, without noise and records."""
        asked = cls([], {}, {}, {})
        for k in rounds:
            asked_at, tape = (
                NumberedInputs(defense.batch_size, defense.batches_per_round),
                ChosenNoise(),
            )
            played = defense.step(state, k, setting.network.at(k), asked_at, tape)
            state, asked.sent[k] = played.state, played.sent
            asked.calls[k], asked.noise[k] = asked_at.places, tape.draws
            counts: dict[int, int] = {}
            for agent, step, _ in asked_at.asked:
                point = counts.get(agent, 0)
                counts[agent] = point + 1
                asked.inputs.append(GradientInput(k, agent, point, step))
        return asked

    def seen_by(self, threat_model: ThreatModel) -> dict[tuple[int, str], Tensor]:
        """The rows that an adversary reads of each round's messages of the model's coordinates."""
        return {
            (k, name): visible_rows(message, threat_model)
            for k, sent in self.sent.items()
            for name, message in sent.items()
            if message.payload.shape[-1] == WIDTH
        }

    @property
    def n_draws(self) -> int:
        """Draws of the model's coordinates, one for each row."""
        asked = (draw.shape for draws in self.noise.values() for draw in draws.values())
        return sum(shape[-2] for shape in asked if shape[-1] == WIDTH)


class WindowShape(NamedTuple):
    """How large the system of a window is."""

    states: int  # parts of the state that have the model's coordinates
    inputs: int
    draws: int
    observed: int

    @classmethod
    def of(
        cls, defense: Defense, setting: Setting, threat_model: ThreatModel, rounds: range
    ) -> "WindowShape":
        """Counted on these rounds alone, wherever they lie in a run."""
        wide = setting.stand_in(WIDTH)
        state = _begun(defense, wide)
        if rounds.start > 1:
            state = anywhere(state, rounds.start)
        asked = WindowRequests.of(defense, wide, rounds, state)
        return cls.from_requests(state, asked, asked.seen_by(threat_model))

    @classmethod
    def from_requests(
        cls, state: Any, asked: WindowRequests, seen: Mapping[tuple[int, str], Tensor]
    ) -> "WindowShape":
        wide = (tensor for tensor in varying(state).values() if tensor.shape[-1] == WIDTH)
        states = sum(tensor[0].numel() // WIDTH for tensor in wide)
        return cls(states, len(asked.inputs), asked.n_draws, sum(map(len, seen.values())))

    @property
    def unknowns(self) -> int:
        return self.states + self.inputs + self.draws

    @property
    def at_once(self) -> int:
        """How many moves are played together."""
        n = max(1, self.unknowns)
        return max(1, min(n, _MOVED // (2 * n * WIDTH * torch.float64.itemsize)))


def _begun(defense: Defense, setting: Setting) -> Any:
    """The state before round 1, of agents whose models differ."""
    shape, generator = (1, setting.n_agents, WIDTH), torch.Generator().manual_seed(2)
    X = torch.empty(shape, dtype=torch.float64).normal_(generator=generator)
    return defense.start(X, setting)


class ProbedWindow:
    """The window, played from one state with unknowns moved a little either way.

    Unknowns are numbered: rows of the state, inputs, draws of noise. What is read is numbered too:
    observations, and the models of inputs.

    Raises:
        NotObservable: there are too many.
    """

    def __init__(
        self,
        defense: Defense,
        setting: Setting,
        threat_model: ThreatModel,
        rounds: range,
        typical: float,
    ) -> None:
        self.setting, self.rounds, self._defense = setting.stand_in(WIDTH), rounds, defense
        self._per_coordinate = typical / setting.d**0.5
        signs = torch.randint(0, 2, (WIDTH,), generator=torch.Generator().manual_seed(1))
        self._sign = 2.0 * signs.double() - 1
        self.start = self._reach()
        self.asked = WindowRequests.of(defense, self.setting, rounds, self.start)
        self.seen = self.asked.seen_by(threat_model)
        self.shape = WindowShape.from_requests(self.start, self.asked, self.seen)
        if self.shape.unknowns > MOST_UNKNOWNS:
            raise NotObservable(
                "DPA022",
                f"the view's estimate has {self.shape.unknowns} unknowns in {len(rounds)} rounds; "
                f"expected {MOST_UNKNOWNS} at most: attack fewer agents or a sparser graph",
            )
        self._units: dict[int, dict[str, Tensor]] = {}  # noise around which all is moved, by round
        for k, draws in self.asked.noise.items():
            own = torch.Generator().manual_seed(3 + k)
            units = {m: torch.zeros(1, *d.shape[-2:]).double() for m, d in draws.items()}
            self._units[k] = {m: unit.normal_(generator=own) for m, unit in units.items()}

    @property
    def observed(self) -> list[tuple[int, str, int]]:
        return [(k, name, i) for (k, name), rows in self.seen.items() for i in range(len(rows))]

    def moved(self, moves: Tensor) -> Tensor:
        """Observations and models [m, n_o + n_inputs] by moves [m, n], for each unit of these.

        Around noise of one sign and around its opposite, what a gradient does to the scale of the
        noise cancels.
        """
        either, m = torch.cat([STEP * moves, -STEP * moves]), len(moves)
        plays = [self._play(either, sign) for sign in (1.0, -1.0)]
        return torch.stack([values[:m] - values[m:] for values in plays]).mean(0) / (2 * STEP)

    def _reach(self) -> Any:
        """The state before the window of a run with noise and without records."""
        state, streams = _begun(self._defense, self.setting), Streams(0)
        for k in range(1, self.rounds.start):
            silent = NumberedInputs(self._defense.batch_size, self._defense.batches_per_round)
            state = self._step(state, k, silent, Noise(streams, k))[0]
        return state

    def _step(self, state: Any, k: int, gradient: Gradient, noise: Noise) -> tuple[Any, Messages]:
        graph = self.setting.network.at(k)
        played = self._defense.step(state, k, graph, gradient, noise)
        return played.state, played.sent

    def _play(self, moves: Tensor, sign: float) -> Tensor:
        """Along the signs: all observations, and the models of inputs, [trials, n_o + n_inputs]."""
        states, inputs, draws = moves.split(
            [self.shape.states, self.shape.inputs, self.shape.draws], dim=1
        )
        state = self._from(states)
        rows, models, n_draws = [], [], 0
        for k in self.rounds:
            n = sum(one.round == k for one in self.asked.inputs)
            values, inputs = inputs[:, :n], inputs[:, n:]
            asked = self._defense.batch_size, self._sign, self._typical(k, n), values
            gradient = GivenInputs(*asked, self.asked.calls[k])
            units = {}
            for name, unit in self._units[k].items():
                units[name] = sign * unit.repeat(len(moves), 1, 1)
                if unit.shape[-1] == WIDTH:
                    mine = draws[:, n_draws : n_draws + unit.shape[-2]]
                    units[name] += mine[..., None] * self._sign
                    n_draws += unit.shape[-2]
            state, sent = self._step(state, k, gradient, ChosenNoise(units))
            rows += [
                sent[name].payload[..., seen, :] @ self._sign / WIDTH
                for (when, name), seen in self.seen.items()
                if when == k
            ]
            models += self._models(gradient)
        return torch.cat([*rows, *models], dim=1)

    def _typical(self, k: int, n: int) -> Tensor:
        """Gradients as large in a coordinate as those of the real model can be, [n, WIDTH]."""
        size = (self._defense.clip_norm_in(k) or 1.0) * self._per_coordinate
        generator = torch.Generator().manual_seed(1000 + k)
        return size * torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)

    def _from(self, moves: Tensor) -> Any:
        """The state before the rounds with its rows moved along the signs."""
        flat = flat_state(self.start).repeat(len(moves), 1)
        at, row = 0, 0
        for tensor in varying(self.start).values():
            size = tensor[0].numel()
            if tensor.shape[-1] == WIDTH:
                mine = moves[:, row : row + size // WIDTH, None] * self._sign
                flat[:, at : at + size] += mine.flatten(1)
                row += size // WIDTH
            at += size
        return state_of(self.start, flat)

    def _models(self, gradient: GivenInputs) -> list[Tensor]:
        """The models of the round's inputs along the signs, [trials, m] of each call.

        Inputs are numbered as they are first asked for.
        """
        found, known = [], -1
        for places, X in zip(gradient.places, gradient.models, strict=True):
            so_far = torch.cat([torch.tensor([known]), places]).cummax(0).values
            found.append((X @ self._sign / WIDTH)[:, places > so_far[:-1]])
            known = int(so_far[-1])
        return found


class System(NamedTuple):
    """o = unknowns x + noise z, and models likewise, in every coordinate; x = (states, inputs)."""

    observed: list[tuple[int, str, int]]  # round, message, row of what the adversary reads of it
    inputs: list[GradientInput]
    unknowns: Tensor  # [n, n_states + n_inputs]
    noise: Tensor  # [n, n_draws]
    models: Tensor  # [n_inputs, n_states + n_inputs]: of the model that each input is taken at
    model_noise: Tensor  # [n_inputs, n_draws]

    @classmethod
    def of(cls, played: ProbedWindow) -> "System":
        n, n_o = played.shape.states + played.shape.inputs, played.shape.observed
        effects = _effects(played, np.arange(played.shape.unknowns)).mT
        o, x = effects[:n_o], effects[n_o:]
        return cls(played.observed, played.asked.inputs, o[:, :n], o[:, n:], x[:, :n], x[:, n:])


def noise_of(played: ProbedWindow) -> Tensor:
    """Noise of the system alone, [n, n_draws]."""
    shape = played.shape
    draws = np.arange(shape.states + shape.inputs, shape.unknowns)
    return _effects(played, draws).mT[: shape.observed]


def _effects(played: ProbedWindow, some: Indices) -> Tensor:
    """How observations and after them models move with some unknowns, [m, n_o + n_inputs]."""
    try:
        return _of_colours(played, some)
    except NotLocal:
        pass
    found = torch.zeros(len(some), played.shape.observed + played.shape.inputs, dtype=torch.float64)
    parts = torch.from_numpy(some).split(played.shape.at_once)
    for rows, part in zip(found.split(played.shape.at_once), parts, strict=True):
        if len(part):
            rows[:] = played.moved(one_hot(part, played.shape.unknowns).double())
    return found


def _of_colours(played: ProbedWindow, some: Indices) -> Tensor:
    """Effects of inputs; inputs whose effects do not meet are moved together.

    Raises:
        NotLocal: the rounds reach too far, or it takes as many trials as one by one.
    """
    network, rounds = played.setting.network, played.rounds
    graph = network.at(rounds[0])
    if any(network.at(k) is not graph for k in rounds):
        raise NotLocal("the graph varies")
    why, at_once = NotLocal(""), max(1, played.shape.at_once // 2)
    units, kinds = _units(played, some)
    for hops in HOPS:
        reach = footprints(graph, hops * len(rounds))
        groups = units.groups(reach, kinds)
        if 4 * len(groups) > len(units.live):
            raise NotLocal("it takes as many trials as there are unknowns")
        try:
            move = partial(_moved, played)
            effects = units.effects(groups, reach, _places(played), move, at_once)
            draws = np.random.default_rng(played.rounds.start)
            for part in in_parts(groups, at_once):
                half = [group[draws.random(len(group)) < 0.5] for group in part]
                predicted = np.stack([effects[group].sum(0) for group in half])
                size = max(largest(effects[group]) for group in part)
                if np.abs(move(half) - predicted).max() > RELATIVE * size:
                    raise NotLocal("its steps reach further than a few links")
            return torch.from_numpy(effects[some].toarray())
        except NotLocal as reason:
            why = reason
    raise why


def _moved(played: ProbedWindow, groups: list[Indices]) -> Array:
    """What moves where all of a group do, [groups, n_read]; rounding is 0."""
    moves = torch.zeros(len(groups), played.shape.unknowns, dtype=torch.float64)
    for row, group in zip(moves, groups, strict=True):
        row[group] = 1.0
    moved = np.asarray(played.moved(moves).numpy())
    moved[np.abs(moved) <= ROUNDING * np.abs(moved).max(initial=0.0)] = 0.0
    return moved


def _units(played: ProbedWindow, some: Indices) -> tuple[Units, Indices]:
    """The unknowns, of which some are moved; and what each is one of, as a number."""
    graph, parts = played.setting.network.at(played.rounds[0]), []
    for tensor in varying(played.start).values():
        if tensor.shape[-1] == WIDTH:
            each = tensor[0, 0].numel() // WIDTH if tensor.shape[1] else 0
            parts.append(np.repeat(agents_of(tensor.shape[1], graph), each))
    for k in played.rounds:
        parts.append(np.array([one.agent for one in played.asked.inputs if one.round == k]))
    for draws in played.asked.noise.values():
        wide = (draw.shape for draw in draws.values() if draw.shape[-1] == WIDTH)
        parts += [agents_of(shape[-2], graph) for shape in wide]
    kinds = np.repeat(np.arange(len(parts)), list(map(len, parts)))
    return Units(np.concatenate(parts).astype(np.int64), some), kinds


def _places(played: ProbedWindow) -> Indices:
    """The agent of all that is read: that which sent it, or whose gradient it is."""
    found = []
    for (k, name), rows in played.seen.items():
        found.append(senders_by_row(played.asked.sent[k][name])[rows])
    agents = torch.tensor([one.agent for one in played.asked.inputs], dtype=torch.long)
    return np.asarray(torch.cat([*found, agents]).numpy())
