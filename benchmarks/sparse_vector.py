"""How many runs a test needs to find Algorithm 3 of the sparse vector technique.

    python benchmarks/sparse_vector.py [--runs 4000 20000]

The function of the zoo claims epsilon 1. It says which of 16 queries are above a noisy threshold,
and shows the noisy answers of those (Lyu, Su and Li 2017, arXiv:1603.01699, Figure 1).
The test is the best there is, by Neyman and Pearson: the likelihood ratio of the whole output,
which an audit does not know. With threshold noise r and answers of the queries that are above,

    p(output) = integral over r below the least answer of p(r) prod P(no | r) prod p(answer).

Queries are 0 against 1, and against -1 the last, as in the published counterexample. The bound is
certified from so many runs of either input, at a threshold that a quarter as many runs choose.
"""

import argparse

import numpy as np

from dpaudit.accounting.privacy_loss import Array, laplace_cdf
from dpaudit.statistics.bounds import from_scores

SCALE_OF_THRESHOLD, SCALE_OF_ANSWER, MOST = 2.0, 4.0, 2  # as dpaudit/mechanism/zoo/selection.py
QUERIES = 16
PLACES = np.linspace(-30.0, 30.0, 601)  # of the threshold, to integrate over
BLOCK = 10_000


def outputs(queries: Array, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Noisy answers [n, 16] of queries above the threshold, else NaN; and which got a no."""
    threshold = rng.laplace(0, SCALE_OF_THRESHOLD, (n, 1))
    noisy = queries + rng.laplace(0, SCALE_OF_ANSWER, (n, QUERIES))
    above = noisy >= threshold
    asked = np.cumsum(above, axis=1) - above < MOST
    return np.where(above & asked, noisy, np.nan), ~above & asked


def log_likelihood(queries: Array, answers: Array, no: Array) -> Array:
    """ln p(output) [n] but for a constant."""
    log_no = np.log(laplace_cdf((PLACES - queries[:, None]) / SCALE_OF_ANSWER))
    log_mass = no.astype(float) @ log_no - np.abs(PLACES) / SCALE_OF_THRESHOLD
    least = np.fmin.reduce(answers, axis=1, initial=np.inf)
    log_mass = np.where(least[:, None] >= PLACES, log_mass, -np.inf)
    answered = np.nansum(np.abs(answers - queries), axis=1) / SCALE_OF_ANSWER
    return np.asarray(np.logaddexp.reduce(log_mass, axis=1) - answered)


def scores(pair: tuple[Array, Array], which: int, n: int, rng: np.random.Generator) -> Array:
    """The log likelihood ratio [n] of runs with one input of the pair."""
    found = []
    for start in range(0, n, BLOCK):
        one = outputs(pair[which], min(BLOCK, n - start), rng)
        found.append(log_likelihood(pair[1], *one) - log_likelihood(pair[0], *one))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[4_000, 20_000])
    rng, last = np.random.default_rng(0), np.ones(QUERIES)
    last[-1] = -1.0
    pair = np.zeros(QUERIES), last
    for n in parser.parse_args().runs:
        counted, choosing = (
            (scores(pair, 0, k, rng), scores(pair, 1, k, rng)) for k in (n, max(n // 4, 100))
        )
        bound = from_scores(*counted, 0.0, 0.05, choosing)
        print(f"{n:,} runs of either input certify epsilon {bound.value:.3f}; 1 is claimed")


if __name__ == "__main__":
    main()
