"""What share of the bound of a perfectly chosen threshold the certified bound reaches.

    python benchmarks/power.py

Scores are log likelihood ratios of one release with Gaussian or Laplace noise. The threshold is
chosen as `likelihood-ratio` chooses it, by other runs, or by a tenth of the runs, of which the rest
is counted. Beside the median share stands the bound that the best threshold is expected to give
when all runs are counted.
"""

import argparse

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpaudit.accounting.families import GAUSSIAN, LAPLACE, TradeoffFamily
from dpaudit.statistics import expected_bound, from_scores

CELLS = [*((GAUSSIAN, mu) for mu in (0.5, 1.0, 2.0, 4.0)), (LAPLACE, 0.1), (LAPLACE, 1.0)]
RUNS = (400, 1_000, 2_000, 10_000)
OTHER_RUNS = 1_000  # that choose, or a fifth of the counted ones where that is more
ALPHA = 0.05

Scores = tuple[NDArray[np.float64], NDArray[np.float64]]


def scores(family: TradeoffFamily, shift: float, n: int, rng: Generator) -> Scores:
    """Of n runs without and n with the record."""
    if family.noise == "gaussian":
        z0, z1 = rng.normal(size=n), rng.normal(shift, size=n)
        return shift * z0 - shift**2 / 2, shift * z1 - shift**2 / 2
    z0, z1 = rng.laplace(size=n), rng.laplace(shift, size=n)
    return np.abs(z0) - np.abs(z0 - shift), np.abs(z1) - np.abs(z1 - shift)


def shares(family: TradeoffFamily, shift: float, n: int, seeds: int) -> tuple[float, float, float]:
    """The bound of the best threshold, and the medians as shares of it: other runs, and a tenth."""
    delta = 1e-5 if family.noise == "gaussian" else 0.0
    best = expected_bound(n, delta, ALPHA, lambda rates: family.false_negative_rate(shift, rates))
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng([37, seed])
        counted = scores(family, shift, n, rng)
        others = scores(family, shift, max(OTHER_RUNS, n // 5), rng)
        found.append([from_scores(*counted, delta, ALPHA, by).value for by in (others, rng)])
    by_others, by_tenth = np.median(found, axis=0) / best
    return best, by_others, by_tenth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--runs", type=int, nargs="+", default=RUNS)
    args = parser.parse_args()
    print(f"{'noise':16s}{'runs':>8s}{'best':>8s}{'other runs':>12s}{'a tenth':>9s}")
    for family, shift in CELLS:
        for n in args.runs:
            best, *found = shares(family, shift, n, args.seeds)
            print(f"{family.noise:10s}{shift:<6g}{n:8d}{best:8.4f}{found[0]:12.1%}{found[1]:9.1%}")


if __name__ == "__main__":
    main()
