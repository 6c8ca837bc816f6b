"""Mechanisms that select: exponential mechanism, noisy max, top-k, and the sparse vector technique.

A value is a vector of scores, each of which a neighbour changes by 1 at most.
"""

from collections.abc import Callable, Iterator
from math import inf

import numpy as np

from dpaudit.accounting.privacy_loss import Array

from .entries import INDEX, SCORES, N, ZooEntry

CHOSEN = {**SCORES, **INDEX}
OVER, BELOW, UNASKED = 1.0, 0.0, -1.0  # answers of the sparse vector technique
LARGE = 1e3


def choice_entries() -> Iterator[ZooEntry]:
    """One index, at epsilon 1: McSherry and Talwar 2007; Dwork and Roth 2014, section 3.3."""

    def exponential(factor: float) -> Callable[[Array], Array]:
        def chosen(x: Array) -> Array:
            gumbel = np.random.gumbel(size=x.shape)
            return np.asarray(np.argmax(factor * x + gumbel))

        return chosen

    def noisy_max(draw: Callable[..., Array], scale: float) -> Callable[[Array], Array]:
        return lambda x: np.asarray(np.argmax(x + draw(scale=scale, size=x.shape)))

    yield ZooEntry("exponential mechanism", "", exponential(0.5), 1.0, 1.0, options=CHOSEN)
    mistake = "not divided by 2"
    yield ZooEntry("exponential mechanism", mistake, exponential(1.0), 1.0, 2.0, options=CHOSEN)
    mistake = "temperature 1/4"
    yield ZooEntry("exponential mechanism", mistake, exponential(4.0), 1.0, 8.0, options=CHOSEN)
    laplace, one_sided = np.random.laplace, np.random.exponential
    yield ZooEntry("noisy max", "", noisy_max(laplace, 2.0), 1.0, 1.0, options=CHOSEN)
    yield ZooEntry(
        "noisy max, exponential noise", "", noisy_max(one_sided, 2.0), 1.0, 1.0, options=CHOSEN
    )
    yield ZooEntry(
        "noisy max", "a quarter of the noise", noisy_max(laplace, 0.5), 1.0, 4.0, options=CHOSEN
    )
    yield ZooEntry(
        "noisy max",
        "the noisy scores beside it",
        lambda x: x + np.random.laplace(0, 2.0, x.shape),
        1.0,
        N / 2,
        options=SCORES,
    )
    yield ZooEntry(
        "noisy max", "no noise where one is far ahead", _sure_max, 1.0, inf, options=CHOSEN
    )


def _sure_max(x: Array) -> Array:
    ordered = np.sort(x)
    if ordered[-1] - ordered[-2] >= 1.5:
        return np.asarray(np.argmax(x))
    return np.asarray(np.argmax(x + np.random.laplace(0, 2.0, x.shape)))


def top_entries() -> Iterator[ZooEntry]:
    """The k largest of all, by noise in one shot: Qiao, Su and Zhang 2021, and wrong ones."""
    k = 4

    def top(scale: float) -> Callable[[Array], Array]:
        def kept(x: Array) -> Array:
            noisy = x + np.random.laplace(0, scale, x.shape)
            found = np.zeros(x.shape)
            found[np.argsort(-noisy)[:k]] = 1.0
            return found

        return kept

    yield ZooEntry("top 4", "", top(2.0 * k), 1.0, 1.0, options=SCORES)
    mistake = "noise for a single one, and less"
    yield ZooEntry("top 4", mistake, top(0.25), 1.0, 8.0, options=SCORES)
    yield ZooEntry("top 4", "selected without noise", _top_without_noise, 1.0, inf, options=SCORES)
    yield ZooEntry(
        "top 4",
        "",
        lambda x: _largest(x + np.random.laplace(0, N * 1.0, x.shape), k),
        1.0,
        1.0,
        options=SCORES,
    )


def _largest(x: Array, k: int) -> Array:
    """Without all numbers but the k largest ones in size."""
    kept = np.zeros(x.shape)
    at = np.argsort(-np.abs(x))[:k]
    kept[at] = x[at]
    return kept


def _top_without_noise(x: Array) -> Array:
    at = np.argsort(-np.abs(x), kind="stable")[:4]
    found = np.zeros(x.shape)
    found[at] = x[at] + np.random.laplace(0, 16.0, 4)
    return found


def sparse_entries() -> Iterator[ZooEntry]:
    """The sparse vector technique as Lyu, Su and Li 2017 number its published forms (Figure 1).

    The threshold is 0, and at most c answers are above it. Algorithms 1 and 2 are right.
    """
    c, epsilon = 2, 1.0

    def sparse(
        threshold_noise: float,
        query_noise: float,
        cut: int | None,
        fresh: float | None = None,
        shows: bool = False,
    ) -> Callable[[Array], Array]:
        def answered(x: Array) -> Array:
            found, count = np.full(x.shape, UNASKED), 0
            rho = np.random.laplace(0, threshold_noise)
            nu = np.random.laplace(0, query_noise, x.shape) if query_noise else np.zeros(x.shape)
            for i in range(len(x)):
                over = x[i] + nu[i] >= rho
                found[i] = (LARGE + x[i] + nu[i] if shows else OVER) if over else BELOW
                count += over
                if over and fresh is not None:
                    rho = np.random.laplace(0, fresh)
                if cut is not None and count >= cut:
                    break
            return found

        return answered

    half = epsilon / 2

    def entry(
        name: str, mistake: str, function: Callable[[Array], Array], known: float
    ) -> ZooEntry:
        return ZooEntry(f"sparse vector, {name}", mistake, function, epsilon, known, options=SCORES)

    yield entry("algorithm 1", "", sparse(1 / half, 2 * c / half, c), epsilon)
    yield entry("algorithm 2", "", sparse(c / half, 2 * c / half, c, fresh=c / half), epsilon)
    yield entry(
        "algorithm 3", "shows the noisy answers", sparse(1 / half, c / half, c, shows=True), inf
    )
    quarter = epsilon / 4
    yield entry(
        "algorithm 4",
        "noise that does not grow with c",
        sparse(1 / quarter, 1 / (epsilon - quarter), 8),
        (1 + 6 * 8) / 4 * epsilon,
    )
    yield entry("algorithm 5", "no noise on answers", sparse(1 / half, 0.0, None), inf)
    yield entry("algorithm 6", "no bound on answers", sparse(1 / half, 1 / half, None), inf)


def selection() -> list[ZooEntry]:
    return [*choice_entries(), *top_entries(), *sparse_entries()]
