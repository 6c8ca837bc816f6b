"""Information in the best linear estimate from a whole view, of a defense that names no algebra."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpaudit
from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.mutual_information.attack import MutualInformation
from dpaudit.attacks.mutual_information.samples import RevealedQuantity, samples
from dpaudit.checkpoint import Checkpoint, Progress
from dpaudit.defense import Defense, Gradient, Setting
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.information.estimators import gaussian_channel
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory
from tests.foreign import Foreign

EVE = ThreatModel(name="eve")
SETTING = Setting(build_graph("complete", 3), (50,) * 3, 1)


class GivenGradient(Gradient):
    batch_size = 4

    def __init__(self, G: torch.Tensor) -> None:
        self.G = G

    def __call__(self, X, holders=None):
        return self.G

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        return self.batch_size * self.G


@dataclass(frozen=True)
class Gaussian:
    """Gradients N(0, 1), independent in each trial, round and agent; models start at random."""

    differentiates = False
    varies = "the gradients"

    def for_trials(self, shared, own, trials, victim):
        return self

    def initial(self, streams, trials=None):
        return torch.randn(trials, 3, 1, generator=streams("X"), dtype=torch.float64)

    def gradient(self, streams, k, batch_size, sampling="fixed", trials=None):
        G = torch.randn(trials, 3, 1, generator=streams("G", k), dtype=torch.float64)
        return GivenGradient(G)


def measured(folder: Path, defense: Defense, threat_model: ThreatModel = EVE, **options: Any):
    context = AttackContext(Gaussian(), SETTING, defense, (), Streams(7), RunDirectory(folder))
    options = {"message": "view", "n_permutations": 9, "n_splits": 5, **options}
    return MutualInformation(**options).measure(context, threat_model, lambda done, total: None)


def in_rounds(findings, world: str = "defense"):
    return next(f for f in findings if f.world == world and "round" in f.series)


@pytest.mark.parametrize("sigma, hint_sigma", [(0.5, 2.0), (2.0, 1.5)])
def test_the_information_is_that_of_all_noisy_copies_together(tmp_path, sigma, hint_sigma) -> None:
    """V of rounds 2 and 3 is known from the messages before: two copies of G, N(0, 1), under N(0,
    s^2) and N(0, t^2) have the precision 1/s^2 + 1/t^2. A 95% interval; the seed is fixed."""
    defense = Foreign(sigma=sigma, hint_sigma=hint_sigma)
    options = {"rounds": (2, 3), "trials": 2_000, "n_splits": 20}
    finding = in_rounds(measured(tmp_path, defense, **options))
    truth = gaussian_channel(1.0, 1 / (sigma**-2 + hint_sigma**-2))
    assert truth == pytest.approx(0.5 * math.log2(1 + sigma**-2 + hint_sigma**-2))
    found = finding.metrics
    assert found["information"].low <= truth <= found["information"].high
    assert found["gaussian"].value == pytest.approx(truth, abs=0.12)
    assert finding.message == "view"
    said = " ".join(finding.notes)
    assert "the view is the best unbiased linear estimate of each gradient of agent 0" in said
    assert "the gradient is the first that agent 0 is answered in the round" in said


def test_one_message_alone_tells_less_than_the_view(tmp_path) -> None:
    options = {"rounds": (2,), "trials": 500, "n_permutations": 0, "n_splits": 0}
    bits = {
        message: in_rounds(measured(tmp_path, Foreign(), message=message, **options))
        .metrics["information"]
        .value
        for message in ("view", "hint", "z")
    }
    assert bits["view"] > 2 * max(bits["hint"], bits["z"])


def test_what_is_not_known_of_a_round_tells_nothing_there(tmp_path) -> None:
    """Models before round 1 are random and not sent: there the hint is all, under N(0, 2^2)."""
    defense = Foreign(sigma=0.1, hint_sigma=2.0)
    found = in_rounds(measured(tmp_path, defense, rounds=(1,), trials=2_000, n_splits=20)).metrics
    assert found["information"].low <= gaussian_channel(1.0, 4.0) <= found["information"].high
    assert found["gaussian"].value == pytest.approx(gaussian_channel(1.0, 4.0), abs=0.1)


def test_a_view_that_tells_no_gradient_is_refused_in_one_line(tmp_path) -> None:
    far = ThreatModel(name="one link", links=((1, 2),))
    (finding, _) = measured(tmp_path, Foreign(), far, victim=0, trials=40)
    assert finding.notes[0].startswith("not available to this adversary: ")
    assert not finding.metrics


def test_a_view_too_large_to_estimate_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.game.estimating.window.MOST_UNKNOWNS", 5)
    (finding, _) = measured(tmp_path, Foreign(), rounds=(2,), trials=40)
    assert "not available to this adversary: the view's estimate has" in finding.notes[0]


def test_samples_are_gradient_and_estimate_in_any_blocks(monkeypatch) -> None:
    """Without noise both columns are one; of a defense that names its gradient, that one."""
    monkeypatch.setattr("dpaudit.attacks.mutual_information.samples.BLOCK_BYTES", 6_000)
    for defense in (
        Foreign(sigma=0.0, hint_sigma=0.0),
        load_plugin("defenses", "dp-dpsgd")(n_rounds=3, noise_multiplier=0.0),
    ):
        question = RevealedQuantity("view", "gradient", 0, EVE, (2, 3), reduction="none")
        found = samples(question, defense, Gaussian(), SETTING, Streams(3), 100)
        assert set(found.rounds) == {2, 3}
        for private, view, _ in found.rounds.values():
            np.testing.assert_allclose(view, private, rtol=1e-9, atol=1e-9)


class Ended(Exception):
    pass


@dataclass
class Noted(Checkpoint):
    """Keeps every step, and ends the work after so many."""

    steps: int
    progress: Progress | None = None

    def last(self):
        return self.progress

    def keep(self, progress):
        self.progress = progress()
        self.steps -= 1
        if not self.steps:
            raise Ended

    def done(self, progress):
        self.progress = progress

    def stage(self, name):
        return self


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_runs_that_were_killed_go_on_to_the_same_samples(monkeypatch, steps: int) -> None:
    monkeypatch.setattr("dpaudit.attacks.mutual_information.samples.BLOCK_BYTES", 6_000)
    question = RevealedQuantity("view", "gradient", 0, EVE, (2, 3), reduction="none")
    args = question, Foreign(), Gaussian(), SETTING, Streams(3), 100
    whole, checkpoint = samples(*args), Noted(steps)
    with pytest.raises(Ended):
        samples(*args, checkpoint=checkpoint)
    again = samples(*args, checkpoint=checkpoint)
    for k in (2, 3):
        np.testing.assert_array_equal(again.rounds[k].private, whole.rounds[k].private)
        np.testing.assert_array_equal(again.rounds[k].view, whole.rounds[k].view)


def test_a_defense_that_names_only_messages_is_audited() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (80, 4, 4), dtype=np.uint8), np.arange(80) % 4
    config = {
        "seed": 1,
        "data": {"n_agents": 3},
        "graph": {"name": "complete"},
        "model": {"name": "logistic"},
        "threat_model": [{"name": "eve"}],
        "attack": [
            {"name": "mutual-information", "message": "view", "private": "gradient",
             "rounds": [2], "trials": 100, "n_permutations": 9, "n_splits": 2}
        ],
    }  # fmt: skip
    result = dpaudit.audit(config, defense=Foreign(sigma=0.1, batch_size=4), data=(x, y), cores=1)
    found = [f for f in result.findings if f.kind == "mutual-information" and f.series]
    assert {f.world for f in found} == {"defense", "no-defense"}
    exact = next(f for f in found if f.world == "no-defense" and "private" in f.series)
    assert exact.metrics["variance explained"].value > 0.98


def test_what_a_window_does_not_show_is_no_message_of_it() -> None:
    """ "unmixed" is for attacks on one run."""
    config = {
        "seed": 1, "data": {"name": "digits", "n_agents": 4}, "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "defense": {"name": "dgd"}, "threat_model": [{"name": "eve"}],
        "attack": [{"name": "mutual-information", "message": "unmixed"}],
    }  # fmt: skip
    with pytest.raises(DpauditError, match=r'dgd offers no "unmixed".* view'):
        AuditConfig.from_dict(config)
