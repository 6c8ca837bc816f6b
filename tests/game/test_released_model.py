"""A final model as a view: its leak in closed form, and what it shows that messages do not."""

from math import sqrt

import pytest
import torch

from dpaudit.attack import ThreatModel
from dpaudit.defense import Defense, Setting
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.game.filtering.adversary import Adversary, with_every_link
from dpaudit.game.game import Game
from dpaudit.game.released_model import FINAL_MODEL, as_seen_by
from dpaudit.graphs.graph import build_graph

SIGMA, N = 0.7, 4
MEAN = ThreatModel(name="mean", kind="final-model")
OF_VICTIM = ThreatModel(name="one", kind="final-model", model_of=1)


def adversary(threat_model: ThreatModel, n_rounds: int = 1, **options) -> Adversary:
    """Of a record of agent 1 that is in every batch."""
    common = {
        "n_rounds": n_rounds,
        "batch_size": 10,
        "noise_multiplier": SIGMA,
        "sampling": "poisson",
    }
    defense: Defense = DPDPSGD(**common, **options)
    setting = Setting(build_graph("ring", N), (10,) * N, 1)
    game = Game.of(as_seen_by(OF_VICTIM, defense), setting, 1, "add-remove")
    if threat_model is MEAN:
        game = Game.of(as_seen_by(MEAN, defense), setting, 1, "add-remove")
    return Adversary(game, threat_model, n_rounds)


def mu(threat_model: ThreatModel, n_rounds: int = 1) -> float:
    return float(adversary(threat_model, n_rounds).leak.by_round.max())


@pytest.mark.parametrize("n_rounds", [1, 2, 5])
def test_the_mean_hides_a_record_in_the_noise_of_all_agents(n_rounds: int) -> None:
    """T rounds move the mean by T / n of a clipped gradient, under noise sigma sqrt(T / n)."""
    found = adversary(MEAN, n_rounds).leak
    assert float(found.by_round.max()) == pytest.approx(sqrt(n_rounds / N) / SIGMA, rel=1e-9)


def test_the_victims_own_model_after_one_round_is_its_message() -> None:
    assert mu(OF_VICTIM) == pytest.approx(1 / SIGMA, rel=1e-9)


@pytest.mark.parametrize("n_rounds", [1, 3])
def test_a_model_made_of_messages_adds_nothing_to_them(n_rounds: int) -> None:
    """Post-processing: every link with the model is every link without it."""
    every_link = ThreatModel(name="every link")
    with_model = adversary(with_every_link(OF_VICTIM), n_rounds).leak
    plain = Game.of(
        DPDPSGD(n_rounds=n_rounds, batch_size=10, noise_multiplier=SIGMA, sampling="poisson"),
        Setting(build_graph("ring", N), (10,) * N, 1), 1, "add-remove",
    )  # fmt: skip
    without = Adversary(plain, every_link, n_rounds).leak
    torch.testing.assert_close(with_model.by_round, without.by_round, atol=1e-9, rtol=0)


def test_a_model_without_its_noise_shows_the_record() -> None:
    """Noise that is drawn for a message, and not for the model, does not hide the last gradient."""
    found = adversary(OF_VICTIM, perturb="model").leak
    assert set(found.noiseless.values()) == {FINAL_MODEL}
    assert adversary(ThreatModel(name="far", links=((0, 1),)), perturb="model").leak.noiseless == {}
