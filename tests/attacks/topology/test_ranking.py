"""AUCs of links, their intervals and what they are by chance, worked out by hand and by loops."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from dpaudit.attacks.topology import ranking
from dpaudit.attacks.topology.observer_view import Pairs
from dpaudit.attacks.topology.ranking import auc_of_pairs, disjoint, edge_metrics, jackknifed
from dpaudit.files.finding import Name
from dpaudit.statistics.bounds import clopper_pearson


def pairs(n: int, *links: tuple[int, int]) -> Pairs:
    found = np.zeros((n, n), dtype=bool)
    for i, j in links:
        found[i, j] = found[j, i] = True
    return found


def every_pair(n: int) -> Pairs:
    return ~np.eye(n, dtype=bool)


def drawn(n: int, seed: int, levels: int = 1000) -> Any:
    scores = np.random.default_rng(seed).integers(0, levels, (n, n)).astype(float)
    return scores + scores.T


PATH = pairs(5, (0, 1), (1, 2), (2, 3), (3, 4))


@pytest.mark.parametrize("at_once", [1, 30, 10**7])
@pytest.mark.parametrize("levels", [2, 1000])
def test_chance_is_that_of_relabelled_agents(monkeypatch, at_once: int, levels: int) -> None:
    monkeypatch.setattr(ranking, "AT_ONCE", at_once)
    monkeypatch.setattr(ranking, "RELABELLED", 39)
    scores, scored = drawn(5, 3, levels) + 3.0 * PATH, every_pair(5)
    scored[0, 4] = scored[4, 0] = False
    found = edge_metrics(scores, PATH, scored, np.random.default_rng(4))
    rng, area = np.random.default_rng(4), auc_of_pairs(scores, PATH, scored)
    orders = [rng.permutation(5) for _ in range(39)]
    chance = np.array([auc_of_pairs(scores[np.ix_(o, o)], PATH, scored) for o in orders])
    as_high = int((chance >= area).sum())
    assert 0 < as_high < 39
    assert found[Name.P_VALUE].value == (1 + as_high) / 40
    assert found[Name.P_VALUE].n == 39
    assert found[Name.AUC].value == area
    assert found[Name.AUC].n == 9
    assert found[Name.AUC].ends == jackknifed(scores, PATH, scored)
    assert found[Name.CHANCE_AUC].value == pytest.approx(chance.mean())
    assert found[Name.CHANCE_AUC].ends == pytest.approx(np.quantile(chance, [0.025, 0.975]))


def without(agent: int, of: Any) -> Any:
    rest = [i for i in range(len(of)) if i != agent]
    return of[np.ix_(rest, rest)]


STAR = pairs(5, (0, 1), (0, 2), (0, 3), (0, 4))
ALMOST_COMPLETE = every_pair(5) & ~pairs(5, (1, 3))


@pytest.mark.parametrize(
    ("links", "left_out"),
    [
        (PATH, [0, 1, 2, 3, 4]),
        (STAR, [1, 2, 3, 4]),  # without its centre nothing is linked
        (ALMOST_COMPLETE, [0, 2, 4]),  # without agent 1 or 3 everything is
    ],
)
def test_the_interval_leaves_out_one_agent_in_turn(links: Pairs, left_out: list[int]) -> None:
    scores, every = drawn(5, 2), every_pair(5)
    area, m = auc_of_pairs(scores, links, every), len(left_out)
    assert 0 < area < 1
    areas = [auc_of_pairs(*(without(i, x) for x in (scores, links, every))) for i in left_out]
    variance = (m - 1) ** 2 / m * np.var(areas, ddof=1)
    margin = student.ppf(0.975, m - 1) * np.sqrt(variance)
    expected = max(0.0, area - margin), min(1.0, area + margin)
    assert jackknifed(scores, links, every) == pytest.approx(expected)


def test_with_fewer_than_two_agents_left_out_nothing_is_known() -> None:
    links = pairs(3, (0, 1), (1, 2))
    assert jackknifed(drawn(3, 1), links, every_pair(3)) == (0.0, 1.0)


def test_perfect_ranks_have_the_width_of_disjoint_links() -> None:
    margin = float(clopper_pearson(0, 2, 0.025))
    assert margin == pytest.approx(1 - 0.025**0.5)
    assert jackknifed(1.0 * PATH, PATH, every_pair(5)) == (pytest.approx(1 - margin), 1.0)
    assert jackknifed(-1.0 * PATH, PATH, every_pair(5)) == (0.0, pytest.approx(margin))
    known = every_pair(5) & ~pairs(5, (0, 1))  # of what is scored (1, 2) and (3, 4) are disjoint
    assert jackknifed(1.0 * PATH, PATH, known) == (pytest.approx(1 - margin), 1.0)


@pytest.mark.parametrize(
    ("links", "n"),
    [
        (PATH, 2),
        (STAR, 1),
        (pairs(5), 0),
        (pairs(3, (0, 1), (1, 2), (0, 2)), 1),
        (pairs(3, (0, 2), (1, 2)), 1),
        (pairs(4, (0, 3), (1, 2)), 2),
        (every_pair(6), 3),
    ],
)
def test_disjoint_links_have_no_agent_in_common(links: Pairs, n: int) -> None:
    assert disjoint(links) == n
