"""Full audit runs as one batched program beside a loop over agents with Opacus, in CPU time.

    python benchmarks/full_runs.py [--trials 64] [--repeats 5] [--processes 2]

A run is DP-DPSGD with 8 agents on a ring: 100 rounds of batches of 32 of scikit-learn's digits, a
logistic regression, clipping and Gaussian noise, gossip, and an eavesdropper's score of the canary
in every round. Opacus plays run after run with a GradSampleModule and a DPOptimizer for each agent;
its batches come from a DataLoader, as its tutorials do it, or by hand, which is the cheapest.
Both run in one process on one thread, in turn in each repeat, and medians are compared. Then
blocks of runs are played by one process for each core, as an audit plays them, in wall time.
Without noise and on the same batches their models must agree up to float32 rounding, or the
benchmark fails. Beside the limits of the machine stand the products of a round, its noise, the
draws that choose batches, and the records of batches, read and written once.
"""

import argparse
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from functools import lru_cache

import torch
from limits import CPU, measured, operations
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.defense.contract import Defense, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.files.config import AuditConfig
from dpaudit.models.models import parameters_of
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.trials import run_trials

N_AGENTS, N_ROUNDS, BATCH, VICTIM = 8, 100, 32, 3
ROUNDING = 1e-4  # of the largest coordinate of a model after all rounds, in float32
DEFENSE = {"name": "dp-dpsgd", "n_rounds": N_ROUNDS, "batch_size": BATCH, "noise_multiplier": 1.0}
CONFIG = {
    "data": {"name": "digits", "n_agents": N_AGENTS},
    "graph": {"name": "ring"},
    "model": {"name": "logistic"},
    "defense": DEFENSE,
}


Batches = Callable[[int, int], tuple[Tensor, Tensor]]  # of a round and an agent


class Score:
    """How far the victim's messages of all rounds lie along a canary's gradient."""

    def __init__(self, direction: Tensor) -> None:
        self.direction, self.total = direction, torch.zeros(())

    def __call__(self, k: int, round: Round) -> None:
        payload = round.sent["x"].payload  # [..., n_agents, d]
        self.total = self.total + payload[..., VICTIM, :] @ self.direction.to(payload.device)


def batched(
    defense: Defense, problem: Classification, setting: Setting, streams: Streams, trials: int
) -> tuple[Tensor, Tensor]:
    """Models [trials, n_agents, d] and scores [trials] of many runs at once."""
    score = Score(canary(setting.d))
    state = run_trials(defense, problem, setting, streams, trials, score)
    return state.X, score.total


def canary(d: int) -> Tensor:
    return torch.nn.functional.normalize(torch.ones(d), dim=0)


def by_opacus(
    defense: Defense,
    problem: Classification,
    setting: Setting,
    streams: Streams,
    batches: Batches,
) -> tuple[Tensor, Tensor]:
    """Models [n_agents, d] and score of one run, a loop over agents."""
    agents = [_agent(defense, problem, streams, i) for i in range(setting.n_agents)]
    W = setting.network.at(1).W.float()
    X = torch.stack([nn.utils.parameters_to_vector(a.parameters()) for a, _ in agents]).detach()
    V, score, direction = W @ X, torch.zeros(()), canary(setting.d).to(X.device)
    for k in range(1, defense.n_rounds + 1):
        for i, (module, optimizer) in enumerate(agents):
            inputs, labels = batches(k, i)
            optimizer.zero_grad()
            cross_entropy(module(inputs), labels).backward()
            nn.utils.vector_to_parameters(V[i].clone(), module.parameters())
            optimizer.step()  # V - eta G, with G taken at X
            X[i] = nn.utils.parameters_to_vector(module.parameters()).detach()
        V = W @ X
        score = score + X[VICTIM] @ direction
    return X, score


def drawn_by_hand(problem: Classification) -> Batches:
    """The cheapest there is: a permutation of an agent's records, cut off."""
    held = [problem.records(i) for i in range(N_AGENTS)]

    def batches(k: int, i: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randperm(len(held[i][1]))[:BATCH]
        return held[i][0][chosen], held[i][1][chosen]

    return batches


def loaded(problem: Classification) -> Batches:
    """As Opacus' tutorials do: a shuffling DataLoader for each agent."""
    sets = [TensorDataset(*problem.records(i)) for i in range(N_AGENTS)]
    epochs = [_forever(DataLoader(s, BATCH, shuffle=True, drop_last=True)) for s in sets]
    return lambda k, i: next(epochs[i])


def _forever(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def _agent(
    defense: Defense, problem: Classification, streams: Streams, i: int
) -> tuple[nn.Module, "torch.optim.Optimizer"]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    architecture = problem.gradients.module
    x = problem.initial(streams)[i]
    module = deepcopy(architecture).to_empty(device=x.device)
    start = parameters_of(architecture, x)
    for name, parameter in module.named_parameters():
        parameter.data = start[name].clone()
    module = GradSampleModule(module)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=defense.learning_rate),
        noise_multiplier=defense.noise_multiplier,
        max_grad_norm=defense.clip_norm,
        expected_batch_size=BATCH,
    )
    return module, optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="0: leave them out")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    defense, problem, setting = prepared_here()
    trials = arguments.trials
    check(defense, problem, setting)

    def ours(seed: int) -> object:
        return batched(defense, problem, setting, Streams(seed), trials)

    def theirs(batches: Batches) -> Callable[[int], object]:
        return lambda seed: by_opacus(defense, problem, setting, Streams(seed), batches)

    peers = {
        "batches drawn by hand": theirs(drawn_by_hand(problem)),
        "a DataLoader for each agent": theirs(loaded(problem)),
    }
    mine: list[float] = []
    others: dict[str, list[float]] = {name: [] for name in peers}
    for seed in range(arguments.repeats):
        mine.append(cpu_seconds(ours, seed) / trials)
        for name, peer in peers.items():
            others[name].append(cpu_seconds(peer, seed))
    rate, cores = 1 / statistics.median(mine), arguments.processes
    print(f"{trials} runs at once: {rate:.1f} runs a second of CPU time on one thread")
    limits = measured()
    print(limits)
    print(limits.shares(1 / rate, **work_of_a_run(defense, problem, setting)))
    for name, times in others.items():
        peer = 1 / statistics.median(times)
        print(
            f"Opacus, {name}: {peer:.3f} runs a second of CPU time on one thread, "
            f"{rate / peer:.0f} times fewer"
        )
    if cores:
        side_by_side = on_all_cores(cores, trials, 2 * arguments.repeats)
        print(f"the same on {cores} cores: {side_by_side:.1f} runs a second of wall time")


def work_of_a_run(defense: Defense, problem: Classification, setting: Setting) -> dict[str, float]:
    """Floating-point operations, bytes and draws that one run cannot do without."""
    streams, graph = Streams(0), setting.network.at(1)
    state, oracle = (
        defense.start(problem.initial(streams), setting),
        problem.gradient(streams, 1, BATCH),
    )
    return {
        "products": N_ROUNDS
        * operations(lambda: defense.step(state, 1, graph, oracle, Noise(streams, 1))),
        "copies": N_ROUNDS * 2 * oracle.batch.inputs.nbytes,
        "normals": N_ROUNDS * setting.n_agents * setting.d,
        "uniforms": N_ROUNDS * setting.n_agents * max(setting.sizes),
    }


def on_all_cores(cores: int, trials: int, blocks: int) -> float:
    """Runs a second of wall time, by as many processes as there are cores, once they are up."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context) as pool:
        list(pool.map(block, range(cores), [trials] * cores))
        start = time.perf_counter()
        list(pool.map(block, range(blocks), [trials] * blocks))
        return trials * blocks / (time.perf_counter() - start)


@lru_cache
def prepared_here(device: torch.device = CPU) -> tuple[Defense, Classification, Setting]:
    torch.set_num_threads(1)
    prepared = prepare(AuditConfig.from_dict(CONFIG), Runtime(device))
    assert isinstance(prepared.learned.problem, Classification)
    return prepared.defenses["defense"], prepared.learned.problem, prepared.setting


def block(seed: int, trials: int) -> None:
    batched(*prepared_here(), Streams(seed), trials)


def check(defense: Defense, problem: Classification, setting: Setting) -> None:
    """Without noise both give the same models. Stops the benchmark if they do not."""
    silent, streams = defense.model_copy(update={"noise_multiplier": 0.0}), Streams(7)
    models, _ = batched(silent, problem, setting, streams, 1)

    def same(k: int, i: int) -> tuple[Tensor, Tensor]:
        inputs, labels, _ = problem.batch(streams, k, BATCH, "fixed", 1)
        return inputs[i], labels[i]

    expected, _ = by_opacus(silent, problem, setting, streams, same)
    error = float((models[0] - expected).abs().max() / expected.abs().max())
    if not error < ROUNDING:
        raise SystemExit(f"without noise the models differ by {error:.1e}")
    print(f"without noise the models agree to {error:.1e}", flush=True)


def cpu_seconds(method: Callable[[int], object], seed: int) -> float:
    start = time.process_time()
    method(seed)
    return time.process_time() - start


if __name__ == "__main__":
    main()
