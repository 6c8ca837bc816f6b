"""Who learns what: against the values of plain gossip, the slow way, and symmetry."""

from math import inf, sqrt
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.who_learns_what import WhoLearnsWhat, learned_by
from dpaudit.defense.contract import Bracket, Defense, Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.network.accounting import network_mu
from dpaudit.game.network.gossip import Participation
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

ANY: Any = None  # what is learned does not matter to it


class State(NamedTuple):
    X: Tensor


class Gossip(Defense):
    """x <- W (x + g + z), z ~ N(0, 1), of functions whose gradients differ by 1."""

    paper: ClassVar[str] = "a toy"
    claims: ClassVar[str] = "none"
    messages: ClassVar[dict[str, str]] = {"y": "the model and fresh noise"}

    gradient_distance: float = 1.0
    noisy: bool = True

    def function_distance(self) -> float:
        return self.gradient_distance

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        Y = state.X + gradient(state.X)
        if self.noisy:
            Y = Y + noise.gaussian("y", 1.0, state.X)
        return Round(State(graph.mix(Y)), {"y": broadcast(graph, Y)})

    def models(self, state: State) -> Tensor:
        return state.X

    def without_noise(self) -> "Gossip":
        return self.model_copy(update={"noisy": False})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        return Bracket((), (), ())


def setting_on(graph: str, n_agents: int) -> Setting:
    return Setting(build_graph(graph, n_agents), (40,) * n_agents, 1)


def measured(defense: Defense, setting: Setting):
    threat_model = ThreatModel(name="agent 0", kind="curious", agents=(0,))
    context = AttackContext(None, setting, defense, (), Streams(1), None)
    (finding,) = WhoLearnsWhat().measure(context, threat_model, lambda done, total: None)
    s = finding.series
    pairs = zip(s["adversary"], s["victim"], strict=True)
    return finding, dict(zip(pairs, s["mu"], strict=True))


@pytest.mark.parametrize(
    "graph, n_agents, mu",
    [
        ("path", 7, [1.000, 0.339, 0.148, 0.080, 0.050, 0.039]),
        ("ring", 8, [1.000, 0.339, 0.152, 0.109]),
    ],
)
def test_a_record_fades_with_its_distance_as_published(graph, n_agents, mu) -> None:
    setting = setting_on(graph, n_agents)
    learned = learned_by(0, Gossip(n_rounds=99, batch_size=1), setting, 2 * n_agents)
    assert [learned.mu[hops] for hops in range(1, len(mu) + 1)] == pytest.approx(mu, abs=1.1e-3)
    assert learned.noiseless == {}


@pytest.mark.parametrize(
    "name, graph, options",
    [
        ("dp-dpsgd", "ring", {"noise_multiplier": 1.0}),
        ("dpdl", "ring", {"noise_multiplier": 2.0}),
        ("dyn-d2p", "exponential", {"epsilon": 0.5}),
        ("paillier-consensus", "ring", {}),
    ],
)
def test_all_victims_at_once_are_what_they_are_one_by_one(name, graph, options) -> None:
    n_agents, n_rounds = 5, 6
    setting = setting_on(graph, n_agents)
    defense = load_plugin("defenses", name)(batch_size=8, n_rounds=n_rounds, **options)
    defense = defense.calibrate(setting)
    learned = learned_by(2, defense, setting, n_rounds)
    curious = ThreatModel(name="agent 2", kind="curious", agents=(2,))
    assert set(learned.mu) == {0, 1, 3, 4}
    for victim, mu in learned.mu.items():
        game = Game.of(defense, setting, victim, "add-remove", "poisson")
        leak = Adversary(game, curious, n_rounds).leak
        assert mu == pytest.approx(leak.by_round[0].item(), rel=1e-6)
        assert learned.noiseless.get(victim) == leak.noiseless.get(1)


def test_the_matrix_has_the_symmetry_of_the_graph() -> None:
    n = 6
    finding, mu = measured(Gossip(n_rounds=99, batch_size=1), setting_on("ring", n))
    assert set(mu) == {(a, v) for a in range(n) for v in range(n) if a != v}
    for (a, v), value in mu.items():
        assert value == pytest.approx(mu[0, (v - a) % n])
        assert value == pytest.approx(mu[v, a])
    assert finding.metrics["largest mu"].value == pytest.approx(1.0)
    assert finding.metrics["pairs without noise"].value == 0
    assert any("from 12 rounds" in note for note in finding.notes)


def test_on_a_directed_ring_one_learns_most_of_whom_one_hears() -> None:
    setting = setting_on("directed-ring", 5)
    defense = load_plugin("defenses", "dyn-d2p")(batch_size=8, n_rounds=4, epsilon=0.5)
    finding, mu = measured(defense.calibrate(setting), setting)
    sends_to = {(int(i), int(j)) for i, j in zip(*_links(setting), strict=True)}
    heard = [mu[a, v] for a, v in mu if (v, a) in sends_to]
    others = [mu[a, v] for a, v in mu if (v, a) not in sends_to]
    assert min(heard) > max(others)
    assert any("from 4 rounds" in note for note in finding.notes)  # all there are


def _links(setting: Setting) -> tuple[list[int], list[int]]:
    graph = setting.network.at(1)
    return graph.senders.tolist(), graph.receivers.tolist()


def test_a_record_without_noise_is_infinite_and_named() -> None:
    finding, mu = measured(Gossip(n_rounds=9, batch_size=1, noisy=False), setting_on("ring", 4))
    assert set(mu.values()) == {inf}
    assert finding.metrics["pairs without noise"].value == 12
    assert any('"y" shows a record without noise' in note for note in finding.notes)


@pytest.mark.parametrize("n_agents", [1, 41])
def test_more_pairs_than_can_be_computed_are_refused_at_once(n_agents) -> None:
    graph = build_graph("ring", 5)
    setting = Setting(graph, (40,) * 5, 1)
    assert WhoLearnsWhat().refuse(ANY, setting) is None
    fake = type("Fake", (), {"n_agents": n_agents})()
    with pytest.raises(ConfigError, match=f"who-learns-what: {n_agents} agents; expected 2 to 40"):
        WhoLearnsWhat().refuse(ANY, fake)


def test_the_game_may_have_another_victim_in_each_trial() -> None:
    from dpaudit.game.game import CanaryGradient

    drawn = torch.tensor([1.0, 1.0, 0.0])
    X = torch.zeros(3, 4, 1)
    each = CanaryGradient(torch.tensor([2, 0, 1]), 5.0, drawn, 1)
    one = torch.stack(
        [CanaryGradient(v, 5.0, d, 1)(X[0]) for v, d in zip([2, 0, 1], drawn, strict=True)]
    )
    assert torch.equal(each(X), one)
    holders = torch.tensor([0, 2, 2])
    assert each.clipped_sum(X[:, :3], 2.0, holders)[..., 0].tolist() == [
        [0, 2, 2],
        [2, 0, 0],
        [0] * 3,
    ]


@pytest.mark.parametrize("schema", ["every-round", (3, 2), (1, 1)])
def test_uses_of_several_rounds_are_what_a_mixing_matrix_says(schema) -> None:
    setting = setting_on("path", 5)
    W, T = setting.network.at(1).W, 8
    expected = network_mu(W, T, schema).low
    for agent in (0, 2):
        uses = Participation.of(schema, T)
        learned = learned_by(agent, Gossip(n_rounds=T, batch_size=1), setting, T, uses)
        for victim, mu in learned.mu.items():
            assert mu == pytest.approx(float(expected[agent, victim]), rel=1e-5)


def test_a_record_without_noise_in_a_later_round_is_named_too() -> None:
    setting, uses = setting_on("ring", 4), Participation.of("every-round", 5)
    learned = learned_by(0, Gossip(n_rounds=5, batch_size=1, noisy=False), setting, 5, uses)
    assert set(learned.mu.values()) == {inf}
    assert set(learned.noiseless.values()) == {"y"}


def test_a_schema_of_uses_that_does_not_fit_is_a_misfit() -> None:
    attack = WhoLearnsWhat(participation=(4, 5))
    assert list(attack.validate_options(16, 5)) == []
    ((key, said),) = attack.validate_options(15, 5)
    assert key == "participation"
    assert said.startswith("4 times every 5 rounds takes 16 rounds of 15; expected 3 times")


def test_a_schema_of_uses_is_said_in_the_note() -> None:
    setting = setting_on("ring", 4)
    context = AttackContext(None, setting, Gossip(n_rounds=9, batch_size=1), (), Streams(1), None)
    threat_model = ThreatModel(name="agent 0", kind="curious", agents=(0,))
    attack = WhoLearnsWhat(participation=(2, 4))
    (finding,) = attack.measure(context, threat_model, lambda done, total: None)
    assert any("used 2 times, every 4 rounds from the worst round on" in n for n in finding.notes)
    expected = network_mu(setting.network.at(1).W, 8, (2, 4)).low.nan_to_num(0.0)
    assert finding.metrics["largest mu"].value == pytest.approx(float(expected.max()), rel=1e-6)
    assert 1 < float(expected.max()) < sqrt(2)  # the second use adds to a model that is not known
