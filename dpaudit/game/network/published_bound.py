"""What a published bound says of the same linear gossip: to compare with, nothing rests on it.

Source: Cyffers, Even, Bellet and Massoulie 2022, "Muffliato", arXiv:2206.05091, the corrected
Theorem 11 as the public code of Bellet et al. 2026, arXiv:2510.17480, has it: an upper bound on the
Renyi divergence of order alpha by which agent v learns of agent u in T rounds, used in every round,

    alpha / (2 sigma^2) min(T, sum over s < T of (T - s) sum over w in N(v) of
                               (W^s)_uw / ||(W^s)_.w||^2),

sensitivity 1, N(v) with v itself. The minimum with T, all that every link tells, is that code's.
"""

import torch
from torch import Tensor


def muffliato_mu_squared(W: Tensor, n_rounds: int, noise: float = 1.0) -> Tensor:
    """The bound on mu^2 as published, before the minimum with ``n_rounds`` / noise^2.

    Args:
        W: [n, n], row-stochastic and the same in every round; v hears w where W[v, w] > 0.
        noise: standard deviation over the sensitivity.

    Returns:
        [n_adversaries, n_victims]; times alpha / 2 it is the Renyi divergence of order alpha.
    """
    hears, power, found = (W > 0).double(), torch.eye(len(W), dtype=torch.float64), 0.0 * W
    for s in range(n_rounds):
        found += (n_rounds - s) * hears @ (power / power.square().sum(0)).mT
        power = W @ power
    return found / noise**2
