"""What one record moves, in units of the noise: closed forms, and what has to be refused."""

from math import inf, sqrt
from typing import NamedTuple

import numpy as np
import pytest

from dpaudit.capture import record_shift as module
from dpaudit.capture.draw_order import _by_value, _in_their_order, numbers_that_move
from dpaudit.capture.record_shift import (
    NO_LEAK,
    NotMeasured,
    Response,
    RoundLeak,
    leak,
    log_likelihood_ratio,
    making_up_for,
    noise_of,
)
from dpaudit.capture.runs import AgentRound, MessageId, NamedDraw
from dpaudit.errors import RunError

D = 6
A, B = MessageId(0, (1,), "a", 1), MessageId(0, (2,), "b", 1)
RNG = np.random.default_rng(5)
SIGNS = [RNG.choice([-1.0, 1.0], D) for _ in range(4)]


class Run(NamedTuple):
    messages: dict[MessageId, np.ndarray]
    tape: dict[str, np.ndarray]
    as_bytes: tuple[MessageId, ...] = ()


def draw(name: str, family: str = "gaussian") -> NamedDraw:
    return NamedDraw(f"0/0/{name}", name, 0, 1, 1.0, family)


def record_shift(messages, draws: list[NamedDraw], change) -> RoundLeak:
    """``messages(noises)`` and ``change``: contents by message, of noises by name [D]."""
    zero = {d.name: np.zeros(D) for d in draws}

    def run(j: int, values: np.ndarray) -> Run:
        noises = {**zero, draws[j].name: values}
        return Run(messages(noises), {draws[j].key: values})

    n = len(draws)
    silent = [run(j, np.zeros(D)) for j in range(n)]
    signed = [(run(j, SIGNS[0]), run(j, SIGNS[1])) for j in range(n)]
    without = Run(messages(zero), {d.key: np.zeros(D) for d in draws})
    place = AgentRound(0, 1, tuple(without.messages), tuple(draws), 1)
    having = Run({m: v + change.get(m, 0.0) for m, v in without.messages.items()}, {})
    noised, unmeasured = noise_of(place, without, silent, signed)
    for error in unmeasured.values():
        raise error
    return leak(place, noised, place.messages, without, having)


CHANGE = RNG.standard_normal(D)


def test_a_message_on_a_grid_refuses_whole_steps() -> None:
    """Signs alone move it by exactly that, and the record by up to a step more."""
    own, none = RNG.standard_normal(D), np.zeros(D)
    base, silent, *signed = (
        Run({A: np.round(z, 1)}, {"0/0/z": z}) for z in (own, none, *SIGNS[:2])
    )
    place = AgentRound(0, 1, (A,), (draw("z"),), 1)
    noised, unmeasured = noise_of(place, base, [silent], [tuple(signed)])
    assert noised == {}
    assert "is not linear in noise" in str(unmeasured[A])


def test_a_part_of_a_draw_is_known_by_its_signs() -> None:
    signs = [RNG.choice([-1.0, 1.0], 200) for _ in range(2)]
    for first, n in ((0, 20), (57, 30), (190, 10), (0, 200)):
        found = _in_their_order([-3 * s[first : first + n] for s in signs], signs)
        assert found is not None
        assert found.tolist() == list(range(first, first + n))
    assert _in_their_order([s[:1] for s in signs], signs) is None  # one of many that are alike
    assert _in_their_order([RNG.choice([-1.0, 1.0], 40) for _ in range(2)], signs) is None


def test_all_numbers_of_a_draw_may_be_sent_in_another_order() -> None:
    values, order = RNG.standard_normal(D), np.array([2, 0, 1, 5, 4, 3])
    for which in (order, np.arange(D)):
        moved = [-2 * s[which] for s in SIGNS[:2]]
        found = numbers_that_move(moved, SIGNS[:2], -2 * values[which], values)
        assert found is not None
        assert found.tolist() == which.tolist()


def test_noise_that_is_added_up_is_to_be_shown_as_its_sum() -> None:
    with pytest.raises(RunError, match="several numbers of noise are added up"):
        record_shift(lambda z: {A: z["z"].reshape(2, 3).sum(0)}, [draw("z")], {})


@pytest.mark.parametrize("gain", [1.0, -0.25])
def test_gaussian_noise_gives_the_norm_of_the_change_over_it(gain: float) -> None:
    found = record_shift(lambda z: {A: 7 + gain * z["z"]}, [draw("z")], {A: CHANGE})
    assert found.mu == pytest.approx(np.linalg.norm(CHANGE) / abs(gain))
    assert (found.epsilon, found.noiseless, found.upper) == (0.0, None, False)


def test_laplace_noise_gives_the_sum_of_ratios() -> None:
    found = record_shift(lambda z: {A: z["z"] / 2}, [draw("z", "laplace")], {A: CHANGE})
    assert found.epsilon == pytest.approx(2 * np.abs(CHANGE).sum())
    assert found.mu == 0.0


def test_two_messages_with_noise_of_their_own_add_up() -> None:
    found = record_shift(
        lambda z: {A: z["y"], B: 2 * z["z"]}, [draw("y"), draw("z")], {A: CHANGE, B: CHANGE}
    )
    assert found.mu == pytest.approx(sqrt(1 + 1 / 4) * np.linalg.norm(CHANGE))


def test_the_same_noised_message_twice_counts_once() -> None:
    found = record_shift(
        lambda z: {A: z["z"], B: 3 * z["z"]}, [draw("z")], {A: CHANGE, B: 3 * CHANGE}
    )
    assert found.mu == pytest.approx(np.linalg.norm(CHANGE))


def test_common_noise_that_cancels_shows_the_record() -> None:
    found = record_shift(lambda z: {A: z["z"], B: z["z"]}, [draw("z")], {A: CHANGE, B: 2 * CHANGE})
    assert (found.mu, found.noiseless) == (inf, B)


def test_a_number_without_noise_shows_the_record() -> None:
    found = record_shift(lambda z: {A: z["z"], B: np.ones(D)}, [draw("z")], {B: CHANGE})
    assert (found.mu, found.noiseless) == (inf, B)


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_two_draws_on_one_number_add_up(family: str) -> None:
    """Of Gaussian draws exactly; of Laplace ones only an upper end is known."""
    draws = [draw("y", family), draw("z", family)]
    found = record_shift(lambda z: {A: z["y"] + z["z"]}, draws, {A: CHANGE})
    assert found.hidden
    assert found.upper == (family == "laplace")
    if family == "gaussian":
        assert found.mu == pytest.approx(np.linalg.norm(CHANGE) / sqrt(2))


@pytest.mark.parametrize("seed", range(8))
def test_many_draws_in_many_messages_are_their_matrix(seed: int) -> None:
    """mu^2 = a' (B B')^+ a of the whole matrix B, made at random and of any rank."""
    rng = np.random.default_rng(seed)
    n_messages, n_draws = rng.integers(2, 6, 2)
    gains = rng.standard_normal((n_messages, n_draws)) * (rng.random((n_messages, n_draws)) < 0.6)
    names = [MessageId(i, (9,), "x", 1) for i in range(n_messages)]
    draws = [draw(f"z{j}") for j in range(n_draws)]
    B = np.kron(gains, np.eye(D))
    a = B @ rng.standard_normal(n_draws * D)  # in what the noise moves: the leak is finite
    change = dict(zip(names, a.reshape(n_messages, D), strict=True))

    def messages(z: dict[str, np.ndarray]) -> dict[MessageId, np.ndarray]:
        noise = np.stack([z[d.name] for d in draws])
        return dict(zip(names, 1 + gains @ noise, strict=True))

    found = record_shift(messages, draws, change)
    exact = sqrt(a @ np.linalg.pinv(B @ B.T, rcond=1e-10) @ a)
    assert found.noiseless is None
    assert found.mu == pytest.approx(exact, rel=1e-6)
    rank = np.linalg.matrix_rank(gains[:, gains.any(0)])
    assert found.hidden == (rank < gains.any(0).sum())
    outside = {**change, names[0]: change[names[0]] + 1}
    in_range = np.allclose(B @ np.linalg.pinv(B) @ np.concatenate([*outside.values()]),
                           np.concatenate([*outside.values()]))  # fmt: skip
    assert (record_shift(messages, draws, outside).noiseless is None) == in_range


def test_noise_that_is_not_added_number_by_number_is_refused() -> None:
    with pytest.raises(RunError, match="not linear in noise"):
        record_shift(lambda z: {A: np.abs(z["z"])}, [draw("z")], {A: CHANGE})
    with pytest.raises(RunError, match="not linear in noise"):
        record_shift(lambda z: {A: np.roll(z["z"], 1)}, [draw("z")], {A: CHANGE})
    with pytest.raises(RunError, match="6 numbers and moves 12 of it"):
        record_shift(lambda z: {A: np.tile(z["z"], 2)}, [draw("z")], {A: np.tile(CHANGE, 2)})


def test_bytes_that_noise_moves_are_not_measured() -> None:
    """As what `tobytes` made of an array; its numbers cannot be told apart."""
    place = AgentRound(0, 1, (A,), (draw("z"),), 1)
    run = Run({A: np.arange(D)}, {}, as_bytes=(A,))
    moved = Run({A: np.arange(D) + 1.0}, {draw("z").key: np.ones(D)})
    noised, unmeasured = noise_of(place, run, [run], [(moved, moved)])
    assert noised == {}
    assert "which is bytes" in str(unmeasured[A])
    assert "tap.send" in unmeasured[A].problems[0].help


@pytest.mark.parametrize("no_number", [np.nan, np.inf])
def test_noise_that_decides_what_is_finite_is_not_measured(no_number: float) -> None:
    def of(z: dict[str, np.ndarray]) -> dict[MessageId, np.ndarray]:
        return {A: np.where(z["z"] < 0, no_number, 0)}

    with pytest.raises(NotMeasured, match="not linear in noise"):
        record_shift(of, [draw("z")], {})
    constant = record_shift(lambda z: {A: np.append(z["z"], no_number)}, [draw("z")], {})
    assert constant.mu == 0.0


def test_what_is_finite_without_a_record_alone_shows_it() -> None:
    change = np.where(np.arange(D) == 1, np.nan, 0.0)
    found = record_shift(lambda z: {A: z["z"]}, [draw("z")], {A: change})
    assert (found.mu, found.noiseless) == (inf, A)


def test_a_line_twice_in_a_round_asks_for_what_starts_rounds() -> None:
    again = A._replace(nth=1)
    with pytest.raises(RunError, match='its own, say messages.round_starts_at = "a", or'):
        record_shift(lambda z: {A: z["z"], again: np.abs(z["z"])}, [draw("z")], {A: CHANGE})


def test_a_program_without_any_noise_shows_the_record() -> None:
    found = record_shift(lambda z: {A: np.ones(D)}, [], {A: CHANGE})
    assert (found.mu, found.noiseless) == (inf, A)


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_the_score_is_the_log_likelihood_ratio(family: str) -> None:
    found = record_shift(lambda z: {A: z["z"] / 2}, [draw("z", family)], {A: CHANGE})
    mean, run = Run({A: np.zeros(D)}, {}), Run({A: RNG.standard_normal(D)}, {})
    x, scale = run.messages[A], 0.5
    if family == "gaussian":
        exact = np.sum((x**2 - (x - CHANGE) ** 2) / (2 * scale**2))
        exact += np.sum(CHANGE**2) / (2 * scale**2)  # the constant that is left out
    else:
        exact = np.sum(np.abs(x) - np.abs(x - CHANGE)) / scale
    assert log_likelihood_ratio(found, run, mean) == pytest.approx(exact)


def test_what_shows_nothing_is_certain() -> None:
    assert NO_LEAK == (0.0, 0.0, None, False, False, {}, ())
    assert RoundLeak(2.0, 0.5).size == 2.5


def test_one_of_two_numbers_is_known_by_two_signs() -> None:
    signs = [np.array([1.0, -1.0]), np.array([1.0, 1.0])]
    for which in (0, 1):
        found = _in_their_order([-2 * s[which : which + 1] for s in signs], signs)
        assert found is not None
        assert found.tolist() == [which]
    both = _in_their_order([3 * s for s in signs], signs)
    assert both is not None
    assert both.tolist() == [0, 1]
    one = [np.ones(1), -np.ones(1)]
    alike = _in_their_order([np.full(3, s[0]) for s in one], one)
    assert alike is not None
    assert alike.tolist() == [0, 0, 0]


def test_every_number_must_be_known_by_value() -> None:
    values = np.array([3.0, -1.0, 0.5])
    assert _by_value(np.array([0.5, 1.5]), values) is None
    assert _by_value(np.array([1.5, 0.5]), values) is None


@pytest.mark.parametrize("scale", [1e-6, -0.5, 1.0, -1e6])
def test_a_leak_is_in_units_of_the_noise(scale: float) -> None:
    """Of common noise that cancels, whatever the size and the sign of the change."""
    ones = np.ones(D)
    draws, same = [draw("z")], {A: scale * ones, B: 3 * (1 + 1e-5) * scale * ones}
    found = record_shift(lambda z: {A: z["z"], B: 3 * z["z"]}, draws, same)
    assert found.mu == pytest.approx(abs(scale) * sqrt(D), rel=1e-4)
    other = {A: scale * ones, B: 3.1 * scale * ones}
    shown = record_shift(lambda z: {A: z["z"], B: 3 * z["z"]}, draws, other)
    assert (shown.mu, shown.noiseless is not None) == (inf, True)


def test_half_a_unit_is_a_leak() -> None:
    change = np.zeros(D)
    change[0] = 0.5
    found = record_shift(lambda z: {A: z["z"]}, [draw("z")], {A: change})
    assert found.mu == pytest.approx(0.5)


@pytest.mark.parametrize("seed", range(3))
def test_the_score_of_many_draws_is_that_of_their_covariance(seed: int) -> None:
    """a' (B B')^-1 (y - mean), with the mean of runs without noise."""
    rng = np.random.default_rng(seed)
    gains = rng.standard_normal((2, 3))
    change = dict(zip((A, B), rng.standard_normal((2, D)), strict=True))
    draws = [draw(f"z{j}") for j in range(3)]

    def messages(z: dict[str, np.ndarray]) -> dict[MessageId, np.ndarray]:
        return dict(zip((A, B), 7 + gains @ np.stack([z[d.name] for d in draws]), strict=True))

    found = record_shift(messages, draws, change)
    mean, run = (Run(dict(zip((A, B), rng.standard_normal((2, D)), strict=True)), {}) for _ in "ab")
    covariance = np.kron(gains @ gains.T, np.eye(D))
    a, y, m = (np.concatenate([of[A], of[B]]) for of in (change, run.messages, mean.messages))
    exact = a @ np.linalg.solve(covariance, y - m)
    assert log_likelihood_ratio(found, run, mean) == pytest.approx(exact)


def test_a_laplace_draw_in_two_messages_is_one_number() -> None:
    found = record_shift(
        lambda z: {A: z["z"] / 2, B: 3 * z["z"]},
        [draw("z", "laplace")],
        {A: CHANGE / 2, B: 3 * CHANGE},
    )
    assert found.epsilon == pytest.approx(np.abs(CHANGE).sum())
    assert found.laplace == pytest.approx(sorted(np.abs(CHANGE), reverse=True))
    z, mean = RNG.standard_normal(D), Run({A: np.full(D, 7.0), B: np.full(D, -4.0)}, {})
    run = Run({A: 7 + z / 2, B: -4 + 3 * z}, {})
    exact = np.sum(np.abs(z) - np.abs(z - CHANGE))
    assert log_likelihood_ratio(found, run, mean) == pytest.approx(exact)


def test_the_largest_parts_of_laplace_noise_are_kept() -> None:
    names = [f"z{i}" for i in range(4)]
    ids = [MessageId(i, (9,), "x", 1) for i in range(4)]
    change = {m: np.arange(1.0 + i, 1 + D + i) for i, m in enumerate(ids)}
    found = record_shift(
        lambda z: {m: z[n] for m, n in zip(ids, names, strict=True)},
        [draw(n, "laplace") for n in names],
        change,
    )
    every = sorted(np.concatenate([*change.values()]), reverse=True)
    assert found.laplace == pytest.approx(every[: module.MOST_LAPLACE])
    assert found.epsilon == pytest.approx(sum(every))


@pytest.mark.parametrize(("most", "refused"), [(6, False), (5, True)])
def test_parts_of_too_many_numbers_are_refused(monkeypatch, most: int, refused: bool) -> None:
    """Three draws in two messages, number by number: D parts of 2 x 3."""
    monkeypatch.setattr(module, "MOST_ENTRIES", most)
    draws = [draw(n) for n in "pqr"]
    of = {"messages": lambda z: {A: z["p"] + z["q"], B: z["q"] + z["r"]}, "draws": draws}
    if not refused:
        assert record_shift(**of, change={A: CHANGE}).mu < inf
        return
    with pytest.raises(RunError, match="3 numbers of noise move 2 numbers of messages together"):
        record_shift(**of, change={A: CHANGE})


def test_what_noise_does_not_reach_has_no_sign() -> None:
    one = np.zeros(1, int)
    both = {A: (Response(0, one, one, np.array([2.0])),), B: (Response(0, one, one, -np.ones(1)),)}
    for sign in (1.0, -1.0):
        found = making_up_for(both, {A: np.array([2 * sign]), B: np.array([sign])}, {0: 1})
        assert found.units[0] == pytest.approx([0.6 * sign])
        assert found.left == pytest.approx(1.6)
        only = making_up_for({A: ()}, {A: np.array([sign, -3 * sign])}, {0: 1})
        assert only.bare == 3.0


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_a_change_without_noise_counts_from_rounding_on(unit: float) -> None:
    """A hundred-thousandth of the largest change of the round."""
    one = unit * np.ones(D)
    for part, shown in ((0.9e-5, False), (1.1e-5, True)):
        found = record_shift(
            lambda z: {A: z["z"], B: np.ones(D)}, [draw("z")], {A: one, B: part * one}
        )
        assert (found.noiseless == B) is shown
        assert shown or found.mu == pytest.approx(unit * sqrt(D))
    place = AgentRound(0, 1, (A,), (), 1)
    assert leak(place, {}, [], Run({}, {}), Run({}, {})) == NO_LEAK  # type: ignore[arg-type]
