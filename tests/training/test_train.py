"""What training refuses, and how it plays a round."""

from contextlib import nullcontext
from math import inf, nan

import pytest
import torch

from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.partpsp import PartPSP
from dpaudit.errors import RunError
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import NOTHING_RECORDED, _refuse_unless_finite, play_round, train

LARGE = 3e38  # two of them overflow float32


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([0.0, -1.0], True),
        ([LARGE, LARGE, 1.0], True),
        ([LARGE, -LARGE, nan], False),
        ([1.0, inf], False),
        ([inf, -inf], False),
        ([LARGE, LARGE, -inf], False),
    ],
)
def test_numbers_that_overflow_only_in_their_sum_are_finite(
    values: list[float], finite: bool
) -> None:
    with nullcontext() if finite else pytest.raises(RunError, match="infinite or no number"):
        _refuse_unless_finite("defense", 1, {}, torch.tensor(values))


@pytest.mark.parametrize("network", ["mlp", "lenet"])
def test_rounds_record_nothing_for_autograd(setting_of, network: str) -> None:
    problem, setting = setting_of("ring", 3, network)
    defense, streams = PartPSP(batch_size=5), Streams(3)
    start = defense.start(problem.initial(streams).double(), setting)
    played = play_round(defense, problem, setting, streams, start, 1, 5, "fixed")
    oracle, noise = problem.gradient(streams, 1, 5), Noise(streams, 1)
    plain = defense.step(start, 1, setting.network.at(1), oracle, noise)
    assert played.state.S.is_inference() == (network == "mlp")
    for name in ("S", "a", "sens", "noise"):
        assert torch.equal(getattr(played.state, name), getattr(plain.state, name))
    assert torch.equal(played.private["gradient"], plain.private["gradient"])


@pytest.mark.parametrize(("world", "also"), [("defense", False), ("no-defense", True)])
def test_a_twin_that_divides_by_0_without_noise_says_so(world: str, also: bool) -> None:
    with pytest.raises(RunError, match=f"training, {world}: round 3 has a model") as raised:
        _refuse_unless_finite(world, 3, {}, torch.tensor([1.0, nan]))
    assert ("norm.clamp" in raised.value.problems[0].help) is also


@pytest.mark.parametrize(
    ("n_rounds", "points", "expected"),
    [(5, 20, [1, 2, 3, 4, 5]), (7, 3, [3, 6, 7]), (8, 1, [8]), (6, 3, [2, 4, 6])],
)
def test_a_curve_has_so_many_points_at_most(
    setting_of, tmp_path, monkeypatch, n_rounds: int, points: int, expected: list[int]
) -> None:
    problem, setting = setting_of("ring", 3)
    start = problem.initial(Streams(3)).double()
    monkeypatch.setattr(problem, "initial", lambda streams: start)
    defense = DPDPSGD(n_rounds=n_rounds, batch_size=5, noise_multiplier=1.0).calibrate(setting)
    with RunDirectory(tmp_path).held() as run:
        given = defense, problem, setting, Streams(3), NOTHING_RECORDED, run
        curve = train(*given, "defense", lambda k, n: None, points)
    assert list(curve.rounds) == expected
