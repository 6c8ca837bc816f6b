"""FedDPA agent by agent with torch's own Adam, its noise, and what its accounting is about."""

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from dpaudit.accounting.families import gaussian_epsilon, gaussian_mu
from dpaudit.accounting.releases import epsilon
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Gradient, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.feddpa import FedDPA, _norms, _scaled, _units
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")
# Adam divides a small gradient by itself plus 1e-8: its rounding, 1e-16, may grow 1e8 times.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def layered(setting_of, graph, n):
    """The problem and its setting with the layers of the model, whose gradients are not tiny."""
    problem, setting = setting_of(graph, n, "logistic")
    layers = tuple((name, p.numel()) for name, p in problem.gradients.module.named_parameters())
    assert len(layers) == 2
    return problem, replace(setting, layers=layers)


def trained(x, w, part, batches, gradient_of, layers, loss_of_distances, lr):
    """Steps of torch's Adam on some coordinates, the penalty by automatic differentiation."""
    x = torch.nn.Parameter(x.clone())
    adam = torch.optim.Adam([x], lr=lr)
    for batch in batches:
        adam.zero_grad()
        norms = [(a - b).norm() for a, b in zip(x.split(layers), w.split(layers), strict=True)]
        loss_of_distances(torch.stack(norms).sum()).backward()
        x.grad = part * (x.grad + gradient_of(x.detach(), batch))
        adam.step()
    return x.detach()


def local_round(defense, x, w, batches, gradients_of, layers):
    """Lines 1 to 5 at one agent, before the noise: its personal model and its update."""
    E, C, B = defense.local_steps, defense.clip_norm, defense.batch_size
    fisher = sum((g**2 for g in gradients_of(x, batches[0])), torch.zeros_like(x))
    scaled = [
        (f - f.min()) / (f.max() - f.min()) if f.max() > f.min() else 0 * f
        for f in fisher.split(layers)
    ]
    M = torch.cat(scaled) > defense.threshold
    kept, taken = (M, ~M) if defense.train_zeros else (M & (x != 0), ~M & (w != 0))
    x = torch.where(M, x, w)

    def gradient_of(x, batch):
        return sum(gradients_of(x, batch), torch.zeros_like(x)) / B

    l1, l2 = defense.personal_penalty, defense.shared_penalty
    phases = (
        (kept, batches[1 : 1 + E], lambda total: l1 / 2 * total),
        (taken, batches[1 + E :], lambda total: l2 / 2 * (total - C).abs()),
    )
    for part, of_phase, penalty in phases:
        lr = defense.learning_rate
        x = trained(x, w, part, of_phase, gradient_of, layers, penalty, lr)
    D = x - w if defense.release == "all" else (x - w) * ~M
    return x, D * min(1.0, C / max(D.norm().item(), C))


@pytest.mark.parametrize("graph", ["ring", "server", "some"])
@pytest.mark.parametrize(
    "options", [{}, {"release": "all", "train_zeros": False, "calibration": "exact"}]
)
def test_five_rounds_equal_the_algorithm_agent_by_agent(
    setting_of, record_gradients, gaussian_tape, streams, graph, options
) -> None:
    n, E, B, z = 5, 2, 4, 0.3
    problem, setting = layered(setting_of, "ring", n)
    if graph != "ring":
        served = graph_options("server", participation=0.6 if graph == "some" else 1.0)
        network = build_graph(served, n, streams.numpy("graph"), 5)
        setting = replace(setting, network=network)
    defense = FedDPA(
        noise_multiplier=z, local_steps=E, batch_size=B, clip_norm=0.005, learning_rate=1e-3,
        threshold=0.1, **options,
    ).calibrate(setting)  # fmt: skip
    layers = [size for _, size in setting.layers]
    generator = torch.Generator().manual_seed(1)
    X = 0.2 * torch.randn(n, setting.d, dtype=torch.float64, generator=generator)
    X[:, ::7] = 0  # exact zeros, which one of the options leaves alone
    state, x, w = defense.start(X, setting), list(X), list(X)
    n_clients = n if graph == "ring" else n - 1
    std = (z / math.sqrt(n_clients) if not options else 2 * z) * 0.005
    for k in range(1, 6):
        graph_k, tape = setting.network.at(k), gaussian_tape(streams, k, "update", n, setting.d)
        acting = range(n) if graph_k.active is None else graph_k.active
        batches = [problem.batch(streams, k, B, step=s) for s in range(1 + 2 * E)]
        sent = list(w)
        for i in acting:
            start = w[i] if graph == "ring" else w[0]

            def gradients_of(at, batch, i=i):
                return record_gradients(problem, at, batch, i)

            x[i], D = local_round(defense, x[i], start, batches, gradients_of, layers)
            sent[i] = start + D + std * tape[i]
        oracle = problem.gradient(streams, k, B)
        state, messages, _ = defense.step(state, k, graph_k, oracle, Noise(streams, k))
        for j, i in zip(
            messages["x"].senders.tolist(), messages["x"].receivers.tolist(), strict=True
        ):
            on_edge = messages["x"].on_edge(j, i)
            torch.testing.assert_close(on_edge, sent[j], **CLOSE)
        if graph != "ring":
            down = messages["average"]
            assert sorted(down.receivers.tolist()) == sorted(acting)
            torch.testing.assert_close(down.payload[0], w[0], **CLOSE)
        W = graph_k.W
        w = [sum(W[i, j] * sent[j] for j in range(n) if W[i, j] > 0) for i in range(n)]
        torch.testing.assert_close(state.W, torch.stack(w), **CLOSE)
        x = x if graph == "ring" else [w[0], *x[1:]]
        torch.testing.assert_close(defense.models(state), torch.stack(x), **CLOSE)


def test_layers_are_scaled_and_measured_by_themselves() -> None:
    layer = torch.tensor([0, 0, 1, 1, 2])
    F = torch.tensor([[1.0, 3.0, 5.0, 5.0, 0.0], [2.0, 1.0, 0.0, 4.0, 7.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0, 0.0]])
    assert torch.equal(_scaled(F, layer), expected)
    X = torch.tensor([3.0, 4.0, 0.0, 0.0, -2.0])
    assert torch.equal(_norms(X, layer), torch.tensor([5.0, 0.0, 2.0]))
    assert torch.equal(_units(X, layer), torch.tensor([0.6, 0.8, 0.0, 0.0, -1.0]))


@pytest.mark.parametrize("calibration", ["published", "exact"])
def test_noise_has_its_scale_and_is_fresh_for_agents(setting_of, streams, calibration) -> None:
    problem, setting = layered(setting_of, "complete", 4)
    z, C = 1.3, 0.5
    times = 1 / math.sqrt(4) if calibration == "published" else 2
    noisy = FedDPA(noise_multiplier=z, clip_norm=C, batch_size=4, calibration=calibration)
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 31):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, 4), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["x"], noisy.without_noise().step(*args).sent["x"]
        draws.append((loud.payload - quiet.payload) / (times * z * C))
    drawn, tail = torch.stack(draws), FALSE_FAILURE / 6
    n = drawn.numel()
    assert stats.chi2.ppf(tail, n) < drawn.square().sum().item() < stats.chi2.isf(tail, n)
    for products in (drawn[1:] * drawn[:-1], drawn[:, 1:] * drawn[:, :-1]):
        limit = 1.02 * stats.norm.isf(tail) * math.sqrt(products.numel())
        assert products.sum().abs().item() < limit  # 2%: normal only in the limit


def test_other_data_move_an_update_by_twice_the_clip_norm(setting_of, streams) -> None:
    problem, setting = layered(setting_of, "ring", 4)
    defense = FedDPA(noise_multiplier=0.0, clip_norm=0.05, learning_rate=0.1, batch_size=4)
    start = defense.start(problem.initial(streams).double(), setting)
    oracle, graph = problem.gradient(streams, 1, 4), setting.network.at(1)
    other = replace(oracle, batch=oracle.batch._replace(labels=(oracle.batch.labels + 1) % 3))
    here, there = (
        defense.step(start, 1, graph, g, Noise(streams, 1)).sent["x"].payload
        for g in (oracle, other)
    )
    moved = (here - there).norm(dim=-1) / 0.05
    assert moved.max() > 0.5
    assert (moved <= 2 * (1 + 1e-12)).all()
    stated = defense.sensitivity(1, setting, "replace-one", 0, {})
    assert stated["x"].value == pytest.approx(2 * 0.05)


@pytest.mark.slow
def test_published_accounting_is_of_records_and_not_of_agents() -> None:
    """The code's defaults: ten clients, 15 rounds, E = 2, B = 16, epsilon 1; 5,000 records each."""
    sizes = (0, *[5000] * 10)
    setting = Setting(build_graph("server", 11), sizes, 1000)
    options = {"epsilon": 1.0, "n_rounds": 15, "batch_size": 16, "sampling": "poisson"}
    published = FedDPA(**options).calibrate(setting)
    assert published.sigma == pytest.approx(
        FedDPA(**options).noise_multiplier_at(16 / 50_000, 10 * 15 * 2, "poisson")
    )
    bracket = published.mechanism(setting, EAVESDROPPER, 1)
    assert bracket.least == ()
    (release,) = bracket.most
    assert release.noise_multiplier == pytest.approx(published.sigma / math.sqrt(10) / 2)
    assert (release.count, release.sampling) == (15, "none")
    assert epsilon(bracket.most, 1e-5).high > 1000
    exact = FedDPA(**options, calibration="exact").calibrate(setting)
    assert 0.99 < epsilon(exact.mechanism(setting, EAVESDROPPER, 1).most, 1e-5).high <= 1.0
    assert exact.protects == "user"


@pytest.mark.parametrize("calibrated_for", ["add-remove", "replace-one"])
@pytest.mark.parametrize("adjacency, moved", [("add-remove", 2), ("replace-one", 2), ("user", 1)])
def test_an_update_moves_by_2c_and_a_whole_user_by_c(calibrated_for, adjacency, moved) -> None:
    """An agent without records sends an update of 0."""
    setting = Setting(build_graph("ring", 6), (40,) * 6, 10)
    defense = FedDPA(epsilon=2.0, n_rounds=4, calibration="exact", adjacency=calibrated_for)
    defense = defense.calibrate(setting)
    claim = Claim(text="c", epsilon=2.0, delta=1e-5, adjacency=adjacency)
    low, high = account_claim(claim, EAVESDROPPER, defense, setting).epsilon
    mu = gaussian_mu(2.0, 1e-5) * moved / 2
    assert low == 0
    assert high == pytest.approx(gaussian_epsilon(1e-5, mu), rel=2e-3)  # of the search for z
    one_round = claim.model_copy(update={"scope": "round"})
    high = account_claim(one_round, EAVESDROPPER, defense, setting).epsilon.high
    assert high == pytest.approx(gaussian_epsilon(1e-5, mu / 2), rel=2e-3)


def test_an_agent_without_records_sends_an_update_of_0() -> None:
    class Nothing(Gradient):
        batch_size = 4

        def __call__(self, X, holders=None):
            return torch.zeros_like(X)

        def clipped_sum(self, X, clip_norm, holders=None, norm=2):
            return torch.zeros_like(X)

        def per_record(self, X, holders=None, own=False):
            return torch.zeros(*X.shape[:-1], 4, X.shape[-1]).to(X)

    setting = Setting(build_graph("ring", 4), (40,) * 4, 3)
    defense = FedDPA(noise_multiplier=0.0, batch_size=4)
    X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = defense.start(X, setting)
    for k in (1, 2):
        w = state.W
        state, sent, _ = defense.step(state, k, setting.network.at(k), Nothing(), Noise(None, k))
        assert torch.equal(sent["x"].payload, w)


def test_an_agent_that_waits_releases_nothing(setting_of, streams) -> None:
    problem, setting = layered(setting_of, "ring", 5)
    network = build_graph(graph_options("server", participation=0.5), 5, streams.numpy("graph"), 6)
    setting = replace(setting, network=network)
    defense = FedDPA(noise_multiplier=1.0, n_rounds=6, batch_size=4)
    takes = sum(3 in (graph.active or ()) for graph in network.graphs)
    assert 0 < takes < 6
    assert sum(r.count for r in defense.mechanism(setting, EAVESDROPPER, 3).most) == takes
    state = defense.start(problem.initial(streams).double(), setting)
    oracle = problem.gradient(streams, 1, 4)
    after = defense.step(state, 1, network.at(1), oracle, Noise(streams, 1)).state
    for i in range(1, 5):
        trains = i in (network.at(1).active or ())
        assert torch.equal(after.TH[i], state.TH[i]) != trains


def test_no_exact_leak_is_claimed_of_a_nonlinear_step() -> None:
    """The message alone is: in the game, of a record whose update is as long as the clip allows."""
    setting = Setting(build_graph("ring", 5), (40,) * 5, 10)
    defense = FedDPA(
        noise_multiplier=1.3, n_rounds=1, batch_size=8, learning_rate=1.0, release="all",
        calibration="exact",
    )  # fmt: skip
    game = Game.of(defense, setting, 2, "add-remove", "poisson")
    mu = Adversary(game, EAVESDROPPER, 1).leak.by_round[0].item()
    most = 1 / defense.mechanism(setting, EAVESDROPPER, 2).most[0].noise_multiplier
    assert mu <= most * (1 + 1e-9)
    far = ThreatModel(name="far", kind="curious", agents=(4,))
    assert Adversary(game, far, 1).leak.by_round.tolist() == [0.0]


def test_what_cannot_be_meant_is_refused_in_a_line() -> None:
    directed = Setting(build_graph("directed-ring", 4), (100,) * 4, 10)
    with pytest.raises(ConfigError, match="FedDPA by gossip needs an undirected graph") as error:
        FedDPA(noise_multiplier=1.0).calibrate(directed)
    assert "\n" not in str(error.value)
    for options in ({"threshold": 1.5}, {"local_steps": 0}, {"calibration": "rdp"}):
        with pytest.raises(ValidationError, match=next(iter(options))):
            FedDPA(noise_multiplier=1.0, **options)
