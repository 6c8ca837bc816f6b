"""Steps that choose by a sum that no noise hides, or take a gradient where a record has moved."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.unseen_inputs import (
    FAILS,
    FEW,
    MOVED,
    NUMBER,
    _Fickle,
    _numbers,
    few_with_gradients,
)
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds
from dpaudit.defense import Adjacency, Gradient, Graph, Noise, Round, clip
from dpaudit.selftest.catalogue import CORRECT
from dpaudit.selftest.correct import PrivateGossip, Remembering, length

SHORT = 0.05  # of the clip norm of every record of a batch


def is_long(defense: PrivateGossip, S: Tensor) -> Tensor:
    return (length(S) > SHORT * defense.clip_norm * defense.batch_size).to(S)


class StopsWhenShort(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) * is_long(self, S)


class StopsWhenLong(PrivateGossip):
    """As a guard against gradients that explode does it."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        most = 0.8 * self.clip_norm * self.batch_size
        return super().noised(S, k, noise) * (length(S) < most).to(S)


class StepTakenBack(PrivateGossip):
    """A step that does not descend along the sum without noise is not taken."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return T * ((T * S).sum(dim=-1, keepdim=True) > 0).to(T)


class NoNoiseWhenShort(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return S + self.noise(S, k, noise) * is_long(self, S)


class ClippedToTheMedian(PrivateGossip):
    """Or to C, whatever is less: it is C in usual batches."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        each = gradient.per_record(X)
        C = length(each).median(dim=-2, keepdim=True).values.clamp(max=self.clip_norm)
        return (each * (C / length(each).clamp(min=1e-12)).clamp(max=1)).sum(dim=-2)


class OutliersLeftOut(PrivateGossip):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        each = gradient.per_record(X)
        usual = length(each).median(dim=-2, keepdim=True).values
        return clip(each * (length(each) <= 5 * usual), self.clip_norm).sum(dim=-2)


class FarOnesLeftOut(PrivateGossip):
    """Records far out count as none."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        each = gradient.per_record(X)
        kept = (length(each) < 1000).to(X)
        return (clip(each, self.clip_norm) * kept).sum(dim=-2) * self.factor(kept)

    def factor(self, kept: Tensor) -> Any:
        return 1.0


class FarOnesMadeUpFor(FarOnesLeftOut):
    """The sum is scaled to a whole batch again."""

    def factor(self, kept: Tensor) -> Any:
        return kept.shape[-2] / kept.sum(dim=-2).clamp(min=1)


class PairsClipped(PrivateGossip):
    """The mean gradient of two records is clipped to C: one may turn it around, by 2C."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        each = gradient.per_record(X)
        each = torch.cat([each, torch.zeros_like(each[..., :1, :])], -2)
        pairs = each[..., : each.shape[-2] // 2 * 2, :].unflatten(-2, (-1, 2)).mean(-2)
        return clip(pairs, self.most).sum(dim=-2)

    @property
    def most(self) -> float:
        return self.clip_norm


class PairsClippedToHalf(PairsClipped):
    @property
    def most(self) -> float:
        return self.clip_norm / 2


class FlagForTheNextRound(Remembering):
    """No step is taken after a round with a short sum."""

    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        return self.noised(S, k, noise) * (1 - state.M), (1 - is_long(self, S)) + 0 * state.M


class AheadOfTheStep(PrivateGossip):
    """The gradient is taken after a first step, along the same batch, without noise."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        ahead = state.V - self.learning_rate * S / self.batch_size
        G = self.noised(self.summed(gradient, ahead), k, noise) / self.batch_size
        return self.after(S, state.V - self.learning_rate * G, graph)


class OnceMoreForSome(PrivateGossip):
    """A second gradient is taken where the first has a positive sum."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        S = super().summed(gradient, X)
        return super().summed(gradient, X) if bool((S.sum(dim=-1) > 0)[..., 1].any()) else S


class FailsWithoutGradients(PrivateGossip):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        S = super().summed(gradient, X)
        if not bool(length(S).all()):
            raise ZeroDivisionError("no direction")
        return S


class AheadOfTheNoisyStep(PrivateGossip):
    """The first step has noise of its own, as two local steps have it."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        first = S + noise.gaussian("first", self._scale, S)
        ahead = state.V - self.learning_rate * first / self.batch_size
        G = self.noised(self.summed(gradient, ahead), k, noise) / self.batch_size
        return self.after(S, state.V - self.learning_rate * G, graph)


class UpdateClipped(PrivateGossip):
    """Two steps without noise, whose update is clipped as a whole: it moves by two clip norms."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X = state.V
        for _ in range(2):
            X = X - gradient(X)
        S = clip(state.V - X, self.clip_norm / 2)
        G = self.noised(S, k, noise) / self.batch_size
        return self.after(S, state.V - self.learning_rate * G, graph)


class FasterAlongTheLast(Remembering):
    """Steps are twice as long where the noisy sum points as the one before it."""

    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        T = self.noised(S, k, noise)
        return T * (1 + ((T * state.M).sum(dim=-1, keepdim=True) > 0).to(T)), T


Found = tuple[RoundExamination, list[Row]]


@pytest.fixture
def found(setting_of: Any, streams: Any) -> Callable[..., Found]:
    def of(defense: Any, adjacency: Adjacency = "add-remove") -> Found:
        problem, setting = setting_of("ring", 4, "logistic")
        examination, rows = few_with_gradients(
            CoupledWorlds(defense, problem, setting, streams, 1), adjacency
        )
        assert examination is not None
        return examination, rows

    return of


BY_SUM = (StopsWhenShort, StopsWhenLong, StepTakenBack, NoNoiseWhenShort)
BY_MEDIAN = (ClippedToTheMedian, OutliersLeftOut)


@pytest.mark.parametrize(
    ("defense", "adjacency"),
    [
        *((one, "add-remove") for one in BY_SUM + BY_MEDIAN),
        (StopsWhenShort, "replace-one"),
        (NoNoiseWhenShort, "replace-one"),
        pytest.param(StopsWhenLong, "replace-one", marks=pytest.mark.slow),
        pytest.param(StepTakenBack, "replace-one", marks=pytest.mark.slow),
    ],
)
def test_a_choice_by_a_sum_moves_messages_too_far(found, defense, adjacency) -> None:
    examination, rows = found(defense(n_rounds=1, sampling="fixed"), adjacency)
    assert any(row.counts for row in rows) or examination.found


def test_records_left_out_far_out_do_not_make_others_count_more(found) -> None:
    """Of n + 1 places with one record and a far one, the others far: (n + 1) / 2 clip norms."""
    examination, rows = found(FarOnesLeftOut(n_rounds=1, sampling="fixed"))
    assert not any(row.counts for row in rows)
    assert not examination.unclear
    _, rows = found(FarOnesMadeUpFor(n_rounds=1, sampling="fixed"))
    assert max(row.measured / row.stated for row in rows) == pytest.approx(5 / 2)


def test_one_record_turns_the_mean_of_two_around(found) -> None:
    """Whichever of them it is, of four or three records."""
    for n in (3, 4):
        _, rows = found(PairsClipped(n_rounds=1, sampling="fixed", batch_size=n))
        assert max(row.measured / row.stated for row in rows) == pytest.approx(2)
        examination, rows = found(PairsClippedToHalf(n_rounds=1, sampling="fixed", batch_size=n))
        assert not any(row.counts for row in rows)
        assert not examination.unclear


def test_a_choice_for_the_next_round_is_not_hidden(found) -> None:
    examination, _ = found(FlagForTheNextRound(sampling="fixed"))
    assert FEW.format(0, 4) in examination.unclear


def test_a_gradient_where_a_record_has_moved_is_unclear(found) -> None:
    examination, rows = found(AheadOfTheStep(n_rounds=1, sampling="fixed"))
    assert list(examination.unclear) == [MOVED]
    assert not any(row.counts for row in rows)


def test_a_step_that_fails_without_gradients_is_unclear(found) -> None:
    examination, _ = found(FailsWithoutGradients(n_rounds=1, sampling="fixed"))
    assert list(examination.unclear) == [FAILS.format("ZeroDivisionError")]


def test_a_number_of_gradients_by_the_record_is_unclear(found) -> None:
    """In round 1 the record turns the sign of the sum; the seed is fixed."""
    examination, _ = found(OnceMoreForSome(n_rounds=1, sampling="fixed"))
    assert NUMBER in examination.unclear


@pytest.mark.parametrize("defense", [AheadOfTheNoisyStep, UpdateClipped, FasterAlongTheLast])
def test_noise_or_a_clip_afterwards_hides_it(found, defense) -> None:
    """Two releases of half the noise are declared for the first."""
    examination, rows = found(defense(sampling="fixed"))
    assert not any(row.counts for row in rows), rows
    assert MOVED not in examination.unclear
    assert not examination.found


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        ("private gossip", "replace-one"),
        ("private gossip, Laplace", "add-remove"),
        ("steps as in Adam", "add-remove"),
        pytest.param("private gossip", "add-remove", marks=pytest.mark.slow),
        pytest.param("private gossip, Laplace", "replace-one", marks=pytest.mark.slow),
        pytest.param("steps as in Adam", "replace-one", marks=pytest.mark.slow),
    ],
)
def test_a_right_step_is_the_same_in_short_batches(found, name, adjacency) -> None:
    [mechanism] = [one for one in CORRECT if one.name == name]
    examination, rows = found(mechanism.defense, adjacency)
    assert not any(row.counts for row in rows)
    assert not examination.found
    assert not examination.unclear


def test_a_wave_is_one_at_the_first_model_and_turns_round() -> None:
    class Ones(Gradient):
        batch_size = 1

        def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
            return torch.ones_like(X)

        def clipped_sum(self, X, clip_norm, holders=None, norm=2) -> Tensor:
            return torch.ones_like(X)

    first, along = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.5])
    oracle = _Fickle(Ones(), 1, first, torch.pi * along / (along @ along))
    X = torch.stack([first + along, first, first])
    assert torch.equal(oracle(X), torch.ones(3, 2))
    assert torch.allclose(oracle(X + along)[1], -torch.ones(2))
    assert torch.allclose(oracle(X[:1], torch.tensor([1]))[0], -torch.ones(2))
    assert torch.equal(oracle(X[:1], torch.tensor([2]))[0], torch.ones(2))


def test_of_a_large_batch_few_and_half_are_tried() -> None:
    assert _numbers(3) == [0, 1, 2]
    assert _numbers(100) == [0, 1, 2, 3, 4, 5, 6, 48, 49, 50, 51, 52, 99]
