"""PPSGD: its rounds user by user, its user-level noise, and offsets that nothing hides."""

from math import sqrt

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.conformance import PROMISES, check_defense
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Setting
from dpaudit.defense.gossip import releases
from dpaudit.defense.noise import Noise
from dpaudit.defenses.ppsgd import PPSGD
from dpaudit.errors import OutsideTheory
from dpaudit.files.claim import Claim
from dpaudit.files.options import graph_options
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from tests.defenses.leaks import DELTA, EAVESDROPPER, curious, reading

GRAPHS = [("star", {}), ("server", {"participation": 0.5})]


@pytest.mark.parametrize("graph, options", GRAPHS)
def test_five_rounds_equal_the_update_user_by_user(
    drawn_setting, record_gradients, gaussian_tape, streams, graph, options
) -> None:
    problem, setting = drawn_setting(graph, 4, **options)
    C, sigma, B, eta, local = 0.2, 0.3, 4, 0.3, 0.5
    defense = PPSGD(
        n_rounds=5, batch_size=B, sampling="poisson", clip_norm=C, noise_multiplier=sigma,
        learning_rate=eta, local_learning_rate=local,
    ).calibrate(setting)  # fmt: skip
    state = defense.start(problem.initial(streams).double(), setting)
    v, theta = list(state.V), list(state.Theta)
    for k in range(1, 6):
        here, batch, x, received = (
            setting.network.at(k),
            problem.batch(streams, k, B, "poisson"),
            [],
            v,
        )
        z = gaussian_tape(streams, k, "gradient", 4, setting.d)
        for i in range(4):
            if here.active is not None and i not in here.active:
                x.append(v[i])
                continue
            w = v[i] if here.server is None else v[here.server]
            g = sum(record_gradients(problem, w + theta[i], batch, i), 0 * w) / B
            x.append(w - eta * (g * min(1.0, C / max(g.norm().item(), 1e-300)) + sigma * C * z[i]))
            theta[i] = theta[i] - local * g
        v = [sum(here.W[i, j] * x[j] for j in range(4) if here.W[i, j] > 0) for i in range(4)]
        oracle = problem.gradient(streams, k, B, "poisson")
        state, sent, _ = defense.step(state, k, here, oracle, Noise(streams, k))
        assert set(sent) <= {"x", "average"}  # no offset
        for j, i in here.links:
            name, value = ("average", received[j]) if j == here.server else ("x", x[j])
            torch.testing.assert_close(sent[name].on_edge(j, i), value, rtol=1e-10, atol=1e-12)
        models = torch.stack([v[i] + theta[i] for i in range(4)])
        torch.testing.assert_close(defense.models(state), models, rtol=1e-10, atol=1e-12)


def test_promises_are_kept_with_a_server() -> None:
    defense = PPSGD(noise_multiplier=1.0, n_rounds=6, batch_size=4)
    for promise in PROMISES:
        check_defense(defense, promise, graph=graph_options("server", participation=0.5))


def test_noise_is_of_the_stated_scale_and_fresh(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("complete", 4, "logistic")
    noisy = PPSGD(noise_multiplier=1.3, clip_norm=0.5, batch_size=4, learning_rate=0.2)
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 61):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, 4), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["x"], noisy.without_noise().step(*args).sent["x"]
        draws.append((quiet.payload - loud.payload) / (0.2 * 1.3 * 0.5))
    z = torch.stack(draws)  # standard normal; each check fails falsely below 1e-8 (6 sigma)
    n = z.numel()
    assert abs(z.sum().item()) < 6 * sqrt(n)
    assert abs(z.square().sum().item() - n) < 6 * sqrt(2 * n)
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        assert products.sum().abs().item() < 6 * sqrt(products.numel())


@pytest.mark.parametrize("threat_model", [EAVESDROPPER, curious(0), curious(3), reading((1, 0))])
@pytest.mark.parametrize("graph, options", [("ring", {}), GRAPHS[1]])
def test_the_exact_leak_of_a_user_lies_within_the_bracket(
    drawn_setting, graph, options, threat_model
) -> None:
    _, setting = drawn_setting(graph, 5, n_rounds=6, **options)
    defense = PPSGD(n_rounds=6, batch_size=4, noise_multiplier=2.0)
    game = Game.of(defense, setting, 1, "user")
    leak = Adversary(game, threat_model, 6).leak
    bracket = defense.mechanism(setting, threat_model, 1)
    mu = sqrt(leak.by_use[0].low)  # of all rounds together
    least, most = (
        sqrt(sum(r.count / r.noise_multiplier**2 for r in end))
        for end in (bracket.least, bracket.most)
    )
    assert least * (1 - 1e-9) <= mu <= most * (1 + 1e-9)
    if threat_model is EAVESDROPPER and graph == "ring":
        assert mu == pytest.approx(sqrt(6) / 2.0) == pytest.approx(most)


def test_a_record_may_move_twice_as_far_as_a_users_budget(drawn_setting) -> None:
    _, setting = drawn_setting("server", 5, n_rounds=40, participation=0.5)
    defense = PPSGD(n_rounds=40, batch_size=4, epsilon=2.0).calibrate(setting)

    def accounted(adjacency: str) -> float:
        claim = Claim(text="c", epsilon=2.0, delta=DELTA, adjacency=adjacency)
        return account_claim(claim, EAVESDROPPER, defense, setting).epsilon.high

    assert 1.98 < accounted("user") <= 2.0
    assert accounted("add-remove") > 4.0
    assert accounted("replace-one") == pytest.approx(accounted("add-remove"))


def test_one_record_turns_a_clipped_gradient_around(drawn_setting, streams) -> None:
    """Of another sign and twice as long: 2 C, which is what is stated of a record."""
    problem, setting = drawn_setting("ring", 4)
    quiet = PPSGD(noise_multiplier=0.0, clip_norm=1e-4, batch_size=4)
    oracle = problem.gradient(streams, 1, 4)

    class Turned(type(oracle)):
        def __call__(self, X, holders=None):
            return -oracle(X, holders)

    state = quiet.start(problem.initial(streams).double(), setting)
    turned = Turned(oracle.gradients, oracle.batch, 4)
    args = state, 1, setting.network.at(1)
    one, other = (quiet.step(*args, o, Noise(streams, 1)).sent for o in (oracle, turned))
    stated = quiet.sensitivity(1, setting, "add-remove", 1, one)["x"].value
    moved = (one["x"].payload - other["x"].payload).norm(dim=-1)
    torch.testing.assert_close(moved, torch.full_like(moved, stated))


def test_published_amplification_fails_for_who_sees_who_acts() -> None:
    """The paper samples users at rate L / N. Whoever reads the links of a user sees its rounds.

    Ten of 3,383 users in each of 1,000 rounds at noise multiplier 1; a user in three of them.
    """
    published = epsilon(releases([1.0] * 1000, "poisson", 10 / 3383), DELTA)
    seen = epsilon(releases([1.0] * 3, "none", 1.0), DELTA)
    assert 0.48 < published.low <= published.high < 0.49
    assert 8.3 < seen.low <= seen.high < 8.4


def test_offsets_are_not_private_if_a_model_is_released(drawn_setting, streams) -> None:
    """theta is the sum of all gradients, the same whatever the noise on w is in one round."""
    problem, setting = drawn_setting("ring", 4)
    defense = PPSGD(noise_multiplier=50.0, batch_size=4, local_learning_rate=0.5)
    state = defense.start(problem.initial(streams).double(), setting)
    oracle = problem.gradient(streams, 1, 4)
    after = [
        defense.step(state, 1, setting.network.at(1), oracle, Noise(s, 1)).state
        for s in (streams, type(streams)(1))
    ]
    assert not torch.equal(after[0].V, after[1].V)
    assert torch.equal(after[0].Theta, after[1].Theta)
    released = defense.models(after[0])
    gradient = (after[0].V - released) / 0.5  # w is known to the neighbours
    torch.testing.assert_close(gradient, oracle(state.V), rtol=1e-9, atol=1e-12)


def test_graphs_outside_the_theory_are_refused_in_one_line() -> None:
    directed = build_graph(graph_options("uniform-out", p=0.4), 6, np.random.default_rng(1))
    setting = Setting(directed, (40,) * 6, 9)
    with pytest.raises(OutsideTheory, match="doubly stochastic") as refusal:
        PPSGD(noise_multiplier=1.0).calibrate(setting)
    assert "\n" not in str(refusal.value)
