"""The strongest adversary of a view: against published values, declarations and plain algebra."""

from math import inf, isinf
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.defense.contract import Bracket, Defense, Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.step_inputs import ChosenNoise, flat_state
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.registry import load_plugin

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")


class State(NamedTuple):
    X: Tensor


class Gossip(Defense):
    """x <- W (x + g + z), z ~ N(0, 1): every agent sends x + g + z."""

    paper: ClassVar[str] = "a toy"
    claims: ClassVar[str] = "none"
    messages: ClassVar[dict[str, str]] = {"y": "the model and fresh noise"}

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        Y = state.X + gradient(state.X) + noise.gaussian("y", 1.0, state.X)
        return Round(State(graph.mix(Y)), {"y": broadcast(graph, Y)})

    def models(self, state: State) -> Tensor:
        return state.X

    def without_noise(self) -> "Gossip":
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        return Bracket((), (), ())


def curious(agent: int) -> ThreatModel:
    return ThreatModel(name=f"agent {agent}", kind="curious", agents=(agent,))


def game_of(name: str, graph: str, n_agents: int = 6, victim: int = 1, **options: Any) -> Game:
    setting = Setting(build_graph(graph, n_agents), (40,) * n_agents, 1)
    defense = load_plugin("defenses", name)(batch_size=8, **options).calibrate(setting)
    return Game.of(defense, setting, victim, "add-remove", "poisson")


@pytest.mark.parametrize(
    "graph, n_agents, mu",
    [
        ("path", 7, [1.000, 0.339, 0.148, 0.080, 0.050, 0.039]),
        ("ring", 8, [1.000, 0.339, 0.152, 0.109]),
    ],
)
def test_a_shift_fades_with_distance_to_the_adversary(graph, n_agents, mu) -> None:
    """One unit shift in round 1, sigma 1, 2n rounds, the attacker's own noise known."""
    setting = Setting(build_graph(graph, n_agents), (10,) * n_agents, 1)
    toy = Gossip(n_rounds=2 * n_agents, batch_size=1)
    for hops, expected in enumerate(mu, start=1):
        game = Game(toy, setting, hops, "add-remove", 1.0, 0.1, "poisson")
        leak = Adversary(game, curious(0), 2 * n_agents).leak
        assert leak.by_round[0].item() == pytest.approx(expected, abs=1.1e-3)


@pytest.mark.parametrize(
    "name, graph, options",
    [
        ("dp-dpsgd", "ring", {"noise_multiplier": 1.3}),
        ("dyn-d2p", "exponential", {"epsilon": 0.5}),
        ("dyn-d2p", "directed-ring", {"epsilon": 0.5}),
        ("dp-dgd", "ring", {}),
    ],
)
def test_an_eavesdropper_learns_what_the_defense_declares(name, graph, options) -> None:
    game = game_of(name, graph, n_rounds=6, **options)
    leak = Adversary(game, EAVESDROPPER, 6).leak
    bracket = game.defense.mechanism(game.setting, EAVESDROPPER, game.victim)
    assert bracket.least == bracket.most
    declared = [1 / r.noise_multiplier for r in bracket.most for _ in range(r.count)]
    if name == "dp-dgd":  # the whole function counts, in all rounds at once
        assert leak.pure.item() == pytest.approx(sum(declared), rel=1e-9)
    else:
        assert sorted(leak.by_round.tolist()) == pytest.approx(sorted(declared), rel=1e-9)
        assert leak.separate


def test_a_round_without_a_step_shows_nothing_bare() -> None:
    """What rounding leaves there of earlier effects is no message without noise."""
    options = graph_options("server", participation=0.5)
    graph = build_graph(options, 5, np.random.default_rng(2), 8)
    assert {1 in drawn.active for drawn in graph.graphs} == {True, False}
    setting = Setting(graph, (0, 40, 40, 40, 40), 1)
    given = load_plugin("defenses", "mapa")(batch_size=8, n_rounds=8, noise_multiplier=2.0)
    game = Game.of(given.calibrate(setting), setting, 1, "add-remove", "poisson")
    for agent in (0, 3):
        leak = Adversary(game, curious(agent), 8).leak
        assert leak.noiseless == {}
        assert leak.by_round.max() <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("threat_model", [EAVESDROPPER, curious(3), curious(0)])
def test_dpdl_leaks_what_lies_between_its_declared_ends(threat_model) -> None:
    game = game_of("dpdl", "bipartite", n_rounds=8, noise_multiplier=2.0)
    mu = Adversary(game, threat_model, 8).leak.by_round
    bracket = game.defense.mechanism(game.setting, threat_model, game.victim)
    least, most = (
        1 / side[0].noise_multiplier if side else 0.0 for side in (bracket.least, bracket.most)
    )
    assert least * (1 - 1e-9) <= mu.min() <= mu.max()
    if most:  # the declaration counts no message that comes round over other agents
        assert mu.max() <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    "name, graph, threat_model, message",
    [
        ("d-psgd", "ring", EAVESDROPPER, "x"),
        ("sgp", "exponential", EAVESDROPPER, "u"),
        ("dpps", "directed-ring", curious(4), "sens"),
        ("paillier-consensus", "ring", curious(0), "difference"),
    ],
)
def test_a_message_without_noise_is_named(name, graph, threat_model, message) -> None:
    leak = Adversary(game_of(name, graph, n_rounds=3), threat_model, 3).leak
    assert leak.by_round[0].item() == inf
    assert leak.noiseless[1] == message


def test_encrypted_messages_tell_an_eavesdropper_nothing() -> None:
    leak = Adversary(game_of("paillier-consensus", "ring", n_rounds=3), EAVESDROPPER, 3).leak
    assert leak.by_round.max() == 0


@pytest.mark.parametrize("threat_model", [EAVESDROPPER, curious(0), curious(2)])
@pytest.mark.parametrize(
    "name, options", [("dpdl", {"noise_multiplier": 2.0}), ("dp-dpsgd", {"noise_multiplier": 1.0})]
)
def test_the_leak_is_that_of_all_messages_at_once(name, options, threat_model) -> None:
    """mu^2 = a' (B B')^+ a of the stacked transcript, without a filter."""
    game, n_rounds = game_of(name, "ring", n_agents=4, n_rounds=3, **options), 3
    adversary = Adversary(game, threat_model, n_rounds)

    def transcript(noisy: int | None, used: int | None) -> tuple[np.ndarray, int]:
        """All observations with one unit of the noisy-th draw, or the record in one round."""
        state, seen, count = game.start(1, torch.float64, torch.device("cpu")), [], 0
        for k in range(1, n_rounds + 1):
            graph, units = game.setting.network.at(k), {}
            asked = ChosenNoise()
            game.defense.step(state, k, graph, game.gradient(torch.zeros(1)), asked)
            for draw, (_, shape) in asked.draws.items():
                units[draw] = torch.zeros(1, shape[-2], 1, dtype=torch.float64)
                if noisy is not None and count <= noisy < count + shape[-2]:
                    units[draw][0, noisy - count] = 1.0
                count += shape[-2]
            drawn = torch.full((1,), float(k == used), dtype=torch.float64)
            state, sent, *_ = game.defense.step(
                state, k, graph, game.gradient(drawn), ChosenNoise(units)
            )
            seen.append(adversary.observe(k, sent, units)[0].numpy())
        return np.concatenate(seen), count

    base, n_draws = transcript(None, None)
    B = np.stack([transcript(i, None)[0] - base for i in range(n_draws)], axis=1)
    for used in (1, 2, 3):
        a = transcript(None, used)[0] - base
        mu = np.sqrt(a @ np.linalg.pinv(B @ B.T, rcond=1e-12, hermitian=True) @ a)
        assert adversary.leak.by_round[used - 1].item() == pytest.approx(mu, rel=1e-6)


def test_one_message_tells_what_its_own_noise_hides() -> None:
    game = game_of("dpdl", "ring", n_rounds=3, noise_multiplier=2.0)
    one = Adversary(game, EAVESDROPPER, 2, one_message=True)
    assert len(one.rounds[1].messages) == 1
    assert one.leak.by_round[1] < Adversary(game, EAVESDROPPER, 2).leak.by_round[1]
    cross = Adversary(
        game_of("dp-dpsgd", "ring", n_rounds=2, noise_multiplier=2.0), EAVESDROPPER, 2, True
    )
    assert cross.leak.by_round[1].item() == pytest.approx(0.5)


def test_a_stronger_adversary_learns_no_less() -> None:
    game = game_of("dpdl", "ring", n_rounds=6, noise_multiplier=2.0)
    mus = [
        Adversary(game, model, 6).leak.by_round
        for model in (
            curious(3),
            ThreatModel(name="two", kind="colluding", agents=(3, 4)),
            ThreatModel(name="three", kind="colluding", agents=(2, 3, 4)),
        )
    ]
    assert (mus[0] <= mus[1] + 1e-9).all()
    assert (mus[1] <= mus[2] + 1e-9).all()


def test_a_state_is_flattened_without_what_does_not_vary() -> None:
    game = game_of("sgpdp", "directed-ring", n_rounds=2)
    flat = flat_state(game.start(3, torch.float64, torch.device("cpu")))
    assert flat.shape[0] == 3
    assert not isinf(flat.abs().max())
