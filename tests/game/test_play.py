"""Runs of two worlds: calibrated scores, power, and bounds that hold for correct mechanisms."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.defense.contract import Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.leak import RoundReading
from dpaudit.game.game import Game
from dpaudit.game.runs.play import (
    ASKED,
    LearnedScore,
    ScoredRuns,
    Worlds,
    _is_due,
    cross_fitted,
    play,
)
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import family_from_scores, from_scores

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
CURIOUS = ThreatModel(name="agent 0", kind="curious", agents=(0,))


@pytest.fixture
def audited() -> Callable[..., Adversary]:
    def make(
        name: str,
        graph: str = "ring",
        size: int = 8,
        rounds: int = 1,
        adjacency: str = "add-remove",
        threat_model: ThreatModel = EAVESDROPPER,
        **options: Any,
    ) -> Adversary:
        setting = Setting(build_graph(graph, 6), (size,) * 6, 1)
        defense = load_plugin("defenses", name)(n_rounds=rounds, batch_size=8, **options)
        game = Game.of(defense.calibrate(setting), setting, 1, adjacency, "poisson")
        return Adversary(game, threat_model, rounds)

    return make


@pytest.mark.parametrize("threat_model", [EAVESDROPPER, CURIOUS])
@pytest.mark.parametrize(
    "name, graph, options",
    [
        ("dpdl", "bipartite", {"noise_multiplier": 3.0}),
        ("dp-dpsgd", "ring", {"noise_multiplier": 1.0}),
        ("dyn-d2p", "exponential", {"epsilon": 0.5}),
    ],
)
def test_what_is_left_after_foretelling_is_white_noise(audited, name, graph, options, threat_model):
    """6 Kolmogorov-Smirnov tests at 1e-5: a false failure in 1 of 16,000 seeds (one is fixed);
    correlations of 6 standard errors in fewer than that."""
    adversary = audited(name, graph, rounds=4, threat_model=threat_model, **options)
    features = play(adversary, 400, Streams(5)).without.features
    assert kstest(features.ravel(), "norm").pvalue > 1e-5
    correlation = np.corrcoef(features.T) - np.eye(features.shape[1])
    assert np.abs(correlation).max() < 6 / np.sqrt(400)


def test_mu_1_is_certified_as_the_theory_expects(audited) -> None:
    """1e4 runs a world, of which a tenth chooses: at least 3.8 of 4.38 by the Gaussian family, 1.7
    by Clopper-Pearson; means of 10 audits, whose standard errors are 0.03 and 0.07."""
    adversary = audited("dp-dpsgd", noise_multiplier=1.0)
    by_family, by_any = [], []
    for seed in range(10):
        worlds = play(adversary, 10_000, Streams(seed))
        scores = worlds.without.scores, worlds.with_record.scores
        mu = family_from_scores(*scores, 0.05, np.random.default_rng(seed)).value
        by_family.append(GAUSSIAN.epsilon(mu, 1e-5))
        by_any.append(from_scores(*scores, 1e-5, 0.05, np.random.default_rng(seed)).value)
    assert 3.8 <= np.mean(by_family) <= 4.38
    assert 1.7 <= np.mean(by_any) <= 4.38


def test_laplace_epsilon_1_is_certified_almost_whole(audited) -> None:
    """The bound exceeds the truth, 1, in 5% of seeds at most; one is fixed."""
    adversary = audited("dp-dpsgd", noise_multiplier=1.0, perturb="model")
    worlds = play(adversary, 100_000, Streams(2))
    bound = from_scores(
        worlds.without.scores, worlds.with_record.scores, 0.0, 0.05, np.random.default_rng(1)
    )
    assert 0.95 <= bound.value <= 1.0


def test_scores_of_a_sampled_record_are_the_mixtures_ratio(audited) -> None:
    """Means of e^score over the world without the record, and e^-score with it, are 1: two tests at
    5 standard errors, a false failure in 1 of a million seeds."""
    adversary = audited("dp-dpsgd", size=32, rounds=3, noise_multiplier=1.0)
    worlds = play(adversary, 20_000, Streams(3))
    for values in (np.exp(worlds.without.scores), np.exp(-worlds.with_record.scores)):
        assert values.mean() == pytest.approx(1, abs=5 * values.std() / np.sqrt(len(values)))


def test_replacing_a_record_tells_more_than_adding_one(audited) -> None:
    """A bound exceeds the true 0.5 or 1 in 5% of seeds each at most; one is fixed."""
    bounds = []
    for adjacency in ("add-remove", "replace-one"):
        adversary = audited("dp-dpsgd", adjacency=adjacency, noise_multiplier=2.0)
        worlds = play(adversary, 4000, Streams(4))
        scores = worlds.without.scores, worlds.with_record.scores
        bounds.append(family_from_scores(*scores, 0.05, np.random.default_rng(0)).value)
    assert bounds[0] <= 0.5 < 0.8 < bounds[1] <= 1.0


def test_without_noise_every_run_is_told_apart(audited) -> None:
    adversary = audited("dpdl", "bipartite", rounds=3, noise_multiplier=3.0)
    worlds = play(adversary, 200, Streams(6), game=adversary.game.without_noise())
    assert worlds.without.scores.max() < worlds.with_record.scores.min()


def test_a_message_without_noise_tells_every_drawn_record(audited) -> None:
    worlds = play(audited("d-psgd", rounds=2), 100, Streams(7))
    assert worlds.without.scores.max() <= 0 < worlds.with_record.scores.min()


def test_a_record_used_in_one_round_leaves_no_score_in_others(audited) -> None:
    """Half-sampled mu = 1 is below 0.6 as a Gaussian; four rounds would be above it. The bound
    exceeds the truth in 5% of seeds at most; one is fixed."""
    adversary = audited("dp-dpsgd", rounds=4, size=16, noise_multiplier=1.0)
    one = play(adversary, 5000, Streams(8), in_round=2)
    scores = one.without.scores, one.with_record.scores
    assert np.unique(np.round(np.concatenate(scores), 6)).size > 100
    assert family_from_scores(*scores, 0.05, np.random.default_rng(0)).value <= 0.6


def test_a_learned_score_finds_noise_that_repeats_itself() -> None:
    """The likelihood ratio believes in fresh noise; the difference of two rounds has none."""
    rng = np.random.default_rng(0)

    def features(present: int) -> np.ndarray:
        noise = rng.standard_normal((1000, 1))
        return np.hstack([noise + present, noise])

    def played(present: int) -> Any:
        found = features(present)
        return type("Played", (), {"features": found, "scores": found[:, 0]})()

    worlds = Worlds(played(0), played(1))
    score = LearnedScore(worlds)
    without, with_record = score(played(0)), score(played(1))
    assert without.max() < with_record.min()
    moved = Worlds(*(ScoredRuns(world.scores, world.features + 100.0) for world in worlds))
    again = [LearnedScore(moved)(world) for world in moved]  # only differences of means count
    np.testing.assert_allclose(again, [score(world) for world in worlds], rtol=1e-6)


def test_cross_fitted_scores_of_nothing_are_guesses() -> None:
    """A score judged by the runs that it was learned from looks good where there is nothing to
    learn. Held out, its means differ by 6 standard errors in 1 of a billion seeds."""
    rng = np.random.default_rng(1)
    nothing = Worlds(
        *(ScoredRuns(np.zeros(500), rng.standard_normal((500, 100))) for _ in range(2))
    )

    def apart(without: np.ndarray, with_record: np.ndarray) -> float:
        error = np.hypot(without.std(), with_record.std()) / np.sqrt(500)
        return float((with_record.mean() - without.mean()) / error)

    score = LearnedScore(nothing)
    assert abs(apart(*cross_fitted(nothing))) < 6 < apart(*(score(world) for world in nothing))


def test_the_same_seed_gives_the_same_scores(audited) -> None:
    adversary = audited("dpdl", "bipartite", rounds=2, noise_multiplier=3.0)
    first, second = (play(adversary, 50, Streams(9)) for _ in range(2))
    assert (first.with_record.scores == second.with_record.scores).all()
    assert torch.equal(
        torch.from_numpy(first.without.features), torch.from_numpy(second.without.features)
    )


def test_of_many_runs_each_twentieth_asks_for_enough() -> None:
    asked = [n for n in range(1, 2_001) if _is_due(n)]
    assert asked[:10] == list(range(1, 11))
    assert len(asked) < 120
    assert max(b / a for a, b in pairwise(asked[20:])) < ASKED**2


def test_runs_that_are_enough_are_the_first_blocks_of_all(audited) -> None:
    adversary = audited("dp-dpsgd", noise_multiplier=1.0)
    every = play(adversary, 8_000, Streams(1))
    some = play(adversary, 8_000, Streams(1), enough=lambda so_far: len(so_far.scores[0]) > 2_000)
    n = len(some.without.scores)
    assert 2_000 < n < 8_000
    for few, many in zip(some.scores, every.scores, strict=True):
        assert np.array_equal(few, many[:n])


def test_rounds_are_counted_over_all_blocks(audited, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.game.runs.play.BLOCK", 1)  # blocks of 50 runs
    counted = list[tuple[int, int]]()
    adversary = audited("dp-dpsgd", rounds=2, noise_multiplier=1.0)
    scores = play(adversary, 120, Streams(1), on_round=lambda *of: counted.append(of)).scores
    assert [len(world) for world in scores] == [120, 120]
    n = len(counted)
    assert (n % 3, {total for _, total in counted}) == (0, {n})
    assert [done for done, _ in counted] == list(range(1, n + 1))


def test_a_round_of_laplace_noise_reveals_the_sum_of_its_losses() -> None:
    """In units of standard deviations a loss is sqrt(2) times as large; Gaussian draws have none."""
    shift = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    laplace = torch.tensor([True, True, False])
    known = {"messages": [], "whiten": None, "gain": None, "resolved": None, "shown": {}}
    reading = RoundReading(
        columns={(1, 3, 0): shift},
        shifts={1: shift},
        noiseless={},
        draws=np.eye(3),
        laplace=laplace,
        exact=True,
        has_laplace=True,
        **known,  # type: ignore[arg-type]
    )
    assert reading.reveals() == {3: pytest.approx(3 * np.sqrt(2))}
    assert reading._replace(has_laplace=False).reveals() == {3: pytest.approx(np.sqrt(21))}
    assert reading._replace(noiseless={1: "x"}).reveals() == {3: np.inf}
