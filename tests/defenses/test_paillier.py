"""Encrypted consensus: the real protocol, its idealised channel, and who reads what."""

import time
from math import sqrt

import pytest
import torch
from scipy import stats

from dpaudit.defense.contract import Models, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Transcript
from dpaudit.defense.view import View
from dpaudit.defenses import paillier_consensus
from dpaudit.defenses.paillier_consensus import (
    KeyPair,
    PaillierConsensus,
    decrypt,
    exchange,
    key_pair,
    reply,
    request,
)
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion

FALSE_FAILURE = 1e-9  # of the statistical check here, over fresh seeds
BITS = 512  # of test keys: quick, and no less exact


def sensors(streams, n_agents=6, graph="erdos-renyi", trials=None, p=2):
    options = graph_options(graph, p=0.5) if graph == "erdos-renyi" else graph_options(graph)
    network = build_graph(options, n_agents, streams.numpy("graph"))
    problem = SensorFusion.draw(streams, n_agents, p=p, trials=trials)
    return problem, Setting(network, (1,) * n_agents, p)


def own_gradient(problem, i, x):
    M, v = problem.M[i], problem.v[i]
    return -2 * M.T @ (v - M @ x) + 2 * problem.omega[i] * x


def secret_weights(streams, k, graph, trials):
    """b_ij of round k by (i, j): the secret of i about j, an integer, for each trial."""
    like = torch.empty(trials, graph.n_edges, 1, dtype=torch.float64)
    u = torch.special.ndtr(Noise(streams, k).gaussian("weights", 1.0, like))[..., 0]
    largest = sqrt(1 / (2 * int(graph.senders.bincount().max())))
    edges = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    return {
        (sender, receiver): [max(1, int(1e6 * largest * u[t, e].item())) for t in range(trials)]
        for e, (sender, receiver) in enumerate(edges)
    }


def test_six_rounds_equal_the_protocol_message_by_message(streams) -> None:
    problem, setting = sensors(streams)
    graph, trials, trial = setting.network.at(1), 3, 2
    defense = PaillierConsensus(step_size=0.05, power=0.75)
    state = defense.start(problem.initial(streams, trials), setting)
    x = state.X[trial].tolist()
    for k in range(1, 7):
        gradient = problem.gradient(streams, k)
        state, sent, private = defense.step(state, k, graph, gradient, Noise(streams, k))
        b = {link: values[trial] for link, values in secret_weights(streams, k, graph, 3).items()}
        fixed = [[round(1e6 * value) for value in row] for row in x]
        after = []
        for i in range(6):
            g = own_gradient(problem, i, torch.tensor(x[i], dtype=torch.float64))
            torch.testing.assert_close(private["gradient"][trial, i], g, rtol=1e-11, atol=1e-12)
            row = list(x[i])
            total = [0.0, 0.0]
            for j in graph.neighbours(i):
                for c in range(2):
                    difference = b[j, i] * (fixed[j][c] - fixed[i][c])  # j answers i
                    increment = b[i, j] * difference / 1e18
                    row[c] += increment
                    total[c] += increment
                    found = sent["difference"].on_edge(j, i)[trial, c].item()
                    assert found == pytest.approx(difference / 1e12, rel=1e-12, abs=1e-15)
            found = private["increment"][trial, i].tolist()
            assert found == pytest.approx(total, rel=1e-10, abs=1e-14)
            after.append([row[c] - 0.05 / k**0.75 * g[c].item() for c in range(2)])
        x = after
    expected = torch.tensor(x, dtype=torch.float64)
    torch.testing.assert_close(state.X[trial], expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("graph, n_agents", [("path", 3), ("complete", 3), ("star", 4)])
def test_encryption_and_the_ideal_channel_give_the_same(streams, graph, n_agents) -> None:
    pytest.importorskip("phe")
    problem, setting = sensors(streams, n_agents, graph)
    network, runs = setting.network, {}
    for channel in ("ideal", "paillier"):
        defense = PaillierConsensus(channel=channel, key_bits=BITS)
        state, messages = defense.start(problem.initial(streams), setting), []
        for k in (1, 2):
            gradient = problem.gradient(streams, k)
            state, sent, _ = defense.step(state, k, network.at(k), gradient, Noise(streams, k))
            messages += [sent[name].payload for name in sorted(sent)]
        runs[channel] = [state.X, *messages]
    for ideal, real in zip(runs["ideal"], runs["paillier"], strict=True):
        assert torch.equal(ideal, real)


class Counting:
    """A key, or what it encrypted, that counts what is done with it."""

    def __init__(self, inner, counts) -> None:
        self.inner, self.counts = inner, counts

    def encrypt(self, plaintext):
        self.counts["encryptions"] += 1
        return Counting(self.inner.encrypt(plaintext), self.counts)

    def decrypt(self, ciphertext):
        self.counts["decryptions"] += 1
        return self.inner.decrypt(ciphertext.inner)

    def __add__(self, other):
        self.counts["multiplications"] += 1
        return Counting(self.inner + other.inner, self.counts)

    def __mul__(self, factor):
        self.counts["exponentiations"] += 1
        return Counting(self.inner * factor, self.counts)

    def __eq__(self, other):
        return self.inner == other.inner

    @property
    def public_key(self):
        return Counting(self.inner.public_key, self.counts)


OPERATIONS = ("encryptions", "multiplications", "exponentiations", "decryptions")


def test_an_exchange_takes_as_many_operations_as_the_protocol(streams) -> None:
    pytest.importorskip("phe")
    _, setting = sensors(streams, 4, "star")
    graph, counts = setting.network.at(1), dict.fromkeys(OPERATIONS, 0)
    keys = [KeyPair(*(Counting(key, counts) for key in key_pair(BITS))) for _ in range(4)]
    x = torch.arange(8.0, dtype=torch.float64).view(4, 2)
    b = torch.arange(1.0, graph.n_edges + 1, dtype=torch.float64)[:, None]
    difference = exchange(keys, x, b, graph)
    expected = b * (x[graph.senders] - x[graph.receivers])
    assert torch.equal(difference, expected)
    # six directed edges, two coordinates
    assert counts == dict(zip(OPERATIONS, (24, 12, 12, 12), strict=True))


def test_a_ciphertext_for_another_key_is_refused() -> None:
    pytest.importorskip("phe")
    mine, other = key_pair(BITS), key_pair(BITS)
    with pytest.raises(DpauditError, match="another agent's key"):
        decrypt(mine, reply(request(other, 5), 7, 3))
    assert decrypt(other, reply(request(other, 5), 7, 3)) == 3 * (7 - 5)
    assert decrypt(other, reply(request(other, 7), 5, 3)) == 3 * (5 - 7)


def test_a_damaged_ciphertext_is_refused() -> None:
    phe = pytest.importorskip("phe")
    own = key_pair(BITS)
    sound = reply(request(own, 5), 7, 3).ciphertext()
    for bit in (0, 1, 17, BITS, 2 * BITS - 8):
        damaged = phe.EncryptedNumber(own.public, sound ^ (1 << bit))
        with pytest.raises(DpauditError, match="damaged"):
            decrypt(own, damaged)


def test_without_the_package_the_error_names_the_extra(streams, monkeypatch) -> None:
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(paillier_consensus, "import_module", missing)
    problem, setting = sensors(streams, 3, "complete")
    defense = PaillierConsensus(channel="paillier")
    state = defense.start(problem.initial(streams), setting)
    gradient = problem.gradient(streams, 1)
    with pytest.raises(DpauditError, match=r'pip install "dpaudit\[paillier\]"'):
        defense.step(state, 1, setting.network.at(1), gradient, Noise(streams, 1))


@pytest.mark.parametrize("value", [1e20, float("nan"), float("inf")])
def test_models_beyond_fixed_point_are_refused(streams, value) -> None:
    problem, setting = sensors(streams, 3, "complete")
    X = problem.initial(streams)
    X[1, 0] = value
    gradient = problem.gradient(streams, 1)
    with pytest.raises(DpauditError, match="range of exact integers"):
        PaillierConsensus().step(Models(X), 1, setting.network.at(1), gradient, Noise(streams, 1))


def test_the_real_channel_takes_one_trial_at_a_time(streams) -> None:
    pytest.importorskip("phe")
    problem, setting = sensors(streams, 3, "complete")
    defense = PaillierConsensus(channel="paillier", key_bits=BITS)
    state = defense.start(problem.initial(streams, 2), setting)
    gradient = problem.gradient(streams, 1)
    with pytest.raises(DpauditError, match="one trial at a time"):
        defense.step(state, 1, setting.network.at(1), gradient, Noise(streams, 1))


def test_an_eavesdropper_holds_nothing(streams) -> None:
    problem, setting = sensors(streams, 4, "star")  # agent 0 in the middle
    defense, graph = PaillierConsensus(), setting.network.at(1)
    X = problem.initial(streams)
    sent = defense.step(Models(X), 1, graph, problem.gradient(streams, 1), Noise(streams, 1)).sent
    transcript = Transcript({1: sent})
    outside = View.of(ThreatModel(name="e"), transcript, {1})
    for name in sent:
        assert outside.edges(name, 1) == []
        assert outside.transcript.rounds[1][name].payload.numel() == 0
    inside = View.of(ThreatModel(name="c", kind="curious", agents=(2,)), transcript, {1})
    assert inside.edges("difference", 1) == [(0, 2)]
    assert inside.edges("state", 1) == [(2, 0)]  # its own: the key is its own
    torch.testing.assert_close(inside.sent_by("state", 1, 2), -X[2], rtol=0, atol=5e-7)
    b = secret_weights(streams, 1, graph, 1)
    difference = inside.on_edge("difference", 1, 0, 2)
    torch.testing.assert_close(difference, b[0, 2][0] / 1e6 * (X[0] - X[2]), rtol=0, atol=1e-6)


def test_colluding_neighbours_form_the_attacked_estimator(streams) -> None:
    """(1 / alpha) sum over j of b_1j b_j1 (x_j - x_1), of which each of them knows its part."""
    problem, setting = sensors(streams, 3, "complete")
    defense, graph = PaillierConsensus(step_size=0.2), setting.network.at(1)
    X = problem.initial(streams)
    after, sent, private = defense.step(
        Models(X), 1, graph, problem.gradient(streams, 1), Noise(streams, 1)
    )
    view = View.of(
        ThreatModel(name="s", kind="colluding", agents=(1, 2)), Transcript({1: sent}), {1}
    )
    b = secret_weights(streams, 1, graph, 1)
    pieces = -sum(b[j, 0][0] / 1e6 * view.on_edge("difference", 1, 0, j) for j in (1, 2))
    torch.testing.assert_close(pieces, private["increment"][0], rtol=1e-9, atol=1e-12)
    estimate = pieces / defense.alpha(1)
    moved = (after.X[0] - X[0]) / defense.alpha(1)
    torch.testing.assert_close(estimate - private["gradient"][0], moved, rtol=1e-9, atol=1e-9)


def test_increments_cancel_in_the_mean(streams) -> None:
    problem, setting = sensors(streams, trials=5)
    defense, graph = PaillierConsensus(), setting.network.at(1)
    state = defense.start(problem.initial(streams, 5), setting)
    for k in range(1, 21):
        gradient = problem.gradient(streams, k)
        expected = state.X.mean(dim=-2) - defense.alpha(k) * gradient(state.X).mean(dim=-2)
        state, _, private = defense.step(state, k, graph, gradient, Noise(streams, k))
        torch.testing.assert_close(state.X.mean(dim=-2), expected, rtol=0, atol=1e-14)
        assert private["increment"].sum(dim=-2).abs().max() < 1e-14


def test_it_approaches_the_optimum_as_fast_as_its_steps_decay(streams) -> None:
    """After the transient, agents are off by about alpha_k = k^-0.75, and squared by k^-1.5."""
    problem, setting = sensors(streams, trials=50)
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)  # no direction is slow
    defense = PaillierConsensus(step_size=1.0, power=0.75).calibrate(setting)
    state, residual = defense.start(problem.initial(streams, 50), setting), {}
    for k in range(1, 1_001):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
        if k in (250, 1_000):
            residual[k] = problem.residual(state.X).mean().item()
    assert residual[1_000] == pytest.approx(residual[250] / 4**1.5, rel=0.2)


def test_secret_weights_are_uniform_and_fresh_in_every_round(streams) -> None:
    problem, setting = sensors(streams, 4, "star", p=1)
    graph = setting.network.at(1)
    X = problem.initial(streams, 2_000)
    rounds = []
    for k in (1, 2):
        gradient = problem.gradient(streams, k)
        sent = PaillierConsensus().step(Models(X), k, graph, gradient, Noise(streams, k)).sent
        x = (1e6 * X).round() / 1e6
        between = x[:, graph.senders] - x[:, graph.receivers]
        rounds.append((sent["difference"].payload / between * sqrt(2 * 3)).flatten())
    for b in rounds:
        assert stats.kstest(b, "uniform").pvalue > FALSE_FAILURE
    correlation = torch.corrcoef(torch.stack(rounds))[0, 1].abs().item()
    assert correlation < 1.02 * stats.norm.isf(FALSE_FAILURE / 2) / sqrt(len(rounds[0]))


def test_it_declares_nothing_to_eavesdroppers() -> None:
    setting = Setting(build_graph("path", 4), (1,) * 4, 2)
    defense = PaillierConsensus(n_rounds=5)
    outside = defense.mechanism(setting, ThreatModel(name="e"), 1)
    assert (outside.least, outside.most) == ((), ())
    assert "decisional composite residuosity" in outside.assumptions[0]
    neighbour = defense.mechanism(setting, ThreatModel(name="c", kind="curious", agents=(2,)), 1)
    assert neighbour.least == neighbour.most
    assert (neighbour.least[0].noise_multiplier, neighbour.least[0].count) == (0.0, 4)
    distant = defense.mechanism(setting, ThreatModel(name="c", kind="curious", agents=(3,)), 1)
    assert distant.least == ()
    assert defense.without_noise() == defense
    with pytest.raises(ConfigError, match="Assumption 2"):
        defense.calibrate(Setting(build_graph("directed-ring", 4), (1,) * 4, 2))


@pytest.mark.slow
def test_one_round_of_three_agents_at_2048_bits_takes_seconds(streams, capsys) -> None:
    pytest.importorskip("phe")
    problem, setting = sensors(streams, 3, "complete", p=1)
    graph, gradient = setting.network.at(1), problem.gradient(streams, 1)
    defense, ideal = PaillierConsensus(channel="paillier"), PaillierConsensus()
    began = time.perf_counter()
    keys = defense._keys(3)
    made = time.perf_counter()
    after = defense.step(Models(problem.initial(streams)), 1, graph, gradient, Noise(streams, 1))
    done = time.perf_counter()
    with capsys.disabled():
        print(f"\nkeys {made - began:.1f} s, round {done - made:.1f} s")
    assert all(pair.public.n.bit_length() == 2048 for pair in keys)
    expected = ideal.step(Models(problem.initial(streams)), 1, graph, gradient, Noise(streams, 1))
    assert torch.equal(after.state.X, expected.state.X)
    assert done - made < 60
