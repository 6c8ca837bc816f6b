"""The checker's wealth of bets against the auditor's, from packed outcomes alone."""

from typing import Any

import numpy as np
import pytest

from dpaudit.statistics.betting import (
    Bets,
    Point,
    bets,
    epsilon_from_bets,
    gaussian_curve,
    log_wealth,
    packed,
)
from dpaudit.verify import figures
from dpaudit.verify.bets import ceiling, wealths
from tests.verify import test_values as of

Scores = tuple[np.ndarray, np.ndarray]


def drawn(rng: np.random.Generator, n: int, decimals: int) -> Scores:
    """Scores of both worlds; few decimals make some lie on thresholds."""
    mean = rng.uniform(0, 3)
    return rng.normal(0, 1, n).round(decimals), rng.normal(mean, 1, n).round(decimals)


def evidence(on: list[Bets], scores: Scores) -> dict[str, list[float]]:
    found = packed(on, scores)
    points = np.concatenate([group.points for group in on])
    return {
        "bet epsilon": points[:, 0].tolist(),
        "bet delta": points[:, 1].tolist(),
        "bet side": np.concatenate([group.above for group in on]).tolist(),
        "bet place": list(found.place),
        "bet share": list(found.share),
        "bet group": list(found.group),
        "places": list(found.places),
        "number of places": [found.n_places],
    }


@pytest.mark.parametrize("seed", range(40))
def test_wealth_is_that_of_the_auditor(seed: int) -> None:
    rng = np.random.default_rng([39, seed])
    n, decimals = int(rng.integers(2, 400)), int(rng.choice([1, 9]))
    choosing, scores = drawn(rng, 200, decimals), drawn(rng, n, decimals)
    claim = [Point(float(rng.uniform(0, 3)), float(rng.choice([0, 1e-5, 0.1])))]
    curve = gaussian_curve(float(rng.uniform(0.1, 3)))
    on = [bets(points, choosing) for points in (claim if seed % 2 else curve, claim)]
    for (points, own), group in zip(wealths(evidence(on, scores), n), on, strict=True):
        assert own == pytest.approx(log_wealth(group, scores), abs=1e-9)
        assert points == {tuple(point) for point in group.points.tolist()}


@pytest.mark.parametrize("n, delta, alpha", [(1, 0.0, 0.05), (40, 1e-5, 0.05), (3000, 0.01, 0.01)])
def test_ceiling_is_that_of_the_auditor(n: int, delta: float, alpha: float) -> None:
    errorless = np.zeros(n), np.ones(n)
    found = epsilon_from_bets(errorless, delta, alpha, errorless)
    assert ceiling(n, delta, alpha) == pytest.approx(found, abs=1e-12)


def test_one_pair_by_hand() -> None:
    """Of all pairs one, on the right side of 0.5: both sides win 1 of the 2 that can be lost.

    At epsilon = delta = 0 the wealth of a share f is 1 + f, and that of 0.9 has half of the stake.
    """
    choosing = np.zeros(50), np.ones(50)
    on = [bets([Point(0.0, 0.0)], choosing)]
    ((_, found),) = wealths(evidence(on, (np.zeros(1), np.ones(1))), 1)
    mean = np.mean([1.9, 1.5, 1.25, 1.1, 1.05, 1.02, 1.01])
    assert np.exp(found) == pytest.approx([(1.9 + mean) / 2])


@pytest.mark.parametrize(
    "name, value", [("places", 0.5), ("places", -1.0), ("bet share", 3), ("bet side", 2)]
)
def test_bets_that_are_none_are_refused(name: str, value: float) -> None:
    rng = np.random.default_rng(40)
    on = [bets([Point(1.0, 0.0)], drawn(rng, 50, 9))]
    changed = evidence(on, drawn(rng, 20, 9))
    changed[name] = [value] * len(changed[name])
    with pytest.raises(ValueError, match="these"):
        list(wealths(changed, 20))


DELTA = 1e-5
CLAIMED, CERTIFIED = Point(0.5, DELTA), Point(1.0, DELTA)


def figures_of(*groups: list[Point], wealth: float = 1.0, **claim: Any) -> Any:
    """p-value, bound and ceiling of bets on 300 pairs whose means are 3 apart, at level 0.05."""
    rng = np.random.default_rng(41)
    choosing, scores = ((rng.normal(0, 1, 300), rng.normal(3, 1, 300)) for _ in range(2))
    on = [bets(points, choosing) for points in groups]
    found = wealth * log_wealth(on[0], scores)[-1]
    one = of.finding("test", of=of.metrics(log_wealth=(found, 300)), evidence=evidence(on, scores))
    wealths = [log_wealth(group, scores) for group in on]
    return figures._of_bets(one, of.evidence(one, **claim), 0.05), wealths


def test_bets_have_the_p_value_of_their_largest_wealth() -> None:
    (p, bound, most), (claimed, certified) = figures_of([CLAIMED], [CERTIFIED], epsilon=0.5)
    assert p == figures.about(np.exp(-claimed.max()))
    assert certified.max() > -np.log(0.05)
    assert (bound, most) == (figures.about(1.0), figures.about(ceiling(300, DELTA, 0.05)))
    (p, bound, _), (lost,) = figures_of([Point(9.0, 0.4)], epsilon=9.0, delta=0.4)
    assert lost.max() < 0
    assert (p, bound) == (figures.about(1.0), figures.about(0.0))


@pytest.mark.parametrize(
    "groups, claim, said",
    [
        (([CLAIMED],), {"epsilon": 0.4}, None),  # which promises more
        (([CLAIMED],), {"epsilon": 0.6}, "more than is claimed"),
        (([CLAIMED],), {"epsilon": 0.5, "delta": 1e-6}, None),
        (([CLAIMED],), {"epsilon": 0.5, "delta": 2e-5}, "more than is claimed"),
        ((gaussian_curve(0.7),), {"mu": 0.7}, None),
        ((gaussian_curve(0.7),), {"mu": 0.69}, None),
        ((gaussian_curve(0.7),), {"mu": 0.71}, "more than is claimed"),
        (([CLAIMED], [Point(9.0, DELTA)]), {"epsilon": 0.5}, "do not refute it"),
        (([CLAIMED], [Point(1.0, 1e-3)]), {"epsilon": 0.5}, "do not refute it"),
        (([CLAIMED],), {"epsilon": 0.5, "wealth": 1.001}, "the log wealth is"),
    ],
)
def test_bets_follow_from_the_claim_and_refute_what_is_said(groups, claim, said) -> None:
    if said is None:
        assert figures_of(*groups, **claim)
        return
    with pytest.raises(ValueError, match=said):
        figures_of(*groups, **claim)
