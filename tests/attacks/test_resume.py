"""Attacks that were killed go on where they were, with the same figures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dpaudit.attack.contract import AttackContext, Part
from dpaudit.attacks.shadow_models import shadows
from dpaudit.checkpoint import Checkpoint, Progress
from dpaudit.data.datasets import Dataset
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
FINAL_MODEL = ThreatModel(name="mean", kind="final-model")


class Cut(Exception):
    pass


class Saved(Checkpoint):
    """In memory; the attack is cut after so many steps were saved."""

    def __init__(self, cut_after: int) -> None:
        self.steps, self.stages = [cut_after], dict[tuple[str, ...], Progress]()
        self._name: tuple[str, ...] = ()

    def stage(self, name: str | int) -> "Saved":
        stage = Saved(0)
        stage.steps, stage.stages, stage._name = self.steps, self.stages, (*self._name, str(name))
        return stage

    def last(self) -> Progress | None:
        return self.stages.get(self._name)

    def keep(self, now: Callable[[], Progress]) -> None:
        self.done(now())
        self.steps[0] -= 1
        if self.steps[0] == 0:
            raise Cut

    def done(self, result: Progress) -> None:
        tensors = {name: tensor.clone() for name, tensor in result.tensors.items()}
        self.stages[self._name] = Progress(tensors, result.note)


@pytest.fixture
def dataset(dataset: Dataset) -> Dataset:
    """In float32, as runs are."""
    return replace(dataset, x=dataset.x.float(), x_test=dataset.x_test.float())


@pytest.mark.parametrize(
    "attack, defense, options, adjacency",
    [
        ("canaries", "dp-dpsgd", {"canaries": 30}, "add-remove"),
        ("canaries", "dp-dpsgd", {"canaries": 20, "kind": "mislabelled"}, "add-remove"),
        ("sensitivity", "dp-dpsgd", {"restarts": 2, "steps": 2}, "replace-one"),
        ("sensitivity", "sensitivity-reduced", {"steps": 0}, "function"),
        ("mutual-information", "dp-dpsgd", {"message": "x", "trials": 40}, "add-remove"),
        ("mutual-information", "dp-dpsgd", {"message": "view", "trials": 40}, "add-remove"),
    ],
)
def test_a_killed_attack_ends_with_the_same_findings(
    setting_of, attack: str, defense: str, options: dict[str, Any], adjacency: Any
) -> None:
    problem, setting = setting_of("ring", 4, "logistic")
    own = {"noise_multiplier": 1.0} if defense == "dp-dpsgd" else {"allow_outside_theory": True}
    played = load_plugin("defenses", defense)(n_rounds=3, batch_size=5, **own).calibrate(setting)
    claims = (Claim(text="small", epsilon=0.5, delta=1e-5, adjacency=adjacency),)
    if attack == "mutual-information":
        options = {**options, "n_permutations": 2, "n_splits": 2}
    plugin = load_plugin("attacks", attack)(**options)

    def measured(checkpoint: Checkpoint) -> Any:
        context = AttackContext(
            problem, setting, played, claims, Streams(3), None, checkpoint=checkpoint
        )
        return plugin.measure(context, EAVESDROPPER, lambda done, total: None)

    saved = Saved(cut_after=2)
    with pytest.raises(Cut):
        measured(saved)
    assert measured(saved) == measured(Saved(cut_after=-1))


@pytest.mark.parametrize(
    "attack, options",
    [
        ("shadow-models", {"shadows": 8, "targets": 2}),
        ("canaries", {"canaries": 20, "kind": "crafted", "references": 8}),
    ],
)
@pytest.mark.parametrize("cut_after", [3, 9])
def test_runs_beside_the_audited_one_are_resumed(
    setting_of, monkeypatch, attack: str, options: dict[str, Any], cut_after: int
) -> None:
    """In the middle of runs that are trained together, or behind the first ones."""
    problem, setting = setting_of("ring", 4, "logistic")
    played = load_plugin("defenses", "dp-dpsgd")(n_rounds=6, batch_size=5, noise_multiplier=1.0)
    claims = (Claim(text="small", epsilon=0.5, delta=1e-5),)
    plugin = load_plugin("attacks", attack)(**options)
    monkeypatch.setattr(shadows, "_runs_at_once", lambda setting: 4)

    def measured(checkpoint: Checkpoint) -> Any:
        context = AttackContext(
            problem, setting, played, claims, Streams(3), None, checkpoint=checkpoint,
            part=Part("defense"),
        )  # fmt: skip
        return plugin.measure(context, FINAL_MODEL, lambda done, total: None)

    saved = Saved(cut_after)
    with pytest.raises(Cut):
        measured(saved)
    assert len(saved.stages) == 1 + (cut_after - 1) // 5  # the sixth round is no step that is cut
    assert measured(saved) == measured(Saved(cut_after=-1))
