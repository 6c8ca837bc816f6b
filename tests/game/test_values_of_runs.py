"""What runs of a game are made of and scored by: by hand, and by loops beside the code."""

from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.game.estimating.estimate import Decomposition, _best, _size, _whitening
from dpaudit.game.filtering import every_release as releases
from dpaudit.game.probing import replayability
from dpaudit.game.runs import play
from dpaudit.game.runs.noise_law import _kind, _losses, _sets, rounds_played
from dpaudit.game.runs.play import LearnedScore, LogRatios, ScoredRuns, Worlds, cross_fitted
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.worst_case import record
from dpaudit.release import Release
from dpaudit.rng import Streams
from tests.game.test_adversary import EAVESDROPPER, Gossip, game_of


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def worlds(seed: int, shift: float, n: int = 40) -> Worlds:
    z = np.random.default_rng(seed).normal(size=(2, n, 3)) * [1.0, 2.0, 0.5]
    return Worlds(*(ScoredRuns(x[:, 0], x + np.array([shift * i, 0, 0])) for i, x in enumerate(z)))


def discriminant(training: Worlds) -> tuple[np.ndarray, float]:
    a, b = (world.features for world in training)
    centred = np.concatenate([a - a.mean(0), b - b.mean(0)])
    covariance = centred.T @ centred / (len(centred) - 2)
    covariance += np.diag(play.SHRINKAGE * np.diag(covariance) + 1e-12)
    direction = np.linalg.solve(covariance, b.mean(0) - a.mean(0))
    return direction, float((a.mean(0) + b.mean(0)) / 2 @ direction)


def test_a_learned_score_is_the_linear_discriminant() -> None:
    training, others = worlds(1, 1.0), worlds(2, 1.0)
    direction, middle = discriminant(training)
    found = LearnedScore(training)(others.without)
    assert found == pytest.approx(others.without.features @ direction - middle)


def test_learned_scores_are_of_runs_that_did_not_train_them() -> None:
    every = worlds(3, 1.0, 17)
    found = cross_fitted(every)
    for fold in range(play.FOLDS):
        kept = np.arange(17) % play.FOLDS != fold
        training = Worlds(*(ScoredRuns(w.scores[kept], w.features[kept]) for w in every))
        direction, middle = discriminant(training)
        for scores, world in zip(found, every, strict=True):
            assert scores[~kept] == pytest.approx(world.features[~kept] @ direction - middle)


def test_error_rates_fall_and_rise_with_the_threshold() -> None:
    without, there = np.array([0.0, 1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0, 5.0])
    fpr, fnr = play.error_rates(without, there)
    thresholds = np.quantile(np.concatenate([without, there]), np.linspace(1, 0, play.POINTS))
    assert fpr == pytest.approx([np.mean(without > t) for t in thresholds])
    assert fnr == pytest.approx([np.mean(there <= t) for t in thresholds])
    assert (fpr[0], fnr[0], fpr[-1], fnr[-1]) == (0.0, 1.0, 0.75, 0.0)


def test_blocks_are_asked_about_at_powers() -> None:
    due = [n for n in range(200) if play._is_due(n)]
    powers = {int(np.ceil(play.ASKED**i - 1e-9)) for i in range(200)}
    assert due == [n for n in range(1, 200) if n in powers]
    assert [play.block_of(rows, 2) for rows in (1, 10**9)] == [play.BLOCK // 2, 50]


def scored(replaces: bool = False, rate: float = 1.0, batches: int = 1) -> Any:
    game = SimpleNamespace(is_replacement=replaces, sampling_rate=rate, batches=batches)
    return LogRatios(game, 2)  # type: ignore[arg-type]


def innovation(y: torch.Tensor, shifts: dict[int, Any], shown: Any = None) -> Any:
    reading = SimpleNamespace(shifts=shifts, shown=shown or {}, exact=True, has_laplace=False)
    return reading, y + 10, y


def test_ratios_are_of_each_inclusion_by_its_chance() -> None:
    y, shift = torch.stack([vector(1.0, 2.0), vector(-1.0, 0.5)]), vector(0.5, -1.0)
    ratio = y @ shift - 0.625
    plain = scored()
    for _ in range(2):
        plain.add(innovation(y, {3: shift, 4: 2 * shift}))
    assert plain.scores(None).tolist() == pytest.approx(
        (2 * ratio + 2 * (2 * y @ shift - 2.5)).tolist()
    )
    assert plain.scores(3).tolist() == pytest.approx((2 * ratio).tolist())
    two = scored(batches=2)
    two.add(innovation(y, {3: shift, 5: shift}))
    assert two.scores(2).tolist() == pytest.approx(ratio.tolist())
    assert two.scores(1).tolist() == [0.0, 0.0]
    rare = scored(rate=0.2)
    rare.add(innovation(y, {1: shift}))
    assert rare.scores(None).tolist() == pytest.approx(torch.log(0.8 + 0.2 * ratio.exp()).tolist())
    both = scored(replaces=True, rate=0.2)
    both.add(innovation(y, {1: shift}))
    opposite = -y @ shift - 0.625
    expected = torch.log(0.8 + 0.2 * ratio.exp()) - torch.log(0.8 + 0.2 * opposite.exp())
    assert both.scores(None).tolist() == pytest.approx(expected.tolist())
    sure = scored(replaces=True)
    sure.add(innovation(y, {}, {1: vector(0.05, 0.0)}))
    seen = play.CERTAIN * ((y + 10) @ vector(0.05, 0.0)).clamp(-1, 1)
    assert sure.scores(None).tolist() == pytest.approx((2 * seen).tolist())


def test_a_ratio_of_laplace_draws_is_of_their_sizes() -> None:
    """Draws of variance 1: ln p(z - c) / p(z) = sqrt(2) (|z| - |z - c|)."""
    draws = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    reading: Any = SimpleNamespace(
        exact=True, has_laplace=True, laplace=torch.tensor([True, False]), draws=draws.numpy()
    )
    y, shift = vector(1.0, 2.0)[None], vector(0.5, -1.0)
    z, c = (y @ draws)[0], shift @ draws
    expected = sqrt(2) * (abs(z[0]) - abs(z[0] - c[0])) + (z[1] ** 2 - (z[1] - c[1]) ** 2) / 2
    found = play._log_ratio(reading, torch.cat([y, vector(9.0)[None]], 1), shift)
    assert found.tolist() == pytest.approx([float(expected)])
    reading.exact = False
    assert play._log_ratio(reading, y, shift).tolist() == [pytest.approx(-1.5 - 0.625)]


def test_coordinates_are_read_one_by_one() -> None:
    values = torch.arange(12.0).view(2, 3, 2)
    found = play._by_coordinate(values, 2)
    assert found[:, :, 0].tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    count = torch.tensor([[[7.0]], [[8.0]]])
    assert play._by_coordinate(count, 2).flatten().tolist() == [7, 7, 8, 8]


def test_sets_of_draws_are_of_names_and_of_stems() -> None:
    found = list(_sets(frozenset({"a", "b", "c1", "c2"})))
    assert frozenset({"c1", "c2"}) in found
    assert frozenset({"a", "b", "c1", "c2"}) not in found
    assert len(found) == 4 + 6 + 4  # of one, two and three of four names
    assert [len(one) for one in found] == sorted(len(one) for one in found)
    assert len(list(_sets(frozenset("abcde")))) == 5
    assert list(_sets(frozenset("abcdefghijklmnopq"))) == []
    assert list(_sets(frozenset({"a"}))) == []
    many = {f"z{i}" for i in range(20)}
    assert list(_sets(frozenset({*many, "y"}))) == [frozenset({"y"}), frozenset(many)]


def test_losses_are_halved_where_all_is_clipped() -> None:
    def release(z: float, clipped: str, n: int) -> Release:
        return Release(family="gaussian", noise_multiplier=z, clipped=clipped, count=n)  # type: ignore[arg-type]

    found = _losses([release(4.0, "records", 1), release(0.25, "whole", 2)])
    assert found == [2.0, 2.0, 0.25]
    assert _kind(release(1.0, "records", 1)) == ("gaussian", 1.0)
    assert rounds_played(1, Streams(1)) == [1]
    later = {rounds_played(n, Streams(s))[1] for s in range(60) for n in (3,)}
    assert later == {2, 3}
    assert max(rounds_played(10**6, Streams(s))[1] for s in range(60)) <= 100


def shape(**of: Any) -> GameShape:
    about = {"observed": 3, "draws": 4, "width": 5, "points": 2, "n_agents": 6, "entries": None}
    footprint = SimpleNamespace(round=lambda n, trials, size: 1000 * n + 10 * trials + size)
    return GameShape(**{"footprint": footprint, **about, **of})


def test_the_algebra_of_a_round_takes_these_numbers() -> None:
    """9 uncertain numbers, of which 3 are read: 2 uses of 5 rounds, and 8 bytes each."""
    assert shape().products == 3 * 9 * 3
    assert shape(observed=20).products == 20 * 9 * 9
    readings = 5 * 3 * (3 + 5 + 4) + 3 * 10 * 5 // 2
    probing = (1 + 5 + 9 + 2) * (2 * 4 + 4 * 3 + 4 * 5)
    solving = 4 * 9 * (3 + 5) + 2 * 9 + 2 * 10 * (3 + 5)
    assert shape().adversary(5) == 8 * (readings + 100 + probing + solving) + 1000 + 170 + 8


def test_an_estimate_is_the_best_of_those_that_are_unbiased() -> None:
    rng = np.random.default_rng(1)
    A, B = (torch.from_numpy(rng.normal(size=(5, m))) for m in (2, 5))
    c, z = vector(1.0, -2.0), vector(0.1, 0.0, 0.0, 0.2, 0.0)
    w = _best(Decomposition.of(A), B, c, z, None)
    torch.testing.assert_close(w @ A, c)
    C = torch.linalg.inv(B @ B.T)
    start = torch.linalg.inv(B.T) @ z
    exact = start + C @ A @ torch.linalg.solve(A.T @ C @ A, c - A.T @ start)
    torch.testing.assert_close(w, exact)
    rounding = vector(0.3, 0.1, 0.2, 0.4, 0.5)
    noisy = _best(Decomposition.of(A), B, c, z, rounding)
    S = torch.linalg.inv(B @ B.T + rounding.diag() ** 2)
    start = S @ B @ z
    exact = start + S @ A @ torch.linalg.solve(A.T @ S @ A, c - A.T @ start)
    torch.testing.assert_close(noisy, exact)
    factor = torch.from_numpy(rng.normal(size=(3, 5)))
    U = _whitening(factor)
    torch.testing.assert_close(U @ factor @ factor.T @ U.T, torch.eye(3).double())
    seen = torch.full((2, 4), 3.0).double()
    assert _size(seen, vector(1.0, 2.0), vector(1.0, 1.0)) == pytest.approx(sqrt((18 - 2) / 5))


@pytest.mark.parametrize(
    ("of", "alone"),
    [
        ({}, True),
        ({"reacts": "it"}, False),
        ({"separate": False}, False),
        ({"noiseless": {1: "m"}}, False),
    ],
)
def test_every_release_counts_where_each_is_alone(monkeypatch, of, alone) -> None:
    def adversary(game: Any, threat_model: Any, n_rounds: int) -> Any:
        leak = SimpleNamespace(**{"separate": True, "noiseless": {}, **of})
        return SimpleNamespace(reacts=of.get("reacts"), leak=leak)

    monkeypatch.setattr(releases, "Adversary", adversary)
    game = game_of("dp-dpsgd", "path", n_agents=3, noise_multiplier=1.0, n_rounds=2)
    found = releases.every_release(game, EAVESDROPPER, 2, game.setting.network)
    assert (found == releases.NOT_ALONE) is not alone


@pytest.mark.parametrize(("n_rounds", "played"), [(1, 1), (3, 3), (5, 3)])
def test_three_rounds_at_most_are_played_twice(n_rounds: int, played: int) -> None:
    class Short(Gossip):
        n_rounds: int = 1

    setting = game_of("dp-dpsgd", "path", n_agents=3, noise_multiplier=1.0, n_rounds=2).setting
    found = replayability._play(Short(n_rounds=n_rounds), setting, 1.0, 3)
    assert len(found) == played
    assert [one.was["X"].shape == one.values['message "y"'].shape for one in found] == [
        True
    ] * played


def agents(n_rounds: int, whole: bool = False) -> list[Any]:
    return [
        SimpleNamespace(
            victim=i, in_one_round=whole, defense=SimpleNamespace(n_rounds=n_rounds)
        )
        for i in range(6)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "noiseless", "chosen"),
    [(0.0, {}, 4), (7.0, {}, 4), (8.5, {}, 0), (0.0, {3: "m", 2: "m"}, 2)],
)
def test_the_agent_of_the_largest_leak_is_chosen(monkeypatch, declared, noiseless, chosen) -> None:
    """Agents leak 2, 1, 5, 3, 8 and 4: three of them are followed apart, the loudest."""
    leaks = dict(enumerate([2.0, 1.0, 5.0, 3.0, 8.0, 4.0]))
    followed: list[list[int]] = []
    used: list[list[int]] = []
    batches: list[int] = []

    def by_agent(adversary: Any, victims: list[int], rounds: Any) -> Any:
        followed.append(victims)
        used.append(rounds.tolist())
        return SimpleNamespace(H=[vector(leaks[v]) for v in victims])

    def sizes(adversary: Any, victims: list[int], patterns: int) -> Any:
        H = torch.stack([torch.eye(2).double() * leaks[v] for v in victims])
        by_round = torch.arange(700.0)[None] + torch.tensor(victims)[:, None]
        by_round[victims.index(4), 9] += 1e3
        by_round[victims.index(1), 19] += 1e3  # an agent that is not among the loudest
        return (H, noiseless), by_round[:, : alike[0].defense.n_rounds]

    monkeypatch.setattr(record, "Adversary", lambda *_: None)
    monkeypatch.setattr(record, "replace", lambda game, **_: game)
    monkeypatch.setattr(record, "size_by_agent", sizes)
    monkeypatch.setattr(record, "leak_by_agent", by_agent)
    monkeypatch.setattr(record, "_leaked", lambda game, H: float(H))
    monkeypatch.setattr(record, "_epsilon", lambda leak, *_: SimpleNamespace(low=leak))
    monkeypatch.setattr(record, "_declared", lambda *of: batches.append(of[-1]) or declared)
    alike = agents(5)
    asked: Any = EAVESDROPPER, 1e-5, "add-remove"
    assert record._of_whole_run(alike[0], alike, *asked).victim == chosen
    assert followed == ([] if noiseless else [[0, 4, 2, 5]])
    alike = agents(700)
    assert record._of_whole_run(alike[0], alike, *asked).victim == chosen
    several = [[1, 2, 3, 4, 5], [10, *range(602, 701)]]  # the loudest rounds of the loudest agents
    assert (used, batches) == (([], []) if noiseless else (several, [5] * 3 + [100] * 3))
    followed = followed[:1]
    for few in (agents(2), agents(5, whole=True)):
        assert record._of_whole_run(few[0], few, *asked) is few[0]
    assert followed == ([] if noiseless else [[0, 4, 2, 5]])


def test_runs_that_compare_agents_fit_into_memory() -> None:
    """One number for each of 3 links both ways and 4 agents, times the coordinates."""
    game = game_of("dp-dpsgd", "path", n_agents=4, noise_multiplier=1.0, n_rounds=2)
    rows = game.setting.network.at(1).n_edges + 4
    for coordinates, runs in (
        (1, 4000),
        (record.NUMBERS // rows // 100, 100),
        (record.TOO_MANY // rows // 32, 32),
        (record.TOO_MANY // rows // 32 + 1, 0),
    ):
        assert record._runs(game, coordinates) == runs


def test_blocks_that_were_kept_are_those_of_before() -> None:
    """Scores and features of two blocks of runs, through what a resumed job reads."""
    before = [worlds(5, 1.0, 3), worlds(6, 0.0, 4)]
    after = play._blocks_of(play._progress_of(before))
    assert [len(block.without.scores) for block in after] == [3, 4]
    for block, other in zip(before, after, strict=True):
        for run, kept in zip(block, other, strict=True):
            assert np.array_equal(run.scores, kept.scores)
            assert np.array_equal(run.features, kept.features)
    assert play._blocks_of(None) == []
