"""Which draws of a defense come on top of noise that hides what is declared."""

from copy import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Release
from dpaudit.defense import Noise
from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.runs.noise_law import _losses, hiding_without, silenced
from dpaudit.game.step_inputs import ChosenNoise, RecordedNoise
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip
from tests.pipeline.correct_noise import LaplaceBeside, OffsetForTheRun, OffsetsOfAll, RandomSigns
from tests.pipeline.faulty_noise import HalfAndOffset, MostlyCommon, ScaledByOffset

EAVESDROPPER = ThreatModel(name="eavesdropper")
CURIOUS = ThreatModel(name="agent 0", kind="curious", agents=(0,))


def left_out(defense: Defense, who: ThreatModel = EAVESDROPPER, records: int = 40) -> list[set]:
    setting = Setting(build_graph("ring", 4), (records,) * 4, 6)
    found = hiding_without(defense.calibrate(setting), setting, [who], defense.n_rounds)
    return [set(fewer.names) for fewer in found]


@pytest.mark.parametrize("who", [EAVESDROPPER, CURIOUS], ids=lambda who: who.name)
@pytest.mark.parametrize(
    ("how", "records"),  # all are in every batch, or a tenth
    [
        ("fixed", 4),
        ("poisson", 40),
        pytest.param("fixed", 40, marks=pytest.mark.slow),
        pytest.param("poisson", 4, marks=pytest.mark.slow),
    ],
)
def test_an_offset_is_further_noise(how: Any, records: int, who: ThreatModel) -> None:
    assert {"once"} in left_out(OffsetForTheRun(sampling=how), who, records)
    assert {"once"} in left_out(OffsetForTheRun(sampling=how, family="laplace"), who, records)


@pytest.mark.slow
def test_several_offsets_are_further_noise_together() -> None:
    assert {"number", "once"} in left_out(OffsetsOfAll())
    assert {"number", "once", "vector"} in left_out(OffsetsOfAll())


def test_laplace_noise_beside_gaussian_is_further_noise() -> None:
    assert left_out(LaplaceBeside()) == [{"once"}]


@pytest.mark.parametrize("records", [4, 40])
@pytest.mark.parametrize("how", ["fixed", "poisson"])
def test_noise_that_is_needed_is_not_left_out(how: Any, records: int) -> None:
    assert left_out(MostlyCommon(sampling=how), records=records) == []
    assert left_out(HalfAndOffset(kept=0.99, sampling=how), records=records) == [{"gradient"}]


def test_an_only_draw_is_not_left_out() -> None:
    assert left_out(PrivateGossip()) == []


class OfTwoKinds(PrivateGossip):
    """Half of the declared variance is of another name."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        parts = [noise.gaussian(name, self._scale / 2**0.5, like) for name in "ab"]
        return parts[0] + parts[1]


class LessLater(OffsetForTheRun):
    """From round 3 on the fresh noise is less than declared."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        further = noise.gaussian("further", self._scale, like)
        return PrivateGossip.noise(self, like, k, noise) * (1.0 if k < 3 else 0.9) + further


@pytest.mark.parametrize("records", [4, 40])
def test_every_round_is_held_against_what_is_declared(records: int) -> None:
    assert left_out(OfTwoKinds(), records=records) == []
    assert left_out(LessLater(n_rounds=2), records=records) == [{"further"}, {"gradient"}]
    assert left_out(LessLater(n_rounds=4), records=records) == [{"gradient"}]


def test_steps_that_are_not_affine_keep_all_their_draws() -> None:
    assert left_out(ScaledByOffset()) == []
    assert left_out(RandomSigns()) == []


class OwnOffset(OffsetForTheRun):
    """A generator of its own is the source of further noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) + torch.randn_like(like)


def test_steps_with_own_randomness_keep_all_their_draws() -> None:
    assert left_out(OwnOffset()) == []


def test_silenced_noise_is_the_noise_but_for_some_names() -> None:
    like = torch.zeros(3, 2)
    noise = RecordedNoise(Streams(5), 2)
    other = silenced(noise, frozenset({"a"}))
    assert not other.gaussian("a", 1.0, like).any()
    assert not other.laplace("a", 1.0, like).any()
    assert torch.equal(other.gaussian("b", 1.0, like), Noise(Streams(5), 2).gaussian("b", 1, like))
    assert noise.units.keys() == {"b"}
    first = copy(other)
    first._round = 1
    assert torch.equal(first.gaussian("b", 1.0, like), Noise(Streams(5), 1).gaussian("b", 1, like))
    tape = ChosenNoise()
    silenced(tape, frozenset({"a"})).shared("b", 1.0, like, torch.zeros(3, 0))
    assert tape.draws.keys() == tape.known_to.keys() == {"b"}


@pytest.mark.parametrize(
    ("followed", "names"), [(1, [{"further"}, {"gradient"}]), (4, [{"gradient"}])]
)
def test_a_part_of_the_rounds_is_held_against_its_share(followed: int, names: list) -> None:
    """One of 4 rounds has half of their mu; from round 3 on there is 0.9 of the noise."""
    defense = LessLater(n_rounds=4)
    setting = Setting(build_graph("ring", 4), (4,) * 4, 6)
    found = hiding_without(defense.calibrate(setting), setting, [EAVESDROPPER], followed)
    assert [set(fewer.names) for fewer in found] == names


def test_a_record_moves_a_clipped_whole_by_half_of_a_change() -> None:
    whole = Release(
        family="gaussian", noise_multiplier=2.0, sampling="none", sampling_rate=1.0, count=2
    ).model_copy(update={"clipped": "whole"})
    record = whole.model_copy(update={"clipped": "record", "noise_multiplier": 5.0, "count": 1})
    assert _losses((record, whole)) == [0.25, 0.25, 0.2]
