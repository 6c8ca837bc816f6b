"""Hot paths of dpaudit beside peers, in one table: CPU time of one thread, in turns.

    python benchmarks/performance.py [--only PATH ...] [--pairs 7] [--device cpu] [--results FOLDER]

A pair is one call of ours and then one of the peer, in one process. The ratio of a pair is the
peer's time for a unit of work over ours; the table has the median over pairs, the least and the
largest. Both sides are called once before, and must agree as far as the column says, or the run
fails. The share of the machine's limit is the time that ours would take if its matrix products,
convolutions, random numbers and copies ran as fast as large ones do, which is measured in the same
run; what is not counted is everything else.

Peers are not needed to install dpaudit; one that is missing is named in a line, with how to install
it. ``--device cuda`` computes gradients, runs, inversion and shadow models there, in seconds on the
clock; the other paths are programs of the CPU. ``--results`` needs all paths, and writes
performance.json and performance.csv.
"""

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import clipped_gradients
import full_runs
import inversion
import mutual_information
import network_accounting
import numpy as np
import shadow_models
import torch
from limits import Limits, clock, measured, operations
from torch import Tensor

from dpaudit.data.datasets import load_dataset
from dpaudit.errors import ConfigError
from dpaudit.files.published import ResultTable, ResultTables, TableEntry
from dpaudit.game.network.gossip import Innovations, Participation, gossip_of
from dpaudit.models.models import build_network
from dpaudit.pipeline.requirements import torch_device
from dpaudit.reports.published import write_tables
from dpaudit.rng import Streams

TRIALS = 64  # runs at once
RATE, DELTA, DISTINCT = 0.01, 1e-5, 20  # of composition: rounds, no two with one noise
PRV_ERROR = 0.01  # nats, on either side; ours are closer
SAMPLES, BLOCK = 5_000, 10  # of M-NMI, and its rounds
GOSSIP = (64, 60)  # agents and rounds
SHADOWS = 64  # reference runs at once
LEAST, LONGEST = 3, 20.0  # pairs of a row, and seconds after which no further pair begins
COLUMNS = ("path", "case", "ours, ms", "unit", "peer", "ratio", "least", "largest", "pairs",
           "share of limit, %", "agreement")  # fmt: skip


class Duel(NamedTuple):
    """Two programs for one thing, and what one unit of it needs."""

    case: str
    unit: str
    peer: str  # with its version
    ours: Callable[[], Any]
    theirs: Callable[[], Any] | None  # None: not installed
    amounts: tuple[float, float]  # units that one call of ours and of theirs computes
    work: dict[str, float]  # of a call of ours, by the names of Limits
    agree: Callable[[Any, Any], str]  # says how far; raises SystemExit if they do not


class Setting(NamedTuple):
    device: torch.device
    limits: Limits  # of float32
    exact: Limits  # of float64


def peer(package: str, requirement: str) -> str | None:
    """Name and version of an installed package; else None, and a line that says what to do."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        print(f"{package} is not installed: pip install '{requirement}'", flush=True)
        return None


def close(error: float, limit: float, what: str = "") -> str:
    if not error <= limit:
        raise SystemExit(f"{what}: both sides are {error:.1e} apart, more than {limit:.0e}")
    return f"{error:.0e}"


def per_record_gradients(setting: Setting) -> Iterator[Duel]:
    c, opacus = clipped_gradients, peer("opacus", "opacus>=1.5")
    images = c.batches(None)
    makers: list[Callable[[], clipped_gradients.Case]] = [
        partial(c.dpdl_round, "lenet", *images),
        *(partial(c.own_batches, network, *images) for network in ("lenet", "lenet-5")),
        *(partial(c.colour_round, network) for network in ("resnet-18", "vit")),
        partial(c.text_round, "gpt-tiny"),
    ]
    peers = {f"torch.func {torch.__version__}": c.by_vmap}
    peers |= {opacus: c.by_opacus} if opacus else {}
    for make in makers:
        case = make().to(setting.device)
        ours, records = c.ours(case), len(case.X) * case.inputs.shape[1]

        def agree(mine: Tensor, other: Tensor, case: clipped_gradients.Case = case) -> str:
            return close(c.error_of(mine, other), c.PEER_ROUNDING, case.title)

        for name, by in peers.items():
            yield Duel(case.title, "a record", name, ours, by(case), (records, records),
                       {"products": operations(ours)}, agree)  # fmt: skip


def audit_runs(setting: Setting) -> Iterator[Duel]:
    f, opacus = full_runs, peer("opacus", "opacus>=1.5")
    defense, problem, here = f.prepared_here(setting.device)
    if opacus:
        f.check(defense, problem, here)
    work = f.work_of_a_run(defense, problem, here)
    batches, streams = f.drawn_by_hand(problem), Streams(1)
    yield Duel(
        f"DP-DPSGD, {f.N_AGENTS} agents, {f.N_ROUNDS} rounds, {TRIALS} runs at once", "a run",
        f"{opacus or 'opacus'}, a loop",
        lambda: f.batched(defense, problem, here, streams, TRIALS),
        (lambda: f.by_opacus(defense, problem, here, streams, batches)) if opacus else None,
        (TRIALS, 1), {name: TRIALS * amount for name, amount in work.items()},
        lambda mine, other: f"models without noise, {f.ROUNDING:.0e}",
    )  # fmt: skip


def composition(setting: Setting) -> Iterator[Duel]:
    title = f"{DISTINCT} distinct subsampled Gaussian rounds"
    multipliers = np.geomspace(1.4, 0.7, DISTINCT)
    google = peer("dp-accounting", "dp-accounting>=0.5")
    prv = peer("prv-accountant", "prv-accountant")
    if google:
        import accounting as a

        upper = partial(a.upper_bound_on_the_same_grid, multipliers)
        with a.counted() as work:
            upper()
        yield Duel(f"{title}, upper bound, grid {a.GRID}", "a bound", google, upper,
                   partial(a.dp_accounting, multipliers), (1, 1), dict(work),
                   lambda mine, other: close(abs(mine - other), 1e-3, title) + " nats")  # fmt: skip
    if google and prv:
        both = partial(a.epsilon, a.releases(multipliers, RATE), DELTA)
        with a.counted() as work:
            mine = both()
        apart = f"{mine.high - mine.low:.0e} apart, its {2 * PRV_ERROR:.0e}"
        yield Duel(f"{title}, both bounds, {apart}", "both bounds", prv, both,
                   partial(by_prv, multipliers), (1, 1), dict(work), overlapping)  # fmt: skip


def by_prv(multipliers: np.ndarray) -> tuple[float, float]:
    """Gopi, Lee and Wutschitz 2021: epsilon from below and above."""
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    once = [1] * len(multipliers)
    rounds = [PoissonSubsampledGaussianMechanism(RATE, m) for m in multipliers]
    accountant = PRVAccountant(rounds, PRV_ERROR, 1e-5 * DELTA, once)
    low, _, high = accountant.compute_epsilon(DELTA, once)
    return low, high


def overlapping(mine: Any, other: tuple[float, float]) -> str:
    if mine.low > other[1] or other[0] > mine.high:
        raise SystemExit(f"composition: {mine} and {other} contradict each other")
    return "intervals overlap"


def information(setting: Setting) -> Iterator[Duel]:
    m, npeet = mutual_information, peer("npeet-plus", "npeet-plus")
    for dims in (1, 3):
        v, views = m.samples(BLOCK, SAMPLES, dims)
        distances = BLOCK * 3 * (1 + dims) * SAMPLES * (SAMPLES - 1) / 2
        yield Duel(
            f"{SAMPLES:,} trials, {dims} dimension(s)", "a round", f"{npeet or 'npeet-plus'}",
            partial(m.ours, v, views, 1),
            partial(m.one_by_one, m.npeet_ratio, v, views) if npeet else None, (BLOCK, BLOCK),
            {"products": distances, "copies": BLOCK * 8.0 * (1 + dims) * SAMPLES},
            lambda mine, other, v=v, views=views: close(m.difference(v, views), 1e-9) + " bits",
        )  # fmt: skip


def gradient_inversion(setting: Setting) -> Iterator[Duel]:
    """Digits of scikit-learn, enlarged to 28x28; breaching's attack with 1,000 steps."""
    i, breaching = inversion, peer("breaching", "breaching==0.1.2")
    digits = load_dataset("digits")
    enlarged = torch.nn.functional.interpolate((digits.x[:2] + 1) / 2, (28, 28), mode="bilinear")
    data = enlarged.to(setting.device), digits.y[:2].to(setting.device)
    lenet = build_network("lenet", (1, 28, 28), 10)
    case = i.case("LeNet, a batch of one, digits of 28x28", lenet, data, 1,
                  "invertinggradients", "optim.max_iterations=1000")  # fmt: skip
    n = len(data[0])

    def agree(mine: inversion.Row, other: inversion.Row) -> str:
        both = (f"{statistics.mean(one.psnr):.1f}" for one in (mine, other))
        return f"mean PSNR {' and '.join(both)} dB"

    yield Duel(case.title, "an image", breaching or "breaching", partial(i.ours, case),
               partial(i.theirs, case, n) if breaching else None, (n, n),
               {"products": operations(partial(i.ours, case))}, agree)  # fmt: skip


def network(setting: Setting) -> Iterator[Duel]:
    n, n_rounds = GOSSIP
    W, adversary = network_accounting.mixing(n), network_accounting.agent(0)
    gossip, schema = gossip_of(W, n_rounds, 1.0, None), Participation(n_rounds, 1)

    def ours() -> Tensor:
        (H,) = Innovations.of(gossip, adversary).grams(schema, list(range(1, n)))
        return H

    def agree(mine: Tensor, other: np.ndarray) -> str:
        return close(float(np.abs(mine.numpy() - other).max()), 1e-8, "network accounting")

    yield Duel(f"{n} agents, {n_rounds} rounds, one adversary, all victims", "an adversary",
               f"NumPy {np.__version__}, dense", ours, partial(by_numpy, W.numpy(), n_rounds),
               (1, 1), {"products": operations(ours)}, agree)  # fmt: skip


def by_numpy(W: np.ndarray, n_rounds: int) -> np.ndarray:
    """H = A' (B B')^+ A of each victim, [n - 1, n_rounds, n_rounds]: all messages at once.

    The adversary is agent 0, who knows its own noise and reads its neighbours.
    """
    n = len(W)
    read = np.flatnonzero(W[0])[1:]
    A, power = np.zeros((n_rounds, len(read), n_rounds, n)), np.eye(n)
    for apart in range(n_rounds):
        for s in range(n_rounds - apart):
            A[s + apart, :, s] = power[read]
        power = W @ power
    A = A.reshape(-1, n_rounds, n)
    B = A[:, :, 1:].reshape(len(A), -1)
    inverse = np.linalg.pinv(B @ B.T, hermitian=True)
    return np.stack([A[:, :, v].T @ inverse @ A[:, :, v] for v in range(1, n)])


def shadow_training(setting: Setting) -> Iterator[Duel]:
    s = shadow_models
    at = s.context(device=setting.device)
    ours = partial(s.trained, at, SHADOWS)
    yield Duel(f"{SHADOWS} runs of {s.AGENTS} agents, {s.ROUNDS} rounds, at once", "a run",
               f"PyTorch {torch.__version__}, a loop without privacy", ours,
               partial(s.one_after_the_other, at, 1), (SHADOWS, 1),
               {"products": operations(ours)}, lambda mine, other: "random")  # fmt: skip


PATHS: dict[str, tuple[Callable[[Setting], Iterator[Duel]], bool]] = {  # and whether of float64
    "gradients": (per_record_gradients, False),
    "runs": (audit_runs, False),
    "composition": (composition, True),
    "information": (information, True),
    "inversion": (gradient_inversion, False),
    "network": (network, True),
    "shadows": (shadow_training, False),
}


def row(path: str, duel: Duel, setting: Setting, pairs: int) -> tuple[TableEntry, ...]:
    """One line of the table; prints it."""
    mine, ratios, agreement = list[float](), list[float](), ""
    first = duel.ours()
    if duel.theirs:
        agreement = duel.agree(first, duel.theirs())
    began = time.perf_counter()
    while len(mine) < pairs and (len(mine) < LEAST or time.perf_counter() - began < LONGEST):
        mine.append(seconds(duel.ours, setting.device) / duel.amounts[0])
        if duel.theirs:
            theirs = seconds(duel.theirs, setting.device) / duel.amounts[1]
            ratios.append(theirs / mine[-1])
    took = statistics.median(mine)
    limits = setting.exact if PATHS[path][1] else setting.limits
    share = 100 * limits.share(duel.amounts[0] * took, duel.work)
    ends = (statistics.median(ratios), min(ratios), max(ratios)) if ratios else (None,) * 3
    entries = (path, duel.case, 1e3 * took, duel.unit, duel.peer, *ends, float(len(mine)), share,
               agreement)  # fmt: skip
    line = tuple(float(f"{e:.3g}") if isinstance(e, float) else e for e in entries)
    print(*("-" if entry is None else entry for entry in line), sep=" | ", flush=True)
    return line


def seconds(method: Callable[[], object], device: torch.device) -> float:
    start = clock(device)
    method()
    return clock(device) - start


def limits_of(setting: Setting) -> ResultTable:
    kinds = (("float32", setting.limits), ("float64", setting.exact))
    rows = [(k, *(float(f"{amount / 1e9:.3g}") for amount in limits)) for k, limits in kinds]
    columns = ("numbers", "products, GF/s", "copies, GB/s", "normal draws, 1e9/s",
               "uniform draws, 1e9/s")  # fmt: skip
    return ResultTable(title="Limits of the machine", columns=columns, rows=tuple(rows))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PATHS, default=list(PATHS), metavar="PATH",
                        help=", ".join(PATHS))  # fmt: skip
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, help="a folder like docs/results")
    given = parser.parse_args()
    if given.pairs < 1:
        parser.error(f"--pairs: expected 1 or more, got {given.pairs}")
    if given.results and set(given.only) != set(PATHS):
        parser.error("--results: expected all paths; leave --only out")
    return given


def main() -> None:
    given, began, load = options(), time.perf_counter(), os.getloadavg()[1]
    warnings.filterwarnings("ignore")
    try:
        device = torch_device(given.device, f"--device {given.device}")
    except ConfigError as error:
        sys.exit(f"error: {error}")
    setting = Setting(device, measured(device=device), measured(torch.float64))
    print(setting.limits, f"at a load of {load:.1f} on {os.cpu_count()} cores", flush=True)
    print(*COLUMNS, sep=" | ")
    rows = [
        row(path, duel, setting, given.pairs)
        for path in given.only
        for duel in PATHS[path][0](setting)
    ]
    print(f"{time.perf_counter() - began:.0f} s, load {os.getloadavg()[1]:.1f} at the end")
    if given.results:
        loads = f"{load:.1f} at the beginning and {os.getloadavg()[1]:.1f} at the end"
        results = ResultTables(
            title="Hot paths beside peers",
            about=f"CPU time of one thread in turns, on {device}; the load of {os.cpu_count()} "
            f"cores was {loads}. A ratio is the peer's time over ours, the median over pairs.",
            command=f"python benchmarks/performance.py --pairs {given.pairs}",
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            tables=(ResultTable(title="In turns", columns=COLUMNS, rows=tuple(rows)),
                    limits_of(setting)),
        )  # fmt: skip
        write_tables(given.results, "performance", results)


if __name__ == "__main__":
    main()
