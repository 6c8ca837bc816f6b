"""Figures that decide a verdict on sensitivity, worked out by hand."""

from dataclasses import replace
from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpaudit.accounting.releases import Release
from dpaudit.attacks.sensitivity.attack import _ratio
from dpaudit.attacks.sensitivity.declared import _bound, _is_no_less, batches_of, declared_bounds
from dpaudit.attacks.sensitivity.examination import lesser
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.noise_log import RequestedDraw
from dpaudit.attacks.sensitivity.noise_reach import Reach
from dpaudit.attacks.sensitivity.replay import _moved
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds, PlayedWorld, rounding
from dpaudit.defense.contract import Stated
from dpaudit.files.finding import Name

from .test_declared import ETA, B, C, Loose, Plain, found  # noqa: F401

GAUSSIAN = Release(family="gaussian", noise_multiplier=1.0, count=2)
LAPLACE = Release(family="laplace", noise_multiplier=0.5, count=2)


def reach(scales: list[list[float]], family: str = "gaussian") -> Reach:
    return Reach(torch.tensor(scales, dtype=torch.float64), (family,) * len(scales[0]))


def test_gaussian_releases_of_one_batch_add_up_in_squares() -> None:
    """Noise 5 of two draws; each release says that a record moves it by its noise."""
    bound = _bound(reach([[3.0, 4.0]]), [GAUSSIAN], 1, 1)
    assert bound == Stated(2, pytest.approx(5 * sqrt(2)))
    assert _bound(reach([[3.0, 4.0]]), [GAUSSIAN], 2, 1) == Stated(2, pytest.approx(5.0))
    assert _bound(reach([[3.0, 4.0]]), [GAUSSIAN], 2, 2) == Stated(2, pytest.approx(10.0))


def test_laplace_releases_of_one_batch_add_up() -> None:
    assert _bound(reach([[3.0]], "laplace"), [LAPLACE], 1, 1) == Stated(1, pytest.approx(12.0))


def test_nothing_is_bounded_by_noise_that_is_not_as_declared() -> None:
    assert _bound(reach([[3.0, 4.0]], "laplace"), [LAPLACE], 1, 1) is None  # no Laplace sum
    assert _bound(reach([[3.0]]), [LAPLACE], 1, 1) is None
    assert _bound(reach([[3.0], [4.0]]), [GAUSSIAN], 1, 1) is None  # rows unlike each other
    none = GAUSSIAN.model_copy(update={"noise_multiplier": 0.0})
    assert _bound(reach([[3.0]]), [none], 1, 1) is None


def test_a_later_message_needs_as_much_noise_as_the_first() -> None:
    first = reach([[3.0, 4.0]])
    assert _is_no_less(first, first)
    assert _is_no_less(reach([[3.0, 5.0]]), first)
    assert not _is_no_less(reach([[3.0, 3.9]]), first)
    assert not _is_no_less(reach([[3.0, 4.0]], "laplace"), first)


class OfUsers(Plain):
    protects = "user"


class OfFunctions(Plain):
    def function_distance(self) -> float:
        return 1.0


@pytest.fixture
def worlds(setting_of, streams):
    def make(defense: Any, k: int = 1) -> PlayedWorld:
        problem, setting = setting_of("ring", 4, "logistic")
        coupled = CoupledWorlds(defense.calibrate(setting), problem, setting, streams, 1)
        return PlayedWorld(coupled, coupled.start(), k, coupled.batches(k))

    return make


@pytest.mark.parametrize("adjacency, records", [("add-remove", 1), ("replace-one", 2)])
def test_a_declared_bound_is_that_of_the_records_that_change(worlds, adjacency, records) -> None:
    world = worlds(Plain())
    bound = declared_bounds(world, world, adjacency, {}).bounds["x"]
    assert bound.value == pytest.approx(records * ETA * C / B, rel=1e-6)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_user_moves_its_release_twice_as_far_as_one_record(worlds, adjacency) -> None:
    """An update in a ball of C may turn around, whichever of the user's records change."""
    world = worlds(OfUsers())
    bound = declared_bounds(world, world, adjacency, {}).bounds["x"]
    assert bound.value == pytest.approx(2 * ETA * C / B, rel=1e-6)


def test_releases_of_functions_bound_no_change_of_records(worlds) -> None:
    world = worlds(OfFunctions())
    assert declared_bounds(world, world, "add-remove", {}).bounds == {}


def test_a_later_round_is_bounded_only_beside_the_first(worlds) -> None:
    world = worlds(Plain(), k=2)
    assert declared_bounds(world, world, "add-remove", {}).bounds == {}


@pytest.mark.parametrize(
    "cyclic, batches, expected", [(False, 1, 6), (False, 3, 18), (True, 1, 2), (True, 2, 4)]
)
def test_batches_that_may_hold_a_record(worlds, cyclic, batches, expected) -> None:
    """Six rounds; of 22 records in batches of 6 each is in every third batch in turn."""
    coupled = worlds(Plain(n_rounds=6, batch_size=6)).coupled
    declared = SimpleNamespace(n_rounds=6, batch_size=6, batches_per_round=batches, cyclic=cyclic)
    assert coupled.setting.sizes[1] // 6 == 3
    assert batches_of(replace(coupled, defense=declared), coupled.victim) == expected


@pytest.mark.parametrize(
    "family, adjacency, expected",
    [
        ("gaussian", "add-remove", 5 * 2.0),
        ("gaussian", "replace-one", 5 * 1.0),
        ("laplace", "add-remove", 7 * 2.0),
    ],
)
def test_noise_is_moved_in_units_of_what_is_declared(family, adjacency, expected) -> None:
    """By (3, 4) standard deviations or scales, at twice the noise of one record's move."""
    releases = [Release(family=family, noise_multiplier=z) for z in (2.0, 9.0)]
    coupled: Any = SimpleNamespace(declared=lambda agent: releases, victim=1)
    key, move = (1, "x"), torch.tensor([3.0, 4.0])
    draws = {key: RequestedDraw("x", family, move.shape, 0.5, True)}
    watched: Any = SimpleNamespace(draws=draws)
    other = {key: 0.5 * move, (2, "x"): 0 * move}
    watched.draws[2, "x"] = draws[key]
    assert _moved(coupled, other, watched, adjacency) == pytest.approx(expected)


def test_a_row_speaks_against_its_bound_beyond_rounding_alone() -> None:
    row = Row("x", 1, 2, {"natural": 1.0, "optimised": 2.0}, 1.6, 0.5)
    assert row.measured == 2.0
    assert not row.counts
    assert row._replace(tolerance=0.3).counts
    assert not row._replace(tolerance=0.3, processed=True).counts
    assert row._replace(noiseless=True).counts
    assert row._replace(stated=inf, moved={"natural": inf}).exceeds
    assert not row._replace(stated=None).exceeds


def test_the_lesser_of_two_bounds_in_one_norm_counts() -> None:
    stated, declared = Stated(2, 1.0), Stated(2, 0.5)
    assert lesser(stated, declared) == (declared, 1.0)
    assert lesser(stated, Stated(1, 0.5)) == (stated, None)
    assert lesser(None, declared) == (declared, None)


def test_rounding_is_that_of_the_message_and_of_its_records() -> None:
    expected = 2.0**-53 * (16 * 2 + 9 * 4 * 3)
    assert rounding(2.0, 3.0, 4, 5) == pytest.approx(expected, rel=1e-9, abs=0)


def test_a_fixed_message_that_moves_is_infinitely_beyond() -> None:
    row = Row("x", 1, 2, {"natural": 1.0}, 0.0, 0.0)
    assert _ratio(row) == inf
    assert _ratio(row._replace(moved={"natural": 0.0})) == 0.0
    assert _ratio(row._replace(stated=None)) == 1.0


def test_noise_as_much_as_is_sent_leaves_none_for_later(worlds) -> None:
    """One draw a round, and one message: nothing is left that could hide a later one."""
    assert not worlds(Plain()).coupled.keeps_noise(before=3)


def test_noise_of_half_a_stated_bound_is_half_of_what_it_needs(found) -> None:  # noqa: F811
    x, _ = found(Loose())
    assert x.value(Name.NOISE_OVER_NEEDED) == pytest.approx(0.5, rel=1e-6)
