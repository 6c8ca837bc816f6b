"""Who is linked, from models: exact where gossip is, chance where nothing is mixed."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from dpaudit.attacks.topology.observer_view import Pairs
from dpaudit.attacks.topology.ranking import (
    auc_of_pairs,
    disjoint,
    edge_metrics,
    jackknifed,
)
from dpaudit.attacks.topology.scores import (
    by_cosine,
    by_regression,
    by_simplex,
    by_times,
    fitted,
    on_simplex,
)
from dpaudit.files.finding import Name
from dpaudit.graphs.graph import build_graph

FALSE_FAILURE = (
    1e-9  # probability that a correct program fails a statistical test, over fresh seeds
)
ROUNDING = torch.finfo(torch.float64).eps


def mixing(name: str, n_agents: int) -> Tensor:
    return build_graph(name, n_agents, np.random.default_rng(5)).at(1).W


def links_of(W: Tensor) -> Pairs:
    links = (W != 0).numpy()
    return (links | links.T) & ~np.eye(len(links), dtype=bool)


def every_pair(n: int) -> Pairs:
    return ~np.eye(n, dtype=bool)


def gossip(W: Tensor, n_steps: int, d: int, own: float = 0.0, noise: float = 0.0) -> Tensor:
    """Models of agents that add a gradient of their own, the same in all steps, and noise."""
    rng = torch.Generator().manual_seed(7)
    X = torch.randn(len(W), d, generator=rng, dtype=torch.float64)
    gradient = own * torch.randn(len(W), d, generator=rng, dtype=torch.float64)
    steps = []
    for _ in range(n_steps):
        X = X + noise * torch.randn(len(W), d, generator=rng, dtype=torch.float64)
        steps.append(X)
        X = W @ X - gradient
    return torch.stack(steps)


@pytest.mark.parametrize("graph", ["ring", "erdos-renyi", "star", "path"])
@pytest.mark.parametrize("own", [0.0, 0.3])
def test_the_mixing_matrix_of_noiseless_gossip_is_found_exactly(graph: str, own: float) -> None:
    """With gradients that do not change, differences of models follow plain gossip."""
    W = mixing(graph, 12)
    found = fitted(gossip(W, 6, 40, own), ROUNDING)
    assert found.rho == 1.0 or not own
    torch.testing.assert_close(found.W, W, atol=1e-6, rtol=0)
    links, pairs = links_of(W), every_pair(12)
    for scores in (by_regression(found), by_simplex(found)):
        assert auc_of_pairs(scores, links, pairs) == 1.0


def test_two_steps_are_enough_without_noise() -> None:
    W = mixing("ring", 8)
    found = fitted(gossip(W, 2, 20), ROUNDING)
    torch.testing.assert_close(found.W, W, atol=1e-8, rtol=0)


def test_weights_over_their_errors_are_those_of_least_squares() -> None:
    """Without reweighting the estimate of agent i is ordinary least squares on n - 1 deviations, and
    its covariance s^2 (Z Z')^+; here by numpy, with unit weights since errors have one variance."""
    W = mixing("ring", 6)
    X = gossip(W, 2, 4000, noise=1.0)
    found = fitted(X, ROUNDING)
    D = (X - X.mean(dim=1, keepdim=True)).numpy()
    by_hand = np.linalg.lstsq(D[0].T, D[1].T, rcond=None)[0].T
    by_hand += (1 - by_hand.sum(axis=1, keepdims=True)) / 6
    # reweighting by estimated variances of one draw each changes weights by few standard errors
    error = np.sqrt(1 / 4000)
    assert np.abs(found.W.numpy() - by_hand).max() < 5 * error


def test_a_linked_pair_is_found_under_noise_by_sparse_weights() -> None:
    """300 coordinates, 10 steps and noise as large as models: a weight of 1/3 has a standard error
    of 1 / sqrt(3,000), so that all pairs are ranked right but with a probability below 1e-30."""
    W = mixing("ring", 10)
    found = fitted(gossip(W, 10, 300, noise=1.0), ROUNDING)
    for scores in (by_regression(found), by_simplex(found)):
        assert auc_of_pairs(scores, links_of(W), every_pair(10)) == 1.0


@pytest.mark.parametrize("seeds", [25, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["regression", "sparse regression", "cosine"])
def test_without_mixing_nothing_is_found_beyond_chance(method: str, seeds: int) -> None:
    """The agents are exchangeable, so that the AUC is uniform among relabellings: it lies outside
    of their 95% with probability 0.052 at most, and the p-value is at most 0.05 with 0.05."""
    n = 8
    links, pairs = links_of(mixing("ring", n)), every_pair(n)
    outside = significant = 0
    for seed in range(seeds):
        rng = np.random.default_rng([20261128, seed])
        models = torch.from_numpy(rng.normal(size=(4, n, 12)).cumsum(axis=0))
        found = fitted(models, ROUNDING)
        scores = {
            "regression": lambda found=found: by_regression(found),
            "sparse regression": lambda found=found: by_simplex(found),
            "cosine": lambda models=models: by_cosine(models),
        }[method]()
        metrics = edge_metrics(scores, links, pairs, rng)
        chance, area = metrics[Name.CHANCE_AUC], metrics[Name.AUC].value
        outside += not chance.ends[0] <= area <= chance.ends[1]
        significant += metrics[Name.P_VALUE].value <= 0.05
        assert chance.value == pytest.approx(0.5, abs=0.05)
    assert outside <= binom.isf(FALSE_FAILURE, seeds, 0.052)
    assert significant <= binom.isf(FALSE_FAILURE, seeds, 0.05)


def test_sparse_weights_solve_their_quadratic_program() -> None:
    """Karush, Kuhn and Tucker: in each row the gradient is least, and equal, where weights are."""
    found = fitted(gossip(mixing("erdos-renyi", 9), 4, 30, own=0.2, noise=0.5), ROUNDING)
    both = by_simplex(found)
    rng = torch.Generator().manual_seed(1)
    rows = on_simplex(torch.randn(50, 9, generator=rng, dtype=torch.float64))
    assert (rows >= 0).all()
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(50, dtype=torch.float64))
    assert both.sum() == pytest.approx(2 * 9)  # both directions of rows that sum to 1
    assert (both == 0).any()


def test_projection_on_the_simplex_is_the_nearest_point() -> None:
    rng = torch.Generator().manual_seed(2)
    rows = torch.randn(20, 5, generator=rng, dtype=torch.float64)
    nearest = on_simplex(rows)
    others = torch.rand(2000, 5, generator=rng, dtype=torch.float64)
    others = others / others.sum(dim=1, keepdim=True)
    distance = (rows - nearest).norm(dim=1)
    assert (distance[:, None] <= (rows[:, None] - others).norm(dim=2) + 1e-12).all()


def test_auc_is_the_share_ranked_right_and_ties_are_half() -> None:
    rng = np.random.default_rng(3)
    n = 7
    scores = rng.integers(0, 4, (n, n)).astype(float)
    scores = scores + scores.T
    links, some = links_of(mixing("path", n)), every_pair(n)
    some[0, 3] = some[3, 0] = False  # a pair that is known
    i, j = np.nonzero(np.triu(some, 1))
    linked, others = scores[i, j][links[i, j]], scores[i, j][~links[i, j]]
    wins = (linked[:, None] > others) + 0.5 * (linked[:, None] == others)
    assert auc_of_pairs(scores, links, some) == pytest.approx(wins.mean())


def test_an_interval_of_perfect_ranks_has_a_width() -> None:
    """A ring of 8 has 4 links without a common agent: (1 - 0.025^(1/4)) by Clopper and Pearson."""
    links = links_of(mixing("ring", 8))
    assert disjoint(links) == 4
    low, high = jackknifed(links.astype(float), links, every_pair(8))
    assert (low, high) == (pytest.approx(0.025**0.25), 1.0)


@pytest.mark.slow
def test_the_jackknife_covers_what_the_auc_is_over_runs() -> None:
    """Nominally 95%; a jackknife over 16 agents is approximate, and at least 80% is asked of it:
    of 400 runs of a correct interval with 90%, fewer have it with a probability below 1e-9."""
    n, runs = 16, 400
    links, pairs = links_of(mixing("ring", n)), every_pair(n)
    rng = np.random.default_rng(11)

    def drawn() -> NDArray[np.float64]:
        noise = rng.normal(size=(n, n))
        return links * 1.0 + (noise + noise.T) / np.sqrt(2)

    truth = np.mean([auc_of_pairs(drawn(), links, pairs) for _ in range(4000)])
    inside = 0
    for _ in range(runs):
        low, high = jackknifed(drawn(), links, pairs)
        inside += low <= truth <= high
    assert inside >= binom.isf(1 - FALSE_FAILURE, runs, 0.9)


def test_agents_that_send_at_the_same_times_are_told_by_them() -> None:
    sends = np.zeros((6, 4), dtype=bool)
    sends[::2, :2] = sends[1::2, 2:] = True
    times = by_times(sends)
    assert times is not None
    np.testing.assert_allclose(times[:2, :2], 1)
    np.testing.assert_allclose(times[:2, 2:], -1)
    assert by_times(np.ones((6, 4), dtype=bool)) is None


def test_a_model_of_zeros_is_like_no_other() -> None:
    models = torch.tensor([[[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]]], dtype=torch.float64)
    expected = [[1, 0.96, 0], [0.96, 1, 0], [0, 0, 0]]
    assert by_cosine(models) == pytest.approx(np.array(expected))


def test_agents_that_always_send_are_correlated_with_nobody() -> None:
    sends = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1], [1, 0, 1]], dtype=bool)
    found = by_times(sends)
    assert found is not None
    assert found[1:, 1:] == pytest.approx(np.corrcoef(sends[:, 1:].T))
    assert found[0] == pytest.approx(np.zeros(3))
    assert by_times(np.ones((4, 3), dtype=bool)) is None
