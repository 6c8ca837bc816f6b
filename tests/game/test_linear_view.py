"""The file of a view's matrices against the filter of the view."""

from pathlib import Path

import numpy as np
import pytest

from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.verify.views import mus

from .test_adversary import EAVESDROPPER, curious, game_of

DEFENSES = {
    "dpdl": {"noise_multiplier": 2.0},
    "dp-dpsgd": {"noise_multiplier": 1.0},
    "mafalda": {"noise_multiplier": 1.0, "allow_outside_theory": True},
    "d-psgd": {},
}


@pytest.mark.parametrize("most", [10**6, 0])
@pytest.mark.parametrize("threat_model", [EAVESDROPPER, curious(0)])
@pytest.mark.parametrize("name", DEFENSES)
def test_matrices_of_a_view_give_its_leak(
    name: str, threat_model: ThreatModel, most: int, tmp_path: Path
) -> None:
    game = game_of(name, "ring", n_agents=4, n_rounds=4, **DEFENSES[name])
    adversary = Adversary(game, threat_model, 4)
    if most == 0 and adversary.leak.noiseless:
        return  # what no noise hides is in no innovation
    view = adversary.linear_view(most)
    assert (view.noise is None) == (most == 0)
    file, content = view.file(1.0, 1)
    (tmp_path / Path(file).name).write_bytes(content)
    found = mus(tmp_path / Path(file).name)
    leak = sorted(squared.low**0.5 for squared in adversary.leak.by_use)
    assert len(found) == len(leak)
    for (low, high), mu in zip(found, leak, strict=True):
        assert low * (1 - 1e-6) <= mu <= high * (1 + 1e-6)
        assert high == pytest.approx(low, rel=1e-4) or np.isinf(high) or len(leak) == 1


def test_a_file_is_the_same_for_the_same_view() -> None:
    game = game_of("dpdl", "ring", n_agents=4, n_rounds=2, noise_multiplier=2.0)
    one, other = (Adversary(game, EAVESDROPPER, 2).linear_view(10**6).file(2, 1) for _ in range(2))
    assert one == other


def test_each_batch_of_a_round_draws_the_record_anew() -> None:
    """Three local steps in each of two rounds are six draws of whether the record is there."""
    options = {"n_rounds": 2, "local_steps": 3, "noise_multiplier": 1.0}
    game = game_of("dp-dfedsam", "ring", n_agents=4, **options)
    uses = Adversary(game, EAVESDROPPER, 2).linear_view(10**6).uses
    assert {inclusion for inclusion, *_ in uses} == {1, 2, 3, 4, 5, 6}
    assert all((inclusion - 1) // 3 + 1 == k for inclusion, k, *_ in uses)
