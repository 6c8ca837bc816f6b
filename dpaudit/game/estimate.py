"""The best linear estimate of an agent's gradients from a view, with its noise, for any defense.

Over a window of rounds every message is a linear function of what the adversary does not know, and
alike in every coordinate:

    o = A s + sum over inputs of a_u u + B z

with s the agents' states before the window, an input u the gradient of one agent in one round at
one of the models where it was asked for (the mean of the batch's, clipped if the defense clips),
and z the noise in standard deviations. A, a_u and B are not written down for each defense but
probed on its own step. An estimate w'o of one input is unbiased, whatever all other inputs and
the states are, if w' of their columns is 0 and w'a = 1. Of these the best has the least variance
w'BB'w (generalised least squares). It holds what hand-written attacks do: differences of push-sum
messages, momentum with known terms subtracted, averages over links that carry one gradient.

A step that is not linear is linearised around a run of noise without records: the momentum of DPDL
weighs a gradient by its cosine with others, so that its estimate is up to a factor.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Capture
from dpaudit.defense.view import View
from dpaudit.errors import NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.rng import Streams

from .inputs import Inputs, Listening
from .observer import visible_rows
from .states import flat_state, state_of, varying
from .tape import Tape

WIDTH = 32  # coordinates of the model that is probed
STEP = 1e-2  # of a probe, either way
RANK = 1e-8  # of the largest singular value: below it a combination of messages has no unknowns
SAME = 0.05  # of the largest effect of noise: what twice the gradients may change in it
TELLS = 1e-6  # of an input's column: what must be left of it, orthogonal to all other unknowns
MOST_UNKNOWNS = 6000
_MOVED = 2**27  # bytes of the unknowns' coordinates, in worlds that are played at once

Told = TypeVar("Told")


class Input(NamedTuple):
    """One gradient that messages depend on."""

    round: int
    agent: int
    point: int  # which of the batches and models that it was asked at in that round
    step: int = 0  # the local step whose batch it is of


class Estimate(NamedTuple):
    """What a view tells about one gradient."""

    input: Input
    gradient: Tensor  # [d]
    model: Tensor  # [d], where it was taken
    std: float | None  # of noise and rounding in each coordinate; None: it depends on gradients
    model_std: float  # of the noise in each coordinate of the model


class Window:
    """The linear system of consecutive rounds, as one adversary sees it.

    Raises:
        NotObservable: the system is too large.
    """

    def __init__(
        self, defense: Defense, setting: Setting, threat_model: ThreatModel, rounds: range
    ) -> None:
        played = _Played(defense, setting, threat_model, rounds, 1.0)
        self._system, self.rounds = played.system(), rounds
        self._factors = Factors.of(self._system.unknowns)
        other = _Played(defense, setting, threat_model, rounds, 2.0).system().noise
        here = self._system.noise
        self.has_known_noise = bool(((other - here).abs() <= SAME * size(here)).all())

    @property
    def observed(self) -> list[tuple[int, str, int]]:
        """What each observation is: round, message, row of what the adversary reads of it."""
        return self._system.observed

    @property
    def inputs(self) -> list[Input]:
        return self._system.inputs

    def estimates(self, view: View, round: int, agent: int) -> list[Estimate]:
        """All of the agent's gradients in a round that the view tells, the most certain first.

        Raises:
            NotObservable: it tells none, or lacks a message of the window.
        """
        o, rounding = self._read(view)
        found = self._each(round, agent, lambda wanted: self._estimate(wanted, o, rounding))
        return [estimate for _, estimate in sorted(found, key=lambda one: one[0])]

    def gradients(self, view: View, round: int, agent: int) -> Tensor:
        """As ``estimates``, by point [..., n, d], whether or not the models are known.

        Of messages with trials in front, the gradients of all trials.
        """
        o, rounding = self._read(view)
        weights = self._each(round, agent, lambda wanted: self.weights(wanted, rounding).to(o))
        return torch.stack([(w @ o.flatten(1)).reshape(o.shape[1:]) for w in weights], dim=-2)

    def _each(self, round: int, agent: int, told: Callable[[Input], Told]) -> list[Told]:
        found, refusal = [], f"no message tells a gradient of agent {agent} in round {round}"
        for wanted in self.inputs:
            if (wanted.agent, wanted.round) == (agent, round):
                try:
                    found.append(told(wanted))
                except NotObservable as reason:
                    refusal = str(reason)
        if not found:
            raise NotObservable(refusal)
        return found

    def weights(self, wanted: Input, rounding: Tensor | None = None) -> Tensor:
        """Of the observations [n], in the best unbiased estimate of an input.

        Args:
            rounding: error of each observation [n] beside the noise; None: none.

        Raises:
            NotObservable: the view does not tell it apart from other inputs or states.
        """
        system = self._system
        c = torch.zeros(system.unknowns.shape[1], dtype=torch.float64)
        c[len(c) - len(self.inputs) + self.inputs.index(wanted)] = 1.0
        none = torch.zeros(system.noise.shape[1], dtype=torch.float64)
        return _best(self._factors, system.noise, c, none, rounding)

    def std(self, wanted: Input) -> float:
        """Of the noise in each coordinate of that estimate."""
        return float(torch.linalg.vector_norm(self.weights(wanted) @ self._system.noise))

    def _estimate(self, wanted: Input, o: Tensor, rounding: Tensor) -> tuple[float, Estimate]:
        """And the noise that it has where gradients are of the usual size."""
        system = self._system
        w, i = self.weights(wanted, rounding), self.inputs.index(wanted)
        of, noise = system.models[i], system.model_noise[i]
        try:
            m = _best(self._factors, system.noise, of, noise, rounding)
        except NotObservable as reason:
            raise NotObservable(f"the model of that gradient is not known: {reason}") from None
        std = torch.linalg.vector_norm(torch.cat([w @ system.noise, w * rounding]))
        model_std = torch.linalg.vector_norm(m @ system.noise - noise)
        known = float(std) if self.has_known_noise else None
        return float(std), Estimate(wanted, w.to(o) @ o, m.to(o) @ o, known, float(model_std))

    def _read(self, view: View) -> tuple[Tensor, Tensor]:
        """What the adversary holds of the window, [n, ..., d], and its rounding, [n]."""
        rows = []
        for k, name, row in self.observed:
            sent = view.transcript.captures.get(k, {}).get(name)
            if sent is None:
                raise NotObservable(f'"{name}" of round {k} was not recorded')
            rows.append(sent.payload[..., row, :])
        if not rows:
            first, last = self.rounds[0], self.rounds[-1]
            reader = view.threat_model.name
            raise NotObservable(f"{reader} reads no message of rounds {first} to {last}")
        o = torch.stack(rows)
        rms = o.flatten(1).square().mean(dim=1).sqrt()
        return o, torch.finfo(o.dtype).eps * rms.double().cpu()


class System(NamedTuple):
    """o = unknowns x + noise z, and models likewise, in every coordinate; x = (states, inputs)."""

    observed: list[tuple[int, str, int]]  # round, message, row of what the adversary reads of it
    inputs: list[Input]
    unknowns: Tensor  # [n, n_states + n_inputs]
    noise: Tensor  # [n, n_draws]
    models: Tensor  # [n_inputs, n_states + n_inputs]: of the model that each input is taken at
    model_noise: Tensor  # [n_inputs, n_draws]


class Factors(NamedTuple):
    """The singular value decomposition of A [n, m], which every estimate from it needs."""

    A: Tensor
    U: Tensor  # [n, n]
    S: Tensor  # [min(n, m)]
    V: Tensor  # [m, m]
    rank: int

    @staticmethod
    def of(A: Tensor) -> "Factors":
        U, S, V = torch.linalg.svd(A, full_matrices=True)
        return Factors(A, U, S, V, int((RANK * S.max() < S).sum()) if S.numel() else 0)


def _best(
    factors: Factors, B: Tensor, c: Tensor, c_noise: Tensor, rounding: Tensor | None
) -> Tensor:
    """w with w'A = c that makes w'B - c_noise smallest (Aitken); Raises NotObservable."""
    A, U, S, V, rank = factors
    w = U[:, :rank] @ ((V[:rank] @ c) / S[:rank])
    if torch.linalg.vector_norm(w @ A - c) > TELLS * torch.linalg.vector_norm(c).clamp(min=1e-300):
        raise NotObservable("this view does not tell it from other gradients and states")
    free = U[:, rank:]
    if rounding is not None:
        B = torch.cat([B, torch.diag(rounding)], dim=1)
        c_noise = torch.cat([c_noise, torch.zeros_like(rounding)])
    return w - free @ (torch.linalg.pinv(free.mT @ B, atol=RANK * size(B)).mT @ (w @ B - c_noise))


def size(matrix: Tensor) -> float:
    """The largest entry; 1 of none."""
    return float(matrix.abs().max()) if matrix.numel() else 1.0


class _Played:
    """The window, played from one state with every unknown moved a little either way."""

    def __init__(
        self,
        defense: Defense,
        setting: Setting,
        threat_model: ThreatModel,
        rounds: range,
        typical: float,
    ) -> None:
        wide = setting.stand_in(WIDTH)
        self._defense, self._setting, self._rounds = defense, wide, rounds
        self._threat_model, self._per_coordinate = threat_model, typical / setting.d**0.5
        signs = torch.randint(0, 2, (WIDTH,), generator=torch.Generator().manual_seed(1))
        self._sign = 2.0 * signs.double() - 1
        self._start = self._reach()
        self._calls: dict[int, list[Tensor]] = {}
        self._units: dict[int, dict[str, Tensor]] = {}
        self._inputs: list[Input] = []
        self._listen()

    def _reach(self) -> Any:
        """The state before the window of a run with noise and without records."""
        generator, streams = torch.Generator().manual_seed(2), Streams(0)
        shape = (1, self._setting.n_agents, WIDTH)
        X = torch.empty(shape, dtype=torch.float64).normal_(generator=generator)
        state: Any = self._defense.start(X, self._setting)
        for k in range(1, self._rounds.start):
            state = self._step(state, k, Listening(self._defense.batch_size), Noise(streams, k))[0]
        return state

    def _step(self, state: Any, k: int, gradient: Gradient, noise: Noise) -> tuple[Any, Capture]:
        graph = self._setting.network.at(k)
        played = self._defense.step(state, k, graph, gradient, noise)
        return played.state, played.sent

    def _listen(self) -> None:
        """What each round asks of gradients and of noise."""
        state = self._start
        for k in self._rounds:
            heard, asked = Listening(self._defense.batch_size), Tape()
            state = self._step(state, k, heard, asked)[0]
            self._calls[k] = heard.places
            counts: dict[int, int] = {}
            for agent, step, _ in heard.asked:
                point = counts.get(agent, 0)
                counts[agent] = point + 1
                self._inputs.append(Input(k, agent, point, step))
            generator = torch.Generator().manual_seed(3 + k)
            self._units[k] = {
                name: torch.empty(1, *draw.shape[-2:], dtype=torch.float64).normal_(
                    generator=generator
                )
                for name, draw in asked.draws.items()
            }

    def system(self) -> System:
        states = self._wide_rows()
        draws = [
            (k, name, row)
            for k, units in self._units.items()
            for name, u in units.items()
            if u.shape[-1] == WIDTH
            for row in range(u.shape[-2])
        ]
        n_states, n_inputs, n = len(states), len(self._inputs), 0
        n = n_states + n_inputs + len(draws)
        if n > MOST_UNKNOWNS:
            raise NotObservable(
                f"the view's estimate has {n} unknowns in {len(self._rounds)} rounds; expected "
                f"{MOST_UNKNOWNS} at most: attack fewer agents or a sparser graph"
            )
        size = max(1, _MOVED // (2 * n * WIDTH * torch.float64.itemsize))
        blocks = [self._slopes(some, n, states, draws) for some in torch.arange(n).split(size)]
        observed = blocks[0][0]
        slopes = torch.cat([rows for _, rows, _ in blocks])
        of_models = torch.cat([models for *_, models in blocks])
        x, z = slice(0, n_states + n_inputs), slice(n_states + n_inputs, n)
        return System(
            observed, self._inputs, slopes[x].mT, slopes[z].mT, of_models[x].mT, of_models[z].mT
        )

    def _slopes(
        self,
        some: Tensor,
        n: int,
        states: list[tuple[int, int]],
        draws: list[tuple[int, str, int]],
    ) -> tuple[list[tuple[int, str, int]], Tensor, Tensor]:
        """What was observed, and by how much it and the models move with some of n unknowns."""
        moves = torch.zeros(len(some), n, dtype=torch.float64)
        moves[torch.arange(len(some)), some] = STEP
        either = torch.cat([moves, -moves])
        plays = [self._play(either, states, draws, sign) for sign in (1.0, -1.0)]
        (observed, *_), b = plays[0], len(some)
        rows = torch.stack([rows[:b] - rows[b:] for _, rows, _ in plays]).mean(0) / (2 * STEP)
        of_models = torch.stack([m[:b] - m[b:] for _, _, m in plays]).mean(0) / (2 * STEP)
        return observed, rows, of_models

    def _wide_rows(self) -> list[tuple[int, int]]:
        """Tensor and row of each part of the state that has the model's coordinates."""
        found = []
        for i, tensor in enumerate(varying(self._start).values()):
            if tensor.shape[-1] == WIDTH:
                found += [(i, row) for row in range(tensor[0].numel() // WIDTH)]
        return found

    def _play(
        self,
        moves: Tensor,
        states: list[tuple[int, int]],
        draws: list[tuple[int, str, int]],
        sign: float,
    ) -> tuple[list[tuple[int, str, int]], Tensor, Tensor]:
        """Along the signs: all observations [trials, n], and the models of inputs [trials, u].

        Around noise of one ``sign`` and around its opposite, what a gradient does to the scale of
        the noise cancels.
        """
        trials, n_states, n_inputs = len(moves), len(states), len(self._inputs)
        state = state_of(self._start, self._moved(moves[:, :n_states], states))
        observed: list[tuple[int, str, int]] = []
        rows, models = [], []
        for k in self._rounds:
            mine = [n_states + i for i, wanted in enumerate(self._inputs) if wanted.round == k]
            typical = self._typical(k, len(mine))
            gradient = Inputs(
                self._defense.batch_size, self._sign, typical, moves[:, mine], self._calls[k]
            )
            units = {m: sign * u.repeat(trials, 1, 1) for m, u in self._units[k].items()}
            for i, (when, name, row) in enumerate(draws, start=n_states + n_inputs):
                if when == k:
                    units[name][:, row] += moves[:, i, None] * self._sign
            state, sent = self._step(state, k, gradient, Tape(units))
            for name, message in sent.items():
                if message.payload.shape[-1] == WIDTH:
                    seen = visible_rows(message, self._threat_model)
                    observed += [(k, name, i) for i in range(len(seen))]
                    rows.append(message.payload[..., seen, :] @ self._sign / WIDTH)
            models.append(self._models(gradient, len(mine)))
        return observed, torch.cat(rows, dim=1), torch.cat(models, dim=1)

    def _typical(self, k: int, n: int) -> Tensor:
        """Gradients as large in a coordinate as those of the real model can be, [n, WIDTH]."""
        size = (self._defense.clip_norm_in(k) or 1.0) * self._per_coordinate
        generator = torch.Generator().manual_seed(1000 + k)
        return size * torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)

    def _moved(self, moves: Tensor, states: list[tuple[int, int]]) -> Tensor:
        flat = flat_state(self._start).repeat(len(moves), 1)
        starts, at = [], 0
        for tensor in varying(self._start).values():
            starts.append(at)
            at += tensor[0].numel()
        for i, (which, row) in enumerate(states):
            first = starts[which] + row * WIDTH
            flat[:, first : first + WIDTH] += moves[:, i, None] * self._sign
        return flat

    def _models(self, gradient: Inputs, n: int) -> Tensor:
        """The models of the round's inputs along the signs, [trials, n]."""
        found: dict[int, Tensor] = {}
        for places, X in zip(gradient.places, gradient.models, strict=True):
            along = X @ self._sign / WIDTH
            for m, place in enumerate(places.tolist()):
                found.setdefault(place, along[:, m])
        return torch.stack([found[i] for i in range(n)], dim=1) if n else gradient.values[:, :0]
