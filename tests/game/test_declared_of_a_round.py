"""What is declared of a record that is in the batch of one round for certain."""

from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.accounting.releases import Release
from dpaudit.defense.contract import Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.runs.noise_law import declared_of_a_round
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin

EVERY_LINK = ThreatModel(name="every link")


def of(*releases: tuple[float, int], displacement: float = 1.0, n_rounds: int = 4) -> Any:
    """Noise multiplier and count of what is left, of releases with a batch in a tenth."""
    declared = [
        Release(
            family="gaussian", noise_multiplier=nm, count=n, sampling="poisson", sampling_rate=0.1
        )
        for nm, n in releases
    ]
    defense = SimpleNamespace(
        mechanism=lambda *of: SimpleNamespace(most=declared), n_rounds=n_rounds
    )
    game = SimpleNamespace(
        adjacency="add-remove", defense=defense, setting=None, victim=0, displacement=displacement
    )
    found = declared_of_a_round(game, EVERY_LINK)  # type: ignore[arg-type]
    assert found is None or all((r.sampling, r.sampling_rate) == ("none", 1.0) for r in found)
    return found and [(r.noise_multiplier, r.count) for r in found]


def test_a_round_has_releases_for_each_rounded_up() -> None:
    assert of((2.0, 4)) == [(2.0, 1)]
    assert of((2.0, 3)) == [(2.0, 1)]  # its agent waits in one round
    assert of((2.0, 6)) == [(2.0, 2)]


def test_the_releases_with_the_least_noise_count() -> None:
    assert of((3.0, 4), (1.0, 1), (2.0, 3)) == [(1.0, 1), (2.0, 1)]
    assert of((0.0, 4)) is None


@pytest.mark.parametrize(("sampling", "noise"), [("poisson", 2.0), ("fixed", 1.0)])
def test_a_record_in_place_of_another_moves_twice_as_far(sampling, noise) -> None:
    setting = Setting(build_graph("ring", 5), (40,) * 5, 1)
    defense = load_plugin("defenses", "dp-dpsgd")(
        n_rounds=4, batch_size=8, noise_multiplier=2.0, sampling=sampling
    ).calibrate(setting)
    (release,) = declared_of_a_round(Game.of(defense, setting, 0, "add-remove"), EVERY_LINK) or ()
    assert (release.noise_multiplier, release.count) == (noise, 1)
