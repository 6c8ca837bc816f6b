"""LiRA and RMIA: how much more likely a run is with a record among its records than without it.

All statistics are of the same records in several runs. Reference runs say how a record's statistic
is distributed where it is among the records of the run ("in") and where it is not ("out"). A score
is higher for members, and no score uses whether the record is in the run that is attacked.

Sources: LiRA, Carlini et al. 2022, arXiv:2112.03570; RMIA, Zarifzadeh, Liu and Shokri 2024,
arXiv:2312.03262.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpaudit.accounting.privacy_loss import Array
from dpaudit.attack.membership_rates import auc

Mask = NDArray[np.bool_]
Variances = Literal["pooled", "own"]  # one for all records, or one for each

FEWEST = 2  # reference runs of a kind, by which a record's mean is estimated
LEAST_VARIANCE = 1e-12  # relative, of a statistic that reference runs show to be constant
OFFLINE_WEIGHTS = np.linspace(0, 1, 11)  # values of a that are tried


class References(NamedTuple):
    """The statistics of records in reference runs."""

    statistics: Array  # [n_runs, n_records, K], as those of the last round or of several
    included: Mask  # [n_runs, n_records]: whether the record is among those of the run

    def rows(self, some: Mask) -> "References":
        """The statistics of some runs only."""
        return References(self.statistics[some], self.included[some])


def is_scored(included: Mask) -> Mask:
    """[n_records]: whether enough reference runs have the record, and enough have it not."""
    n_in = included.sum(axis=0)
    return np.asarray((n_in >= FEWEST) & (len(included) - n_in >= FEWEST))


def lira_online(
    statistics: Array, references: References, variances: Variances = "pooled"
) -> Array:
    """log N(s; m_in, S_in) - log N(s; m_out, S_out) of each record.

    Means are a record's own. Covariances of its K statistics are pooled over records, as Carlini et
    al. do with few reference runs, and shrunk (``pooled_covariance``). With K = 1 it is their
    online attack with fixed variances; with more it is the likelihood ratio of the sequence. With
    ``variances`` "own" each record has its own, as they take them from 64 reference runs on, and
    the correlations are pooled.

    Args:
        statistics: [n, n_records, K], of n runs that are attacked.
        references: of the same records, all of which are scored (``is_scored``).

    Returns:
        [n, n_records].
    """
    log_density = []
    for included in (references.included, ~references.included):
        means, scale, covariance = _fitted(references.statistics, included, variances)
        distances = _whitened((statistics - means) / scale, covariance)
        log_volume = np.linalg.slogdet(covariance)[1] + 2 * np.log(scale).sum(axis=-1)
        log_density.append(-(np.square(distances).sum(axis=-1) + log_volume) / 2)
    return np.asarray(log_density[0] - log_density[1])


def lira_offline(
    statistics: Array, references: References, variances: Variances = "pooled"
) -> Array:
    """How far a record's statistic lies above those of runs without it, in standard deviations.

    With K = 1 this is (s - m_out) / std_out, which orders records as the offline attack does. With
    more it is the same of the sum of the K statistics that tells members best, D' S_out^-1 s: D is
    the mean difference between runs with and without a record, of all other records.

    Arguments and what is returned are as of ``lira_online``.
    """
    means, scale, covariance = _fitted(references.statistics, ~references.included, variances)
    apart = _whitened((statistics - means) / scale, covariance)
    if statistics.shape[-1] == 1:
        return np.asarray(apart[..., 0])
    own = (_means(references.statistics, references.included) - means) / scale
    others = (own.sum(axis=0) - own) / max(1, len(own) - 1)
    direction = _whitened(others, covariance)
    length = np.linalg.norm(direction, axis=-1, keepdims=True)
    return np.asarray((apart * direction / np.where(length > 0, length, 1)).sum(axis=-1))


def rmia(
    statistics: Array, references: References, public: Array, public_in_references: Array,
    offline_a: float | None = None,
) -> Array:  # fmt: skip
    """The share of public records z that a record x beats: p(x)/P(x) > p(z)/P(z), gamma = 1.

    p is the probability that the attacked model gives the label, of which the statistic is the log
    odds, and P is its mean over reference runs. Online P averages runs with and without x equally.
    Offline it is ((1 + a) P_out + 1 - a) / 2. Public records are in no run, so that theirs is
    offline in both; a is then 1 online. Of several rounds, p/P is the geometric mean of theirs.

    Args:
        statistics: [n, n_records, K], of n runs that are attacked.
        references: of the same records.
        public: [n, n_public, K], of the runs that are attacked.
        public_in_references: [n_runs, n_public, K].
        offline_a: a; None: the online attack.

    Returns:
        [n, n_records].
    """
    a = 1.0 if offline_a is None else offline_a
    p_in, p_out = (
        _means(expit(references.statistics), which)
        for which in (references.included, ~references.included)
    )
    typical = (p_in + p_out) / 2 if offline_a is None else _offline(p_out, a)
    of_records = _log_ratios(statistics, typical)
    of_public = _log_ratios(public, _offline(expit(public_in_references).mean(axis=0), a))
    beaten = [
        np.searchsorted(np.sort(z), x, side="left") / len(z)
        for x, z in zip(of_records, of_public, strict=True)
    ]
    return np.stack(beaten)


def tuned_offline_a(references: References, public_in_references: Array) -> float:
    """The a with which the offline attack on a reference run has the largest AUC.

    It is the first run that has some of the records which the others score, and lacks some. Where
    there is none, nothing can be chosen, and a is 1.
    """
    for i in range(len(references.included)):
        rest = np.arange(len(references.included)) != i
        others = references.rows(rest)
        fit = is_scored(others.included)
        truth = references.included[i, fit]
        if truth.any() and not truth.all():
            some = References(others.statistics[:, fit], others.included[:, fit])
            attacked = references.statistics[[i]][:, fit]
            z = public_in_references[[i]], public_in_references[rest]
            scores = (rmia(attacked, some, *z, float(a))[0] for a in OFFLINE_WEIGHTS)
            areas = [auc(each[truth], each[~truth]).value for each in scores]
            return float(OFFLINE_WEIGHTS[int(np.argmax(areas))])
    return 1.0


def pooled_covariance(residuals: Array, degrees: int, n_runs: int) -> Array:
    """[K, K] of statistics around each record's mean, shrunk towards its diagonal.

    Records of one run depend on each other, so that there are no more independent draws than runs:
    the diagonal gets the weight K / (K + n_runs). It is estimated on reference runs alone.

    Args:
        residuals: [m, K].
        degrees: of freedom, m less the means that were estimated.
    """
    k = residuals.shape[1]
    covariance = residuals.T @ residuals / max(1, degrees)
    diagonal = np.diag(np.diag(covariance))
    least = LEAST_VARIANCE * max(float(diagonal.max()), LEAST_VARIANCE)
    weight = k / (k + n_runs) if k > 1 else 0.0
    return np.asarray((1 - weight) * covariance + weight * diagonal + least * np.eye(k))


def _fitted(statistics: Array, which: Mask, variances: Variances) -> tuple[Array, Array, Array]:
    """Each record's mean over some of the runs and its scale, [n_records, K], and the covariance.

    The covariance is that of statistics in units of the scale, which is 1 where it is pooled.
    """
    means = _means(statistics, which)
    scale = np.ones_like(means)
    if variances == "own":
        of_each = _means(np.square(statistics - means), which)
        least = np.maximum(LEAST_VARIANCE * of_each.max(axis=0), LEAST_VARIANCE**2)
        scale = np.sqrt(np.maximum(of_each, least))
    residuals = ((statistics - means) / scale)[which]
    covariance = pooled_covariance(residuals, len(residuals) - len(means), len(which))
    return means, scale, covariance


def _means(values: Array, which: Mask) -> Array:
    """[n_records, K] over those runs of values [n_runs, n_records, K] that a mask marks."""
    counts = np.maximum(which.sum(axis=0), 1)[:, None]
    return np.asarray(np.where(which[..., None], values, 0).sum(axis=0) / counts)


def _whitened(values: Array, covariance: Array) -> Array:
    """Values [..., K] in units in which the covariance is the identity."""
    flat = values.reshape(-1, values.shape[-1])
    return np.linalg.solve(np.linalg.cholesky(covariance), flat.T).T.reshape(values.shape)


def _offline(p_out: Array, a: float) -> Array:
    return ((1 + a) * p_out + 1 - a) / 2


def _log_ratios(statistics: Array, typical: Array) -> Array:
    """ln p/P, [n, n_records], the mean over the K rounds."""
    log_p = -np.logaddexp(0, -statistics)
    return np.asarray((log_p - np.log(np.maximum(typical, np.finfo(float).tiny))).mean(axis=-1))
