"""Noise for each record, the order of records, and noise that a record changes.

A correct defense fails a test here with probability 1e-6 for each message, over fresh seeds.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.sensitivity.side_channels import MAY_SPREAD, OTHER_DRAWS
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds
from dpaudit.defense import Gradient, Noise
from dpaudit.selftest.correct import PrivateGossip, length
from tests.some_fast import fast_if

VICTIM = 1
ORDER = '"x" depends on the order of the records in a batch'


class Weighted(PrivateGossip):
    """Clipped gradients of records, each times a weight, under noise."""

    sampling: str = "fixed"
    batch_size: int = 5
    noise_multiplier: float = 0.5

    def averaged(self, S: Tensor, X: Tensor, k: int, gradient: Gradient, noise: Noise) -> Tensor:
        each = gradient.per_record(X)
        each = each * (self.clip_norm / length(each).clamp(min=1e-12)).clamp(max=1)
        S = (each * self.weights(each, noise)).sum(dim=-2)
        return super().averaged(S, X, k, gradient, noise)

    def weights(self, each: Tensor, noise: Noise) -> Tensor:
        raise NotImplementedError


class Coins(Weighted):
    """Each record is left out by a coin."""

    def weights(self, each: Tensor, noise: Noise) -> Tensor:
        return (noise.gaussian("keep", 1.0, each[..., :1]) > 0).to(each)


class CoinsOneByOne(Weighted):
    """The same, with a stream for each place in the batch."""

    def weights(self, each: Tensor, noise: Noise) -> Tensor:
        places = [noise.gaussian(f"keep {i}", 1.0, each[..., i, :1]) for i in range(each.shape[-2])]
        return (torch.stack(places, -2) > 0).to(each)


class CoinsOfThePresent(Weighted):
    """The same, drawn for records that are there."""

    def weights(self, each: Tensor, noise: Noise) -> Tensor:
        here = (each != 0).any(-1)
        coins = torch.zeros_like(here, dtype=each.dtype)
        coins[here] = (noise.gaussian("keep", 1.0, each[here][:, 0]) > 0).to(each)
        return coins[..., None]


class FirstThrice(Coins):
    """No coin leaves out the first record, which counts thrice, under little noise."""

    noise_multiplier: float = 0.05

    def weights(self, each: Tensor, noise: Noise) -> Tensor:
        kept = super().weights(each, noise).clone()
        kept[..., 0, :] = 3.0
        return kept


class FirstTwice(Weighted):
    def weights(self, each: Tensor, noise: Noise) -> Tensor:
        return 1.0 + (torch.arange(each.shape[-2]) == 0).to(each)[:, None]


class LouderByTheFirst(Weighted):
    """Noise is louder, the longer the first record's gradient is."""

    def averaged(self, S: Tensor, X: Tensor, k: int, gradient: Gradient, noise: Noise) -> Tensor:
        first = gradient.per_record(X)[..., 0, :]
        S = gradient.clipped_sum(X, self.clip_norm)
        Z = self.noise(S, k, noise) * (1 + length(first) ** 4)
        return (S + Z) / self.batch_size


class NoiseOfThePresent(Weighted):
    """Each record that is there brings a share of noise."""

    def averaged(self, S: Tensor, X: Tensor, k: int, gradient: Gradient, noise: Noise) -> Tensor:
        n = int((gradient.per_record(X) != 0).any(-1)[..., VICTIM, :].sum())
        shares = (noise.gaussian(f"share {i}", self._scale, S) for i in range(n))
        return sum(shares, gradient.clipped_sum(X, self.clip_norm)) / self.batch_size


def examined(
    defense: PrivateGossip, setting_of: Any, streams: Any
) -> tuple[RoundExamination, list]:
    """What is found in round 1, and the messages that are held to move too far."""
    problem, setting = setting_of("ring", 4, "logistic")
    examination = RoundExamination(
        CoupledWorlds(defense, problem, setting, streams, victim=VICTIM), 0, 0
    )
    rows = list(examination.record(examination.coupled.start(), 1, "add-remove"))
    return examination, [row for row in rows if row.counts]


def test_coins_for_each_record_are_no_dependence(setting_of, streams) -> None:
    examination, exceeding = examined(Coins(), setting_of, streams)
    assert (list(examination.found), list(examination.unclear), exceeding) == ([], [], [])


BY_LAW = [FirstThrice, LouderByTheFirst]


@pytest.mark.parametrize("fault", fast_if(lambda f: f not in BY_LAW, [FirstTwice, *BY_LAW]))
def test_a_message_that_depends_on_the_order_is_found(fault, setting_of, streams) -> None:
    assert ORDER in examined(fault(), setting_of, streams)[0].found


@pytest.mark.slow
def test_coins_that_no_order_makes_the_same_are_not_accused(setting_of, streams) -> None:
    examination, exceeding = examined(CoinsOneByOne(), setting_of, streams)
    assert (list(examination.found), exceeding) == ([], [])
    (unclear,) = examination.unclear
    assert unclear.startswith(f"whether {ORDER}, which changes it by another amount under each")


@pytest.mark.slow
def test_noise_that_a_record_changes_is_found_elsewhere(setting_of, streams) -> None:
    assert OTHER_DRAWS in examined(NoiseOfThePresent(), setting_of, streams)[0].found


@pytest.mark.slow
def test_coins_for_the_records_there_are_not_accused(setting_of, streams) -> None:
    examination, exceeding = examined(CoinsOfThePresent(), setting_of, streams)
    assert (list(examination.found), exceeding) == ([], [])
    assert MAY_SPREAD in examination.unclear
