"""Shadow models: runs per minute of a processor, and scores beside privacy_meter's.

    python benchmarks/shadow_models.py [--peer FILE] [--runs 1 16 64 256] [--results docs/results]

FILE is attacks.py of privacytrustlab/ml_privacy_meter at a555fce, whose ``run_rmia`` gets the
probabilities of the same models; it needs scikit-learn. The package privacy-meter 1.0.1 has neither
LiRA nor RMIA. A run is DP-DPSGD of 4 agents on digits, with an mlp. Beside it stands what trainers
of shadow models do: a loop of PyTorch over batches of one model after the other, of the same
network, on the same numbers of records and steps of one of these agents, four times.

LiRA has no peer there; tests/attacks/shadow_models/test_scores.py holds it against a plain loop.
The last table is what the attack finds under rising noise, after 300 rounds.
"""

import argparse
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from limits import CPU
from scipy.special import expit
from torch import nn

from dpaudit.attack.contract import AttackContext
from dpaudit.attack.membership_rates import auc
from dpaudit.attacks.shadow_models.attack import ShadowModels
from dpaudit.attacks.shadow_models.scores import References, rmia
from dpaudit.attacks.shadow_models.shadows import (
    RecordAssignment,
    RecordStatistics,
    deal,
    models_seen,
    train_shadows,
)
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.files.threat import ThreatModel
from dpaudit.models.models import build_network
from dpaudit.pipeline.jobs import context_of, jobs_of
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.reports.published import write_tables
from dpaudit.training.run_directory import RunDirectory

ROUNDS, BATCH, AGENTS = 100, 32, 4
MEAN = ThreatModel(name="mean", kind="final-model", access="black-box")
OFFLINE_A = 0.3
FIGURES = (Name.AUC, Name.TPR_AT_0001, Name.TPR_AT_001)
NOISES = (0.0, 0.1, 1.0)  # multipliers
LONG = 300  # rounds, after which records are remembered
ADVERSARIES = (
    MEAN,
    ThreatModel(name="mean, white-box", kind="final-model"),
    ThreatModel(name="neighbour, 8 rounds", kind="curious", agents=(0,)),
)


class Trained(NamedTuple):
    """How long so many runs took at once."""

    how: str
    at_once: int
    seconds: float  # of a processor, for all of them

    @property
    def per_minute(self) -> float:
        return 60 * self.at_once / self.seconds


def context(
    noise: float = 0.2,
    n_rounds: int | None = None,
    adversary: ThreatModel = MEAN,
    rate: float = 0.5,
    device: torch.device = CPU,
) -> AttackContext:
    defense = {"name": "dp-dpsgd", "n_rounds": n_rounds or ROUNDS, "batch_size": BATCH}
    config = {
        "seed": 1,
        "data": {"name": "digits", "n_agents": AGENTS},
        "graph": {"name": "ring"},
        "model": {"name": "mlp"},
        "defense": {**defense, "noise_multiplier": noise, "learning_rate": rate},
        "threat_model": [adversary.model_dump(mode="json")],
        "attack": [{"name": "shadow-models"}],
    }
    prepared = prepare(AuditConfig.from_dict(config), Runtime(device, cores=1))
    return context_of(prepared, RunDirectory(Path()), next(jobs_of(prepared)))


def trained(
    at: AttackContext, n_runs: int, seed: int = 0
) -> tuple[RecordAssignment, RecordStatistics, Trained]:
    began = process_time()
    dealt = deal(at.problem, n_runs, (), np.random.default_rng(seed))  # type: ignore[arg-type]

    def watched(k: int, played: Any) -> torch.Tensor | None:
        return models_seen(at.defense, MEAN, "x", k, played)

    seen = train_shadows(at, at.defense, dealt, (ROUNDS,), watched, False, lambda *_: None)
    assert seen is not None
    return dealt, seen, Trained("dpaudit, stacked", n_runs, process_time() - began)


def one_after_the_other(at: AttackContext, n_runs: int) -> Trained:
    """Four models of each run, one for each agent, by a loop over batches without privacy."""
    data, began = at.problem.dataset, process_time()  # type: ignore[union-attr]
    for _ in range(n_runs * AGENTS):
        held = torch.randperm(len(data.x))[: len(data.x) // AGENTS]
        records = torch.utils.data.TensorDataset(data.x[held], data.y[held])
        loader = torch.utils.data.DataLoader(records, BATCH, shuffle=True)
        network = build_network("mlp", tuple(data.x.shape[1:]), data.n_classes).to_empty(
            device="cpu"
        )
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        optimizer, loss_of = torch.optim.SGD(network.parameters(), lr=0.5), nn.CrossEntropyLoss()
        for _, (inputs, labels) in zip(range(ROUNDS), endless(loader), strict=False):
            optimizer.zero_grad()
            loss_of(network(inputs), labels).backward()
            optimizer.step()
    return Trained("PyTorch, one model after the other, without privacy", n_runs,
                   process_time() - began)  # fmt: skip


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class Compared(NamedTuple):
    """Scores of one attacked run by both programs."""

    records: int
    difference: float  # the largest, between scores
    ours: float  # AUC
    theirs: float


def beside_peer(run_rmia: Any, dealt: RecordAssignment, seen: RecordStatistics) -> Compared:
    """Offline RMIA of the last run, by as many reference runs without a record as it has.

    privacy_meter takes the same number of runs without each record, so records go in groups.
    """
    odds, public = seen.records[..., 0, 0], seen.public[..., 0, 0]
    references = References(odds[:-1, :, None], dealt.included[:-1])
    (ours,) = rmia(odds[-1:, :, None], references, public[-1:, :, None], public[:-1, :, None],
                   OFFLINE_A)  # fmt: skip
    absent = ~references.included
    theirs = np.full(len(ours), np.nan)
    for count in np.unique(absent.sum(axis=0)):
        group = np.flatnonzero(absent.sum(axis=0) == count)
        if count == 0:
            continue
        p_out = np.stack([expit(odds[:-1, r][absent[:, r]]) for r in group])
        theirs[group] = in_columns(run_rmia, expit(odds[-1, group]), p_out, expit(public))
    both = ~np.isnan(theirs)
    truth = dealt.included[-1][both]
    areas = [auc(s[both][truth], s[both][~truth]).value for s in (ours, theirs)]
    return Compared(int(both.sum()), float(np.abs(ours - theirs)[both].max()), *areas)


def in_columns(
    run_rmia: Any, attacked: np.ndarray, p_out: np.ndarray, public: np.ndarray
) -> np.ndarray:
    """The peer's own score: column 0 is attacked, column 1 is its pair, which it leaves out.

    Its mean over reference runs of public records is over as many as it is told; so it is given the
    mean of all, which is the same in each.
    """
    n, count = p_out.shape
    pair = np.zeros((n, 1))
    there = np.zeros((n, count), dtype=bool)
    signals = np.concatenate([attacked[:, None], pair, p_out], axis=1)
    memberships = np.concatenate([np.ones((n, 2), dtype=bool), there], axis=1)
    mean = public[:-1].mean(axis=0)[:, None].repeat(count, axis=1)
    of_public = np.concatenate([public[-1][:, None], mean[:, :1], mean], axis=1)
    return np.asarray(run_rmia(0, signals, of_public, memberships, count, OFFLINE_A))


def leaks(noise: float, adversary: ThreatModel) -> list[tuple[str, ...]]:
    """What each score finds: AUC, and true positives at both rates, with 95% intervals."""
    at = context(noise, LONG, adversary, rate=2.0)
    findings = ShadowModels().measure(at, adversary, lambda *_: None)
    rows = []
    for finding in findings:
        metrics = [finding.metrics.get(name) for name in FIGURES]
        shown = [f"{m.value:.3f} ({m.low:.3f} to {m.high:.3f})" if m else "" for m in metrics]
        rows.append((f"{noise:g}", adversary.name, finding.title, *shown))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="attacks.py of ml_privacy_meter")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    at, rows = context(), []
    for n_runs in given.runs:
        dealt, seen, taken = trained(at, n_runs)
        rows.append(taken)
    found = [row for noise in NOISES for one in ADVERSARIES for row in leaks(noise, one)]
    for row in found:
        print(*row, sep="  ")
    rows.append(one_after_the_other(at, min(4, given.runs[0] * 4)))
    for row in rows:
        print(f"{row.how}: {row.at_once} runs, {row.per_minute:.0f} a minute of a processor")
    compared = None
    if given.peer:
        spec = importlib.util.spec_from_file_location("peer", given.peer)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["peer"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        compared = beside_peer(module.run_rmia, dealt, seen)
        print(compared)
    if given.results and compared:
        publish(rows, compared, found, given.results)


def publish(
    rows: list[Trained], compared: Compared, found: list[tuple[str, ...]], folder: Path
) -> None:
    speed = ResultTable(
        title="Runs in a minute of a processor",
        about=f"{AGENTS} agents, {ROUNDS} rounds, batches of {BATCH}; one core.",
        columns=("how", "at once", "seconds", "runs a minute"),
        rows=tuple(
            (r.how, f"{r.at_once}", f"{r.seconds:.2f}", f"{r.per_minute:.0f}") for r in rows
        ),
    )
    scores = ResultTable(
        title="Offline RMIA of one run beside privacy_meter",
        about=f"The same probabilities, a = {OFFLINE_A}, gamma = 1.",
        columns=("records", "largest difference", "AUC here", "AUC there"),
        rows=((f"{compared.records:,}", f"{compared.difference:.1e}", f"{compared.ours:.4f}",
               f"{compared.theirs:.4f}"),),
    )  # fmt: skip
    remembered = ResultTable(
        title="What is found under rising noise",
        about=f"{LONG} rounds of {AGENTS} agents, 64 reference runs and 16 attacked ones. A guess "
        "has an AUC of 0.5 and true positives as often as false ones.",
        columns=("noise multiplier", "adversary", "score", "AUC", "TPR at 0.1%", "TPR at 1%"),
        rows=tuple(found),
    )
    results = ResultTables(
        title="Shadow models beside privacy_meter",
        command="python benchmarks/shadow_models.py --peer FILE",
        tables=(speed, scores, remembered),
    )
    write_tables(folder, "shadow-models", results)


if __name__ == "__main__":
    main()
