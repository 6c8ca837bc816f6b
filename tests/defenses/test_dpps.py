"""DPPS against its pseudo-code agent by agent, its closed form, and what its scalar gives away."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from dpaudit.defense.contract import Gradient, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpps import DPPS, Protocol, distances
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds


def network(n, d=2):
    return build_graph(graph_options("d-out", d=d), n)


def perturbations(n, d, rounds, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rounds, n, d, generator=generator, dtype=torch.float64)


def laplace_tape(streams, t, n, d):
    like = torch.empty(n, d, dtype=torch.float64)
    return Noise(streams, t + 1).laplace("m", 1.0, like)


def pseudo_code(protocol, streams, graphs, s, E, factors):
    """Algorithm 1 and Remark 1, node by node; also the sensitivities that nodes broadcast."""
    n, d, p = len(s), len(s[0]), protocol
    C, lam, T_sync = p.sensitivity_factor, p.contraction, p.sync_interval
    a, S_own, gamma_n_norm, log = [1.0] * n, [0.0] * n, [0.0] * n, []
    for t in range(len(E)):
        h = [s[i] + E[t][i] for i in range(n)]
        norms = [E[t][i].abs().sum() for i in range(n)]
        starts = [s[i].abs().sum() for i in range(n)]
        noises = list(gamma_n_norm)
        if p.estimator == "stacked":
            norms, starts, noises = [sum(norms)] * n, [sum(starts)] * n, [sum(noises)] * n
        fresh = t == 0 or (T_sync > 0 and t % T_sync == 0)
        for i in range(n):
            if p.estimator == "real":
                S_own[i] = max((h[i] - h[j]).abs().sum() for j in range(n))
            elif fresh:
                S_own[i] = 2 * C * norms[i] + (2 * C * starts[i] if p.init_term else 0)
            else:
                S_own[i] = lam * S_own[i] + 2 * C * (norms[i] + lam * noises[i])
        log.append(torch.stack(S_own))
        S = max(S_own)
        if p.recurse_on == "max":
            S_own = [S] * n
        z, gamma_n = laplace_tape(streams, t, n, d), p.noise_rate * factors[t]
        m = [h[i] + gamma_n * (S / p.budget * z[i]) for i in range(n)]
        gamma_n_norm = [(gamma_n * (S / p.budget * z[i])).abs().sum() for i in range(n)]
        W = graphs(t + 1).W
        if T_sync > 0 and (t + 1) % T_sync == 0:
            W = torch.full((n, n), 1 / n, dtype=torch.float64)
        s = [sum(W[i, j] * m[j] for j in range(n) if W[i, j] > 0) for i in range(n)]
        a = [sum(W[i, j] * a[j] for j in range(n) if W[i, j] > 0) for i in range(n)]
    return s, a, log


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recurse_on": "max", "init_term": True},
        {"estimator": "stacked", "sync_interval": 3},
        {"estimator": "real", "sync_interval": 2},
        {"sync_interval": 0, "init_term": True, "decay_at": (3, 6), "decay": 0.5},
    ],
)
@pytest.mark.parametrize("graph", ["d-out", "exponential"])
def test_nine_rounds_equal_the_pseudo_code_agent_by_agent(streams, graph, options) -> None:
    n, d, T = 5, 7, 9
    graphs = network(n, 3) if graph == "d-out" else build_graph("exponential", n)
    protocol = Protocol(noise_rate=0.2, budget=1.5, **options)
    E, S = perturbations(n, d, T), perturbations(n, d, 1, seed=1)[0]
    state, broadcasts = protocol.start(S), []
    for k in range(1, T + 1):
        exchanged = protocol.exchange(state, E[k - 1], k, graphs.at(k), Noise(streams, k))
        state = exchanged.state
        broadcasts.append(exchanged.sent["sens"].payload[:, 0])
        travels = exchanged.sent["sens"].senders.numel() > 0
        assert travels == (protocol.estimator != "real")  # which no agent knows
    factors = [0.5 ** ((t >= 2) + (t >= 5)) if "decay_at" in options else 1.0 for t in range(T)]
    s, a, log = pseudo_code(protocol, streams, graphs.at, list(S), E, factors)
    torch.testing.assert_close(state.S, torch.stack(s), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state.a[:, 0], torch.stack(a), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(torch.stack(broadcasts), torch.stack(log), rtol=1e-12, atol=1e-13)


def test_recursion_22_is_the_closed_form_11(streams) -> None:
    n, d, T = 4, 6, 7
    protocol = Protocol(noise_rate=0.3, budget=2.0, sync_interval=0, init_term=True)
    E, S = perturbations(n, d, T), perturbations(n, d, 1, seed=1)[0]
    state, graphs, noise_norms = protocol.start(S), network(n), []
    for k in range(1, T + 1):
        exchanged = protocol.exchange(state, E[k - 1], k, graphs.at(k), Noise(streams, k))
        t, lam = k - 1, 0.55
        closed = 2 * 0.95 * lam**t * S.abs().sum(1)
        closed += 2 * 0.95 * sum(lam ** (t - i) * E[i].abs().sum(1) for i in range(t + 1))
        closed += 2 * 0.95 * sum(lam ** (t - i) * noise_norms[i] for i in range(t))
        payload = exchanged.sent["sens"].payload[:, 0]
        torch.testing.assert_close(payload, closed, rtol=1e-13, atol=1e-13)
        noise = exchanged.sent["m"].payload - exchanged.H
        noise_norms.append(noise.abs().sum(1))
        state = exchanged.state
    assert min(norm.min() for norm in noise_norms) > 0


def test_without_noise_and_perturbation_it_averages(streams) -> None:
    S, averaging = perturbations(6, 3, 1)[0], network(6)
    protocol = Protocol(sync_interval=0).without_noise()
    state = protocol.start(S)
    for k in range(1, 400):
        state = protocol.exchange(state, 0 * S, k, averaging.at(k), Noise(streams, k)).state
    torch.testing.assert_close(state.S, S.mean(0).expand(6, 3), rtol=0, atol=1e-12)
    for k in range(1, 8):  # and each round is one product with W
        before, S = S, averaging.at(k).mix(S)
        after = protocol.exchange(
            protocol.start(before), 0 * S, k, averaging.at(k), Noise(streams, k)
        ).state
        torch.testing.assert_close(after.S, S, rtol=0, atol=1e-15)
        torch.testing.assert_close(after.a, torch.ones(6, 1, dtype=torch.float64))


def test_all_agents_are_equal_after_a_round_of_sync(streams) -> None:
    n, E = 5, perturbations(5, 4, 6)
    protocol, state = Protocol(noise_rate=0.5, sync_interval=3), None
    state = protocol.start(E[0])
    for k in range(1, 5):
        exchanged = protocol.exchange(state, E[k], k, network(n).at(k), Noise(streams, k))
        state = exchanged.state
        n_edges = exchanged.sent["m"].senders.numel()
        assert n_edges == (n * (n - 1) if k == 3 else n)
        assert exchanged.sent["sens"].senders.numel() == n * (n - 1)  # to all, in every round
        if k == 3:
            torch.testing.assert_close(state.S, state.S[:1].expand(n, -1), rtol=0, atol=1e-15)
    expected = 2 * 0.95 * E[4].abs().sum(1)
    torch.testing.assert_close(exchanged.sent["sens"].payload[:, 0], expected)


def test_noise_is_laplace_of_scale_gamma_n_s_over_b_and_fresh(streams) -> None:
    n, d, T = 4, 40, 60
    E, graphs = perturbations(n, d, T), network(n)
    protocol = Protocol(noise_rate=0.02, budget=3.0, sync_interval=5)
    state, draws = protocol.start(E[0]), []
    for k in range(1, T + 1):
        exchanged = protocol.exchange(state, E[k - 1], k, graphs.at(k), Noise(streams, k))
        scale = 0.02 * exchanged.sent["sens"].payload.max() / 3.0
        draws.append((exchanged.sent["m"].payload - exchanged.H) / scale)
        state = exchanged.state
    z, tail = torch.stack(draws), FALSE_FAILURE / 5
    count = z.numel()
    # |Laplace(0, 1)| is exponential: 2 sum |z| is chi-square with 2 count degrees of freedom
    total = 2 * z.abs().sum().item()
    assert stats.chi2.ppf(tail, 2 * count) < total < stats.chi2.isf(tail, 2 * count)
    assert stats.kstest(z.flatten().numpy(), stats.laplace.cdf).pvalue > tail
    assert abs((z > 0).sum().item() - count / 2) < stats.norm.isf(tail) * math.sqrt(count) / 2
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        std = 2 * math.sqrt(products.numel())  # Var(z z') = 4
        assert products.sum().abs().item() < 1.1 * stats.norm.isf(tail) * std  # 10%: heavier tails


def test_trials_in_leading_dimensions_are_independent(streams) -> None:
    E, S = perturbations(3, 4 * 5, 2).view(2, 3, 4, 5), perturbations(3, 20, 1, 1).view(3, 4, 5)
    protocol, graph = Protocol(estimator="real", sync_interval=2), network(4).at(1)
    state = protocol.start(S)
    for k in (1, 2):
        quiet = protocol.without_noise()
        state = quiet.exchange(state, E[k - 1], k, graph, Noise(streams, k)).state
    for trial in range(3):
        alone = quiet.start(S[trial])
        for k in (1, 2):
            alone = quiet.exchange(alone, E[k - 1, trial], k, graph, Noise(streams, k)).state
        for together, single in zip(state, alone, strict=True):
            torch.testing.assert_close(together[trial], single, rtol=1e-14, atol=1e-15)


def test_opposite_perturbations_exceed_the_estimate_at_resets(streams) -> None:
    # algorithms.md A1: two nodes apart by 2 ||eps||, of which 2 C' ||eps|| is estimated
    E = torch.zeros(4, 3, dtype=torch.float64)
    E[0, 0], E[2, 0] = 1.0, -1.0
    state = Protocol().start(torch.zeros(4, 3, dtype=torch.float64))
    exchanged = Protocol().exchange(state, E, 1, network(4).at(1), Noise(streams, 1))
    assert distances(exchanged.H).max() == 2.0
    assert exchanged.sent["sens"].payload.max() == pytest.approx(1.9)


class Ones(Gradient):
    """Gradients that do not depend on the model."""

    batch_size = 4

    def __init__(self, G):
        self.G = G

    def __call__(self, X, holders=None):
        return self.G.expand_as(X)

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        raise NotImplementedError


def test_the_broadcast_scalar_is_the_norm_in_the_clear(streams, setting_of) -> None:
    _, setting = setting_of("complete", 4)
    setting = replace(setting, network=network(4), d=5)
    defense = DPPS(learning_rate=0.3, batch_size=4).calibrate(setting)
    G = perturbations(4, 5, 1)[0]
    state = defense.start(torch.zeros(4, 5, dtype=torch.float64), setting)
    played = defense.step(state, 1, setting.network.at(1), Ones(G), Noise(streams, 1))
    for receiver in (0, 2, 3):
        sens = played.sent["sens"].on_edge(1, receiver)
        assert sens.item() / (2 * 0.95 * 0.3) == pytest.approx(G[1].abs().sum().item())
    torch.testing.assert_close(played.private["gradient"], G)
    torch.testing.assert_close(played.private["h"], -0.3 * G)


def test_who_hears_the_scalar_has_a_release_without_noise(setting_of) -> None:
    _, setting = setting_of("complete", 5)
    setting = replace(setting, network=network(5))
    defense = DPPS(n_rounds=12)
    anyone = ThreatModel(name="c", kind="curious", agents=(3,))  # no neighbour of agent 0
    for adversary in (ThreatModel(name="e"), anyone):
        bracket = defense.mechanism(setting, adversary, 0)
        assert bracket.least == bracket.most
        assert [(r.noise_multiplier, r.count) for r in bracket.least] == [(0.0, 12)]
        assert "b / gamma_n is 5000" in bracket.assumptions[1]
    elsewhere = ThreatModel(name="e", links=((2, 3),))
    assert defense.mechanism(setting, elsewhere, 0).least == ()
    consensus = DPPS(learning_rate=0.0).mechanism(setting, anyone, 0)
    assert consensus.least == consensus.most == ()


def test_claimed_epsilon_grows_as_the_noise_rate_decays() -> None:
    protocol = Protocol(decay_at=(241, 541))
    claims = [protocol.claimed_epsilon(k) for k in (1, 240, 241, 541)]
    assert claims == pytest.approx([5e3, 5e3, 5e4, 5e5])
    assert Protocol(epsilon=2.0, noise_rate=0.01).b == pytest.approx(0.02)
    with pytest.raises(ConfigError, match="noise_rate above 0"):
        Protocol(epsilon=2.0, noise_rate=0.0).refuse_epsilon_without_noise()
    assert protocol.without_noise().claimed_epsilon(1) == math.inf


def test_matrices_that_are_not_doubly_stochastic_are_refused(
    push_sum_setting, streams, view_of_run
) -> None:
    problem, setting = push_sum_setting(5)
    with pytest.raises(ConfigError, match="Definition 1"):
        DPPS().calibrate(setting)
    allowed = DPPS(allow_outside_theory=True, batch_size=4).calibrate(setting)
    _, rounds = view_of_run(allowed, problem, setting, streams, 3)
    assert rounds[3].state.a.sum().item() == pytest.approx(5, abs=1e-13)
    assert (rounds[3].state.a - 1).abs().max() > 0.1  # the division matters here


def test_an_eavesdropper_derives_gradients_through_sync(setting_of, streams, view_of_run) -> None:
    problem, setting = setting_of("complete", 5)
    setting = replace(setting, network=network(5))
    protocol = Protocol(sync_interval=2, decay_at=(4,), noise_rate=0.01)
    for defense in (
        DPPS(protocol=protocol, batch_size=4), DPPS(protocol=protocol, batch_size=4).without_noise()
    ):  # fmt: skip
        view, rounds = view_of_run(defense, problem, setting, streams, 5)
        for k in (2, 3, 4, 5):
            derive = defense.observables["noisy-gradient"].derive
            derived = derive(defense, view, setting, Target(k, 3, 0))
            G, sent = rounds[k].private["gradient"], rounds[k].sent["m"].payload
            rate = 0.1 * (0.1 if k >= 4 else 1)
            expected = G - (sent - rounds[k].private["h"]) / rate
            torch.testing.assert_close(derived.gradient, expected[3], rtol=1e-8, atol=1e-11)
            model = defense.models(rounds[k - 1].state)[3]
            torch.testing.assert_close(derived.model, model, rtol=1e-13, atol=1e-14)
