"""Defenses that send models after local steps: an attacker can play these steps."""

import pytest
import torch

from dpaudit.attack.local_steps import DummyGradient
from dpaudit.defense.contract import Target
from dpaudit.defenses.dfedsam import DPDFedSAM
from dpaudit.defenses.fed_cdp import FedCDP


@pytest.mark.parametrize(
    "defense",
    [
        DPDFedSAM(noise_multiplier=0.0, clip_norm=0.5, local_steps=3, batch_size=4),
        DPDFedSAM(noise_multiplier=0.0, clip_norm=0.5, local_steps=2, batch_size=4, sam="batch"),
        FedCDP(noise_multiplier=0.0, clip_norm=0.1, local_steps=2, batch_size=4),
    ],
)
def test_what_a_defense_sends_is_what_its_simulation_gives(
    defense, setting_of, streams, view_of_run
) -> None:
    problem, setting = setting_of("ring", 4, "logistic")
    view, _ = view_of_run(defense, problem, setting, streams, 2)
    observable = defense.observables["local-steps"]
    derived = observable.derive(defense, view, setting, Target(2, 1, 0))
    simulation = observable.local(defense, setting, 2)
    batches = [problem.batch(streams, 2, 4, step=s) for s in range(len(simulation.sizes))]
    images = torch.cat([batch.inputs[1] for batch in batches])[None].double()
    labels = torch.cat([batch.labels[1] for batch in batches])[None]
    oracle = DummyGradient(problem.gradients, images, labels, simulation.sizes)
    with torch.no_grad():
        played = simulation.mean_gradient(oracle, derived.model[None].double())
    torch.testing.assert_close(played[0], derived.gradient.double(), rtol=1e-6, atol=1e-8)
