"""Bounds from two arrays of scores: `dpaudit epsilon-from-scores` beside jax-privacy's auditor.

    python benchmarks/scores.py [--auditing FILE] [--seeds 40] [--results docs/results]

FILE is jax_privacy/auditing.py of jax-privacy 2.0.0; where it is not given, dpaudit is alone. Its
imports (dp-accounting, numpy, scipy) are installed with dpaudit's development packages. Scores of
canaries that were left out are N(0, 1), and of those that were included N(mu, 1): epsilon at delta
1e-5 is known. Each canary is included by a fair coin, so that the same scores are evidence of many
independent runs and of one run. Every bound is at 95% confidence; wrong are those above epsilon.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from dpaudit.accounting import gaussian_epsilon
from dpaudit.commands.scores import by_counts, by_guesses
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.reports.published import write_tables

ALPHA, DELTA = 0.05, 1e-5
SIZES = (1_000, 10_000)  # canaries
SHIFTS = (1.0, 2.0, 4.0)  # mu

Bound = Callable[[np.ndarray, np.ndarray, int], float]  # of scores in, scores out, and a seed


class Row(NamedTuple):
    """What one bound is on average over seeds."""

    canaries: int
    mu: float
    epsilon: float
    bound: str
    mean: float
    wrong: int
    seconds: float  # of a processor, for one bound


def ours() -> Iterator[tuple[str, Bound]]:
    def counted(family: str | None) -> Bound:
        return lambda one, other, seed: float(
            by_counts(one, other, DELTA, ALPHA, None, family, seed)["epsilon_lower_bound"]
        )

    def guessed(family: str | None) -> Bound:
        return lambda one, other, seed: float(
            by_guesses(one, other, DELTA, ALPHA, None, family, seed)["epsilon_lower_bound"]
        )

    yield "dpaudit, independent runs", counted(None)
    yield "dpaudit, independent runs, Gaussian", counted("gaussian")
    yield "dpaudit, one run", guessed(None)
    yield "dpaudit, one run, Gaussian", guessed("gaussian")


def peers(auditing: Any) -> Iterator[tuple[str, Bound]]:
    def auditor(one: np.ndarray, other: np.ndarray) -> Any:
        return auditing.CanaryScoreAuditor(one, other)

    for name, strategy in (("Bonferroni", auditing.Bonferroni()), ("Split", auditing.Split())):
        how = {"threshold_strategy": strategy}
        yield (
            f"jax-privacy, independent runs, {name}",
            lambda a, b, _, how=how: auditor(a, b).epsilon_clopper_pearson(
                ALPHA, DELTA, one_sided=False, **how
            ),
        )
        yield (
            f"jax-privacy, one run, {name}",
            lambda a, b, _, how=how: auditor(a, b).epsilon_one_run(ALPHA, DELTA, **how),
        )
    yield (
        "jax-privacy, independent runs, Gaussian",
        lambda a, b, _: auditor(a, b).epsilon_from_gdp(ALPHA, DELTA),
    )


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("auditing", path)  # its package imports JAX
    assert spec is not None
    assert spec.loader is not None
    sys.modules["auditing"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(canaries: int, mu: float, name: str, bound: Bound, seeds: int) -> Row:
    values, began = [], process_time()
    for seed in range(seeds):
        rng = np.random.default_rng((seed, canaries))
        n_in = int(rng.binomial(canaries, 0.5))
        scores = rng.normal(mu, 1, n_in), rng.normal(0, 1, canaries - n_in)
        values.append(bound(*scores, seed))
    epsilon = gaussian_epsilon(DELTA, mu)
    wrong, seconds = sum(v > epsilon for v in values), (process_time() - began) / seeds
    return Row(canaries, mu, epsilon, name, float(np.mean(values)), wrong, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--auditing", type=Path, help="jax_privacy/auditing.py")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    bounds = [*ours(), *(peers(module_at(given.auditing)) if given.auditing else ())]
    rows = []
    for canaries in SIZES:
        for mu in SHIFTS:
            for name, bound in bounds:
                rows.append(measured(canaries, mu, name, bound, given.seeds))
                print(*(f"{x:.4g}" if isinstance(x, float) else x for x in rows[-1]), sep="  ")
    if given.results:
        publish(rows, given.seeds, given.results)


def publish(rows: list[Row], seeds: int, folder: Path) -> None:
    columns = ("canaries", "mu", "epsilon", "bound", "mean", f"wrong of {seeds}", "seconds")
    cells = tuple(
        (f"{r.canaries:,}", f"{r.mu:g}", f"{r.epsilon:.2f}", r.bound, f"{r.mean:.2f}",
         str(r.wrong), f"{r.seconds:.4f}")
        for r in rows
    )  # fmt: skip
    about = "Mean lower bound on epsilon at delta 1e-5, at 95% confidence. Seconds of a processor."
    table = ResultTable(title="Bounds from scores", about=about, columns=columns, rows=cells)
    results = ResultTables(
        title="Bounds from scores beside jax-privacy",
        command=f"python benchmarks/scores.py --auditing FILE --seeds {seeds}",
        tables=(table,),
    )
    write_tables(folder, "scores", results)


if __name__ == "__main__":
    main()
