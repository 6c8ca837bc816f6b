"""The leak over weathers: against matrices of each draw, and bounded where a bound is proven."""

from math import ceil
from typing import Any

import numpy as np
import pytest

from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.weather import WeatherAttack, bound_of
from dpaudit.defense.contract import Defense, Setting
from dpaudit.defenses.decor import Decor
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.dyn_d2p import DynD2P
from dpaudit.defenses.zip_dl import ZipDL
from dpaudit.errors import ConfigError
from dpaudit.files.finding import Finding
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.network.accounting import network_mu
from dpaudit.game.network.gossip import Participation
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams

ROUNDS, SIGMA, STREAMS = 6, 0.8, Streams(3)
GOSSIP = DPDPSGD(n_rounds=ROUNDS, noise_multiplier=SIGMA, batch_size=4, sampling="poisson")
EVERY_LINK = ThreatModel(name="every link")
CURIOUS = ThreatModel(name="agent 0", kind="curious", agents=(0,))


def setting_of(name: str, n: int, **weather: float) -> Setting:
    options = graph_options(name, **weather)
    network = build_graph(options, n, None, ROUNDS, np.random.default_rng(1))
    return Setting(network, (20,) * n, 3)


def measured(
    setting: Setting, threat_model: ThreatModel, defense: Defense = GOSSIP, **options: Any
) -> Finding:
    context = AttackContext(None, setting, defense, (), STREAMS, None)
    attack = WeatherAttack(**options)
    attack.refuse_too_large(context, threat_model)
    (finding,) = attack.measure(context, threat_model, lambda done, total: None)
    return finding


def test_median_and_ends_are_of_the_mu_of_each_draw() -> None:
    setting, expected = setting_of("ring", 6, loss=0.4), []
    for i in range(9):
        network = setting.network.weather.draw(STREAMS.numpy("weather", i))
        matrices = [network.at(k).W for k in range(1, ROUNDS + 1)]
        found = network_mu(matrices, ROUNDS, "once", SIGMA, adversaries=[CURIOUS])
        expected.append(found.low[0, 3].item())
    finding = measured(setting, CURIOUS, draws=9, victim=3)
    assert finding.series["mu"] == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) > 5
    ranked = sorted(expected)
    for name, value in (
        ("median mu of the draws", ranked[4]),
        ("mu of 95% of the draws, at most", ranked[ceil(0.95 * 9) - 1]),
        ("worst mu of the draws", ranked[-1]),
    ):
        assert finding.metrics[name].value == pytest.approx(value, rel=1e-6)
        assert finding.metrics[name].n == 9


@pytest.mark.parametrize("schema", ["every-round", pytest.param("once", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "defense"),
    [("ring", GOSSIP), ("exponential", DynD2P(n_rounds=ROUNDS, noise_multiplier=1.0))],
)
def test_no_draw_exceeds_the_bound_over_all_weathers(name, defense, schema) -> None:
    weather = {"loss": 0.3, "churn": 0.2, "stragglers": 0.2, "delay": 1}
    setting = setting_of(name, 5, **weather)
    two = ThreatModel(name="two", kind="colluding", drawn=2).with_agents(0, 5)
    for view in (EVERY_LINK, two):
        finding = measured(setting, view, defense, draws=2, participation=schema)
        bound = finding.metrics["mu in any weather, at most"].value
        assert 0 < finding.metrics["worst mu of the draws"].value <= bound * (1 + 1e-9)
        assert any("no weather reveals more than the bound" in note for note in finding.notes)
        assert any("is no bound" in note for note in finding.notes)


@pytest.mark.parametrize(
    "defense",
    [
        Decor(n_rounds=ROUNDS, noise_multiplier=1.0),
        ZipDL(n_rounds=ROUNDS, noise_multiplier=1.0, self_noise=True),
    ],
)
def test_no_bound_is_stated_of_noise_that_cancels(defense) -> None:
    setting = setting_of("ring", 6, loss=0.2)
    once = Participation.of("once", ROUNDS)
    found = bound_of(EVERY_LINK, defense, setting, ROUNDS, once)
    assert found.mu is None
    assert "no bound over all weathers is proven" in found.why


def test_colluders_are_drawn_anew_and_are_no_victims() -> None:
    drawn = ThreatModel(name="some", kind="colluding", drawn=2)
    assert drawn.with_agents(5, 40) == drawn.with_agents(5, 40)
    chosen = [drawn.with_agents(seed, 6).agents for seed in range(40)]
    assert all(len(set(agents)) == 2 for agents in chosen)
    assert {agent for agents in chosen for agent in agents} == set(range(6))
    finding = measured(setting_of("path", 6), drawn, draws=8)
    assert len(set(finding.series["mu"])) > 1


def test_where_nothing_differs_between_draws_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="weather: nothing differs between draws") as refused:
        measured(setting_of("ring", 6), CURIOUS)
    assert "set loss, delay, churn or stragglers" in refused.value.problems[0].help


def test_every_agent_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match='drawn is 1 for kind "curious"'):
        ThreatModel(name="x", kind="curious", drawn=2)
    with pytest.raises(ValueError, match='drawn is 1 for kind "curious"'):
        ThreatModel(name="x", drawn=2)


def test_an_adversary_that_is_the_victim_is_refused() -> None:
    with pytest.raises(ConfigError, match='weather: victim 0 is an agent of "agent 0"'):
        measured(setting_of("ring", 6, loss=0.2), CURIOUS, victim=0)


def test_a_victim_that_colludes_in_some_draws_is_counted() -> None:
    """The bound is of a release by itself, whoever colludes in the draw that others take."""
    setting = setting_of("ring", 5, loss=0.2)
    two = ThreatModel(name="two", kind="colluding", drawn=2).with_agents(0, 5)
    finding = measured(setting, two, draws=12, victim=two.agents[0])
    bound = finding.metrics["mu in any weather, at most"].value
    assert bound == pytest.approx(1 / SIGMA, rel=1e-6)
    assert 0 < finding.metrics["worst mu of the draws"].value <= bound * (1 + 1e-9)
    assert any("in which the victim itself colludes are left out" in n for n in finding.notes)


def test_weather_that_always_disconnects_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_of("ring", 5, loss=0.2)

    def refused(*_: Any) -> None:
        raise ConfigError("DPA038", "agent 0 never hears of agent 3")

    monkeypatch.setattr(type(setting.network.weather), "draw", refused)
    finding = measured(setting, CURIOUS, draws=2)
    assert finding.metrics == {}
    assert finding.notes[0] == "no draw has a leak"
