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

``Mixture`` un-mixes gradients of agents several hops away from what gossip brings of them.

Who reads few links sees every other agent's gradients as gossip mixes them. In a single round they
cannot be separated. If each agent's gradient stays nearly as it is for some rounds, as near
convergence, at small steps or for full batches, what arrives of it has a course in time of its own,
by its distance:

    o = x0 + A (g_1, ..., g_n) + B z + rounding

with x0 the initial model, which is public, g_j the gradient of agent j in all rounds, z the
noise. A and B are probed on the defense's own step. The estimate is the mean of g given o (ridge,
or generalised least squares with a prior): z is standard, the errors of rounding have the size of
a unit in the last place, and gradients have a common size tau, by which o is as large as it is.
How much of g_j it reveals is its ``share``: 1 less what is left of its variance, tau^2.

The attack is that of Mrini, Cyffers and Bellet, "Privacy Attacks in Decentralized Learning", ICML
2024, arXiv:2402.10001. Departure: where they reduce a matrix to its row echelon form to find which
agents are revealed, the prior says how well each one is, noise and rounding included.
"""

from collections import Counter
from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dpaudit.defense import Defense, Message, NotObservable, Setting, ThreatModel, View
from dpaudit.game.probing.linearity import refuse_several
from dpaudit.game.probing.observer import recorded_rows, visible_rows
from dpaudit.game.step_inputs import ChosenNoise, ConstantGradients

from .window import WIDTH, GradientInput, ProbedWindow, System, noise_of

RANK = 1e-8  # smaller singular values, relative to the largest, count as zero
SAME = 0.05  # by how much twice the gradients may change the largest effect of noise
LEFT = 1e-6  # least share of an input's column that is orthogonal to all other unknowns

Found = TypeVar("Found")
MOST_DRAWS = 6000  # draws of noise in all rounds: matrices are quadratic in them


class GradientEstimate(NamedTuple):
    """What a view reveals of one gradient."""

    input: GradientInput
    gradient: Tensor  # [d]
    model: Tensor  # [d], where it was taken
    std: float | None  # of noise and rounding, per coordinate; None: depends on gradients
    model_std: float  # of the noise in each coordinate of the model


class LinearWindow:
    """The linear system of consecutive rounds, as one adversary sees it.

    Raises:
        NotObservable: the system is too large, or cannot be played at a few coordinates.
    """

    def __init__(
        self, defense: Defense, setting: Setting, threat_model: ThreatModel, rounds: range
    ) -> None:
        refuse_several(defense, setting.stand_in(WIDTH))
        played = ProbedWindow(defense, setting, threat_model, rounds, 1.0)
        self._system, self.rounds = System.of(played), rounds
        self._factors = Decomposition.of(self._system.unknowns)
        other = noise_of(ProbedWindow(defense, setting, threat_model, rounds, 2.0))
        here = self._system.noise
        self.has_known_noise = bool(((other - here).abs() <= SAME * size(here)).all())

    @property
    def observed(self) -> list[tuple[int, str, int]]:
        """What each observation is: round, message, row of what the adversary reads of it."""
        return self._system.observed

    @property
    def inputs(self) -> list[GradientInput]:
        return self._system.inputs

    def estimates(self, view: View, round: int, agent: int) -> list[GradientEstimate]:
        """All of the agent's gradients in a round that the view reveals, the most certain first.

        Raises:
            NotObservable: it reveals none, or lacks a message of the window.
        """
        o, rounding = self._read(view)
        found = self._each(round, agent, lambda wanted: self._estimate(wanted, o, rounding))
        return [estimate for _, estimate in sorted(found, key=lambda one: one[0])]

    def gradients(self, view: View, round: int, agent: int) -> Tensor:
        """Estimates by point [..., n, d], whether or not the models are known.

        Of messages with trials in front, the gradients of all trials.
        """
        o, rounding = self._read(view)
        weights = self._each(round, agent, lambda wanted: self.weights(wanted, rounding).to(o))
        return torch.stack([(w @ o.flatten(1)).reshape(o.shape[1:]) for w in weights], dim=-2)

    def _each(
        self, round: int, agent: int, estimated: Callable[[GradientInput], Found]
    ) -> list[Found]:
        found, refusal = [], f"no message tells a gradient of agent {agent} in round {round}"
        for wanted in self.inputs:
            if (wanted.agent, wanted.round) == (agent, round):
                try:
                    found.append(estimated(wanted))
                except NotObservable as reason:
                    refusal = str(reason)
        if not found:
            raise NotObservable("DPA054", refusal)
        return found

    def weights(self, wanted: GradientInput, rounding: Tensor | None = None) -> Tensor:
        """Weights of the observations [n] in the best unbiased estimate of an input.

        Args:
            rounding: error of each observation [n] beside the noise; None: none.

        Raises:
            NotObservable: the view does not separate it from other inputs or states.
        """
        system = self._system
        c = torch.zeros(system.unknowns.shape[1], dtype=torch.float64)
        c[len(c) - len(self.inputs) + self.inputs.index(wanted)] = 1.0
        none = torch.zeros(system.noise.shape[1], dtype=torch.float64)
        return _best(self._factors, system.noise, c, none, rounding)

    def std(self, wanted: GradientInput) -> float:
        """Standard deviation of the noise in each coordinate of the estimate."""
        return float(torch.linalg.vector_norm(self.weights(wanted) @ self._system.noise))

    def _estimate(
        self, wanted: GradientInput, o: Tensor, rounding: Tensor
    ) -> tuple[float, GradientEstimate]:
        """And the noise that it has where gradients are of the usual size."""
        system = self._system
        w, i = self.weights(wanted, rounding), self.inputs.index(wanted)
        of, noise = system.models[i], system.model_noise[i]
        try:
            m = _best(self._factors, system.noise, of, noise, rounding)
        except NotObservable as reason:
            raise NotObservable(
                "DPA054", f"the model of that gradient is not known: {reason}"
            ) from None
        std = torch.linalg.vector_norm(torch.cat([w @ system.noise, w * rounding]))
        model_std = torch.linalg.vector_norm(m @ system.noise - noise)
        known = float(std) if self.has_known_noise else None
        return float(std), GradientEstimate(
            wanted, w.to(o) @ o, m.to(o) @ o, known, float(model_std)
        )

    def _read(self, view: View) -> tuple[Tensor, Tensor]:
        """What the adversary holds of the window, [n, ..., d], and its rounding, [n]."""
        first, last = self.rounds[0], self.rounds[-1]
        none = f"{view.threat_model.name} reads no message of rounds {first} to {last}"
        o = recorded_rows(view, self.observed, none)
        rms = o.flatten(1).square().mean(dim=1).sqrt()
        return o, torch.finfo(o.dtype).eps * rms.double().cpu()


class Decomposition(NamedTuple):
    """The singular value decomposition of A [n, m], which every estimate from it needs."""

    A: Tensor
    U: Tensor  # [n, n]
    S: Tensor  # [min(n, m)]
    V: Tensor  # [min(n, m) or m, m]
    rank: int

    @staticmethod
    def of(A: Tensor) -> "Decomposition":
        U, S, V = torch.linalg.svd(A, full_matrices=A.shape[0] > A.shape[1])
        return Decomposition(A, U, S, V, int((RANK * S.max() < S).sum()) if S.numel() else 0)


def _best(
    factors: Decomposition, B: Tensor, c: Tensor, c_noise: Tensor, rounding: Tensor | None
) -> Tensor:
    """w with w'A = c that makes w'B - c_noise smallest (Aitken); Raises NotObservable."""
    A, U, S, V, rank = factors
    w = U[:, :rank] @ ((V[:rank] @ c) / S[:rank])
    if torch.linalg.vector_norm(w @ A - c) > LEFT * torch.linalg.vector_norm(c).clamp(min=1e-300):
        raise NotObservable("DPA054", "this view does not tell it from other gradients and states")
    free = U[:, rank:]
    if rounding is not None:
        B = torch.cat([B, torch.diag(rounding)], dim=1)
        c_noise = torch.cat([c_noise, torch.zeros_like(rounding)])
    return w - free @ (torch.linalg.pinv(free.mT @ B, atol=RANK * size(B)).mT @ (w @ B - c_noise))


def size(matrix: Tensor) -> float:
    """The largest entry; 1 of none."""
    return float(matrix.abs().max()) if matrix.numel() else 1.0


class UnmixedGradients(NamedTuple):
    """What is known of each agent's gradient."""

    gradients: Tensor  # [n_agents, d]
    stds: Tensor  # [n_agents], of the error in each coordinate
    shares: Tensor  # [n_agents], of the variance of a gradient that the view explains, in [0, 1]


class Mixture:
    """How rounds 1 to ``n_rounds`` mix the gradients of all agents into one adversary's view.

    Raises:
        NotObservable: the rounds draw too much noise, or cannot be played at one coordinate.
    """

    def __init__(
        self, defense: Defense, setting: Setting, threat_model: ThreatModel, n_rounds: int
    ) -> None:
        self._defense, self._threat_model, self._n_rounds = defense, threat_model, n_rounds
        self._setting = setting.stand_in(1)
        refuse_several(defense, self._setting)
        draws = draws_of(defense, setting, n_rounds)
        if len(draws) > MOST_DRAWS:
            raise NotObservable(
                "DPA022",
                f"{n_rounds} rounds draw {len(draws)} noises; un-mixing takes {MOST_DRAWS} "
                "at most: attack an earlier round",
            )
        self.observed, effects = self._play(draws)
        n = setting.n_agents
        self.of_model, self.of_gradients = effects[0], effects[1 : 1 + n].mT  # [n_observed(, n)]
        self.of_noise = effects[1 + n :].mT  # [n_observed, n_draws]

    def unmixed(self, view: View, initial: Tensor) -> UnmixedGradients:
        """Mean and deviation of the gradients, given the view and the initial model [d].

        Raises:
            NotObservable: a message was not recorded, or none reveals any gradient.
        """
        none = f"{self._threat_model.name} reads no message"
        o = recorded_rows(view, self.observed, none)
        error = torch.finfo(o.dtype).eps * o.square().mean(dim=1).sqrt().double()
        seen = o.double() - self.of_model[:, None] * initial.double()
        A, B = self.of_gradients, torch.cat([self.of_noise, error.diag()], dim=1)
        tau = _size(seen, A, B)
        U = _whitening(B)
        left, s, right = torch.linalg.svd(U @ A * tau, full_matrices=False)
        reported = (s / (s.square() + 1))[:, None] * (left.mT @ (U @ seen))
        shares = (right.square().mT @ (s.square() / (s.square() + 1))).clamp(max=1)
        return UnmixedGradients(tau * right.mT @ reported, tau * (1 - shares).sqrt(), shares)

    @property
    def n_agents(self) -> int:
        return self._setting.n_agents

    def _play(self, draws: list[tuple[int, str, int]]) -> tuple[list[tuple[int, str, int]], Tensor]:
        """Effects [1 + n_agents + draws, n_observed] of a unit of the model, a gradient, a draw."""
        n = self.n_agents
        trials = 2 + n + len(draws)  # the first has nothing
        X = torch.zeros(trials, n, 1, dtype=torch.float64)
        X[1] = 1.0
        state: Any = self._defense.start(X, self._setting)
        units = torch.zeros(trials, n, dtype=torch.float64)
        units[2 + torch.arange(n), torch.arange(n)] = 1.0
        observed: list[tuple[int, str, int]] = []
        rows, sizes = [], Counter((when, name) for when, name, _ in draws)
        for k in range(1, self._n_rounds + 1):
            played: dict[str, Tensor] = {}
            for i, (when, name, row) in enumerate(draws, start=2 + n):
                if when == k:
                    if name not in played:
                        played[name] = torch.zeros(trials, sizes[k, name], 1).double()
                    played[name][i, row] = 1.0
            gradient = ConstantGradients(self._defense.batch_size, units)
            graph = self._setting.network.at(k)
            state, sent, *_ = self._defense.step(state, k, graph, gradient, ChosenNoise(played))
            for name, message in sent.items():
                seen = visible_rows(message, self._threat_model)
                own = self._own(message) if k > 1 else set()
                read = [i for i, row in enumerate(seen.tolist()) if row not in own]
                observed += [(k, name, i) for i in read]
                rows.append(message.payload[..., seen[read], 0])
        values = torch.cat(rows, dim=1)
        return observed, values[1:] - values[0]

    def _own(self, message: Message) -> set[int]:
        """Rows of a payload that the adversary's agents sent, who know what is in them.

        Their first ones give their own gradients; by the later ones, nothing but what those changed
        by would be explained, and by gradients far away.
        """
        sent = torch.isin(message.senders, torch.tensor(self._threat_model.agents).long())
        return set(message.rows[sent].tolist())


def draws_of(defense: Defense, setting: Setting, n_rounds: int) -> list[tuple[int, str, int]]:
    """Round, name and row of all noise that is drawn in the first rounds."""
    narrow, draws = setting.stand_in(1), []
    none = torch.zeros(1, setting.n_agents, dtype=torch.float64)
    state: Any = defense.start(none.unsqueeze(-1), narrow)
    for k in range(1, n_rounds + 1):
        asked, gradient = ChosenNoise(), ConstantGradients(defense.batch_size, none)
        state = defense.step(state, k, narrow.network.at(k), gradient, asked).state
        for name, draw in asked.draws.items():
            draws += [(k, name, row) for row in range(draw.shape[-2])]
    return draws


def _size(seen: Tensor, A: Tensor, B: Tensor) -> float:
    """tau, for which independent gradients would make what is seen as large as it is.

    Raises:
        NotObservable: noise alone does.
    """
    of_gradients = float(seen.square().mean(dim=1).sum() - B.square().sum())
    effect = float(A.square().sum())
    if not (effect > 0 and of_gradients > 0):
        raise NotObservable(
            "DPA054", "this view holds noise, and nothing of any gradient beyond it"
        )
    return sqrt(of_gradients / effect)


def _whitening(factor: Tensor) -> Tensor:
    """U with U C U' = I, of the covariance C = F F' of a factor F [n, m].

    From the factor, since errors of rounding are 1e-16 of the rest, and their squares nothing.
    """
    vectors, sizes, _ = torch.linalg.svd(factor, full_matrices=False)
    return vectors.mT / sizes.clamp(min=sizes.max() * 1e-16)[:, None]
