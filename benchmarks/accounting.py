"""The accountant beside dp-accounting, in one run on one core.

    python benchmarks/accounting.py [--rounds 300]

Every round has its own noise multiplier, as in schedules that lower the noise (Dyn-D2P, ADP-VRSGP);
dp-accounting composes such rounds one after the other. CPU seconds; epsilon at delta = 1e-5. Beside
the limits of the machine stands what Fourier transforms and their product cannot do without: 5/2 n
log2 n operations for a real transform of n points, and its points and values, read and written.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from math import log2
from time import process_time
from typing import Any

import numpy as np
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from limits import measured
from scipy.optimize import brentq

from dpaudit.accounting.composition import Product, compose, on_levels
from dpaudit.accounting.families import clt_mu, gaussian_mu
from dpaudit.accounting.privacy_loss import Pairs
from dpaudit.accounting.releases import Interval, Release, epsilon

RATE, DELTA, GRID = 0.01, 1e-5, 1e-4
BYTES = 8 * (1 + 1 + 3)  # a point of a transform: read, and its value written, and multiplied


def dp_accounting(multipliers: np.ndarray) -> float:
    total = pld.identity(value_discretization_interval=GRID)
    for multiplier in multipliers:
        total = total.compose(pld.from_gaussian_mechanism(multiplier, sampling_prob=RATE))
    return float(total.get_epsilon_for_delta(DELTA))


def upper_bound_on_the_same_grid(multipliers: np.ndarray) -> float:
    scale, once = np.sort(multipliers)[:, None], np.ones(len(multipliers), int)
    parts = [
        Pairs("gaussian", kind, scale, np.full_like(scale, RATE)) for kind in ("remove", "add")
    ]
    totals = [compose([on_levels(p, once, "upper")], "upper", 1e-5 * DELTA, GRID) for p in parts]
    return max(total.epsilon(DELTA) for total in totals)


def releases(multipliers: np.ndarray, rate: float) -> list[Release]:
    return [
        Release(family="gaussian", noise_multiplier=m, sampling="poisson", sampling_rate=rate)
        for m in multipliers
    ]


def dyn_d2p(claim: float, n_records: int = 2500, n_rounds: int = 10_000) -> Interval:
    """Zhu et al., Algorithm 1 with growth 10 of mu, calibrated to the claim at delta = 1e-4."""
    growth = 10 ** (np.arange(n_rounds) / n_rounds)
    target = gaussian_mu(claim, 1e-4)
    first = brentq(lambda mu: clt_mu(1 / n_records, mu * growth) - target, 1e-3, 2.0)
    return epsilon(releases(1 / (first * growth), 1 / n_records), 1e-4)


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """The work of all Fourier transforms while this lasts."""
    work, transform = {"products": 0.0, "copies": 0.0}, Product.transform

    def counting(self: Product, *arguments: Any) -> Any:
        work["products"] += 2.5 * self.n * log2(self.n) + 3 * self.n
        work["copies"] += BYTES * self.n
        return transform(self, *arguments)

    Product.transform = counting  # type: ignore[method-assign]
    try:
        yield work
    finally:
        Product.transform = transform  # type: ignore[method-assign]


def timed(name: str, work: object, *arguments: object) -> tuple[float, object]:
    start = process_time()
    result = work(*arguments)  # type: ignore[operator]
    seconds = process_time() - start
    print(f"{name:<58}{seconds:8.2f} s   {result}", flush=True)
    return seconds, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--dyn-rounds", type=int, default=10_000, help="of Dyn-D2P")
    arguments = parser.parse_args()
    limits = measured(torch.float64)
    multipliers = np.geomspace(1.4, 0.7, arguments.rounds)
    n = len(multipliers)
    theirs = timed(f"dp-accounting, {n} distinct rounds, grid {GRID}", dp_accounting, multipliers)
    with counted() as work:
        ours = timed(
            f"upper bound, the same grid {GRID}", upper_bound_on_the_same_grid, multipliers
        )
    both = timed("both bounds, default grid", epsilon, releases(multipliers, RATE), DELTA)
    print(f"same grid: {theirs[0] / ours[0]:.1f} times as fast, {ours[1] - theirs[1]:+.1e} nats")
    print(limits)
    print(f"the upper bound {limits.shares(ours[0], **work)}")
    print(f"both bounds: {theirs[0] / both[0]:.1f} times as fast")
    for claim in (0.3, 1.0):
        name = f"Dyn-D2P, {arguments.dyn_rounds:,} distinct rounds, claimed {claim}"
        timed(name, dyn_d2p, claim, 2500, arguments.dyn_rounds)


if __name__ == "__main__":
    main()
