"""Neighbouring runs that are the same once noise is moved, and how far it has to be."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity.alignment import alignment, over_declared
from dpaudit.attacks.sensitivity.side_effects import watched
from dpaudit.attacks.sensitivity.worlds import PlayedWorld
from dpaudit.defense import Noise
from dpaudit.selftest.catalogue import CORRECT, FAULTS
from dpaudit.selftest.correct import PrivateGossip

from .test_replay import VICTIM, Processed, worlds  # noqa: F401

Z = 2.0  # noise multiplier


def aligned(pair: tuple[PlayedWorld, PlayedWorld], lag: int = 0) -> Any:
    here, there = (replace(world, lag=lag) for world in pair)
    return alignment(here, there, is_first=True)


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_a_clipped_record_moves_its_noise_by_one_over_z(worlds: Any, family: Any) -> None:  # noqa: F811
    pair = worlds(PrivateGossip(family=family, noise_multiplier=Z))
    assert aligned(pair) == {(VICTIM, family): pytest.approx(1 / Z)}
    moved = {k: {(VICTIM, family): 1 / Z} for k in range(1, 5)}
    assert over_declared(pair[0].coupled, moved, "add-remove") == pytest.approx(1.0)
    assert over_declared(pair[0].coupled, moved, "replace-one") == pytest.approx(0.5)
    moved[3] = {(VICTIM, family): 3 / Z}
    assert over_declared(pair[0].coupled, moved, "add-remove") == pytest.approx(3.0)


class Halved(Processed):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / 2


class SumsSent(Processed):
    """Two draws hide the same sum."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        again = S + noise.gaussian("again", self._scale, S)
        return super().noised(S, k, noise) + 0 * again + again.relu()


def test_half_of_the_noise_moves_twice_as_far(worlds: Any) -> None:  # noqa: F811
    assert aligned(worlds(Halved(noise_multiplier=Z))) == {(VICTIM, "gaussian"): pytest.approx(1)}


def test_two_draws_of_one_sum_add_in_squares(worlds: Any) -> None:  # noqa: F811
    found = aligned(worlds(SumsSent(noise_multiplier=Z)))
    assert found == {(VICTIM, "gaussian"): pytest.approx(2**0.5 / Z)}


class OwnSize(Processed):
    """What is added depends on the very noise that hides it."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        z = noise.gaussian("gradient", self._scale, S)
        return S * (1 + 0 * z.as_subclass(Tensor)).sign() * z.as_subclass(Tensor).abs().mean() + z


def test_a_move_that_depends_on_its_own_draw_is_none(worlds: Any) -> None:  # noqa: F811
    assert isinstance(aligned(worlds(OwnSize(noise_multiplier=Z))), str)


def mechanism(name: str) -> Any:
    return next(m.defense for m in (*CORRECT, *FAULTS) if m.name == name)


@pytest.mark.parametrize(
    "name, lag",
    [
        ("the largest noisy numbers", 0),
        ("rounded at random", 0),
        ("steps as in Adam", 0),
        ("a median of noisy numbers", 0),
        ("an offset of all coordinates", 0),
        ("sum and noise on one grid", 0),
        ("sent in every third round", 2),
    ],
)
def test_post_processing_of_noisy_sums_is_aligned(worlds: Any, name: str, lag: int) -> None:  # noqa: F811
    assert isinstance(aligned(worlds(mechanism(name)), lag), dict)


@pytest.mark.parametrize(
    "name",
    [
        "uniform noise",
        "noise of 256 numbers",
        "noise clamped",
        "the shortest of three draws",
        "noise handed on to neighbours",
        "a random direction bare",
        "the remainder added back",
        "the number of clipped records",
        "own model kept without noise",
    ],
)
def test_no_move_of_noise_explains_a_fault(worlds: Any, name: str) -> None:  # noqa: F811
    assert isinstance(aligned(worlds(mechanism(name))), str)


class RestTakenOff(Processed):
    """The sum less its small part: of the noisy sum this is post-processing, of another one not."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return T - self.of(S, T).clamp(-self._scale, self._scale)

    def of(self, S: Tensor, T: Tensor) -> Tensor:
        return T


class CleanRestTakenOff(RestTakenOff):
    def of(self, S: Tensor, T: Tensor) -> Tensor:
        return S


def test_a_noisy_sum_less_what_is_made_of_it_is_aligned(worlds: Any) -> None:  # noqa: F811
    found = aligned(worlds(RestTakenOff(noise_multiplier=Z)))
    assert found == {(VICTIM, "gaussian"): pytest.approx(1 / Z)}
    clean = aligned(worlds(CleanRestTakenOff(noise_multiplier=Z)))
    assert clean != found


def test_what_a_step_does_beside_its_messages_is_noted(tmp_path: Any, capsys: Any) -> None:
    with watched() as beside:
        print("printed")
        warnings.warn("warned", stacklevel=1)
        (tmp_path / "log").write_text("written")
    texts = beside.texts()
    assert {"printed\n", "warned"} <= set(texts)
    assert any(text.endswith("log: b'written'") for text in texts)
    with watched() as quiet:
        torch.zeros(3).sum()
    assert quiet.texts() == ()
    assert capsys.readouterr().out == ""
