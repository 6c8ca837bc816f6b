"""The tests of the noise of one message, on noise and data that are written down by hand."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from dpaudit.defense import Setting
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline import noise_of_the_run as noise
from dpaudit.pipeline.noise_of_the_run import NoiseTest, _Layers
from dpaudit.rng import Streams
from dpaudit.training.message_response import Heard

LAYERS = _Layers(Setting(build_graph("ring", 3), (9,) * 3, 5, (("a", 2), ("b", 3))), 5)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heard(drawn: Tensor, data: Tensor | None = None, **changed: Any) -> Heard:
    """A message of a row for each agent, with this noise [streams, rows, d] and data [rows, d]."""
    n = drawn.shape[1]
    moved = torch.ones(drawn.shape[1:]).double() if data is None else data
    fields: dict[str, Any] = {
        "rows": tuple((i, None) for i in range(n)),
        "adversaries": (frozenset({"spy"}),) * n,
        "data": (moved, 0 * moved),
        **{"linear": True, "loudly_linear": True, "own": False},
        **{"noise_stays": True, "data_stays": True},
        **{"asked": torch.ones_like(moved), "per_draw": torch.ones_like(moved)},
    }
    return Heard(name="x", round=4, noise=drawn, **{"louder": drawn, **fields, **changed})


@pytest.mark.parametrize(
    "coordinates, said",
    [
        ([1], "coordinate 1 (a)"),
        ([1, 2], "coordinates 1 to 2 (a, b)"),
        ([0, 3], "2 of coordinates 0 to 3 (a, b)"),
        ([4, 2, 3], "coordinates 2 to 4 (b)"),
    ],
)
def test_coordinates_are_called_by_their_layers(coordinates: list[int], said: str) -> None:
    assert LAYERS.named(coordinates) == said
    setting = Setting(build_graph("ring", 3), (9,) * 3, 4, tuple((c, 1) for c in "abcd"))
    assert _Layers(setting, 4).named([0, 1, 2, 3]) == "coordinates 0 to 3 (a, b, c, ...)"
    assert _Layers(setting, 4).named([1, 2, 3]) == "coordinates 1 to 3 (b, c, d)"
    assert _Layers(setting, 7).named([0]) == "coordinate 0"


@pytest.mark.parametrize(
    "numbers, said",
    [
        ([3, 3], "round 3"),
        ([7, 1, 2, 3], "rounds 1 to 3, 7"),
        ([1, 3, 5, 6], "rounds 1, 3, 5 to 6"),
        ([1, 3, 5, 7, 7], "4 rounds"),
    ],
)
def test_rounds_are_named_in_few_pieces(numbers: list[int], said: str) -> None:
    assert noise._ranges(numbers) == said


def test_the_least_p_value_and_its_place() -> None:
    assert noise._least(np.array([0.3, 0.1, 0.2])) == (0.1, 1)
    assert noise._least(np.array([])) == (1.0, 0)
    assert noise._least(np.float64(0.2)) == (0.2, 0)


def sums(drawn: Tensor, data: Tensor) -> list[str]:
    return [test.says for test in noise._sums_without_noise(heard(drawn, data), LAYERS)]


def test_sums_in_which_noise_cancels_are_named_by_layer() -> None:
    drawn, data = draws(3, 2, 5), torch.ones(2, 5).double()
    assert sums(drawn, data) == []
    in_layer = drawn.clone()
    in_layer[:, 1, 2:] -= drawn[:, 1, 2:].mean(-1, keepdim=True)
    assert sums(in_layer, data) == ['no noise on the sum over b of "x" of agent 1 in round 4']
    whole = drawn - drawn.mean(-1, keepdim=True)
    assert sums(whole, data) == ['no noise on the sum over all coordinates of "x" of agent 0 in round 4']  # fmt: skip
    once = torch.cat([drawn[:1], whole[1:]])  # of some streams alone
    assert sums(once, data) == sums(whole, data - data) == []
    cancels = torch.tensor([[1.0, -1.0, 1.0, -1.0, 0.0]]).double().repeat(2, 1)
    assert sums(whole, cancels) == []


def test_units_are_those_of_what_is_asked_and_shown() -> None:
    z = draws(6, 1, 4)
    data = torch.tensor([[2.0, -3.0, 1.0, 0.0]]).double()
    asked = torch.tensor([[1.0, 2.0, 5.0, 9.0]]).double()
    shown = z[..., :3] / z[..., :3].square().sum(-1, keepdim=True).div(4).sqrt()
    message = heard(z * asked * data.abs(), data, asked=asked)
    expected = torch.cat([shown, torch.zeros(6, 1, 1)], -1).numpy()
    np.testing.assert_allclose(noise._in_units(message), expected)
    mixed = replace(message, noise=z, louder=2 * z, noise_stays=False)
    np.testing.assert_allclose(noise._in_units(mixed), expected)
    loud = replace(mixed, linear=False, noise=0 * z)
    np.testing.assert_allclose(noise._in_units(loud), expected)
    assert not noise._in_units(replace(loud, louder=0 * z)).any()


def size(families: set[Any], **messages: Heard) -> Any:
    return noise._size({name: [one] for name, one in messages.items()}, families)


def test_the_size_of_noise_is_that_of_the_least_message() -> None:
    """Of 24 draws, those of a coordinate that no draw reaches left out."""
    z, per_draw = draws(4, 2, 4), torch.tensor([2.0, 1.0, 0.5, 0.0]).double().repeat(4, 2, 1)
    whole = heard(z * per_draw, per_draw=per_draw)
    own = z[..., :3]
    found = size({"gaussian"}, x=whole)
    assert found.n == 24
    assert found.value == pytest.approx(float(own.square().mean().sqrt()))
    assert size({"laplace"}, x=whole).value == pytest.approx(float(own.abs().mean()))
    half = replace(whole, noise=whole.noise / 2)
    both = size({"gaussian"}, x=whole, y=half)
    assert both.value == pytest.approx(found.value / 2)
    assert both.low < size({"gaussian"}, y=half).low < size({"gaussian"}, y=half).high < both.high
    assert size({"gaussian", "laplace"}, x=whole) is None
    assert size({"gaussian"}, x=replace(whole, per_draw=None)) is None
    assert size({"gaussian"}, x=replace(whole, data_stays=False)) is None


@pytest.mark.parametrize(
    "rows, share, said",
    [
        ([1], 0.0, 'no noise in a direction of "x" of agent 1 in round 4'),
        ([0, 2], 0.25, '0.5 times the noise of others in a direction of "x" of agent 0 and agent 2 '
         "together in round 4"),
        ([0, 1, 2, 0, 1], 0.04, '0.2 times the noise of others in a direction of "x" of agent 0, '
         "agent 1, agent 2 and 2 more together in round 4"),
    ],
)  # fmt: skip
def test_a_quiet_direction_names_its_rows(rows: list[int], share: float, said: str) -> None:
    message = heard(draws(2, 3, 4), quiet=(0.25, 7, rows, share))
    assert list(noise._too_fine_or_quiet(message)) == [NoiseTest(0.25, 7, "x", (4,), said)]
    finer = replace(message, quiet=None, finer="its sign shows")
    assert list(noise._too_fine_or_quiet(finer)) == [NoiseTest(0.0, 1, "x", (4,), "its sign shows")]
    to_one = replace(message, rows=((0, 2), (1, None)))
    assert [noise._of(to_one, i) for i in (0, 1)] == ["of agent 0 to agent 2", "of agent 1"]


def test_rows_of_one_reader_that_share_noise_must_share_data() -> None:
    drawn, data = draws(2, 1, 40), draws(1, 40, seed=1)
    one, other = heard(drawn, data), replace(heard(-2 * drawn, data), name="y")

    def found(*some: Heard, k: int = 4) -> list[tuple[str, tuple[int, ...]]]:
        return [(test.message, test.rounds) for test in noise._rows(list(some), k, Streams(0))]

    assert found(one, other) == [("x", (4,))]
    assert found(one, replace(other, data=(-2 * data, 0 * data))) == []
    assert found(one, replace(other, data=(-2 * data, data))) == [("x", (4,))]
    assert found(one, replace(other, adversaries=(frozenset({"other"}),))) == []
    assert found(one, replace(other, noise=draws(2, 1, 40, seed=2), own=True)) == []
    assert found(one, replace(other, linear=False, loudly_linear=False)) == []
    assert found(one, replace(other, round=5)) == found(one, other, k=5) == found(one) == []
    quiet, loud = ({"loudly_linear": False}, {"linear": False})
    by_itself = {"linear": False, "loudly_linear": False, "own": True}
    for way in (quiet, loud, by_itself):
        assert found(replace(one, **way), replace(other, **way)) == [("x", (4,))]
    narrow = replace(heard(-2 * drawn[..., :20], data[:, :20]), name="y")
    assert found(one, narrow) == found(one, narrow, heard(drawn[..., :1], data[:, :1])) == []
    few = torch.zeros(2, 1, 40).double()
    few[..., :20] = drawn[..., :20]
    assert found(replace(one, louder=few), replace(other, louder=-2 * few)) == []  # half have none
    few[..., 20] = drawn[..., 20]
    assert found(replace(one, louder=few), replace(other, louder=-2 * few)) == [("x", (4,))]


def test_two_coordinates_with_the_same_noise_must_show_the_same() -> None:
    """Noise of the second is that of the first times -3; so should be what gradients make of it."""
    drawn = torch.tensor([[1.0, -3.0], [2.0, -6.0]]).double().numpy()
    asked = torch.ones(1, 2).double()
    for data, differ in (([1.0, -3.0], False), ([1.0, 3.0], True), ([1.0, -3.1], True)):
        given = torch.tensor([data]).double()
        message = heard(draws(2, 1, 2), given, asked=asked, noise_stays=False)
        assert noise._data_differ(message, 0, 0, 1, drawn) is differ


def test_coordinates_with_other_noise_are_found_by_their_size() -> None:
    z = draws(40, 2, 30).numpy()
    less, more, of_one = z.copy(), z.copy(), z.copy()
    less[..., 3] *= 0.01
    more[..., 1] *= 100.0
    of_one[:, 1, 3] *= 0.2

    def found(units: Any, stays: bool = True) -> list[str]:
        tested = [replace(heard(draws(1, 2, 30)), noise_stays=stays)]
        tests = noise._scales([units[:20], units[20:]], tested, LAYERS, (4, 5))
        return [test.says for test in tests if test.p < 1e-6]

    assert found(z) == []
    assert found(less)[0] == 'coordinate 3 (b) of "x" carries less noise than other coordinates'
    of_agent = 'coordinate 3 (b) of "x" of agent 1 carries less noise than other coordinates'
    assert found(of_one) == [of_agent]
    assert found(more)[-1] == 'coordinate 1 (a) of "x" carries more noise than other coordinates'
    assert not any("more" in said for said in found(more, stays=False))
    less[..., 3] = 0.0  # no gradient shows there
    assert found(less) == []
    assert list(noise._scales([z[..., :1]], [heard(z[..., :1])], LAYERS, (4,))) == []


def test_noise_that_streams_or_rounds_share_is_found() -> None:
    """Of 200 signs that are independent, all agree with probability 2^-200."""
    z = draws(4, 1, 200).numpy()
    shared = np.concatenate([z[:3], -z[:1]])
    for units, is_shared in (([z], False), ([shared], True), ([z, z[..., :50]], False)):
        tests = list(noise._between_streams(units, "x", (4,)))
        assert [test.among for test in tests] == [6]
        assert (tests[0].p < 1e-40) is is_shared
    again = [heard(draws(4, 2, 200)), replace(heard(draws(4, 2, 200)), round=5)]
    layers = _Layers(Setting(build_graph("ring", 3), (9,) * 3, 1), 200)
    tests = [t for t in noise._tests(again, layers_setting(), Streams(0)) if t.p < 1e-40]
    assert [test.says for test in tests] == [
        'the noise of "x" in rounds 4 and 5 is not independent'
    ]
    assert layers.parts == []


def layers_setting() -> Setting:
    return Setting(build_graph("ring", 3), (9,) * 3, 1)


def said_of(*group: Heard) -> list[str]:
    tests = noise._tests(list(group), layers_setting(), Streams(0))
    return [test.says for test in tests if test.p < 1e-9]


def test_noise_of_a_message_is_held_against_other_streams() -> None:
    z = draws(4, 2, 200)
    z[3, 1] = -z[0, 1]
    assert said_of(heard(z)) == ['the noise of "x" is not independent between runs of other seeds']
    assert said_of(heard(z, data_stays=False)) == []
    cancels = draws(4, 1, 200)
    cancels -= cancels.mean(-1, keepdim=True)
    (said,) = said_of(heard(cancels))
    assert said.startswith("no noise on the sum over all coordinates")
    assert said_of(heard(cancels, data_stays=False)) == []


def test_scales_are_compared_where_some_noise_may_be_too_little() -> None:
    less = draws(40, 2, 30)
    less[..., 3] *= 0.001
    group = [heard(less[:20]), replace(heard(less[20:]), round=5)]
    (said, of_row) = said_of(*group)
    assert said == 'coordinate 3 of "x" carries less noise than other coordinates'
    assert "of agent" in of_row
    enough = [replace(h, enough=True) for h in group]
    assert said_of(group[0], enough[1]) == said_of(enough[0], group[1]) == [said, of_row]
    assert said_of(*enough) == []


def test_as_many_may_be_left_out_as_chance_leaves_out() -> None:
    """Noise reaches a coordinate in two of four streams, and three of the 18 that move in none."""
    z = draws(4, 2, 20)
    z[:2, 1, ::2] = z[2:, 1, 1::2] = z[:, 1, :3] = 0.0
    moved = torch.ones(2, 20).double()
    moved[1, 18:] = 0.0
    (test,) = noise._without_noise(heard(z, moved), LAYERS)
    rate = noise._left_out(z[:, 1] == 0)
    assert test.p == pytest.approx(binom.sf(2, 18, rate))
    assert 1e-3 < test.p < 0.999
    assert test.among == 2


def test_messages_that_are_not_tested_say_why() -> None:
    z = draws(2, 1, 3)
    kinds = {
        "carries no noise of its own": heard(0 * z),
        "differs whenever its round is played": heard(z, own=True),
        "is not linear in its noise": heard(z, linear=False, loudly_linear=False),
        "mixes coordinates of gradients": heard(z, data_stays=False),
    }
    for said, message in kinds.items():
        (note,) = noise._notes([message, replace(message, round=5)])
        assert note.startswith(f'"x" {said}')
        assert list(noise._notes([message, heard(z)])) == []
    some = z.clone()
    some[0, 0, 0] = 0.0
    assert list(noise._notes([heard(some)])) == []
    both = [heard(0 * z), replace(heard(z), name="y")]
    assert list(noise._notes(both)) == ['"x" carries no noise of its own']
    loudly = heard(z, linear=False, data_stays=False)
    assert next(noise._notes([loudly])).startswith('"x" mixes coordinates of gradients')
    assert next(noise._notes([replace(loudly, linear=True, loudly_linear=False)])).startswith(
        '"x" mixes coordinates of gradients'
    )


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, {}),
        ({"left_out": 3}, {"3 of its senders or links": [4]}),
        ({"no_directions": True}, {noise.DIRECTIONS: [4]}),
        ({"data_stays": False}, {"coordinates are mixed": [4]}),
        ({"data_stays": False, "some": 1.0}, {"coordinates are mixed": [4]}),
        ({"data_stays": False, "some": 0.0}, {}),
        ({"loudly_linear": False, "some": 1.0}, {}),
        (
            {"linear": False, "loudly_linear": False, "own": True},
            {"it is of draws of its own, which cannot be set": [4]},
        ),
        (
            {"linear": False, "loudly_linear": False},
            {"the message is not linear in it": [4]},
        ),
        ({"linear": False, "data_stays": False}, {"coordinates are mixed": [4]}),
    ],
)
def test_rounds_of_what_is_not_tested_are_noted(monkeypatch, changed, missed) -> None:
    """With ``some``, of which all noise is made: one number of many alone has any."""
    z = draws(2, 1, 3)
    if (some := changed.get("some")) is not None:
        z = torch.zeros(2, 1, 3).double()
        z[0, 0, 0] = some
    message = heard(z, **{name: value for name, value in changed.items() if name != "some"})
    monkeypatch.setattr(noise, "heard", lambda message: message)
    found = defaultdict[tuple[str, str], list[int]](list)
    round: Any = SimpleNamespace(messages=lambda: [message])
    assert list(noise._heard(round, found)) == [message]
    assert found == {("x", why): rounds for why, rounds in missed.items()}


def test_a_message_without_numbers_is_not_tested(monkeypatch) -> None:
    monkeypatch.setattr(noise, "heard", lambda message: "it is not finite")
    found = defaultdict[tuple[str, str], list[int]](list)
    sent = SimpleNamespace(name="x", round=4)
    round: Any = SimpleNamespace(messages=lambda: [sent, sent])
    assert list(noise._heard(round, found)) == []
    assert found == {("x", "it is not finite"): [4, 4]}


def test_of_what_is_left_out_by_chance_the_rate_is_known() -> None:
    """Of 2 streams, coordinates that are reached once in half of the cases: q = 2/3."""
    silent = torch.tensor([[True, False], [False, False]])
    assert noise._left_out(~torch.zeros(2, 3).bool()) == 0.0
    assert noise._left_out(silent) == pytest.approx(left_out_of(2, 1.1))
    assert noise._left_out(torch.tensor([[True], [False]])) == 1.0
    assert noise._left_out(torch.zeros(3, 4).bool()) == pytest.approx(0.0, abs=1e-9)


def left_out_of(n: int, mean: float) -> float:
    """2 q / (1 - (1 - q)^2) = 2 / (2 - q) for n = 2."""
    assert n == 2
    q = 2 - 2 / mean
    return (1 - q) ** 2


@pytest.mark.parametrize(
    "p, among, differs", [(1e-8, 99, True), (1e-8, 100, False), (0.0, 1, True), (0.5, 9, False)]
)
def test_the_most_striking_of_all_tests_is_the_finding(p: float, among: int, differs: bool) -> None:
    tests = [NoiseTest(0.7, 0, "y", (1,), "no"), NoiseTest(p, among, "x", (2, 3), "says")]
    found = noise._finding(tests, 5, ("note",), ("left",))
    assert found.metrics["p-value"].value == min(1.0, p * among)
    assert (found.title, found.message, found.rounds, found.verdict) == (
        ("says", "x", (2, 3), "unsupported")
        if differs
        else ("noise of the real run", None, (), None)
    )
    assert (found.notes[2], found.not_examined, found.metrics["p-value"].n) == (
        "note",
        ("left",),
        5,
    )
    none = noise._finding([], 5, (), ())
    assert (none.metrics, none.verdict, none.notes) == ({}, None, (noise.FLOATS,))


def along(noise_of_row: Tensor, seed: int = 0, layers: _Layers = LAYERS) -> list[str]:
    """What is found of a message of one row with this noise, in two rounds."""
    tested = [heard(noise_of_row), heard(noise_of_row)]
    units = [noise_of_row.numpy()]
    tests = noise._coordinates(units, tested, layers, Streams(seed))
    return [test.says for test in tests if test.p < 1e-9]


def test_coordinates_and_layers_that_share_noise_are_named() -> None:
    z = draws(40, 1, 24)
    layers = _Layers(Setting(build_graph("ring", 3), (9,) * 3, 24, (("a", 14), ("b", 10))), 24)
    assert along(z, layers=layers) == []
    reused = torch.cat([z[..., :14], z[..., :10] * draws(40, 1, 10, seed=3).abs()], -1)
    assert 'layers "a" and "b" of "x" of agent 0 share their noise' in along(reused, layers=layers)
    shifted = torch.cat([z[..., :14], z[..., 1:11] * draws(40, 1, 10, seed=3).abs()], -1)
    assert not any("layers" in said for said in along(shifted, layers=layers))
    copied = z.clone()
    copied[..., 20] = -2 * z[..., 3]
    assert along(copied, layers=layers) == [
        '2 of coordinates 3 to 20 (a, b) of "x" of agent 0 share their noise'
    ]
    repeated = torch.cat([z[..., :12]] * 2, -1) * draws(40, 1, 24, seed=4).abs()
    assert along(repeated) == ['coordinates 12 apart of "x" of agent 0 share their noise']
    assert along(z[..., :1]) == []
    two = _Layers(Setting(build_graph("ring", 3), (9,) * 3, 2, (("a", 1), ("b", 1))), 2)
    many = draws(100, 1, 1)
    alike = torch.cat([many, many * draws(100, 1, 1, seed=3).abs()], -1)
    assert along(alike, layers=two)[-1] == (
        'layers "a" and "b" of "x" of agent 0 share their noise'
    )


def bare(*columns: int, n: int = 40, data: Tensor | None = None) -> list[tuple[float, str]]:
    """What is said of three streams of noise that never reaches these coordinates of row 1."""
    z = draws(3, 2, n)
    z[:, 1, list(columns)] = 0.0
    moved = torch.ones(2, n).double() if data is None else data
    return [(test.p, test.says) for test in noise._without_noise(heard(z, moved), LAYERS)]


def test_coordinates_that_gradients_move_and_no_noise_are_named() -> None:
    where = "of agent 1 in round 4"
    assert bare() == []
    assert bare(3) == [(0.0, f'no noise on coordinate 3 (b) of "x" {where}')]
    assert bare(*range(40)) == [(0.0, f'no noise on "x" {where}')]
    still = torch.ones(2, 40).double()
    still[1, 3] = 1e-5
    assert bare(3, data=still) == []
    assert bare(3, 5, data=still) == [(0.0, f'no noise on coordinate 5 of "x" {where}')]
    still[1, 5] = 0.9e-3  # of the root mean square of both rows
    still *= 1e-4
    assert bare(3, 5, 7, data=still) == [(0.0, f'no noise on coordinate 7 of "x" {where}')]
    quiet = 1000 * draws(3, 2, 40)
    for size, is_silent in ((5e-5, True), (-5e-5, True), (5e-3, False), (-5e-3, False)):
        quiet[:, 0, 6] = size  # of a largest number near 3,000
        found = list(noise._without_noise(heard(quiet), LAYERS))
        assert len(found) == is_silent
    silent = heard(0 * draws(3, 2, 4))
    assert list(noise._without_noise(silent, LAYERS)) == []


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_numbers_that_hardly_move_have_no_units(size: float) -> None:
    """A gradient moves one number 1 / 10,000 as far as the others, and one 1 / 1,000,000."""
    data = size * torch.tensor([[1.0, 1.0, 1.0, 1e-4, 1e-6]]).double().repeat(3, 1)
    units = noise._in_units(heard(size * draws(4, 3, 5), data))
    assert (units[..., :4] != 0).all()
    assert (units[..., 4] == 0).all()
