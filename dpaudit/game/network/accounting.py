"""What each adversary of linear gossip learns of each agent's record, from W alone.

    m_t = theta_t + g_t + n_t, sent to all that weigh it;    theta_(t+1) = W_t m_t,    n_t = F z_t

with z_t fresh standard normal draws. g_t moves by 1 at most at one agent, in the rounds in which
its record is used (``Participation``). An adversary reads the messages of some agents and knows
its own agents' noise and gradients. With all gradients known beforehand its view is Gaussian, and

    mu^2 = max over admissible rounds of S(H),   H = A' (B B')^+ A of O = A g + B z,

with S as in ``filtering.leak``. H is found from innovations, and where noise is correlated over
rounds from B itself (``gossip``).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import ConfigError, ThreatModel
from dpaudit.game.filtering.leak import GAP, ROUNDING, certified
from dpaudit.memory import available, size_text
from dpaudit.progress import OnStep

from .gossip import (
    NUMBER,
    Gossip,
    Innovations,
    Participation,
    Schema,
    StackedView,
    gossip_of,
    refuse_adversary,
    stacked_bytes,
)


class NetworkMu(NamedTuple):
    """mu of each agent's record to each adversary, from both sides; [n_adversaries, n_agents].

    nan stands for an adversary's own agents, infinity for a record that a message shows noiseless.
    """

    low: Tensor
    high: Tensor
    noiseless: dict[tuple[int, int], tuple[int, int]]  # (adversary, victim) -> (round, sender)


def network_mu(
    W: Tensor | Sequence[Tensor],
    n_rounds: int,
    participation: Schema = "every-round",
    noise: float | Tensor = 1.0,
    adversaries: Sequence[ThreatModel] | None = None,
    known_to: Sequence[Sequence[int]] | None = None,
    strategy: Tensor | None = None,
    gap: float = GAP,
    on_step: OnStep = lambda done, total: None,
) -> NetworkMu:
    """mu of each agent's record to each adversary, in linear gossip.

    Args:
        W: [n, n], W[i, j] weighs agent j's message at agent i; a sequence is used over and over.
        participation: in which rounds a record is used.
        noise: standard deviation over the sensitivity, for all agents; of each agent, [n]; or F
            [n, n_draws], where draws reach several agents.
        adversaries: None: each agent alone, in order.
        known_to: of each draw of F, the agents that know it; None: each agent its own noise alone.
        strategy: M [n_rounds, n_rounds], lower triangular: an agent's noise over the rounds is
            M^-1 times fresh noise; None: independent.
        gap: between low and high at most, relative to mu^2, where the semidefinite program decides.

    Raises:
        ConfigError: matrices or noise are no numbers or of other shapes, the schema does not fit, a
            adversary reads no message or is everybody, or there is not enough memory.
    """
    gossip = gossip_of(W, n_rounds, noise, known_to)
    n = gossip.n_agents
    schema = Participation.of(participation, n_rounds)
    if adversaries is None:
        adversaries = [ThreatModel(name=f"{a}", kind="curious", agents=(a,)) for a in range(n)]
    for adversary in adversaries:
        refuse_adversary(gossip, adversary)
    if strategy is not None:
        _refuse_strategy(strategy, n_rounds)
    _refuse_size(n, n_rounds, schema, strategy is not None)
    return _of_all(gossip, adversaries, schema, strategy, gap, on_step)


def _of_all(
    gossip: Gossip,
    adversaries: Sequence[ThreatModel],
    schema: Participation,
    strategy: Tensor | None,
    gap: float,
    on_step: OnStep,
) -> NetworkMu:
    n = gossip.n_agents
    low, high = (
        torch.full((len(adversaries), n), torch.nan, dtype=torch.float64) for _ in range(2)
    )
    noiseless: dict[tuple[int, int], tuple[int, int]] = {}
    for i, adversary in enumerate(adversaries):
        victims = [v for v in range(n) if v not in adversary.agents]
        view: Innovations | StackedView = (
            Innovations.of(gossip, adversary)
            if strategy is None
            else StackedView.of(gossip, adversary, strategy)
        )
        low[i, victims], high[i, victims] = mu_of(view.grams(schema, victims), schema.times, gap)
        for v, where in view.shown(victims):
            low[i, v] = high[i, v] = torch.inf
            noiseless[i, v] = where
        on_step(i + 1, len(adversaries))
    return NetworkMu(low, high, noiseless)


def mu_of(grams: list[Tensor], times: int, gap: float = GAP) -> tuple[Tensor, Tensor]:
    """mu of each victim from both sides: the worst of all runs of ``times`` uses.

    Args:
        grams: of each class of rounds, [n_victims, k, k] with k >= times.
    """
    low, high = (torch.zeros(len(grams[0]), dtype=torch.float64) for _ in range(2))
    for H in grams:
        for s in range(H.shape[1] - times + 1):
            part = H[:, s : s + times, s : s + times]
            same, most = part.sum((1, 2)), part.abs().sum((1, 2))
            low = torch.maximum(low, same)
            settled = most - same <= ROUNDING * most
            high = torch.where(settled, torch.maximum(high, most), high)
            for v in (~settled & (most > low)).nonzero().flatten().tolist():
                solved = certified(part[v], gap)
                low[v] = max(float(low[v]), solved.low)
                high[v] = max(float(high[v]), solved.high)
    return low.clamp(min=0).sqrt(), torch.maximum(low, high).clamp(min=0).sqrt()


def bytes_needed(n: int, n_rounds: int, schema: Participation, stacked: bool = False) -> int:
    """Bytes for one adversary at a time: errors, what they reveal, their halves, and Grams."""
    each = -(-n_rounds // schema.every)
    grams = 3 * n * schema.every * each * each
    return NUMBER * (grams + 6 * n_rounds * n * n) + stacked * stacked_bytes(n, n_rounds)


def _refuse_size(n: int, n_rounds: int, schema: Participation, stacked: bool) -> None:
    needed, free = bytes_needed(n, n_rounds, schema, stacked), available()
    if free is None or needed <= free:
        return
    fits = n
    while fits > 0 and bytes_needed(fits, n_rounds, schema, stacked) > free:
        fits -= max(1, fits // 50)
    raise ConfigError(
        "DPA022",
        f"network accounting of {n} agents over {n_rounds} rounds takes {size_text(needed)}; "
        f"{size_text(free)} are free, enough for {fits} agents",
    )


def _refuse_strategy(M: Tensor, n_rounds: int) -> None:
    if M.shape != (n_rounds, n_rounds) or not M.isfinite().all():
        raise ConfigError(
            "DPA071",
            f"strategy: shape {tuple(M.shape)}; expected finite numbers, [{n_rounds}, {n_rounds}]",
        )
    if M.triu(1).any() or not M.diagonal().all():
        raise ConfigError(
            "DPA071",
            "strategy: is singular, or uses noise of later rounds; expected a lower triangular "
            "matrix without 0 on its diagonal",
        )


def muffliato_mu_squared(W: Tensor, n_rounds: int, noise: float = 1.0) -> Tensor:
    """A published bound of the same gossip, before the minimum with ``n_rounds`` / noise^2.

    It is there to compare with, and nothing rests on it. On the Renyi divergence of order alpha by
    which agent v learns of agent u in T rounds, with the record used in every round, it is

        alpha / (2 sigma^2) min(T, sum over s < T of (T - s) sum over w in N(v) of
                                   (W^s)_uw / ||(W^s)_.w||^2),

    sensitivity 1, N(v) with v itself. The minimum with T is what every link reveals.

    Args:
        W: [n, n], row-stochastic and the same in every round; v hears w where W[v, w] > 0.
        noise: standard deviation over the sensitivity.

    Returns:
        [n_adversaries, n_victims]; times alpha / 2 it is the Renyi divergence of order alpha.

    Source: Cyffers, Even, Bellet and Massoulie 2022, "Muffliato", arXiv:2206.05091, the corrected
    Theorem 11 as the public code of Bellet et al. 2026, arXiv:2510.17480, has it.
    """
    hears, power, found = (W > 0).double(), torch.eye(len(W), dtype=torch.float64), 0.0 * W
    for s in range(n_rounds):
        found += (n_rounds - s) * hears @ (power / power.square().sum(0)).mT
        power = W @ power
    return found / noise**2
