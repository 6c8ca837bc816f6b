"""Limits beside estimates of mutual information: kept by sound noise, exceeded by half of it."""

import math
from pathlib import Path
from typing import Any

import pytest

from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.mutual_information.attack import Limits, MutualInformation, beyond, limits
from dpaudit.attacks.mutual_information.samples import RevealedQuantity
from dpaudit.defense.contract import Defense, Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.files.finding import Finding, Name
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.information.capacity import of_bit_in_gaussian, of_pure_epsilon
from dpaudit.registry import load_plugin
from dpaudit.reports.figures.information import information_by_round
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory
from tests.attacks.mutual_information.test_attack import Line

EVE = ThreatModel(name="eavesdropper", kind="external")
DPDPSGD = load_plugin("defenses", "dp-dpsgd")
SETTING = Setting(build_graph("complete", 3), (50,) * 3, 1)


class HalfTheNoise(DPDPSGD):  # type: ignore[misc, valid-type]
    """Declares its noise, and halves what it adds."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        halved = self.model_copy(update={"noise_multiplier": self.noise_multiplier / 2})
        return DPDPSGD.step(halved, state, k, graph, gradient, noise)


def asked(private: str = "gradient") -> RevealedQuantity:
    return RevealedQuantity("x", private, 0, EVE, (1,))


def options(**own: Any) -> dict[str, Any]:
    return {"n_rounds": 2, "batch_size": 1, "noise_multiplier": 2.0, "clip_norm": 1.0, **own}


def measured(defense: type[Defense], folder: Path, **own: Any) -> Finding:
    """Gradients are standard normal, as large on average as the clip norm that is declared."""
    chosen = defense(**options(**own)).calibrate(SETTING)
    context = AttackContext(Line(1), SETTING, chosen, (), Streams(7), RunDirectory(folder))
    attack = MutualInformation(message="x", rounds=(1,), trials=1_000, n_permutations=9)
    found = attack.measure(context, EVE, lambda done, total: None)
    return next(f for f in found if f.world == "defense" and "round" in f.series)


@pytest.mark.slow
def test_an_estimate_keeps_to_the_limit_of_its_channel(tmp_path: Path) -> None:
    """A normal number of power 1 under noise of std 2; the interval lies above by chance in 2.5%
    of seeds."""
    found = measured(DPDPSGD, tmp_path)
    assert found.metrics[Name.CAPACITY].value == pytest.approx(0.5 * math.log2(1 + 1 / 4))
    assert found.metrics[Name.CAPACITY_FOR_PRESENCE].value == of_bit_in_gaussian(0.5)
    assert found.metrics[Name.CAPACITY_FOR_A_NUMBER].value == pytest.approx(
        0.5 * math.log2(17 / 16)
    )
    assert not any("speaks against the noise" in note for note in found.notes)
    assert any("an estimate below them proves nothing" in note for note in found.notes)


def test_an_estimate_beyond_the_limit_speaks_against_the_noise(tmp_path: Path) -> None:
    found = measured(HalfTheNoise, tmp_path)
    assert found.metrics[Name.INFORMATION].low > found.metrics[Name.CAPACITY].value
    assert found.notes[0].startswith("beyond the noise: at least ")


def test_limits_are_drawn_where_they_are_not_far_above() -> None:
    def drawing(capacity: float) -> str:
        series = {name: (0.1,) for name in ("information", "low", "high", "baseline")}
        metrics = Limits(capacity, 0.2, 0.1).metrics()
        finding = Finding(
            role="information", kind="mutual-information", title="i", metrics=metrics,
            series={"round": (1.0,), **series},
        )  # fmt: skip
        return str(information_by_round({"defense": finding}, "name", "title").drawing)

    near, far = drawing(0.2), drawing(700.0)
    for label in ("of one record: a number", "of one record: its presence"):
        assert label in near
        assert label in far
    assert ">capacity<" in near
    assert ">capacity<" not in far


def other(**own: Any) -> type[Any]:
    """The defense with a batch or a clip of its own."""

    class Other(DPDPSGD):  # type: ignore[misc, valid-type]
        @property
        def batches_per_round(self) -> int:
            return int(own.get("batches_per_round", 1))

        def clip_norm_in(self, k: int) -> float | None:
            return own.get("clip_norm_in", 1.0)

    return Other


@pytest.mark.parametrize(
    ("own", "question", "why"),
    [
        ({}, asked("update"), 'private quantity "update"'),
        ({"batches_per_round": 3}, asked(), "several batches in a round"),
        ({"clip_norm_in": None}, asked(), "nothing bounds the norm"),
    ],
)
def test_no_limit_where_none_is_derived(
    own: dict[str, Any], question: RevealedQuantity, why: str
) -> None:
    known = limits(question, other(**own)(**options()), SETTING, 1)
    assert isinstance(known, str)
    assert why in known
    assert beyond(known, 99.0) == ()


def test_limits_of_batches_and_of_laplace_noise() -> None:
    fixed = limits(asked(), DPDPSGD(**options(batch_size=4)), SETTING, 1)
    poisson = limits(asked(), DPDPSGD(**options(batch_size=4, sampling="poisson")), SETTING, 1)
    assert isinstance(fixed, Limits)
    assert isinstance(poisson, Limits)
    assert fixed.batch == pytest.approx(0.5 * math.log2(1 + 4**2 / 2**2))
    assert poisson.batch == pytest.approx(0.5 * math.log2(1 + 50**2 / 2**2))
    defense = other()(**options(perturb="model"))
    laplace = limits(asked(), defense, SETTING, 1)
    assert isinstance(laplace, Limits)
    (*_, release) = defense.mechanism(SETTING, EVE, 0).most
    assert laplace.number == pytest.approx(of_pure_epsilon(1 / release.noise_multiplier))
    bare = limits(asked(), DPDPSGD(**options()).without_noise(), SETTING, 1)
    assert bare == Limits(math.inf, math.inf, math.inf)
