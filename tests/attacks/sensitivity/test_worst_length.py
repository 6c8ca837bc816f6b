"""Records of all lengths, where a step clips by itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds
from dpaudit.defense import Gradient
from dpaudit.files.finding import WITHIN_BOUND
from dpaudit.selftest.correct import PrivateGossip, length, variant
from tests.some_fast import fast_if

C = 0.5
Factor = Callable[[Tensor], Tensor]  # from the lengths of gradients

RIGHT: dict[str, Factor] = {
    "hard": lambda L: (C / L).clamp(max=1),
    "soft": lambda L: C / (C**2 + L.square()).sqrt(),
    "to one length": lambda L: C / L,
    "long ones left out": lambda L: (L <= C).to(L),
    "those far out left out": lambda L: (C / L).clamp(max=1) * (L < 500),
}
WRONG: dict[str, tuple[Factor, float]] = {  # and how far the worst length moves, over C
    "begins late": (lambda L: torch.where(L > 1.3 * C, C / L, 1.0), 1.2),
    "begins at three": (lambda L: torch.where(L > 3 * C, C / L, 1.0), 2.5),
    "divided by the square": (lambda L: (C / L.square()).clamp(max=1), 1.4),
    "short ones made longer": (lambda L: torch.where(L < 0.1 * C, 20.0, (C / L).clamp(max=1)), 1.6),
    "without the 1": (lambda L: (C / L.square()).clamp(max=100), 10.0),
    "left out far out": (lambda L: torch.where(L > 500 * C, 1.0, (C / L).clamp(max=1)), 1e9),
}


def moved(factor: Factor, setting_of: Any, streams: Any, adjacency: Any = "add-remove") -> float:
    """By the worst record of round 1, over the bound."""

    def summed(d: Any, gradient: Gradient, X: Tensor) -> Tensor:
        each = gradient.per_record(X)
        return (each * factor(length(each).clamp(min=1e-12))).sum(dim=-2)

    problem, setting = setting_of("ring", 4, "logistic")
    coupled = CoupledWorlds(
        variant(PrivateGossip, summed=summed), problem, setting, streams, victim=1
    )
    (row,) = RoundExamination(coupled, 0, 0).record(coupled.start(), 1, adjacency)
    assert row.stated is not None
    assert row.counts == (row.measured > row.stated * WITHIN_BOUND)
    return row.measured / row.stated


@pytest.mark.parametrize("name", fast_if(lambda name: name == "hard", list(RIGHT)))
def test_no_length_moves_a_message_beyond_a_right_clip(name, setting_of, streams) -> None:
    assert moved(RIGHT[name], setting_of, streams) <= 1 + 1e-9


@pytest.mark.parametrize("name", fast_if(lambda name: name == "begins late", list(WRONG)))
def test_the_length_that_a_wrong_clip_forgets_is_tried(name, setting_of, streams) -> None:
    factor, least = WRONG[name]
    assert moved(factor, setting_of, streams) >= least * (1 - 1e-9)


class WholeBatch(PrivateGossip):
    """Needs all records of a batch, of which it clips each by itself."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        each = gradient.per_record(X)
        assert each.shape[-2] >= self.batch_size
        return (each * RIGHT["hard"](length(each).clamp(min=1e-12))).sum(dim=-2)


def test_large_batches_look_for_lengths_with_one_record(setting_of, streams, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.attacks.sensitivity.worst_length.MOST", 0)
    factor, least = WRONG["begins late"]
    assert moved(factor, setting_of, streams) >= least * (1 - 1e-9)
    problem, setting = setting_of("ring", 4, "logistic")
    coupled = CoupledWorlds(WholeBatch(sampling="fixed"), problem, setting, streams, victim=1)
    examination = RoundExamination(coupled, 0, 0)
    (row,) = examination.record(coupled.start(), 1, "add-remove")
    assert not row.counts
    (unclear,) = examination.unclear
    assert unclear.startswith("how far records of other lengths move messages")
    assert "a step raises AssertionError" in unclear


@pytest.mark.slow
def test_two_opposite_records_are_as_far_apart(setting_of, streams) -> None:
    factor, least = WRONG["begins late"]
    assert moved(factor, setting_of, streams, "replace-one") >= least * (1 - 1e-9)
    assert moved(RIGHT["to one length"], setting_of, streams, "replace-one") == pytest.approx(1)


def test_a_step_that_leaves_clipping_to_its_oracle_is_trusted(setting_of, streams) -> None:
    problem, setting = setting_of("ring", 4, "logistic")
    coupled = CoupledWorlds(PrivateGossip(), problem, setting, streams, victim=1)
    (row,) = RoundExamination(coupled, 0, 0).record(coupled.start(), 1, "add-remove")
    assert "stretched" not in row.moved


class ByTheSum(PrivateGossip):
    """Clips to four times the norm where the sum of the longer gradients is long, as is wrong."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        short, long = (gradient.clipped_sum(X, c * self.clip_norm) for c in (1, 4))
        return torch.where(length(long) > 3 * self.clip_norm, long, short)


class OfTwoNorms(PrivateGossip):
    """Half the sum at one norm and an eighth of it at four times the norm: C at most of a record."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        short, long = (gradient.clipped_sum(X, c * self.clip_norm) for c in (1, 4))
        return short / 2 + long / 8


@pytest.mark.parametrize(("defense", "wrong"), [(ByTheSum, True), (OfTwoNorms, False)])
def test_a_choice_between_two_clip_norms_is_a_clip(defense, wrong, setting_of, streams) -> None:
    problem, setting = setting_of("ring", 4, "logistic")
    coupled = CoupledWorlds(defense(), problem, setting, streams, victim=1)
    (row,) = RoundExamination(coupled, 0, 0).record(coupled.start(), 1, "add-remove")
    assert "stretched" in row.moved
    assert row.counts == wrong
