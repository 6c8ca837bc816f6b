"""Noise of a round that is played in some way, and what is said of a message, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.defense.noise import Noise
from dpaudit.rng import Streams
from dpaudit.training import message_response
from dpaudit.training.message_response import _Listener
from dpaudit.training.partial_inputs import (
    KEPT,
    NormalDirections,
    PartialNoise,
    RoundMode,
    SharedDraws,
    pattern_of,
    spread_of,
)

LIKE = torch.zeros(3, 2, 5, dtype=torch.float64)  # [streams, rows, d]
SCALE = 0.7


def woven(law: str, way: RoundMode, shift: Tensor | None = None) -> Tensor:
    noise = PartialNoise(Streams(4), 2, way, Streams(9), shift)
    drawn: Tensor = getattr(noise, law)("x", SCALE, LIKE)
    return drawn


def plain(law: str, seed: int) -> Tensor:
    drawn: Tensor = getattr(Noise(Streams(seed), 2), law)("x", SCALE, LIKE)
    return drawn


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_woven_noise_is_that_of_the_round_times_its_weight(law: str) -> None:
    one, other, same = plain(law, 4), plain(law, 9), torch.testing.assert_close
    same(woven(law, RoundMode()), one, rtol=0, atol=0)
    same(woven(law, RoundMode(weight=0.0)), 0 * one)
    same(woven(law, RoundMode(weight=3.0)), 3 * one)
    same(woven(law, RoundMode(weight=0.0, other=2.0)), 2 * other)
    same(woven(law, RoundMode(weight=0.5, other=2.0)), 0.5 * one + 2 * other)
    added = pattern_of(LIKE, 0) * (SCALE * 4)
    same(woven(law, RoundMode(added=4.0)), one + added)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [SCALE, torch.full((5,), SCALE, dtype=torch.float64)])
def test_a_kept_draw_is_as_it_was_drawn_first(law: str, scale: Any) -> None:
    draws = SharedDraws()
    for _ in range(3):  # what a step does to its draw changes no other
        assert torch.equal(draws.of(Streams(4), 2, law, "x", scale, LIKE), plain(law, 4))
        draws.of(Streams(4), 2, law, "x", scale, LIKE).zero_()
    assert not torch.equal(draws.of(Streams(4), 2, law, "y", scale, LIKE), plain(law, 4))
    assert not torch.equal(draws.of(Streams(9), 2, law, "x", scale, LIKE), plain(law, 4))
    assert not torch.equal(draws.of(Streams(4), 3, law, "x", scale, LIKE), plain(law, 4))
    twice = draws.of(Streams(4), 2, law, "x", 2 * scale, LIKE)
    torch.testing.assert_close(twice, 2 * plain(law, 4))


def test_no_more_draws_are_kept_than_there_is_room_for() -> None:
    draws, like = SharedDraws(), torch.zeros(KEPT // 2)
    for message in ("x", "y", "z", "x"):
        draws.of(Streams(4), 2, "gaussian", message, SCALE, like)
    assert len(draws._made) == 2


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize(("signs", "size"), [("asked", 2 * SCALE), ("unit", 2.0)])
def test_signs_have_the_scale_that_is_asked(law: str, signs: Any, size: float) -> None:
    same = torch.testing.assert_close
    expected = (size * pattern_of(LIKE, 1)).expand_as(LIKE)
    same(woven(law, RoundMode(weight=2.0, signs=signs, pattern=1)), expected)
    spread = NormalDirections(5)
    way = RoundMode(weight=2.0, signs=signs, pattern=1, spread=spread)
    same(woven(law, way), size * spread_of(LIKE, (3,), 1, spread).expand_as(LIKE))


def test_the_second_draw_of_a_turning_is_subtracted() -> None:
    noise = PartialNoise(Streams(4), 2, RoundMode(signs="unit", turning=1))
    first, second, again = (noise.laplace(name, SCALE, LIKE) for name in ("x", "y", "x"))
    torch.testing.assert_close(second, -first)
    torch.testing.assert_close(again, first)


def test_a_shift_follows_the_coordinates_of_the_draws() -> None:
    shift = torch.arange(14.0).double().view(2, 7)
    noise = PartialNoise(Streams(4), 2, RoundMode(weight=0.0), shift=shift)
    assert noise.gaussian("x", 1.0, LIKE)[1].tolist() == shift[:, :5].tolist()
    assert noise.laplace("y", 1.0, LIKE)[1].tolist() == shift[:, [5, 6, 0, 1, 2]].tolist()
    alone = torch.zeros(1, 7).double()
    other = PartialNoise(
        Streams(4), 2, RoundMode(weight=0.0), shift=torch.cat([shift, shift[:1] + 1])
    )
    assert other.gaussian("x", 1.0, alone).tolist() == [(shift[0] + 1).tolist()]


def test_patterns_are_signs_times_a_size_of_each_row() -> None:
    like = torch.zeros(4, 60, dtype=torch.float64)
    one, other, salted = pattern_of(like, 0), pattern_of(like, 1), pattern_of(like, 0, salt=1)
    sizes = one.abs()[:, :1]
    assert torch.equal(one.abs(), sizes.expand_as(like))
    assert len({*sizes.flatten().tolist()}) == 4
    assert ((sizes >= 0.5) & (sizes <= 1.5)).all()
    assert torch.equal(one.sign(), one[:1].sign().expand_as(like))
    assert 0.2 < (one[0] > 0).double().mean() < 0.8  # 2e-6 that a fair coin is not
    assert torch.equal(other.abs(), one.abs())
    assert 0.2 < (other[0].sign() == one[0].sign()).double().mean() < 0.8  # as unlikely
    assert torch.equal(salted.sign(), one.sign())
    assert not (salted.abs() == one.abs()).any()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("by_row", [True, False])
def test_spread_numbers_go_on_from_layer_to_layer(alike: bool, by_row: bool) -> None:
    spread = NormalDirections(7, alike, by_row)
    whole = spread_of(torch.zeros(3, 2, 7), (3,), 1, spread).expand(3, 2, 7)
    assert torch.equal(whole[0], whole[1]) is alike
    assert torch.equal(whole[:, 0], whole[:, 1]) is not by_row
    assert len({*whole[0, 0].tolist()}) == 7
    part = torch.zeros(3, 2, 4)
    for first, places in ((0, [0, 1, 2, 3]), (2, [2, 3, 4, 5]), (5, [5, 6, 0, 1])):
        found = spread_of(part, (3,), 1, spread, first).expand(3, 2, 4)
        assert torch.equal(found, whole[..., places])
    shifted = spread_of(torch.zeros(3, 2, 7), (3,), 1, spread, 6).expand(3, 2, 7)
    assert torch.equal(shifted, whole[..., [6, 0, 1, 2, 3, 4, 5]])
    records = spread_of(torch.zeros(3, 2, 9, 7), (3,), 1, spread).expand(3, 2, 9, 7)
    assert torch.equal(records, whole[:, :, None].expand(3, 2, 9, 7))
    assert spread_of(torch.zeros(3, 7), (3,), 1, spread).shape == (3, 7)
    assert not torch.equal(spread_of(torch.zeros(3, 2, 7), (3,), 2, spread).expand(3, 2, 7), whole)


class Sent:
    """A message that is what ``of`` makes of its noise, and 10 beside it."""

    def __init__(self, of: Any, finite: float = 1e9) -> None:
        self.of, self.finite = of, finite
        generator = torch.Generator().manual_seed(0)
        self.noises = torch.randn(2, *LIKE.shape, generator=generator).double()

    def play(self, way: RoundMode) -> Tensor:
        found: Tensor = 10 + self.of(way.weight * self.noises[0], way.other * self.noises[1])
        return found

    def is_finite(self, *ways: RoundMode) -> bool:
        return all(way.weight <= self.finite for way in ways)


def apart(first: Tensor, second: Tensor) -> Tensor:
    """Each draw moves coordinates of its own: both together do what each does."""
    return torch.cat([first[..., :2].square(), second[..., 2:].square()], dim=-1)


@pytest.mark.parametrize(
    ("of", "finite", "linear"),
    [
        (lambda x, y: 3 * (x + y), 1e9, True),
        (lambda x, y: (x + y).abs(), 1e9, False),  # two draws
        (apart, 1e9, False),  # twice the noise
        (lambda x, y: (x + y) * ((x + y).abs() < 0.3), 0.5, False),
        (lambda x, y: (x + y) * ((x + y).abs() < 0.3), 1 / 32, True),  # as less alone is finite
        (lambda x, y: x + y, 1 / 64, False),
    ],
)
def test_linear_noise_is_doubled_and_added(of: Any, finite: float, linear: bool) -> None:
    message: Any = Sent(of, finite)
    assert _Listener(message, 1e4, 1e4)._is_linear(message_response.QUIET) is linear


@pytest.mark.parametrize(
    ("stays", "size", "is_enough", "enough"),
    [
        (True, 2.0, True, True),
        (False, 2.0, True, False),
        (True, None, True, False),
        (True, 2.0, False, False),
    ],
)
def test_noise_is_enough_where_it_stays(monkeypatch, stays, size, is_enough, enough) -> None:
    message: Any = Sent(lambda x, y: x + y)
    message.name, message.round, message.real = "x", 3, SimpleNamespace(draws=(), looks_closely=1)
    message.seen = SimpleNamespace(links=(), adversaries=(), left_out=0)
    ones = torch.ones(2, 5).double()
    asked: list[tuple[float, float]] = []

    def measure(self: Any, loud: float, size: float) -> bool:
        asked.append((loud, size))
        return is_enough

    monkeypatch.setattr(_Listener, "_data", lambda *_: ((ones, ones), size))
    monkeypatch.setattr(_Listener, "_signs", lambda *_: (2 * ones, 4 * ones, 7.0, stays))
    monkeypatch.setattr(_Listener, "_is_enough", measure)
    monkeypatch.setattr(_Listener, "_moves_alike", lambda self: True)
    monkeypatch.setattr(message_response, "quiet_direction", lambda *_: None)
    monkeypatch.setattr(message_response, "fine_changes", lambda message: None)
    found = _Listener(message, 1e4, 1e4).heard()
    assert (found.enough, found.noise_stays) == (enough, stays)
    assert asked == ([(7.0, 2.0)] if stays and size else [])
    assert found.asked.tolist() == (0.5 * ones).tolist()
    torch.testing.assert_close(found.noise, message.noises[0])
    torch.testing.assert_close(found.louder, 1e4 * message.noises[0])
