"""Defenses that take each record's gradient do so of some agents after the other."""

from typing import Any

import pytest
import torch

from dpaudit.defense.noise import Noise
from dpaudit.defenses.dfedsam import DPDFedSAM
from dpaudit.defenses.fed_cdp import FedCDP
from dpaudit.defenses.fedan import FedAN
from dpaudit.defenses.feddpa import FedDPA
from dpaudit.training import classification

NOISE: dict[str, Any] = {"n_rounds": 3, "batch_size": 4, "noise_multiplier": 0.05}


@pytest.mark.parametrize(
    ("defense", "graph"),
    [
        (DPDFedSAM(**NOISE, clip_norm=1.0, local_steps=2, sampling="poisson"), "ring"),
        (FedAN(**NOISE, clip_norm=1.0, sampling="poisson"), "ring"),
        (FedDPA(**NOISE, clip_norm=1.0), "ring"),
        (FedCDP(**NOISE, clip_norm=1.0, schedule="dynamic", sampling="poisson"), "ring"),
        (FedCDP(**NOISE, clip_norm=1.0, sampling="poisson"), "pairwise"),  # where agents wait
    ],
)
def test_three_rounds_in_parts_are_those_of_all_agents_at_once(
    drawn_setting, streams, monkeypatch, defense, graph
) -> None:
    problem, setting = drawn_setting(graph, 5)
    defense, ended = defense.calibrate(setting), []
    for held in (classification.HELD, 1):
        monkeypatch.setattr(classification, "HELD", held)
        state = defense.start(problem.initial(streams).double(), setting)
        for k in range(1, 4):
            given = problem.gradient(streams, k, 4, defense.sampling)
            here = setting.network.at(k)
            state, _, private = defense.step(state, k, here, given, Noise(streams, k))
        ended.append((defense.models(state), private["gradient"]))
    for whole, parts in zip(*ended, strict=True):
        assert whole.any()
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)
