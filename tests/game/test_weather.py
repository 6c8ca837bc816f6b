"""The leak of a run under weather, beside matrices that are written down message by message."""

import numpy as np
import pytest
import torch

from dpaudit.defense import Defense, Setting
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.dyn_d2p import DynD2P
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.network.accounting import network_mu
from dpaudit.graphs.graph import Network, build_graph

ROUNDS, VICTIM, SIGMA = 6, 2, 0.8
EAVESDROPPER = ThreatModel(name="every link")
CURIOUS = ThreatModel(name="agent 0", kind="curious", agents=(0,))
TWO = ThreatModel(name="agents 0 and 4", kind="colluding", agents=(0, 4))
Form = np.ndarray  # what stands before each draw of noise, [n_rounds, n_agents], or each use


def network_of(name: str, n: int, seed: int, **weather: float) -> Network:
    options = graph_options(name, **weather)
    return build_graph(options, n, None, ROUNDS, np.random.default_rng(seed))


def posted(network: Network, k: int) -> list[tuple[int, int, float, int]]:
    """(sender, receiver, weight, delay) of what is sent in round k and arrives."""
    graph, n = network.at(k), network.n_agents
    prompt = graph.sparse.toarray()
    found = [(j, i, prompt[i, j], 0) for i in range(n) for j in range(n) if i != j and prompt[i, j]]
    if graph.slow is None:
        return found
    slow = graph.slow.toarray()
    for i, j in zip(*slow.nonzero(), strict=True):
        delays = [
            d
            for t in range(1, ROUNDS + 1)
            for d, late in enumerate(network.at(t).late, 1)
            if late[i, j]
        ]
        (delay,) = set(delays) or {ROUNDS}  # one for each link; of some nothing arrives in time
        found.append((int(j), int(i), slow[i, j], delay))
    return found


def mail(network: Network, push: bool) -> tuple[list[list[tuple[Form, Form]]], list]:
    """What every agent sends in each round, as (before noise, before uses), and what is posted."""
    n = network.n_agents
    models = [(np.zeros((ROUNDS, n)), np.zeros((ROUNDS, n))) for _ in range(n)]
    boxes: dict[tuple[int, int], list[tuple[float, tuple[Form, Form]]]] = {}
    sent, all_posted = [], []
    for k in range(1, ROUNDS + 1):
        active = network.at(k).active
        for i in range(n):
            if active is None or i in active:
                noise, use = (part.copy() for part in models[i])
                noise[k - 1, i] += SIGMA
                use[k - 1, i] += 1
                models[i] = noise, use
        sent.append(list(models))
        given, got = np.zeros(n), np.zeros(n)
        for j, i, w, delay in posted(network, k):
            boxes.setdefault((k + delay, i), []).append((w, models[j]))
            given[j] += w
        for i in range(n):
            got[i] = sum(w for w, _ in boxes.get((k, i), []))
        own = 1 - (given if push else got)
        models = [
            tuple(
                own[i] * models[i][part] + sum(w * m[part] for w, m in boxes.get((k, i), []))
                for part in (0, 1)
            )
            for i in range(n)
        ]
        all_posted.append(posted(network, k))
    return sent, all_posted


def mu_by_hand(network: Network, threat_model: ThreatModel, push: bool) -> list[float]:
    """mu of a use of the victim's record in each round, from all that the adversary reads."""
    sent, all_posted = mail(network, push)
    rows = [
        sent[k][j]
        for k, letters in enumerate(all_posted)
        for j in sorted({j for j, i, *_ in letters if threat_model.sees(j, i)})
    ]
    noise = np.stack([row[0] for row in rows])
    noise[:, :, list(threat_model.agents)] = 0  # they know their own
    B = noise.reshape(len(rows), -1)
    A = np.stack([row[1][:, VICTIM] for row in rows])
    covariance = np.linalg.pinv(B @ B.T, rcond=1e-10, hermitian=True)
    outside = A - B @ B.T @ covariance @ A
    assert np.abs(outside).max() < 1e-9  # no message shows a use without noise
    return np.sqrt(np.einsum("ot,op,pt->t", A, covariance, A).clip(min=0)).tolist()


def mu_of_defense(network: Network, threat_model: ThreatModel, defense: Defense) -> list[float]:
    setting = Setting(network, (20,) * network.n_agents, 3)
    game = Game.of(defense, setting, VICTIM, "add-remove", "poisson")
    leak = Adversary(game, threat_model, ROUNDS).leak
    assert not leak.noiseless
    return leak.by_round.tolist()


GOSSIP = DPDPSGD(n_rounds=ROUNDS, noise_multiplier=SIGMA, batch_size=4, sampling="poisson")
PUSH = DynD2P(
    n_rounds=ROUNDS, noise_multiplier=SIGMA, schedule="const", batch_size=4, clip_norm=2.0
)
WEATHERS = [
    {"loss": 0.3},
    {"churn": 0.25},
    {"stragglers": 0.3},
    {"delay": 2},
    {"loss": 0.2, "delay": 2, "churn": 0.2, "stragglers": 0.2},
]


@pytest.mark.parametrize("threat_model", [EAVESDROPPER, CURIOUS, TWO], ids=lambda t: t.kind)
@pytest.mark.parametrize("weather", WEATHERS, ids=lambda w: "-".join(w))
@pytest.mark.parametrize(
    ("name", "n", "defense"),
    [
        ("ring", 6, GOSSIP),
        pytest.param("path", 5, GOSSIP, marks=pytest.mark.slow),
        ("directed-ring", 5, PUSH),
        pytest.param("exponential", 8, PUSH, marks=pytest.mark.slow),
    ],
)
def test_the_leak_is_that_of_the_matrices(name, n, defense, weather, threat_model) -> None:
    network = network_of(name, n, 3, **weather)
    push = defense is PUSH
    expected = mu_by_hand(network, threat_model, push)
    found = mu_of_defense(network, threat_model, defense)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert max(expected) > 0 or threat_model is not EAVESDROPPER


def test_draws_of_an_agent_that_sends_nothing_are_its_own() -> None:
    """In round 1 agent 2 sends nothing on a ring of which 4 directed links are left."""
    network = network_of("ring", 4, 952597, loss=0.5, stragglers=0.6, delay=1)
    graph = network.at(1)
    assert graph.n_edges == graph.n_agents
    assert VICTIM not in graph.senders
    two = ThreatModel(name="agents 0 and 1", kind="colluding", agents=(0, 1))
    expected = mu_by_hand(network, two, push=False)
    assert expected[0] == pytest.approx(1 / (SIGMA * np.sqrt(2)))  # two rounds' draws hide it
    assert mu_of_defense(network, two, GOSSIP) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_loss_is_a_list_of_matrices_to_network_accounting() -> None:
    network = network_of("ring", 8, 5, loss=0.3)
    matrices = [network.at(k).W for k in range(1, ROUNDS + 1)]
    found = network_mu(matrices, ROUNDS, "once", SIGMA, adversaries=[CURIOUS])
    expected = max(mu_by_hand(network, CURIOUS, push=False))
    assert found.high[0, VICTIM].item() == pytest.approx(expected, rel=1e-9)


def test_an_agent_without_a_step_reveals_no_use_of_the_round() -> None:
    network = network_of("ring", 6, 3, stragglers=0.5)
    idle = [k for k in range(1, ROUNDS + 1) if VICTIM not in network.at(k).active]
    assert idle
    found = mu_of_defense(network, EAVESDROPPER, GOSSIP)
    assert [found[k - 1] for k in idle] == [0.0] * len(idle)
    assert sum(mu > 0 for mu in found) == ROUNDS - len(idle)


def test_no_weather_tells_more_than_every_release_by_itself() -> None:
    for seed in range(5):
        for weather in WEATHERS:
            found = mu_of_defense(network_of("ring", 6, seed, **weather), EAVESDROPPER, GOSSIP)
            assert max(found) <= 1 / SIGMA + 1e-9


def test_push_sum_keeps_the_sum_with_what_is_on_its_way() -> None:
    network = network_of("exponential", 8, 4, loss=0.3, delay=2, churn=0.2)
    X = torch.arange(8, dtype=torch.float64)[:, None]
    past, mass = torch.zeros(8, 2, 1, dtype=torch.float64), X.sum()
    on_way = torch.zeros(ROUNDS + 4, dtype=torch.float64)
    for k in range(1, ROUNDS + 1):
        graph = network.at(k)
        for j, _, w, delay in posted(network, k):
            if delay:
                on_way[k : k + delay] += w * X[j, 0]
        mixed = graph.mix(X) + graph.mix_late(past)
        past = torch.cat([X[:, None], past[:, :-1]], dim=1)
        X = mixed
        assert (X.sum() + on_way[k]).item() == pytest.approx(mass.item(), rel=1e-12)
