"""M-NMI over many rounds: dpaudit beside NPEET-plus, scikit-learn, ennemi and infomeasure.

    python benchmarks/mutual_information.py [--rounds 1000] [--trials 5000] [--dims 1 3]

All get the same samples in the same process. A peer takes part where it computes the same thing:
scikit-learn and ennemi estimate one view column at a time. Rounds go through all of them in small
blocks, so that a busy moment of the machine hits all alike; the times are sums over blocks. Peers
run as their packages do, in one thread; NPEET-plus is also shown with a process for each worker.
The column of processor time shows what a busy machine hides (processes of their own are not in it).
M-NMI needs I(V; V) besides: NPEET estimates it, dpaudit has it in closed form. The line "estimates
alone" leaves it out on both sides. Beside the limits of the machine stand the samples, read once,
and the max-norm distances of all pairs of samples, which a search without a tree would compute.
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from limits import Limits, measured

from dpaudit.information import neighbours
from dpaudit.information.estimators import LN2, ksg, npeet
from dpaudit.information.mnmi import maximum_information

BLOCK = 20  # rounds
PEER_ROUNDS = 40  # of the peers other than NPEET, which are slower


def samples(n_rounds: int, n: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """V [n_rounds, n] and views [n_rounds, n, dims]: V in Laplace noise that grows by the round."""
    rng = np.random.default_rng(1)
    v = rng.normal(size=(n_rounds, n))
    scale = np.linspace(0.3, 3.0, n_rounds)[:, None, None]
    return v, v[..., None] + scale * rng.laplace(size=(n_rounds, n, dims))


def ours(v: np.ndarray, views: np.ndarray, workers: int) -> None:
    rng = np.random.default_rng(2)
    maximum_information(v, views, rng, n_permutations=0, n_splits=0, workers=workers)


def ours_without_numba(v: np.ndarray, views: np.ndarray, workers: int) -> None:
    compiled, neighbours.compiled = neighbours.compiled, lambda: None
    try:
        ours(v, views, workers)
    finally:
        neighbours.compiled = compiled


def npeet_ratio(v: np.ndarray, view: np.ndarray) -> float:
    return npeet(v, view) / npeet(v, v)


def one_by_one(estimate: Callable[..., float], v: np.ndarray, views: np.ndarray) -> None:
    for pair in zip(v, views, strict=True):
        estimate(*pair)


def sklearn_bits(v: np.ndarray, view: np.ndarray) -> float:
    from sklearn.feature_selection import mutual_info_regression

    return float(mutual_info_regression(view, v, n_neighbors=3)[0]) / LN2


def ennemi_bits(v: np.ndarray, view: np.ndarray) -> float:
    from ennemi import estimate_mi

    return float(estimate_mi(v, view, k=3, max_threads=1)[0, 0]) / LN2


def infomeasure_bits(v: np.ndarray, view: np.ndarray) -> float:
    from infomeasure import mutual_information

    return float(mutual_information(v, view, approach="ksg", k=3, base=2, noise_level=1e-10))


PEERS = {"sklearn": sklearn_bits, "ennemi": ennemi_bits, "infomeasure": infomeasure_bits}


def contestants(dims: int, workers: int, pool: ProcessPoolExecutor) -> dict[str, Callable]:
    def npeet_in_processes(v: np.ndarray, views: np.ndarray) -> None:
        list(pool.map(npeet_ratio, v, views, chunksize=-(-BLOCK // (2 * workers))))

    rows: dict[str, Callable] = {
        "NPEET-plus M-NMI": partial(one_by_one, npeet_ratio),
        f"NPEET-plus M-NMI, {workers} processes": npeet_in_processes,
        "NPEET-plus estimates alone": partial(one_by_one, npeet),
        f"dpaudit without numba, {workers} threads": partial(ours_without_numba, workers=workers),
    }
    if neighbours.compiled() is None:
        print("numba is not installed: the compiled kernel is left out")
    else:
        rows |= {f"dpaudit, {t} threads": partial(ours, workers=t) for t in sorted({1, workers})}
    for name, estimate in PEERS.items():
        if find_spec(name) is None:
            print(f"{name} is not installed: left out")
        elif dims == 1 or name == "infomeasure":
            rows[f"{name} estimates alone"] = partial(one_by_one, estimate)
    return rows


def measure(n_rounds: int, n: int, dims: int, workers: int, limits: Limits) -> None:
    v, views = samples(n_rounds, n, dims)
    with ProcessPoolExecutor(workers) as pool:
        rows = contestants(dims, workers, pool)
        wall, cpu, rounds = (dict.fromkeys(rows, 0.0) for _ in range(3))
        for run in rows.values():
            run(v[:BLOCK], views[:BLOCK])  # imports, compilation, processes
        for start in range(0, n_rounds, BLOCK):
            part = slice(start, start + BLOCK)
            for name, run in rows.items():
                if name.split()[0] in PEERS and start >= PEER_ROUNDS:
                    continue
                began, used = time.perf_counter(), time.process_time()
                run(v[part], views[part])
                wall[name] += time.perf_counter() - began
                cpu[name] += time.process_time() - used
                rounds[name] += len(v[part])
    each = {name: 1e3 * wall[name] / rounds[name] for name in rows}
    print(f"\n{n_rounds} rounds, {n} trials, view of {dims} dimension(s)")
    print(f"{'':40}{'ms a round':>12}{'M-NMI ratio':>13}{'alone ratio':>13}{'CPU ms':>9}")
    for name, cost in each.items():
        ratio = "" if "alone" in name else f"{each['NPEET-plus M-NMI'] / cost:.1f}"
        alone = "" if "M-NMI" in name else f"{each['NPEET-plus estimates alone'] / cost:.1f}"
        print(f"{name:40}{cost:12.2f}{ratio:>13}{alone:>13}{1e3 * cpu[name] / rounds[name]:9.2f}")
    quickest = min((row for row in rows if row.startswith("dpaudit")), key=lambda row: cpu[row])
    distances = 3 * (1 + dims) * n * (n - 1) / 2  # difference, size and comparison on each axis
    told = limits.shares(cpu[quickest] / n_rounds, products=distances, copies=8 * (1 + dims) * n)
    print(f"{quickest}, {told}")
    print(f"largest difference from NPEET on the same samples: {difference(v, views):.1e} bits")


def difference(v: np.ndarray, views: np.ndarray) -> float:
    """Over the first rounds, with NPEET's own noise left out."""
    import npeet_plus.estimators as estimators

    noise, estimators.add_noise = estimators.add_noise, lambda x: x
    try:
        return max(abs(ksg(*p) - npeet(*p)) for p in zip(v[:BLOCK], views[:BLOCK], strict=True))
    finally:
        estimators.add_noise = noise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--trials", type=int, default=5_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    limits = measured(torch.float64)
    print(limits)
    for dims in options.dims:
        measure(options.rounds, options.trials, dims, options.workers, limits)


if __name__ == "__main__":
    main()
