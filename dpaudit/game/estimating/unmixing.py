"""Gradients of agents several hops away, un-mixed from what gossip brings of them.

Who reads few links sees every other agent's gradients as gossip mixes them. In a single round they
cannot be told apart. If each agent's gradient stays nearly as it is for some rounds, as near
convergence, at small steps or for full batches, what arrives of it has a course in time of its own,
by its distance:

    o = x0 + A (g_1, ..., g_n) + B z + rounding

with x0 the initial model, which is public, g_j the gradient of agent j in all rounds, z the
noise. A and B are probed on the defense's own step. The estimate is the mean of g given o (ridge,
or generalised least squares with a prior): z is standard, the errors of rounding have the size of
a unit in the last place, and gradients have a common size tau, by which o is as large as it is.
How much of g_j it tells is its ``share``: 1 less what is left of its variance, tau^2.

The attack is that of Mrini, Cyffers and Bellet, "Privacy Attacks in Decentralized Learning", ICML
2024, arXiv:2402.10001. Departure: where they reduce a matrix to its row echelon form to find which
agents can be told, the prior says how well each one is, noise and rounding included.
"""

from collections import Counter
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.transcript import Message
from dpaudit.defense.view import View
from dpaudit.errors import NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.oracles import ConstantGradients
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.observer import recorded_rows, visible_rows
from dpaudit.game.probing.playable_dimension import refuse_several

MOST_DRAWS = 6000  # of noise in all rounds: the matrices take their square


class Unmixed(NamedTuple):
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

    def unmixed(self, view: View, initial: Tensor) -> Unmixed:
        """Mean and deviation of the gradients, given the view and the initial model [d].

        Raises:
            NotObservable: a message was not recorded, or none tells of any gradient.
        """
        none = f"{self._threat_model.name} reads no message"
        o = recorded_rows(view, self.observed, none)
        error = torch.finfo(o.dtype).eps * o.square().mean(dim=1).sqrt().double()
        seen = o.double() - self.of_model[:, None] * initial.double()
        A, B = self.of_gradients, torch.cat([self.of_noise, error.diag()], dim=1)
        tau = _size(seen, A, B)
        U = _whitening(B)
        left, s, right = torch.linalg.svd(U @ A * tau, full_matrices=False)
        told = (s / (s.square() + 1))[:, None] * (left.mT @ (U @ seen))
        shares = (right.square().mT @ (s.square() / (s.square() + 1))).clamp(max=1)
        return Unmixed(tau * right.mT @ told, tau * (1 - shares).sqrt(), shares)

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
                told = [i for i, row in enumerate(seen.tolist()) if row not in own]
                observed += [(k, name, i) for i in told]
                rows.append(message.payload[..., seen[told], 0])
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
    told = float(A.square().sum())
    if not (told > 0 and of_gradients > 0):
        raise NotObservable(
            "DPA054", "this view holds noise, and nothing of any gradient beyond it"
        )
    return sqrt(of_gradients / told)


def _whitening(factor: Tensor) -> Tensor:
    """U with U C U' = I, of the covariance C = F F' of a factor F [n, m].

    From the factor, since errors of rounding are 1e-16 of the rest, and their squares nothing.
    """
    vectors, sizes, _ = torch.linalg.svd(factor, full_matrices=False)
    return vectors.mT / sizes.clamp(min=sizes.max() * 1e-16)[:, None]
