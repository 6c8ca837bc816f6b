"""DECOR, Whisper and Zip-DL: agent by agent, and what their noise hides from whom."""

import math

import numpy as np
import pytest
import torch

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.accounting.releases import epsilon
from dpaudit.defense import Setting, releases
from dpaudit.defense.correlated import laplacian, left_of
from dpaudit.defense.noise import Noise
from dpaudit.defenses.decor import Decor, pairs_of
from dpaudit.defenses.whisper import Whisper, covariance, factor
from dpaudit.defenses.zip_dl import ZipDL
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import Graph, build_graph

EAVESDROPPER = ThreatModel(name="eavesdropper")
ETA, C, SIGMA, B = 0.3, 0.4, 0.8, 4
GIVEN = {"learning_rate": ETA, "clip_norm": C, "noise_multiplier": SIGMA, "batch_size": B}


def agents(*them: int) -> ThreatModel:
    kind = "curious" if len(them) == 1 else "colluding"
    return ThreatModel(name=f"agents {them}", kind=kind, agents=them)


def draws(streams, k: int, name: str, rows: int, d: int) -> torch.Tensor:
    return Noise(streams, k).gaussian(name, 1.0, torch.empty(rows, d, dtype=torch.float64))


def clipped_mean(gradients, d):
    total = torch.zeros(d, dtype=torch.float64)
    for g in gradients:
        total = total + g * min(1.0, C / g.norm().item())
    return total / B


def noises(defense, graph: Graph, streams, k: int, d: int) -> list[torch.Tensor]:
    """What is added to each agent's mean gradient, agent by agent."""
    n = graph.n_agents
    if isinstance(defense, Whisper):
        Z, R = draws(streams, k, "common", n, d), factor(covariance(graph))
        return [sum(R[i, r] * Z[r] for r in range(n)) * SIGMA * C / B for i in range(n)]
    s = defense.own_noise(graph) * C
    Z = draws(streams, k, "own", n, d)
    pairs = [tuple(pair) for pair in pairs_of(graph).tolist()]
    V, out = draws(streams, k, "pair", len(pairs), d), []
    for i in range(n):
        own = s * Z[i]
        for p, (a, b) in enumerate(pairs):
            if i in (a, b):
                own = own + (1 if i == a else -1) * defense.ratio * s * V[p]
        out.append(own / B)
    return out


@pytest.mark.parametrize("kind", [Decor, Whisper])
@pytest.mark.parametrize("name", ["star", "ring"])
def test_five_rounds_equal_the_update_agent_by_agent(
    setting_of, record_gradients, streams, kind, name
) -> None:
    if kind is Whisper:
        pytest.importorskip("cvxpy")
    problem, setting = setting_of(name, 5)
    defense = kind(**GIVEN).calibrate(setting)
    state = defense.start(problem.initial(streams).double(), setting)
    x = list(state.X)
    for k in range(1, 6):
        graph, batch = setting.network.at(k), problem.batch(streams, k, B, "fixed")
        extra = noises(defense, graph, streams, k, setting.d)
        y = [
            x[i]
            - ETA * (clipped_mean(record_gradients(problem, x[i], batch, i), setting.d) + extra[i])
            for i in range(5)
        ]
        x = [sum(graph.W[i, j] * y[j] for j in range(5)) for i in range(5)]
        oracle = problem.gradient(streams, k, B)
        state, sent, _ = defense.step(state, k, graph, oracle, Noise(streams, k))
        for j, i in graph.links:
            torch.testing.assert_close(sent["y"].on_edge(j, i), y[j], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(defense.models(state), torch.stack(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("self_noise", [False, True])
@pytest.mark.parametrize("name", ["ring", "bipartite"])
def test_five_rounds_of_zip_dl_equal_the_update_agent_by_agent(
    setting_of, record_gradients, streams, self_noise, name
) -> None:
    problem, setting = setting_of(name, 6)
    defense = ZipDL(**GIVEN, self_noise=self_noise).calibrate(setting)
    state = defense.start(problem.initial(streams).double(), setting)
    x, d = list(state.X), setting.d
    for k in range(1, 6):
        graph, batch = setting.network.at(k), problem.batch(streams, k, B, "fixed")
        U, own = draws(streams, k, "link", graph.n_edges, d), draws(streams, k, "self", 6, d)
        message, kept, y = {}, {}, {}
        for j in range(6):
            g = clipped_mean(record_gradients(problem, x[j], batch, j), d)
            y[j] = x[j] - ETA * g
            mine = [e for e in range(graph.n_edges) if graph.links[e][0] == j]
            xi = [U[e] for e in mine] + ([own[j]] if self_noise else [])
            m, s = len(xi), ETA * SIGMA * C / B
            xi = [s * math.sqrt(m / (m - 1)) * (u - sum(xi) / m) for u in xi]
            assert sum(xi).abs().max() < 1e-12
            for e, noise in zip(mine, xi, strict=False):
                message[graph.links[e]] = y[j] + noise
            kept[j] = xi[-1] if self_noise else torch.zeros(d, dtype=torch.float64)
        x = [
            graph.W[i, i] * (y[i] + kept[i])
            + sum(graph.W[i, j] * message[j, i] for j in graph.neighbours(i))
            for i in range(6)
        ]
        oracle = problem.gradient(streams, k, B)
        state, sent, _ = defense.step(state, k, graph, oracle, Noise(streams, k))
        for link in graph.links:
            found = sent["y"].on_edge(*link)
            torch.testing.assert_close(found, message[link], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(defense.models(state), torch.stack(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name, own, common, expected",
    [
        ("ring", 1.0, 10.0, (0.15821, 0.27021, 1.0)),
        ("ring", 0.1, 10.0, (0.75224, 1.05631, 10.0)),
        ("complete", 1.0, 10.0, (0.06832, 0.07285, 1.0)),
    ],
)
def test_what_is_left_agrees_with_its_inverse_covariance(name, own, common, expected) -> None:
    """[Sigma^-1]_ii for an outsider, a neighbour of a curious agent, and one surrounded."""
    graph = build_graph(name, 16).at(1)
    for without, value in zip(((), (1,), tuple(graph.neighbours(0))), expected, strict=True):
        Sigma = own * torch.eye(16, dtype=torch.float64) + common * laplacian(graph, without)
        left = left_of(Sigma).of_all[0].item()
        assert 1 / left == pytest.approx(value, abs=1e-5)
        assert 1 / left == pytest.approx(torch.linalg.inv(Sigma)[0, 0].item())


def test_what_is_left_is_the_conditional_variance() -> None:
    """Beside Sigma_ii - Sigma_iR Sigma_RR^+ Sigma_Ri, agent by agent."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    of_two_pairs = torch.eye(6, dtype=torch.float64)
    of_two_pairs[0, 1] = of_two_pairs[1, 0] = -1.0  # n_0 + n_1 = 0
    alike = factors[:, :4] @ factors[:, :4].T  # two combinations of all six are 0
    for Sigma in (
        factors @ factors.T,
        of_two_pairs,
        alike,
        laplacian(build_graph("ring", 6).at(1)),
    ):
        left = left_of(Sigma)
        for i in range(6):
            others = [j for j in range(6) if j != i]
            known = torch.linalg.pinv(Sigma[others][:, others], rtol=1e-9, hermitian=True)
            expected = Sigma[i, i] - Sigma[i, others] @ known @ Sigma[others, i]
            assert left.of_all[i].item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
            assert left.alone[i] == Sigma[i, i]


def game_of(defense, n: int = 16, name: str = "ring", victim: int = 0) -> Game:
    setting = Setting(build_graph(name, n), (100,) * n, d=50)
    return Game.of(defense.calibrate(setting), setting, victim, "add-remove")


SIXTEEN = {
    "n_rounds": 1,
    "batch_size": 100,
    "clip_norm": 1.0,
    "noise_multiplier": 2.0,
    "sampling": "poisson",  # at rate 1: the record is there or not
}


def test_decor_hides_more_from_an_outsider() -> None:
    game = game_of(Decor(**SIXTEEN, ratio=math.sqrt(10)))
    outside = Adversary(game, EAVESDROPPER, 1).leak.by_round[0].item()
    assert outside == pytest.approx(1 / 2)
    s = game.defense.own_noise(game.setting.network.at(1))
    assert s**2 == pytest.approx(4 * 0.15821, rel=1e-4)
    for them, precision in (((1,), 0.27021), ((1, 15), 1.0)):
        bracket = game.defense.mechanism(game.setting, agents(*them), 0)
        (most,), (least,) = bracket.most, bracket.least
        assert most.noise_multiplier**2 == pytest.approx(s**2 / precision, rel=1e-4)
        found = Adversary(game, agents(*them), 1).leak.by_round[0].item()
        slack = 1 + 1e-9
        assert 1 / least.noise_multiplier <= found * slack <= slack**2 / most.noise_multiplier
    (surrounded,) = game.defense.mechanism(game.setting, agents(1, 15), 0).least
    found = Adversary(game, agents(1, 15), 1).leak.by_round[0].item()
    assert found == pytest.approx(1 / surrounded.noise_multiplier)  # s C is all that hides it
    assert found == pytest.approx(1 / s)


def test_published_noise_of_decor_accounts_to_its_epsilon() -> None:
    """Ring of 16, variances (900, 9000), C = 1 of a user that is replaced, 1,000 rounds."""
    rho = 0.83855**2 / 2  # of all rounds; the paper converts it as zCDP
    assert rho + 2 * math.sqrt(rho * math.log(1e5)) == pytest.approx(4.3754, rel=1e-4)
    graph = build_graph("ring", 16).at(1)
    expected = {(): 3.5741, (1,): 4.8683, (1, 15): 10.670}
    for without, value in expected.items():
        Sigma = 900 * torch.eye(16, dtype=torch.float64) + 9000 * laplacian(graph, without)
        z = math.sqrt(left_of(Sigma).of_all[0])
        mechanism = releases([z] * 1000, "none", 1.0)
        assert epsilon(mechanism, 1e-5, "replace-one").high == pytest.approx(value, rel=1e-4)


def test_the_exact_leak_of_decor_and_whisper_is_accounted() -> None:
    pytest.importorskip("cvxpy")
    for kind in (Decor, Whisper):
        game = game_of(kind(**{**SIXTEEN, "n_rounds": 3, "batch_size": 10}), 6)
        leak = Adversary(game, EAVESDROPPER, 3).leak
        bracket = game.defense.mechanism(game.setting, EAVESDROPPER, 0)
        assert bracket.least == bracket.most
        (release,) = bracket.most
        assert release.count == 3
        found = leak.by_round.tolist()
        assert found == pytest.approx([1 / release.noise_multiplier] * 3, rel=1e-6)
        assert min(found) == pytest.approx(0.5, rel=1e-3)


def test_whisper_disturbs_less_than_decor_or_independent_noise() -> None:
    pytest.importorskip("cvxpy")
    for name, n in (("ring", 8), ("path", 5)):
        graph = build_graph(name, n).at(1)
        W, unit = graph.W, torch.eye(n, dtype=torch.float64)
        cost = {
            ratio: torch.trace(W @ _decor(graph, ratio) @ W.T).item() for ratio in (0.0, 0.5, 1.0)
        }
        best = torch.trace(W @ covariance(graph) @ W.T).item()
        assert best <= min(cost.values()) * (1 + 1e-4)
        assert min(cost.values()) < cost[0.0] == pytest.approx(torch.trace(W @ unit @ W.T).item())
        assert (left_of(covariance(graph)).of_all >= 1 - 1e-9).all()
    whole = build_graph("complete", 6).at(1)  # the mean alone is disturbed: as one central noise
    found = torch.trace(whole.W @ covariance(whole) @ whole.W.T).item()
    assert found == pytest.approx(1 / 6, rel=1e-2)


def _decor(graph: Graph, ratio: float) -> torch.Tensor:
    s = Decor(noise_multiplier=1.0, ratio=ratio).own_noise(graph)
    unit = torch.eye(graph.n_agents, dtype=torch.float64)
    return s**2 * (unit + ratio**2 * laplacian(graph))


@pytest.mark.parametrize("self_noise", [True, False])
def test_links_of_zip_dl_together_show_what_one_hides(self_noise) -> None:
    options = {**SIXTEEN, "noise_multiplier": 1.0, "self_noise": self_noise}
    game = game_of(ZipDL(**options), 6)

    def mu(*links: tuple[int, int]) -> float:
        threat = ThreatModel(name="links", links=links)
        found = Adversary(game, threat, 1).leak
        (least,) = game.defense.mechanism(game.setting, threat, 0).least
        z = least.noise_multiplier
        assert found.by_round[0].item() == pytest.approx(1 / z if z else math.inf)
        return found.by_round[0].item()

    assert mu((0, 1)) == pytest.approx(1.0)
    assert mu((0, 1), (0, 5)) == (pytest.approx(2.0) if self_noise else math.inf)
    bare = Adversary(game, EAVESDROPPER, 1).leak
    assert (bare.shown == (1, "y")) == (not self_noise)


def test_zip_dl_tells_more_in_later_rounds() -> None:
    options = {**SIXTEEN, "noise_multiplier": 1.0, "self_noise": True}
    games = {T: game_of(ZipDL(**{**options, "n_rounds": T}), 6) for T in (1, 3)}
    first, more = (Adversary(game, EAVESDROPPER, T).leak.by_use[0].low for T, game in games.items())
    assert first == pytest.approx(4.0)  # (deg / s)^2 of a record used in one round
    assert more > 3 * first  # of one used in three rounds: sent again under fresh noise
    bracket = games[3].defense.mechanism(games[3].setting, EAVESDROPPER, 0)
    ends = [sorted({z.noise_multiplier for z in end}) for end in (bracket.least, bracket.most)]
    assert ends == [[pytest.approx(0.5)], [0.0]]  # no bound is stated from above


def test_what_the_theory_excludes_is_refused_in_one_line() -> None:
    directed = Setting(build_graph("directed-ring", 5), (50,) * 5, d=3)
    path = Setting(build_graph("path", 5), (50,) * 5, d=3)
    one = {"noise_multiplier": 1.0}
    for defense, setting, match in (
        (Decor(**one), directed, "undirected"),
        (Whisper(**one), directed, "undirected"),
        (ZipDL(**one), path, "one weight"),
        (ZipDL(**one), directed, "single neighbour"),
    ):
        with pytest.raises(ConfigError, match=match):
            defense.calibrate(setting)
        loose = defense.model_copy(update={"allow_outside_theory": True})
        if not isinstance(defense, Whisper):
            assert loose.outside_theory(setting)
    with pytest.raises(ValueError, match="either epsilon or"):
        Decor()


def test_noises_of_a_pair_cancel_and_are_fresh_in_every_round(streams) -> None:
    setting = Setting(build_graph("ring", 4), (50,) * 4, d=2000)
    defense = Decor(noise_multiplier=1.0, clip_norm=1.0, batch_size=1, learning_rate=1.0, ratio=5.0)
    state = defense.start(torch.zeros(4, 2000, dtype=torch.float64), setting)
    graph = setting.network.at(1)

    class Nothing:
        batch_size = 1

        def clipped_sum(self, X, clip_norm, holders=None, norm=2):
            return torch.zeros_like(X)

    sent = [
        -defense.step(state, k, graph, Nothing(), Noise(streams, k)).sent["y"].payload
        for k in (1, 2)
    ]
    s = defense.own_noise(graph)
    for N in sent:
        empirical = N @ N.T / 2000
        expected = s**2 * (torch.eye(4, dtype=torch.float64) + 25 * laplacian(graph))
        # entries have a standard error of at most expected_ii sqrt(2 / 2000); 7 of them: 1e-11
        assert (empirical - expected).abs().max() < 7 * expected.max() * math.sqrt(2 / 2000)
    across = (sent[0] * sent[1]).mean(1).abs().max().item()
    assert across < 7 * float(np.sqrt(1 / 2000)) * (s**2 * 51)


def test_the_budget_of_decors_public_code_is_not_that_of_a_run() -> None:
    """Ring of 16, std 0.03 and 0.05 on means of 64 of 3,750 records clipped to 1, 1,000 rounds.

    The accountant of the public code takes the least Renyi divergence of one sampled round there,
    0.00043, into which neither the number of rounds nor delta enters.
    """
    network = build_graph("ring", 16)
    setting = Setting(network, (3750,) * 16, d=1000)
    unit = Decor(noise_multiplier=1.0, ratio=5 / 3).own_noise(network.at(1))
    options = {"batch_size": 64, "clip_norm": 1.0, "n_rounds": 1000}
    defense = Decor(noise_multiplier=0.03 * 64 / unit, ratio=5 / 3, **options)
    bracket = defense.mechanism(setting, EAVESDROPPER, 0)
    found = epsilon(bracket.least, 1e-5)
    assert found.low == pytest.approx(1.2908, rel=1e-4)
    assert found.low > 2900 * 0.00043
    surrounded = defense.mechanism(setting, agents(1, 15), 0)
    assert epsilon(surrounded.least, 1e-5).low > 2 * found.low


def test_a_budget_of_zip_dl_is_of_one_message_over_any_rounds() -> None:
    setting = Setting(build_graph("ring", 6), (40,) * 6, 10)
    for n_rounds in (1, 100):
        defense = ZipDL(epsilon=2.0, n_rounds=n_rounds, batch_size=40, self_noise=True)
        sigma = defense.calibrate(setting).sigma
        assert gaussian_epsilon(1e-5, 1 / sigma) == pytest.approx(2.0, rel=2e-3)
