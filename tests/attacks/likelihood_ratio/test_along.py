"""Steps that mix coordinates or need several: their runs play more than one."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import epsilon
from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.likelihood_ratio.runs import rounds_of_a_draw
from dpaudit.defense import Noise, Setting, releases
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip
from tests.scratch import scratch_run

EVERY_LINK = ThreatModel(name="eavesdropper")
LAYERS = (("weight", 80), ("bias", 10))


class Processed(PrivateGossip):
    """What is noised goes through a function of all coordinates, which costs no privacy."""

    share: float = 1.0  # of the declared noise that is drawn

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return self.processed(S + self.share * self.noise(S, k, noise))

    def processed(self, G: Tensor) -> Tensor:
        return G


class Centred(Processed):
    def processed(self, G: Tensor) -> Tensor:
        return G - G.mean(-1, keepdim=True)


class Normed(Processed):
    def processed(self, G: Tensor) -> Tensor:
        return G / G.norm(dim=-1, keepdim=True)


class Standardised(Processed):
    def processed(self, G: Tensor) -> Tensor:
        return (G - G.mean(-1, keepdim=True)) / G.std(-1, keepdim=True)


class NormedByLayer(Processed):
    def processed(self, G: Tensor) -> Tensor:
        layers = G.split([size for _, size in LAYERS], dim=-1)
        return torch.cat([layer / layer.norm(dim=-1, keepdim=True) for layer in layers], -1)


class Rounded(Processed):
    def processed(self, G: Tensor) -> Tensor:
        return (G / 0.13).round() * 0.13


class WithoutItsThird(Processed):
    def processed(self, G: Tensor) -> Tensor:
        return torch.cat([G[..., :3], 0 * G[..., 3, None], G[..., 4:]], -1)


def measured(
    defense: PrivateGossip, trials: int = 2000, records: int = 8, **claimed: Any
) -> dict[Role, Finding]:
    setting = Setting(build_graph("ring", 4), (records,) * 4, 90, LAYERS)
    claim = Claim(**{"text": "ours", "epsilon": 4.4, "delta": 1e-5, **claimed})
    context = AttackContext(None, setting, defense, (claim,), Streams(3), scratch_run())  # type: ignore[arg-type]
    attack = load_plugin("attacks", "likelihood-ratio")(trials=trials)
    found = attack.measure(context, EVERY_LINK, lambda done, total: None)
    return {finding.role: finding for finding in found}


@pytest.mark.parametrize(
    ("defense", "played", "adjacency"),
    [
        (Centred, 64, "add-remove"),
        (Normed, 64, "replace-one"),
        pytest.param(NormedByLayer, 90, "add-remove", marks=pytest.mark.slow),
        *(
            pytest.param(made, 64, "add-remove", marks=pytest.mark.slow)
            for made in (Normed, Standardised, WithoutItsThird)
        ),
    ],
)
def test_a_fifth_of_the_noise_is_found_and_all_of_it_is_let_be(
    defense: Callable[..., Processed], played: int, adjacency: Literal["add-remove", "replace-one"]
) -> None:
    """sigma = 2, the record in every batch; the claim is what that costs. A right one fails for 1
    seed in 20.
    """
    options: dict[str, Any] = {"noise_multiplier": 2.0, "n_rounds": 1, "batch_size": 8}
    costs = epsilon(releases([2.0], "none", 1.0), 1e-5, adjacency).high
    claimed = {"epsilon": costs, "adjacency": adjacency}
    right = measured(defense(**options), **claimed)
    wrong = measured(defense(share=0.2, **options), **claimed)
    assert right[Role.TEST].metrics["p-value"].value > 0.05
    assert wrong[Role.TEST].metrics["p-value"].value < 1e-4
    assert right[Role.NULL_CONTROL].verdict is None
    assert right[Role.EXACT_LEAK].verdict is None
    assert any(f"{played} coordinates" in note for note in right[Role.TEST].notes)


def test_what_needs_several_coordinates_says_why() -> None:
    found = measured(NormedByLayer(noise_multiplier=1.0, n_rounds=1, batch_size=8), 200)
    leak = found[Role.EXACT_LEAK]
    assert leak.metrics == {}
    assert leak.notes[0].startswith("played at 90 coordinates: on fewer the step fails")
    assert found[Role.POSITIVE_CONTROL].verdict is None  # 200 runs certify less than is claimed
    assert found[Role.POSITIVE_CONTROL].metrics["epsilon lower bound"].value > 2


@pytest.mark.parametrize("scope", ["round", "message"])
def test_claims_on_a_part_of_the_run(scope: str) -> None:
    """Runs read whole rounds: of a claim on one message they would read too much."""
    wrong = NormedByLayer(noise_multiplier=1.0, share=0.1, batch_size=8)
    test = measured(wrong, scope=scope)[Role.TEST]
    if scope == "message":
        assert test.metrics == {}
        assert "read by rounds" in test.notes[0]
    else:
        assert test.metrics["p-value"].value < 1e-4


def test_of_too_many_coordinates_no_runs_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    defense = NormedByLayer(noise_multiplier=1.0, n_rounds=1, batch_size=8)
    module = sys.modules[load_plugin("attacks", "likelihood-ratio").__module__]
    monkeypatch.setattr(module, "LONG", 1e-3)
    test = measured(defense)[Role.TEST]
    assert test.metrics == {}
    assert test.notes[0].startswith("no runs: the step needs 90 coordinates")


@pytest.mark.parametrize(
    ("defense", "adjacency", "sampling"),
    [
        pytest.param(Normed, "add-remove", "fixed", marks=pytest.mark.slow),
        (Rounded, "replace-one", "poisson"),
        pytest.param(Normed, "add-remove", "poisson", marks=pytest.mark.slow),
        pytest.param(Normed, "replace-one", "poisson", marks=pytest.mark.slow),
        pytest.param(Rounded, "add-remove", "poisson", marks=pytest.mark.slow),
        pytest.param(Rounded, "add-remove", "fixed", marks=pytest.mark.slow),
    ],
)
def test_noise_that_a_seldom_record_hides_is_held_to_its_law(
    defense: Callable[..., Processed], adjacency: str, sampling: str
) -> None:
    """Drawn once in 50 rounds the record tells 2,000 runs nothing; drawn for certain it tells of a
    third of the noise. A right one fails with probability 1e-6.
    """
    options: dict[str, Any] = {"noise_multiplier": 2.0, "n_rounds": 3, "sampling": sampling}
    claimed = {"epsilon": 3.0, "adjacency": adjacency, "records": 200}
    right, wrong = (measured(defense(share=share, **options), **claimed) for share in (1.0, 1 / 3))
    assert right[Role.NOISE].verdict is None
    assert wrong[Role.NOISE].verdict is Verdict.UNSUPPORTED
    assert wrong[Role.NOISE].metrics["p-value"].value < 1e-6
    assert 1 / 3 < wrong[Role.NOISE].metrics["noise, at most times the declared"].value < 0.6
    assert wrong[Role.TEST].metrics["p-value"].value > 0.05


class BoxMuller(Processed):
    """Gaussian noise, made of two draws by a step that is linear in neither."""

    def noise(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        r, angle = (torch.special.ndtr(noise.gaussian(name, 1.0, S)) for name in ("r", "angle"))
        made = (-2 * r.clamp(min=1e-300).log()).sqrt() * (2 * torch.pi * angle).cos()
        return self._scale * made


class ScaleMixture(Processed):
    """Never less than the declared noise."""

    def noise(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(S, k, noise) * (1 + noise.gaussian("scale", 1.0, S).abs())


@pytest.mark.slow
@pytest.mark.parametrize("defense", [BoxMuller, pytest.param(ScaleMixture, marks=pytest.mark.slow)])
def test_noise_of_a_nonlinear_step_is_not_held_against_draws(
    defense: Callable[..., Processed],
) -> None:
    """It is held against what is declared. A right one fails with probability 1e-6."""
    options: dict[str, Any] = {"noise_multiplier": 2.0, "n_rounds": 3}
    right = measured(defense(**options), epsilon=30.0)[Role.NOISE]
    assert right.verdict is None
    wrong = measured(defense(share=1 / 4, **options), epsilon=30.0)[Role.NOISE]
    assert wrong.verdict is Verdict.UNSUPPORTED


class LaterAsked(Normed):
    """Asks for less noise in one round after the first."""

    def noise(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        share = self.share if k == 2 else 1.0
        return noise.gaussian("x", share * self.noise_multiplier * self.clip_norm, S)

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return self.processed(S + self.noise(S, k, noise))


class LaterDrawn(Normed):
    """Asks for as much in every round, and adds less of it after the first."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return self.processed(S + (self.share if k > 1 else 1.0) * self.noise(S, k, noise))


class Decaying(Rounded):
    """What is noised shrinks with its noise."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        step = self.share**k
        std = step * self.noise_multiplier * self.clip_norm
        return self.processed(step * S + noise.gaussian("x", std, S))


@pytest.mark.slow
@pytest.mark.parametrize("defense", [LaterDrawn, pytest.param(LaterAsked, marks=pytest.mark.slow)])
def test_too_little_noise_in_later_rounds_alone_is_found(
    defense: Callable[..., Processed],
) -> None:
    """A right one fails with probability 1e-6."""
    options: dict[str, Any] = {"noise_multiplier": 2.0, "n_rounds": 3}
    right, wrong = (
        measured(defense(share=share, **options), epsilon=3.0, records=200)[Role.NOISE]
        for share in (1.0, 1 / 3)
    )
    assert right.verdict is None
    assert wrong.verdict is Verdict.UNSUPPORTED
    round = 2 if defense is LaterAsked else 3
    assert any(f"in the batch of round {round} for certain" in note for note in wrong.notes)


@pytest.mark.parametrize(
    ("made", "share", "other"), [(LaterAsked, 1 / 3, 2), (LaterDrawn, 1 / 3, 3), (Decaying, 1.0, 3)]
)
def test_the_round_of_least_noise_is_tested_beside_the_first(
    made: Callable[..., Processed], share: float, other: int
) -> None:
    """What is asked for says where to look: 1 / 3 of the noise of the first round in the second."""
    setting = Setting(build_graph("ring", 4), (8,) * 4, 90, LAYERS)
    defense = made(share=share, noise_multiplier=2.0, n_rounds=3)
    game = Game.of(defense, setting, 0, "add-remove")
    asked = SimpleNamespace(game=game, in_round=None, adversary=SimpleNamespace(n_rounds=3))
    assert rounds_of_a_draw(asked, Streams(0)) == [1, other]  # type: ignore[arg-type]
    alone = SimpleNamespace(game=game, in_round=2, adversary=SimpleNamespace(n_rounds=3))
    assert rounds_of_a_draw(alone, Streams(0)) == [2]  # type: ignore[arg-type]


@pytest.mark.slow
def test_noise_that_shrinks_with_the_step_size_is_no_less() -> None:
    """It fails with probability 1e-6."""
    defense = Decaying(share=0.5, noise_multiplier=2.0, n_rounds=4)
    found = measured(defense, epsilon=3.0, records=200)[Role.NOISE]
    assert found.verdict is None
    assert any("round 4" in note for note in found.notes)


@pytest.mark.parametrize("adjacency", ["user", "add-remove"])
def test_one_records_noise_is_not_held_against_all_of_an_agent(adjacency: str) -> None:
    found = measured(
        Normed(noise_multiplier=2.0, sampling="fixed"), 200, 24, adjacency=adjacency, epsilon=90.0
    )
    assert (Role.NOISE in found and "p-value" in found[Role.NOISE].metrics) is (
        adjacency == "add-remove"
    )
