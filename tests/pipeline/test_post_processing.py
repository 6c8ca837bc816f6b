"""Whole audits of correct post-processing, and of choices that look like it.

None of these verdicts on correct defenses is a statistical one: a claim of 9 is far above what runs
can certify, so that the audits may not differ by seed.
"""

from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor

import dpaudit
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, broadcast
from dpaudit.files.finding import Role
from dpaudit.files.verdict import Verdict
from dpaudit.selftest.correct import PrivateGossip

pytestmark = pytest.mark.usefixtures("no_report")


class Processed(PrivateGossip):
    """The zoo's private gossip, whose noisy sum is processed before it is used."""

    n_rounds: int = 3

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = self.processed(self.noised(S, k, noise), S) / self.batch_size
        return self.after(S, state.V - self.learning_rate * G, graph)

    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy


def divided(of: Tensor, by: Tensor) -> Tensor:
    return of / by.norm(dim=-1, keepdim=True)


class DividedByNoisyNorm(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return 30 * divided(noisy, noisy)  # so that it moves further than the sum


class NoisyClipped(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy * (self.clip_norm / noisy.norm(dim=-1, keepdim=True)).clamp(max=1)


class OnGrid(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return (noisy / 0.125).round() * 0.125


class InBfloat16(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy.to(torch.bfloat16).to(noisy)


class NoisySign(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy.sign()


class NoisyMasked(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy * (noisy.abs() > self.clip_norm)


class DividedByCleanNorm(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return divided(noisy, clean)


class CleanMasked(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy * (clean.abs() > 0.01)


class SignTimesCleanNorm(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy.sign() * clean.norm(dim=-1, keepdim=True)


class UnclippedSign(NoisySign):
    """Correct post-processing of a sum that the noise does not protect."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient(X) * self.batch_size


class CleanSignBeside(Processed):
    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        played = super().after(S, X, graph)
        return played._replace(sent={**played.sent, "sign": broadcast(graph, S.sign())})


def audit(
    defense: type[PrivateGossip], seed: int, *others: dict[str, Any], **options: float
) -> Any:
    config = {
        "seed": seed,
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "claim": [{"text": "a claim", "epsilon": 9.0, "delta": 1e-5}],
        "threat_model": [{"name": "eavesdropper"}],
        "attack": [
            {"name": "likelihood-ratio", "trials": 200},
            {"name": "sensitivity", "points": 2, "restarts": 2, "steps": 2},
            *others,
        ],
    }
    return dpaudit.audit(config, defense=defense(**{"n_rounds": 2, **options}), cores=1)


@pytest.fixture(autouse=True)
def _few_plays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of the noise and the choice of a record have tests of their own, with all plays."""
    monkeypatch.setattr("dpaudit.game.runs.noise_law.WORK", 4 * 10**6)
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr("dpaudit.game.worst_case.record.NUMBERS", 2**18)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "defense",
    [
        NoisySign,
        *(
            pytest.param(defense, marks=pytest.mark.slow)
            for defense in (NoisyClipped, DividedByNoisyNorm, OnGrid, InBfloat16, NoisyMasked)
        ),
    ],
)
def test_correct_post_processing_is_not_accused(defense: type[Processed], seed: int) -> None:
    result = audit(defense, seed)
    assert result.claims[0].verdict not in (Verdict.REFUTED, Verdict.UNSUPPORTED)
    (exact,) = (f for f in result.findings if f.role is Role.EXACT_LEAK)
    assert exact.metrics == {}
    assert "not linear in its noise" in exact.notes[0]
    moved = [f for f in result.findings if f.role is Role.SENSITIVITY]
    beyond = [f for f in moved if f.metrics["measured over stated"].value > 1.001]
    assert all(any("does not count" in note for note in f.notes) for f in beyond)
    assert beyond or defense in (NoisyClipped,)


@pytest.mark.parametrize(
    "defense",
    [
        CleanSignBeside,
        pytest.param(DividedByCleanNorm, marks=pytest.mark.slow),
        *(
            pytest.param(d, marks=pytest.mark.slow)
            for d in (CleanMasked, SignTimesCleanNorm, UnclippedSign)
        ),
    ],
)
def test_a_choice_by_unprotected_values_is_caught(defense: type[Processed]) -> None:
    assert audit(defense, 0).claims[0].verdict in (Verdict.REFUTED, Verdict.UNSUPPORTED)


class Standardised(Processed):
    """Of one coordinate there is no deviation."""

    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return (noisy - noisy.mean(-1, keepdim=True)) / noisy.std(-1, keepdim=True)


class NormedByLayer(Processed):
    """By the sizes of the weight and the bias of this model."""

    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return torch.cat([divided(part, part) for part in noisy.split([640, 10], -1)], -1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "played"),
    [(Standardised, 64), (NormedByLayer, 650)],
)
def test_what_one_coordinate_cannot_play_is_audited_at_several(
    defense: type[Processed], played: int
) -> None:
    inversion = {"name": "gradient-inversion", "message": "unmixed", "rounds": [1]}
    others = {"name": "canaries"}, {"name": "who-learns-what"}, inversion
    result = audit(defense, 0, *others, n_rounds=4)
    assert result.claims[0].verdict not in (Verdict.REFUTED, Verdict.UNSUPPORTED)
    (runs,) = (f for f in result.findings if f.attack == "likelihood-ratio" and f.role is Role.TEST)
    assert f"{played} coordinates are played together" in " ".join(runs.notes)
    assert runs.metrics["epsilon lower bound"].n == 400
    (canaries,) = (f for f in result.findings if f.attack == "canaries")
    assert canaries.metrics == {}
    assert "each canary has a coordinate to itself" in canaries.notes[0]
    inverted = [f for f in result.findings if f.attack == "gradient-inversion"]
    assert all("there the step fails or gives no number" in f.notes[0] for f in inverted)
    assert inverted


class AdaptiveState(NamedTuple):
    X: Tensor
    V: Tensor
    Q: Tensor  # [..., n_agents, d], a mean of squares


class Adaptive(PrivateGossip):
    """Divides by a root of noisy squares: what an algebra of lines believes of these is negative."""

    n_rounds: int = 3
    batch_size: int = 359  # all records that every agent has: each is in every batch
    sampling: Literal["fixed", "poisson"] = "fixed"
    noise_multiplier: float = 10.0
    share: float = 1.0  # of the noise

    def start(self, X: Tensor, setting: Setting) -> Any:
        return AdaptiveState(X, setting.network.at(1).mix(X), torch.zeros_like(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = (S + self.share * self.noise(S, k, noise)) / self.batch_size
        Q = 0.9 * state.Q + 0.1 * G**2
        X = state.V - 0.01 * G / (Q.sqrt() + 1e-8)
        return Round(AdaptiveState(X, graph.mix(X), Q), {"x": broadcast(graph, X)})


@pytest.mark.parametrize(
    ("share", "verdict"),
    [pytest.param(1.0, None, marks=pytest.mark.slow), (0.1, Verdict.UNSUPPORTED)],
)
def test_a_step_that_no_algebra_follows_is_played(share: float, verdict: Verdict | None) -> None:
    """A right one fails with probability 1e-6."""
    result = audit(Adaptive, 0, {"name": "canaries", "canaries": 60}, share=share)
    (noise,) = (
        f for f in result.findings if f.attack == "likelihood-ratio" and f.role is Role.NOISE
    )
    assert noise.verdict is verdict
    (canaries,) = (f for f in result.findings if f.attack == "canaries")
    assert canaries.metrics == {}
    assert (result.claims[0].verdict is Verdict.UNSUPPORTED) is (verdict is not None)
