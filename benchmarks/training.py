"""Accuracy of the private defenses on MNIST at one audited budget, over several seeds.

    python benchmarks/training.py --data-root FOLDER [--seeds 3] [--rounds 200] [--only NAME ...]
    python benchmarks/training.py --audits FOLDER --results docs/results

Ten agents on a ring, or ten and a server, with even parts of MNIST learn softmax regression. Where
records are protected, a defense gets the noise with which every agent's record keeps (2, 1e-5)-DP
over the run against an eavesdropper on all links, by exact accounting of its own mechanism; where
functions are, epsilon = 10 by its own formula at an L1 distance of 1. Step size and clip norm are
the same for all that have them, and were not tuned. Means over agents, and 95% Student-t intervals
over seeds, on the first 2,000 test images.

The second form runs nothing: it takes the audits of benchmarks/mnist/NAME.toml from FOLDER/NAME.
"""

import argparse
import time
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from published import TableRow, put
from scipy.stats import t as student

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.noise import Noise
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.files.threat import ThreatModel
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.reports.comparison import final_utility

OF_AUDITS = "Every defense at its paper's weakest budget"
OVER_SEEDS = "One audited budget over three seeds"
BY_ROUND = "sensitivity-reduced by round"
ROUNDS = (2, 4, 8, 14, 20, 40, 80)  # of that table
CURVES = (  # its rows: a file of benchmarks/mnist, and which of its runs
    ("ten agents", "sensitivity-reduced", "defense"),
    ("ten agents, without noise", "sensitivity-reduced", "no-defense"),
    ("a hundred agents", "sensitivity-reduced-100", "defense"),
)
EPSILON, DELTA = 2.0, 1e-5
EVERYTHING = ThreatModel(name="every link")
COMMON = {"learning_rate": 0.5, "clip_norm": 1.0, "batch_size": 64}
BUDGET = {"epsilon": EPSILON, "delta": DELTA}
RING, SERVER, PAIRS = {"name": "ring"}, {"name": "server"}, {"name": "pairwise", "among": "ring"}
NEITHER = {"learning_rate": None, "clip_norm": None}
FUNCTION = NEITHER | {"epsilon": 10.0, "batch_size": 64}  # of an agent's function, in L1
DECAYING = {"step_size": 1.0, "step_decay": 0.8, "noise_decay": 0.9}
DEFENSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # name -> graph, own options
    "d-psgd": (RING, {"clip_norm": None}),
    "dp-dpsgd": (RING, BUDGET),
    "decor": (RING, BUDGET),
    "whisper": (RING, BUDGET),
    "mafalda": (RING, BUDGET),
    "muffliato": (RING, BUDGET),
    "mapa": (RING, BUDGET | {"learning_rate": None}),
    "dp-netfleet": (RING, BUDGET | {"learning_rate": None, "step_size": 0.1, "local_steps": 2}),
    "dp-dfedsam": (RING, BUDGET | {"local_steps": 2}),
    "dp-cga": (RING, BUDGET | {"learning_rate": 0.1}),
    "adp2sgd": (PAIRS, BUDGET),
    "fed-cdp": (RING, BUDGET | {"count_layers": True}),
    "fedan": (RING, BUDGET),
    "ppsgd": (RING, BUDGET),
    "feddpa": (SERVER, BUDGET | {"clip_norm": 0.5, "learning_rate": 0.01, "calibration": "exact"}),
    "sensitivity-reduced": (RING, FUNCTION | DECAYING | {"correction": 0.4}),
    "dpop": (RING, FUNCTION | DECAYING),
    "pp-doagt": (RING, FUNCTION | DECAYING),
    "xuan-wang": (RING, FUNCTION | DECAYING),
    "diadsp": (RING, FUNCTION),
    "diff-tv-ab": (RING, FUNCTION),
    "wang-nedic": (RING, FUNCTION),
    "wang-nedic-tracking": (RING, FUNCTION),
    "net-fleet": (RING, NEITHER | {"step_size": 0.1, "local_steps": 2}),
    "cga": (RING, {"learning_rate": 0.1, "clip_norm": None}),
    "zip-dl": (RING, {"noise_multiplier": 4.0, "self_noise": True}),
    "pedfl": (RING, {"clip_norm": None, "learning_rate": 0.1, "epsilon": 3000.0}),
}


class Row(NamedTuple):
    """One run."""

    accounted: tuple[float, float]
    private: float  # accuracy in percent, the mean over agents
    silent: float  # the same without noise
    seconds: float  # CPU, of both


def config(name: str, seed: int, rounds: int) -> AuditConfig:
    graph, own = DEFENSES[name]
    rounds *= 10 if graph is PAIRS else 1  # in each of which one agent of ten takes a step
    options = {key: value for key, value in (COMMON | own).items() if value is not None}
    n_agents = 11 if graph["name"] == "server" else 10
    return AuditConfig.from_dict(
        {
            "seed": seed,
            "data": {"name": "mnist", "n_agents": n_agents},
            "graph": graph,
            "model": {"name": "logistic"},
            "defense": {"name": name, "n_rounds": rounds, **options},
        }
    )


def run(name: str, seed: int, rounds: int, root: Path) -> Row:
    started = time.process_time()
    prepared = prepare(config(name, seed, rounds), Runtime(data_root=root))
    setting, problem = prepared.setting, prepared.learned.problem
    accuracies = {}
    for world, defense in prepared.defenses.items():
        state = defense.start(problem.initial(prepared.streams), setting)
        for k in range(1, defense.n_rounds + 1):
            batch = defense.batch_size, defense.drawing
            gradient = problem.gradient(prepared.streams, k, *batch)
            noise = Noise(prepared.streams, k)
            state = defense.step(state, k, setting.network.at(k), gradient, noise).state
        models = defense.evaluated(state)
        if setting.network.server is not None:
            models = models[setting.network.server][None]
        _, accuracy = problem.evaluate(models)
        accuracies[world] = 100 * accuracy.mean().item()
    bracket = prepared.defenses["defense"].mechanism(setting, EVERYTHING, setting.holders[0])
    accounted = (epsilon(bracket.least, DELTA).low, epsilon(bracket.most, DELTA).high)
    seconds = time.process_time() - started
    return Row(accounted, accuracies["defense"], accuracies["no-defense"], seconds)


def audited(folder: Path) -> Iterator[TableRow]:
    """A row for each finished audit of benchmarks/mnist: accuracies in percent."""
    for path in sorted(Path(__file__).parent.glob("mnist/*.toml")):
        result = AuditResult.read(folder / path.stem / "audit.json")
        final, claims = final_utility(result), result.claims
        private, silent = (final[world].accuracy for world in ("defense", "no-defense"))
        assert private is not None
        assert silent is not None
        stated = (claims[0].epsilon, claims[0].scope) if claims else (None, None)
        restated = claims[0].restated if claims else None
        ends = (restated.epsilon.low, restated.epsilon.high) if restated else (None, None)
        accuracies = (private.value, private.low, private.high, silent.value)
        defense, network = result.config["defense"], result.config["model"]["name"]
        yield (
            path.stem, network, float(defense["n_rounds"]), *stated,
            *(x if x is None else float(f"{x:.3g}") if isfinite(x) else str(x) for x in ends),
            *(None if x is None else round(100 * x, 1) for x in accuracies),
            float(round(sum(result.timing.values()))),
        )  # fmt: skip


def by_round(folder: Path) -> Iterator[TableRow]:
    """A row for each of CURVES: accuracies in percent at ROUNDS, the mean over agents."""
    for title, file, world in CURVES:
        curve = AuditResult.read(folder / file / "audit.json").utility[world]
        accuracies = dict(zip(curve.rounds, curve.accuracy, strict=True))
        yield (title, *(float(round(100 * mean(accuracies[k]))) for k in ROUNDS))


def published(name: str, rows: list[Row]) -> TableRow:
    """The seeds of one defense as a row of published results."""
    ends = [float(f"{end:.3g}") for end in rows[0].accounted]
    worlds = ([row.private for row in rows], [row.silent for row in rows])
    means = [(round(mean(x), 1), _margin(x)) for x in worlds]
    return (name, *ends, *means[0], *means[1], float(round(mean(row.seconds for row in rows))))


def _margin(values: list[float]) -> float | None:
    """Half the width of Student's 95% interval; None of one value."""
    if len(values) < 2:
        return None
    quantile = student.ppf(0.975, len(values) - 1)
    return round(float(quantile * stdev(values) / len(values) ** 0.5), 1)


def lines(
    names: list[str], seeds: int, rounds: int, root: Path, results: Path | None
) -> Iterator[str]:
    yield "| defense | accounted epsilon | accuracy | without noise | CPU seconds |"
    yield "|---|---|---|---|---|"
    for name in names:
        rows = [run(name, seed, rounds, root) for seed in range(seeds)]
        if results is not None:
            put(results, OVER_SEEDS, [published(name, rows)])
        low, high = rows[0].accounted
        close = low == high or high - low <= 0.01 * high
        exact = f"{high:.3g}" if close else f"{low:.3g} to {high:.3g}"
        private, silent = ([getattr(row, world) for row in rows] for world in ("private", "silent"))
        yield (
            f"| {name} | {exact} | {_with_interval(private)} | {_with_interval(silent)} | "
            f"{mean(row.seconds for row in rows):.0f} |"
        )


def _with_interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}"
    margin = student.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    if not margin <= mean(values) <= 100 - margin:  # no accuracy is there: the range of the seeds
        return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
    return f"{mean(values):.1f} ± {margin:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--audits", type=Path, help="of benchmarks/mnist, a folder for each")
    parser.add_argument("--results", type=Path, help="where training.json and .csv are")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=list(DEFENSES))
    given = parser.parse_args()
    if given.audits is not None and given.results is not None:
        put(given.results, OF_AUDITS, audited(given.audits))
        put(given.results, BY_ROUND, by_round(given.audits))
        return
    if given.data_root is None:
        parser.error("give --data-root, or --audits and --results")
    torch.set_num_threads(1)
    for line in lines(given.only, given.seeds, given.rounds, given.data_root, given.results):
        print(line, flush=True)


if __name__ == "__main__":
    main()
