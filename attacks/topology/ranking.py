"""How well scores rank linked pairs above others: AUC, its interval, and the same by chance."""

import numpy as np
from numpy.typing import NDArray

import dpaudit.attack as da
from dpaudit.accounting.privacy_loss import Array
from dpaudit.statistics.bounds import clopper_pearson

from .observer_view import Pairs

RELABELLED = 999  # random relabellings of the agents
AT_ONCE = 10**7  # pairs of all relabellings that are ranked together
ALPHA = 0.05  # level of intervals


def edge_metrics(
    scores: Array, links: Pairs, scored: Pairs, rng: np.random.Generator
) -> dict[str, da.Metric]:
    """The AUC of links, what relabelled agents have, and the p-value of that comparison.

    Pairs that share an agent are not independent. The interval of the AUC is therefore a jackknife
    over agents (delete one, Student t). The baseline has the mean and 95% of the AUCs of scores
    whose agents are relabelled at random, and the p-value is the share of relabellings, the true
    one among them, with an AUC as high: exact where agents are exchangeable, as those that do not
    mix are (the quadratic assignment procedure of Hubert and Schultz 1976).

    Args:
        scores: [n, n], symmetric, higher where a link is likely.
        links: [n, n], the truth; of the pairs ``scored`` some are links and some are not.
    """
    area, n = auc_of_pairs(scores, links, scored), len(scores)
    low, high = jackknifed(scores, links, scored)
    i, j = np.nonzero(np.triu(scored, 1))
    chance = np.empty(RELABELLED)
    size = max(1, AT_ONCE // len(i))
    for start in range(0, RELABELLED, size):
        orders = np.stack([rng.permutation(n) for _ in chance[start : start + size]])
        chance[start : start + size] = _areas(scores[orders[:, i], orders[:, j]], links[i, j])
    ends = np.quantile(chance, (ALPHA / 2, 1 - ALPHA / 2))
    p_value = (1 + int((chance >= area).sum())) / (1 + RELABELLED)
    pairs = int(np.triu(scored, 1).sum())
    baseline = da.Metric(value=float(chance.mean()), low=float(ends[0]), high=float(ends[1]))
    return {
        da.Name.AUC: da.Metric(value=area, low=low, high=high, n=pairs),
        da.Name.CHANCE_AUC: baseline,
        da.Name.P_VALUE: da.Metric(value=p_value, n=RELABELLED),
    }


def auc_of_pairs(scores: Array, links: Pairs, scored: Pairs) -> float:
    """Chance that a linked pair has a higher score than another, ties counted as half."""
    i, j = np.nonzero(np.triu(scored, 1))
    return float(_areas(scores[i, j][None], links[i, j])[0])


def _areas(scores: Array, truth: NDArray[np.bool_]) -> Array:
    """The AUC of each row of scores [r, n_pairs]."""
    from scipy.stats import rankdata  # a second that other attacks do not wait for

    m, n = int(truth.sum()), int((~truth).sum())
    ranks = rankdata(scores, axis=1)
    return np.asarray((ranks[:, truth].sum(axis=1) - m * (m + 1) / 2) / (m * n))


def jackknifed(scores: Array, links: Pairs, scored: Pairs) -> tuple[float, float]:
    """The 95% interval of the AUC, by leaving out each agent in turn.

    Where all pairs are ranked right, no agent makes a difference. The lower end is then that of
    Clopper and Pearson for as many pairs as have no agent in common.
    """
    from scipy.stats import t as student

    n, area = len(scores), auc_of_pairs(scores, links, scored)
    left: list[float] = []
    for agent in range(n):
        rest = np.delete(np.arange(n), agent)
        some = scored[np.ix_(rest, rest)]
        truth = links[np.ix_(rest, rest)]
        if (some & truth).any() and (some & ~truth & ~np.eye(n - 1, dtype=bool)).any():
            left.append(auc_of_pairs(scores[np.ix_(rest, rest)], truth, some))
    if len(left) < 2:
        return 0.0, 1.0
    if area in (0.0, 1.0):
        margin = float(clopper_pearson(0, disjoint(links & scored), ALPHA / 2))
    else:
        m = len(left)
        spread = np.sqrt((m - 1) / m * np.square(np.array(left) - np.mean(left)).sum())
        margin = float(student.ppf(1 - ALPHA / 2, m - 1) * spread)
    return max(0.0, area - margin), min(1.0, area + margin)


def disjoint(links: Pairs) -> int:
    """How many links without a common agent are found one after the other."""
    taken, found = set[int](), 0
    for i, j in zip(*np.nonzero(np.triu(links, 1)), strict=True):
        if i not in taken and j not in taken:
            taken |= {i, j}
            found += 1
    return found
