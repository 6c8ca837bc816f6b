"""The zoo of functions before other testers: what they find, miss, and accuse wrongly.

    python benchmarks/mechanism_peers.py --environments FOLDER [--folder KEPT] [--results RESULTS]

With ``--folder`` outputs and answers are kept as they come, and the same command goes on where it
stopped. FOLDER has a virtual environment for each peer, by the names of ``PEERS``; a peer without
one is left out. Of these the packages are ``jax-privacy==2.0.0`` and ``opake-auditing==0.16.1``;
the others are public repositories at the commits below, of which the package is copied in. Of
DP-Auditorium the ``__init__`` files are emptied, which import what its tester does without.

A peer gets from dpaudit what it has no search for: the pair of inputs on which a search in short
ends, and the outputs of 24,000 calls, half with either input. Most audits make 19,000 to 84,000
calls, and one makes 142,000. What they found is taken from docs/results/mechanisms.csv.
DP-Auditorium and DP-Sniper train a classifier on the outputs, and so does dp-recorder, for which
the whole function is one primitive. The two auditors of scores get the projection of the
output on the difference of means, fitted on the first half of the calls. Each answers at
significance 0.05; where a peer tests twice, it does so at half of that. Each has 120 seconds of a
processor for one function.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from math import exp, inf, log1p
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

ALPHA = 0.05
CALLS = 24_000  # that a peer gets, half with either input; an audit makes 19,000 to 142,000
SEARCH_RUNS = 1_000  # of the search for the pair of inputs
SECONDS = 120  # of a processor, that a peer has for one function
SNIPER_C = 0.01  # the least probability that DP-Sniper looks at
PEERS = {
    "dpsniper": "DP-Sniper, eth-sri/dp-sniper ee087b2",
    "dp_auditorium": "DP-Auditorium, hockey-stick, google/differential-privacy b5b0286",
    "dp_recorder": "dp-recorder, ObliviousAI/dp-recorder 85d189e",
    "jax_privacy": "jax-privacy 2.0.0, CanaryScoreAuditor",
    "opake": "opake-auditing 0.16.1, one_run",
}


class Sides(NamedTuple):
    """Outputs [n, d] for two neighbouring inputs, and what is claimed of them."""

    without: np.ndarray
    having: np.ndarray
    epsilon: float
    delta: float


def by_dpsniper(sides: Sides, folder: Path) -> float:
    """A lower bound on epsilon; both orders of the inputs, at half of the significance each."""
    from dpsniper.attack.dpsniper import DPSniper
    from dpsniper.classifiers.classifier_factory import LogisticRegressionFactory
    from dpsniper.classifiers.torch_optimizer_factory import SGDOptimizerFactory
    from dpsniper.mechanisms.abstract import Mechanism
    from dpsniper.probability.estimators import EpsEstimator, PrEstimator
    from dpsniper.search.ddconfig import DDConfig

    class Recorded(Mechanism):
        """Gives each recorded output once."""

        def __init__(self, outputs: tuple[np.ndarray, np.ndarray]) -> None:
            self.left = [iter(side) for side in outputs]

        def m(self, a: Any, n_samples: int = 1) -> np.ndarray:
            return np.stack([next(self.left[int(a)]) for _ in range(n_samples)])

    found = 0.0
    for first in (0, 1):
        half = len(sides.without) // 2
        span = slice(0, half) if first == 0 else slice(half, 2 * half)
        mechanism = Recorded((sides.without[span], sides.having[span]))
        third = half // 3 if half < 30_000 else half // 3000 * 1000
        third = third // 1000 * 1000 if third >= 10_000 else third
        config = DDConfig(
            c=SNIPER_C,
            n_train=third,
            n=third,
            n_check=third,
            n_processes=1,
            confidence=1 - ALPHA / 2,
        )
        factory = LogisticRegressionFactory(
            in_dimensions=sides.without.shape[1], optimizer_factory=SGDOptimizerFactory()
        )
        attack = DPSniper(mechanism, factory, config).best_attack(first, 1 - first)
        estimator = EpsEstimator(PrEstimator(mechanism, third, config))
        found = max(found, float(estimator.compute_eps_estimate(first, 1 - first, attack)[1]))
    # pure epsilon of events that likely: delta adds this much to it
    return found - log1p(sides.delta / (SNIPER_C * exp(min(sides.epsilon, 50))))


def by_dp_auditorium(sides: Sides, folder: Path) -> float:
    """Whether the hockey-stick divergence exceeds delta, as infinite or no epsilon."""
    from dp_auditorium.configs import privacy_property, property_tester_config
    from dp_auditorium.testers import hockey_stick_tester as tester

    config = property_tester_config.HockeyStickPropertyTesterConfig(
        training_config=tester.make_default_hs_training_config(),
        approximate_dp=privacy_property.ApproximateDp(epsilon=sides.epsilon, delta=sides.delta),
    )
    one = tester.HockeyStickPropertyTester(config, tester.make_default_hs_base_model())
    both = [(sides.without, sides.having), (sides.having, sides.without)]
    bounds = [one.estimate_lower_bound(a, b, ALPHA / 2) for a, b in both]
    return inf if any(map(one.reject_property, bounds)) else 0.0


def by_dp_recorder(sides: Sides, folder: Path) -> float:
    from dp_recorder.auditing.audit_primitives import Auditor, audit_spec
    from dp_recorder.auditing.metrics import dist_l1

    left = [iter(side) for side in (sides.without, sides.having)]

    @audit_spec("custom", input_arg="which", sensitivity_arg="distance", metric_fn=dist_l1)
    def function(which: int, distance: float) -> np.ndarray:
        return next(left[which])

    auditor = Auditor()
    with auditor:
        function(which=0, distance=1.0)
    auditor.set_replay()
    with auditor:
        function(which=1, distance=1.0)
    n = 2 * (len(sides.without) - 1)
    auditor.run_distributional_audit(n_samples=n, alpha=ALPHA)
    return (
        float(auditor.log[0].empirical_epsilon_lb) if sides.delta == 0 else _beyond(auditor, sides)
    )


def _beyond(auditor: Any, sides: Sides) -> float:
    """Of a claim with delta: infinite if the profile that was found lies above delta at epsilon."""
    epsilons, deltas = auditor.log[0].privacy_profile
    found = max(np.interp(sides.epsilon, epsilons, deltas), 0.0)
    return inf if found > sides.delta else 0.0


def by_jax_privacy(sides: Sides, folder: Path) -> float:
    import importlib.util

    place = next(Path(sys.prefix).glob("lib/python*/site-packages/jax_privacy/auditing.py"))
    spec = importlib.util.spec_from_file_location("auditing", place)  # its package imports JAX
    assert spec is not None
    assert spec.loader is not None
    auditing = importlib.util.module_from_spec(spec)
    sys.modules["auditing"] = auditing
    spec.loader.exec_module(auditing)
    without, having = scores(sides)
    auditor = auditing.CanaryScoreAuditor(having, without)
    return float(auditor.epsilon_clopper_pearson(ALPHA, sides.delta, one_sided=False))


def by_opake(sides: Sides, folder: Path) -> float:
    from opake.api.auditing.one_run._estimate import OneRunEstimate
    from opake.api.auditing.one_run._roc import get_tn_fn_counts

    without, having = scores(sides)
    thresholds, tn, fn = get_tn_fn_counts(having, without)
    estimate = OneRunEstimate(
        n_in=len(having), n_out=len(without), thresholds=thresholds, tn_counts=tn, fn_counts=fn,
        tp_counts=(fn[-1] - fn)[::-1], fp_counts=(tn[-1] - tn)[::-1],
        in_scores=having, out_scores=without,
    )  # fmt: skip
    return float(estimate.eps_delta().epsilon_at(delta=sides.delta))


def scores(sides: Sides) -> tuple[np.ndarray, np.ndarray]:
    """The projection on the difference of means, fitted on the first half, of the second half."""
    half = len(sides.without) // 2
    gap = sides.having[:half].mean(axis=0) - sides.without[:half].mean(axis=0)
    width = np.sqrt(sides.having[:half].var(axis=0) + sides.without[:half].var(axis=0)) + 1e-12
    return sides.without[half:] @ (gap / width**2), sides.having[half:] @ (gap / width**2)


TESTERS: dict[str, Callable[[Sides, Path], float]] = {
    "dpsniper": by_dpsniper,
    "dp_auditorium": by_dp_auditorium,
    "dp_recorder": by_dp_recorder,
    "jax_privacy": by_jax_privacy,
    "opake": by_opake,
}


def work(peer: str, folder: Path) -> None:
    """In the environment of a peer: a line of JSON for every file that it has not answered yet."""
    file = folder / f"{peer}.jsonl"
    done = {one["name"] for one in said_in(file)}
    signal.signal(signal.SIGPROF, _late)
    for path in sorted(folder.glob("*.npz")):
        if path.stem in done:
            continue
        began = process_time()
        with np.load(path) as content:
            claimed = float(content["epsilon"]), float(content["delta"])
            sides = Sides(content["without"], content["having"], *claimed)
        try:
            np.random.seed(0)  # noqa: NPY002
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            bound, error = TESTERS[peer](sides, folder), ""
        except Exception as found:
            bound, error = 0.0, f"{type(found).__name__}: {found}"[:200]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = process_time() - began
        line = {"name": path.stem, "bound": bound, "error": error, "seconds": seconds}
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def _late(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def said_in(file: Path) -> list[dict[str, Any]]:
    """The answers of a peer so far, by name."""
    lines = file.read_text().splitlines() if file.exists() else []
    return sorted(map(json.loads, lines), key=lambda one: str(one["name"]))


class Recorded(NamedTuple):
    """An entry of the zoo whose outputs were recorded, and what dpaudit found of it."""

    name: str
    is_right: bool
    claimed: float
    accused: bool
    seconds: float


def recorded(folder: Path, seed: int, every: int, results: Path) -> list[Recorded]:
    """Record outputs of each entry; what dpaudit found is in the published results."""
    from dpaudit.mechanism.zoo.run import zoo

    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    entries = zoo()
    for i in range(0, len(entries), every):
        record(folder, seed, i)
    found = []
    for entry, row in zip(entries[::every], rows[::every], strict=True):
        assert (row["mechanism"], row["mistake"]) == (entry.name, entry.mistake or "right")
        accused = row["verdict"] in ("refuted", "unsupported")
        name = f"{entry.name} ({entry.mistake or 'right'})"
        found.append(Recorded(name, entry.is_right, entry.claimed, accused, float(row["seconds"])))
    return found


def record(folder: Path, seed: int, index: int) -> None:
    """Write the outputs of one entry, for the pair on which a search in short ends."""
    from dpaudit.mechanism.function import FunctionHere
    from dpaudit.mechanism.neighbours import NeighbouringInputs
    from dpaudit.mechanism.search import Search
    from dpaudit.mechanism.source import from_python
    from dpaudit.mechanism.zoo.run import zoo

    entry, path = zoo()[index], folder / f"{index:03d}.npz"
    if path.exists():
        return
    options = {"function": f"zoo:{entry.name}", **entry.options, "runs": SEARCH_RUNS}
    claim = {"text": entry.name, "epsilon": entry.claimed, "delta": entry.delta,
             "adjacency": entry.adjacency}  # fmt: skip
    config = from_python({"seed": seed, "mechanism": options, "claim": [claim]})
    function = FunctionHere(entry.function, config.mechanism)
    neighbours = NeighbouringInputs(config.mechanism, entry.adjacency, seed)
    search = Search(function, neighbours, entry.delta, seed)
    pair = search.played(lambda done, n: None).move.pair
    function.seed(seed + 99)
    without, having = search.outputs(pair, CALLS // 2 // config.mechanism.calls)
    whole = path.with_suffix(".part")
    with whole.open("wb") as file:
        np.savez(file, without=without, having=having, epsilon=entry.claimed, delta=entry.delta)
    whole.rename(path)


def answers(environments: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each peer that has an environment says of each entry, one peer after the other."""
    threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    found = {}
    for peer in PEERS:
        python = (environments / peer / "bin" / "python").absolute()
        if not python.exists():
            continue
        place = str(folder.absolute())
        subprocess.run(
            [str(python), str(Path(__file__).absolute()), "--work", peer, "--folder", place],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
            cwd=folder,  # a peer writes logs into the folder that it runs in
            env={**os.environ, **dict.fromkeys(threads, "1")},
        )  # fmt: skip
        found[peer] = said_in(folder / f"{peer}.jsonl")
        print(peer, len(found[peer]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--environments", type=Path, default=Path("environments"))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--published", type=Path, default=Path("docs/results/mechanisms.csv"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="5: every fifth function of the zoo")
    parser.add_argument("--work", choices=TESTERS)
    parser.add_argument("--folder", type=Path, help="in which outputs and answers are kept")
    given = parser.parse_args()
    if given.work:
        work(given.work, given.folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        entries = recorded(folder, given.seed, given.every, given.published)
        publish(entries, answers(given.environments, folder), given)


def publish(entries: list[Recorded], said: dict[str, list[dict[str, Any]]], given: Any) -> None:
    from dpaudit.files.published import ResultTable, ResultTables
    from dpaudit.reports.published import write_tables

    wrong, right = sum(not e.is_right for e in entries), sum(e.is_right for e in entries)
    accused = {"dpaudit": [e.accused for e in entries]}
    seconds = {"dpaudit": sum(e.seconds for e in entries)}
    failed = {"dpaudit": 0}
    for peer, found in said.items():
        accused[peer] = [
            one["bound"] > e.claimed * (1 + 1e-6) for one, e in zip(found, entries, strict=True)
        ]
        seconds[peer] = sum(one["seconds"] for one in found)
        failed[peer] = sum(bool(one["error"]) for one in found)
    rows = []
    for tool, each in accused.items():
        hits = sum(a for a, e in zip(each, entries, strict=True) if not e.is_right)
        alarms = sum(a for a, e in zip(each, entries, strict=True) if e.is_right)
        rows.append((PEERS.get(tool, tool), f"{hits} of {wrong}", f"{alarms} of {right}",
                     str(failed[tool]), f"{seconds[tool]:.0f}"))  # fmt: skip
    single = [
        (e.name, *("found" if each[i] else "" for each in accused.values()))
        for i, e in enumerate(entries)
    ]
    columns = ("tool", "wrong ones found", "right ones accused", "not tested", "seconds")
    for row in (columns, *rows):
        print(" | ".join(row))
    for peer, found in said.items():
        for one, e in zip(found, entries, strict=True):
            if one["error"]:
                print(peer, e.name, one["error"])
    if given.results:
        totals = ResultTable(
            title="Totals",
            about="Each peer is given a pair of inputs and the outputs of 24,000 calls. Not "
            "tested: the peer raised an exception. Seconds of peers are of a processor.",
            columns=columns,
            rows=tuple(rows),
        )
        functions = ResultTable(
            title="Functions",
            about="Which tool accuses which function.",
            columns=("function", *accused),
            rows=tuple(single),
        )
        command = "python benchmarks/mechanism_peers.py --environments FOLDER"
        command += f" --every {given.every}" if given.every > 1 else ""
        title = "Zoo of mechanisms before other testers"
        results = ResultTables(title=title, command=command, tables=(totals, functions))
        write_tables(given.results, "mechanism-peers", results)


if __name__ == "__main__":
    main()
