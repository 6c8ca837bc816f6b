"""Gradient tracking hidden by random step sizes and random shares instead of noise."""

import torch
from pydantic import PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, Tracking


class CorrelatedRandomness(dp.NoiselessFunctionDefense):
    """Gao, Wang and Nedic (2023), from the messages that Xie, Liu and Chai list; rows are agents.

    In each round agent j draws a diagonal Lambda_j, entries uniform on [0.5, 1.5] times alpha, and
    its columns of C and B, uniform on [0.1, 1] and divided by their sum. It sends x_j, Lambda_j y_j
    and, to each neighbour i alone, C_ij y_j + B_ij (grad f_j(x_j+) - grad f_j(x_j)):
        x_i+ = sum over j of W_ij (x_j - Lambda_j y_j)
        y_i+ = sum over j of C_ij y_j + B_ij (grad f_j(x_j+) - grad f_j(x_j)),  y = grad F at start
    The shares C_jj and B_jj are never sent. Columns of C and B sum to 1, so the columns of Y keep
    adding up to those of grad F(X), and whoever reads all links finds every gradient by that sum.

    Reconstructed: the messages are known, the distributions of Lambda, C and B are a reading. Here
    the randomness lasts for all rounds.
    """

    needs_graph = dp.undirected("correlated randomness", " (Assumption 2)")
    state = Tracking
    paper = "Gao, Wang, Nedic: correlated randomness"
    reconstructed = (
        "the update and the distributions of Lambda, C and B, from the messages that another "
        "paper lists"
    )
    claims = "no epsilon; gradients not inferred, if a neighbour is honest"
    messages = {
        "x": "the model before the round, without noise",
        "lambda_y": "the tracker, each coordinate times its own random step size",
        "tracking": "a random share of the tracker plus one of the change of the gradient, another "
        "for each receiver",
    }
    private = {"gradient": "grad f_i at the model that is sent"}

    step_size: PositiveFloat = 0.01  # alpha

    def step(
        self, state: Tracking, k: int, graph: Graph, gradient: Gradient, noise: Noise
    ) -> Round:
        X, Y, G = state.begun(k, gradient)
        n = graph.n_agents
        j, i = graph.senders.to(X.device), graph.receivers.to(X.device)
        loops = torch.arange(n, device=X.device)
        senders, receivers = torch.cat([j, loops]), torch.cat([i, loops])

        lambda_Y = self.step_size * (0.5 + uniform(noise, "lambda", Y)) * Y
        X_next = graph.mix(X - lambda_Y)
        G_next = gradient(X_next)
        C, B = (column_stochastic(noise, name, X, senders, n) for name in ("C", "B"))
        shares = C * Y[..., senders, :] + B * (G_next - G)[..., senders, :]
        Y_next = torch.zeros_like(Y).index_add_(-2, receivers, shares)
        sent = {
            "x": dp.broadcast(graph, X),
            "lambda_y": dp.broadcast(graph, lambda_Y),
            "tracking": dp.unicast(graph, shares[..., : graph.n_edges, :]),
        }
        return Round(Tracking(X_next, Y_next, G_next), sent, {"gradient": G})

    def _balance(self, view: dp.View, setting: Setting, target: dp.Target) -> Tensor:
        k, victim, _ = target
        lambda_y = view.sent_by("lambda_y", k, victim)
        G = torch.zeros_like(lambda_y)
        for j in range(1, k):
            for i in setting.network.at(j).neighbours(victim):
                G = G + view.on_edge("tracking", j, victim, i)
                G = G - view.on_edge("tracking", j, i, victim)
        return torch.stack([G, lambda_y], dim=-2)

    combinations = {
        "balance": dp.Combination(
            "what left the victim in shares less what came, which is the gradient less y_i, and "
            "Lambda_i y_i",
            ("tracking", "lambda_y"),
            0,
            _balance,
        )
    }


def uniform(noise: Noise, name: str, like: Tensor) -> Tensor:
    """Uniform on [0, 1] from the stream of this name: the distribution function of a normal."""
    return torch.special.ndtr(noise.gaussian(name, 1.0, like))


def column_stochastic(noise: Noise, name: str, X: Tensor, senders: Tensor, n_agents: int) -> Tensor:
    """Random shares of each link and self-loop, [..., n_links, 1], that sum to 1 by sender."""
    like = X.new_empty(*X.shape[:-2], len(senders), 1)
    weights = 0.1 + 0.9 * uniform(noise, name, like)
    sums = X.new_zeros(*X.shape[:-2], n_agents, 1).index_add_(-2, senders, weights)
    return weights / sums[..., senders, :]
