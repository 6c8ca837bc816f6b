"""A round of PartPSP with ten agents beside ten processes that send with gloo, in CPU time.

    python benchmarks/partpsp.py [--rounds 100] [--repeats 5]

Ten agents on a ring learn scikit-learn's digits by an MLP with one hidden layer of 64, batches of
32; the first layer is shared, every fourth round synchronises everybody. Ours plays all agents in
one tensor program on one thread. The peer is written as one would write it with torch.distributed:
a process for each agent, a module, two backward passes, ``all_reduce`` for the sensitivity and the
rounds of synchronisation, ``isend`` and ``irecv`` between neighbours. Its CPU time is the sum over
processes, once they are up; both are played in turn in each repeat, and medians are compared.
Without noise and on the same batches their models must agree up to float32 rounding, or the
benchmark fails.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue

import torch
import torch.distributed as dist
from limits import measured, operations
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.partpsp import PartPSP
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.trials import unrecorded

N_AGENTS, BATCH, WARM_UP = 10, 32, 4
ROUNDING = 1e-4  # of the largest coordinate of a model after all rounds, in float32
CONFIG = {
    "data": {"name": "digits", "n_agents": N_AGENTS},
    "graph": {"name": "ring"},
    "model": {"name": "mlp"},
    "defense": {"name": "partpsp", "n_rounds": 1000, "batch_size": BATCH, "share": ["1"]},
}

Batches = Callable[[int, int], tuple[Tensor, Tensor]]  # of a round and an agent


class Subject:
    """What both play."""

    def __init__(self, defense: PartPSP, problem: Classification, setting: Setting) -> None:
        self.defense, self.problem, self.setting = defense, problem, setting
        self.start = problem.initial(Streams(0))

    def without_noise(self) -> "Subject":
        return Subject(self.defense.without_noise(), self.problem, self.setting)


def ours(subject: Subject, rounds: int, streams: Streams) -> tuple[Tensor, float]:
    """Models [n_agents, d] after the rounds, and CPU seconds of a round."""
    defense, problem, network = subject.defense, subject.problem, subject.setting.network
    state = defense.start(subject.start.clone(), subject.setting)
    with unrecorded(problem.differentiates):
        for k in range(1, WARM_UP + rounds + 1):
            if k == WARM_UP + 1:
                began = time.process_time()
            gradient = problem.gradient(streams, k, BATCH, defense.drawing)
            state = defense.step(state, k, network.at(k), gradient, Noise(streams, k)).state
    return defense.models(state), (time.process_time() - began) / rounds


def by_gloo(subject: Subject, rounds: int, batches: Batches) -> tuple[Tensor, float]:
    """The same, CPU seconds added up over all processes."""
    context = multiprocessing.get_context("fork")  # the data are there, torch is imported
    results: SimpleQueue[tuple[int, list[float], float]] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        given = (subject, rounds, batches, f"file://{folder}/store", results)
        processes = [context.Process(target=agent, args=(i, *given)) for i in range(N_AGENTS)]
        for process in processes:
            process.start()
        told = sorted(results.get() for _ in processes)
        for process in processes:
            process.join()
    return torch.tensor([model for _, model, _ in told]), sum(s for *_, s in told) / rounds


def agent(
    i: int,
    subject: Subject,
    rounds: int,
    batches: Batches,
    store: str,
    results: "SimpleQueue[tuple[int, list[float], float]]",
) -> None:
    """One process: agent i's rounds; its model and CPU seconds to the parent."""
    dist.init_process_group("gloo", init_method=store, rank=i, world_size=N_AGENTS)
    player = Player(i, subject)
    for k in range(1, WARM_UP + rounds + 1):
        if k == WARM_UP + 1:
            dist.barrier()
            began = time.process_time()
        player.round(k, *batches(k, i))
    seconds = time.process_time() - began
    results.put((i, player.model().tolist(), seconds))
    dist.barrier()
    dist.destroy_process_group()


class Player:
    """Algorithm 2 of Zhou, Xue and Chen, as agent i plays it."""

    def __init__(self, i: int, subject: Subject) -> None:
        architecture = subject.problem.gradients.module
        self.module = architecture.to_empty(device="cpu")
        nn.utils.vector_to_parameters(subject.start[i].clone(), self.module.parameters())
        self.shared = [p for n, p in self.module.named_parameters() if n.startswith("1.")]
        self.local = [p for n, p in self.module.named_parameters() if not n.startswith("1.")]
        self.defense, self.protocol = subject.defense, subject.defense.protocol
        weights = subject.setting.network.at(1).W[i].tolist()
        self.own = weights[i]
        self.neighbours = [(j, w) for j, w in enumerate(weights) if w > 0 and j != i]
        self.s = nn.utils.parameters_to_vector(self.shared).detach()
        self.a, self.sens, self.noise = torch.ones(1), torch.zeros(1), torch.zeros(1)

    def model(self) -> Tensor:
        nn.utils.vector_to_parameters(self.s / self.a, self.shared)
        return nn.utils.parameters_to_vector(self.module.parameters()).detach()

    def round(self, k: int, inputs: Tensor, labels: Tensor) -> None:
        nn.utils.vector_to_parameters(self.s / self.a, self.shared)
        slopes = torch.autograd.grad(cross_entropy(self.module(inputs), labels), self.local)
        with torch.no_grad():
            for p, g in zip(self.local, slopes, strict=True):
                p -= self.defense.local_learning_rate * g  # 4
        slopes = torch.autograd.grad(cross_entropy(self.module(inputs), labels), self.shared)
        g = torch.cat([g.flatten() for g in slopes])
        g = g * (self.defense.l1_clip_norm / g.norm(1)).clamp(max=1)  # 5
        self.exchange(k, -self.defense.learning_rate * g)  # 6

    def exchange(self, k: int, e: Tensor) -> None:
        """A round of DPPS, Algorithm 1."""
        C, lam, gamma_n = (
            self.protocol.sensitivity_factor,
            self.protocol.contraction,
            self.protocol.noise_rate,
        )
        if (k - 1) % self.protocol.sync_interval == 0:
            self.sens = 2 * C * e.norm(1)[None]
        else:
            self.sens = lam * self.sens + 2 * C * (e.norm(1) + lam * self.noise)
        largest = self.sens.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        n = gamma_n * torch.distributions.Laplace(0, largest / self.protocol.budget).sample(e.shape)
        self.noise, m = n.norm(1)[None], torch.cat([self.s + e + n.flatten(), self.a])
        mixed = self.everybody(m) if k % self.protocol.sync_interval == 0 else self.mixed(m)
        self.s, self.a = mixed[:-1], mixed[-1:]

    def everybody(self, m: Tensor) -> Tensor:
        total = m.clone()
        dist.all_reduce(total)
        return total / N_AGENTS

    def mixed(self, m: Tensor) -> Tensor:
        received = [torch.empty_like(m) for _ in self.neighbours]
        work = [dist.isend(m, j) for j, _ in self.neighbours]
        work += [dist.irecv(r, j) for r, (j, _) in zip(received, self.neighbours, strict=True)]
        for w in work:
            w.wait()
        total = self.own * m
        for r, (_, weight) in zip(received, self.neighbours, strict=True):
            total += weight * r
        return total


def drawn_by_hand(problem: Classification) -> Batches:
    """A permutation of an agent's records, cut off."""
    held = [problem.records(i) for i in range(N_AGENTS)]

    def batches(k: int, i: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randperm(len(held[i][1]))[:BATCH]
        return held[i][0][chosen], held[i][1][chosen]

    return batches


def check(subject: Subject, rounds: int = 20) -> None:
    """Without noise both give the same models. Stops the benchmark if they do not."""
    silent, streams = subject.without_noise(), Streams(7)

    def same(k: int, i: int) -> tuple[Tensor, Tensor]:
        inputs, labels, _ = subject.problem.batch(streams, k, BATCH, "fixed")
        return inputs[i], labels[i]

    expected, _ = by_gloo(silent, rounds, same)
    models, _ = ours(silent, rounds, streams)
    error = float((models - expected).abs().max() / expected.abs().max())
    if not error < ROUNDING:
        raise SystemExit(f"without noise the models differ by {error:.1e}")
    print(f"without noise the models agree to {error:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    limits = measured()
    prepared = prepare(AuditConfig.from_dict(CONFIG), Runtime())
    defense, problem = prepared.defenses["defense"], prepared.learned.problem
    assert isinstance(defense, PartPSP)
    assert isinstance(problem, Classification)
    subject = Subject(defense, problem, prepared.setting)
    check(subject)
    batches, times = drawn_by_hand(problem), []
    for seed in range(arguments.repeats):
        mine = ours(subject, arguments.rounds, Streams(seed))[1]
        times.append((mine, by_gloo(subject, arguments.rounds, batches)[1]))
    mine, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    gradient = problem.gradient(Streams(0), 1, BATCH)
    draws = defense.start(subject.start, subject.setting).S.numel()
    products = 2 * operations(lambda: gradient(subject.start))
    print(limits)
    print(
        f"a round: ours {1e3 * mine:.2f} ms, ten gloo processes {1e3 * theirs:.1f} ms of CPU time, "
        f"{theirs / mine:.0f} times; {limits.shares(mine, products=products, uniforms=draws)}"
    )


if __name__ == "__main__":
    main()
