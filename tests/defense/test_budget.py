"""Noise from a budget: what is asked for again is not computed again."""

import pytest

from dpaudit.defense import budget
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import ConfigError


def test_the_same_budget_is_accounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    defense = DPDPSGD(epsilon=3.25, n_rounds=7, batch_size=4)
    first = defense.noise_multiplier_for(40)

    def accounted_again(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(budget, "epsilon", accounted_again)
    again = DPDPSGD(epsilon=3.25, n_rounds=7, batch_size=4, learning_rate=0.5)
    assert again.noise_multiplier_for(40) == first
    with pytest.raises(AssertionError):
        again.noise_multiplier_for(41)


def test_a_budget_that_no_noise_keeps_is_refused_again() -> None:
    defense = DPDPSGD(epsilon=1.0, delta=0.999, n_rounds=1, batch_size=1)
    for _ in range(2):
        with pytest.raises(ConfigError, match="next to no noise"):
            defense.noise_multiplier_for(10)
