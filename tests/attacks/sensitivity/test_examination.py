"""Rows of measured sensitivity beside their stated bounds."""

import numpy as np
import torch

from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds, PlayedWorld
from dpaudit.defenses.dpsgd import DPDPSGD


def test_rounding_alone_does_not_exceed_a_bound(setting_of, streams, monkeypatch) -> None:
    """Nor does a public rotation in float32, which is one up to 1e-7; two millionths do."""
    problem, setting = setting_of("ring", 4, "logistic")
    defense = DPDPSGD(n_rounds=5, batch_size=3, noise_multiplier=1.0, clip_norm=0.1)
    coupled = CoupledWorlds(defense, problem, setting, streams, victim=1)
    examination = RoundExamination(coupled, restarts=0, steps=0)
    here = PlayedWorld(coupled, coupled.start(), 1, coupled.batches(1))
    stated = coupled.defense.sensitivity(1, setting, "add-remove", 1, here.noisy.sent)["x"].value

    def row(moved: float) -> Row:
        difference = torch.zeros(1, setting.d, dtype=torch.float64)
        difference[0, 0] = moved
        monkeypatch.setattr(CoupledWorlds, "differences", lambda *worlds: {"x": difference})
        (found,) = examination.judged(1, {"natural": [(here, here)]}, "add-remove", 2)
        return found

    rounded = row(np.nextafter(stated, np.inf))
    assert rounded.measured > rounded.stated  # in the last digit
    assert not rounded.exceeds
    assert not row(stated * (1 + 3e-7)).exceeds
    assert row(stated * (1 + 2e-6)).exceeds
    assert not row(stated * (1 - 1e-6)).exceeds
