"""Losses of Laplace noise over moves that a method states: calibration, brackets, refusals."""

from typing import ClassVar

import pytest

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting
from dpaudit.defense.laplace import L1Moves, ScaledDefense, laplace_releases
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin

EAVESDROPPER = ThreatModel(name="e")


class Moving(ScaledDefense):
    """Agent i's messages a and b move by i + 1 and by at most twice that, under noise 2^-k."""

    paper: ClassVar[str] = "none"
    claims: ClassVar[str] = "none"
    messages: ClassVar[dict[str, str]] = {"a": "", "b": ""}

    n_rounds: int = 3
    halves: float = 0.5

    def shape(self, k):
        return self.halves ** (k - 1)

    def moves(self, n_rounds, setting, victim):
        by = [victim + 1.0] * n_rounds
        return {"a": L1Moves(by, by), "b": L1Moves([0.0] * n_rounds, [2 * m for m in by])}

    def start(self, X, setting):
        raise NotImplementedError

    def step(self, state, k, graph, gradient, noise):
        raise NotImplementedError

    def models(self, state):
        raise NotImplementedError


@pytest.fixture
def path() -> Setting:
    return Setting(build_graph("path", 4), (1,) * 4, 1)


def test_a_budget_is_that_of_the_agent_whose_losses_are_most(path) -> None:
    defense = Moving(epsilon=2.0).calibrate(path)
    assert defense.noise_scale == pytest.approx((1 + 2 + 4) * (4 + 8) / 2.0, rel=1e-9)
    assert defense.calibrate(path) == defense
    spent = [epsilon(defense.mechanism(path, EAVESDROPPER, i).most, 0.0).high for i in range(4)]
    assert spent == pytest.approx([0.5, 1.0, 1.5, 2.0], rel=1e-9)
    assert Moving(noise_scale=3.0).calibrate(path).nu(2) == 1.5


def test_both_ends_compose_all_messages_of_all_rounds_that_move(path) -> None:
    bracket = Moving(noise_scale=4.0).mechanism(path, EAVESDROPPER, 1)
    assert [r.noise_multiplier for r in bracket.least] == [2.0, 1.0, 0.5]
    assert [r.noise_multiplier for r in bracket.most] == [2.0, 1.0, 0.5, 1.0, 0.5, 0.25]
    deaf = ThreatModel(name="c", kind="curious", agents=(3,))
    assert Moving(noise_scale=4.0).mechanism(path, deaf, 1).least == ()
    assert laplace_releases([1.0, 1e-3], [0.0, 1e-320]) == ()


def test_without_noise_everything_that_moves_shows(path) -> None:
    twin = Moving(epsilon=1.0).without_noise()
    assert twin.calibrate(path) == twin
    bracket = twin.mechanism(path, EAVESDROPPER, 0)
    assert {r.noise_multiplier for r in bracket.least} == {0.0}
    assert len(bracket.most) == 6


def test_the_stated_sensitivity_is_the_upper_end(path) -> None:
    stated = Moving(noise_scale=1.0).sensitivity(2, path, "function", 2, {})
    assert {name: (s.norm, s.value) for name, s in stated.items()} == {"a": (1, 3), "b": (1, 6)}
    assert Moving(noise_scale=1.0).sensitivity(2, path, "add-remove", 2, {}) == {}


def test_noise_that_vanishes_before_what_it_hides_is_refused(path) -> None:
    with pytest.raises(ConfigError, match="no noise keeps the losses of 2000 rounds") as refused:
        Moving(epsilon=1.0, n_rounds=2_000).calibrate(path)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("n_rounds", [10, 37, 300])
def test_a_budget_is_kept_to_the_last_digit(n_rounds) -> None:
    """An epsilon that is one rounding error above what is claimed would leave a claim unsettled."""
    setting = Setting(build_graph("ring", 5), (1,) * 5, 2)
    for name in ("pp-doagt", "wang-nedic", "wang-nedic-tracking", "xuan-wang"):
        for budget in (0.3, 1.0, 7.0):
            defense = load_plugin("defenses", name)(epsilon=budget, n_rounds=n_rounds)
            defense = defense.calibrate(setting)
            bracket = defense.mechanism(setting, EAVESDROPPER, 0)
            assert budget * (1 - 1e-10) < epsilon(bracket.most, 0.0).high <= budget
