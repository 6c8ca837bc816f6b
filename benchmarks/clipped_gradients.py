"""Clipped per-record gradients beside Opacus and plain vmap, in CPU time of one thread.

    python benchmarks/clipped_gradients.py [--mnist FOLDER] [--repeats N]

The case that counts is one round of DPDL on K5,5 with 10 agents: each agent's batch of 216 images
of 28x28 is evaluated on its own model and on its 5 neighbours' models, 60 clipped gradients in all.
All methods run in one process, one after the other in each repeat; the medians are compared. They
must agree up to float32 rounding, or the run fails.
"""

import argparse
import gzip
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters, parameters_of

C = 2.0  # clip norm
ROUNDING = 2e-5  # of a clipped sum's largest entry, in float32


class Case(NamedTuple):
    """Models, and on whose batch each is evaluated."""

    title: str
    network: str
    X: Tensor  # [m, d]
    inputs: Tensor  # [n, b, *shape]
    labels: Tensor  # [n, b]
    holders: Tensor  # [m]

    @property
    def module(self) -> nn.Module:
        return build_network(self.network, self.inputs.shape[2:], 10)

    def pairs(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, row in zip(self.X, self.holders.tolist(), strict=True):
            yield x, self.inputs[row], self.labels[row]


def dpdl_round(network: str, images: Tensor, labels: Tensor) -> Case:
    """One round of DPDL on K5,5: agent i's batch on its own model and on its neighbours'."""
    edges = [(i, j) for i in range(10) for j in range(10) if i == j or (i < 5) != (j < 5)]
    models = _models(network, tuple(images.shape[2:]), 10)
    holders, evaluated = torch.tensor(edges).T
    title = f"{network}, 60 gradients of 216 images"
    return Case(title, network, models[evaluated], images, labels, holders)


def trials(network: str) -> Case:
    """64 Monte-Carlo trials of 8 agents, each with its own model and batch of 32 images of 8x8."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(512, 32, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (512, 32), generator=generator)
    title = f"{network}, 512 gradients of 32 images of 8x8"
    models = _models(network, (1, 8, 8), 512)
    return Case(title, network, models, images, labels, torch.arange(512))


def _models(network: str, shape: tuple[int, ...], m: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    module = build_network(network, shape, 10)
    return torch.stack([initial_parameters(module, generator) for _ in range(m)])


def ours(case: Case) -> Callable[[], Tensor]:
    gradients = Gradients(case.module)
    arguments = (case.X, case.inputs, case.labels, C)
    return lambda: gradients.clipped_sum(*arguments, holders=case.holders)


def by_vmap(case: Case) -> Callable[[], Tensor]:
    """vmap over the records, a loop over the models."""
    module = case.module

    def loss(x: Tensor, image: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(
            functional_call(module, parameters_of(module, x), image[None]), label[None]
        )

    per_record = vmap(grad(loss), in_dims=(None, 0, 0))

    def clipped(G: Tensor) -> Tensor:
        return (C / (G.norm(dim=1) + 1e-12)).clamp(max=1) @ G

    return lambda: torch.stack([clipped(per_record(*pair)) for pair in case.pairs()])


def by_opacus(case: Case) -> Callable[[], Tensor]:
    """Opacus' GradSampleModule, a loop over the models; clips as its DPOptimizer does."""
    from opacus import GradSampleModule

    modules = []
    for x in case.X:
        module = case.module.to_empty(device="cpu")
        nn.utils.vector_to_parameters(x.clone(), module.parameters())
        modules.append(GradSampleModule(module, loss_reduction="sum"))

    def clipped(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        for p in module.parameters():
            p.grad = p.grad_sample = None
        cross_entropy(module(images), labels, reduction="sum").backward()
        samples = [p.grad_sample for p in module.parameters()]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples]).norm(dim=0)
        factors = (C / (norms + 1e-6)).clamp(max=1)
        return torch.cat([torch.einsum("i,i...", factors, g).flatten() for g in samples])

    pairs = [(module, *pair[1:]) for module, pair in zip(modules, case.pairs(), strict=True)]
    return lambda: torch.stack([clipped(*pair) for pair in pairs])


def cpu_seconds(methods: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    """Median CPU time of each method, all of them once in every repeat."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.process_time()
            method()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def compare(case: Case, repeats: int) -> None:
    methods = {"ours": ours(case), "vmap": by_vmap(case)}
    try:
        methods["opacus"] = by_opacus(case)
    except ImportError:
        print("opacus is not installed: pip install 'dpaudit[bench]'")
    results = {name: method() for name, method in methods.items()}
    for name, result in results.items():
        error = float((result - results["ours"]).abs().max() / results["ours"].abs().max())
        if error > ROUNDING:
            raise SystemExit(f"{case.title}: {name} differs by {error:.1e}")
    seconds = cpu_seconds(methods, repeats)
    columns = [f"{name} {s:.3f} s" for name, s in seconds.items()]
    ratios = [f"ours/{name} {seconds['ours'] / seconds[name]:.2f}" for name in list(seconds)[1:]]
    print(f"{case.title}: {', '.join(columns + ratios)}", flush=True)


def report_memory(network: str, arguments: list[str]) -> None:
    """The peak of a fresh process that does nothing but three rounds with our method."""
    command = [sys.executable, __file__, "--memory", network, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(done.stdout.strip(), flush=True)


def measure_memory(network: str, images: Tensor, labels: Tensor) -> None:
    method = ours(dpdl_round(network, images, labels))
    before = _peak_gib()
    for _ in range(3):
        method()
    print(f"{network}: peak memory {_peak_gib():.2f} GiB, {before:.2f} GiB before the rounds")


def _peak_gib() -> float:
    """The peak of this process alone (Linux): ru_maxrss would count its parent's as well."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def batches(mnist: Path | None) -> tuple[Tensor, Tensor]:
    """Ten batches of 216 images in [-1, 1], and their labels: random, or the first of MNIST."""
    if mnist is None:
        generator = torch.Generator().manual_seed(2)
        images = torch.rand(10, 216, 1, 28, 28, generator=generator) * 2 - 1
        return images, torch.randint(10, (10, 216), generator=generator)
    pixels = _idx(mnist, "train-images-idx3-ubyte", header=16)[: 2160 * 784]
    images = torch.from_numpy(pixels.reshape(10, 216, 1, 28, 28) / np.float32(127.5) - 1)
    labels = _idx(mnist, "train-labels-idx1-ubyte", header=8)[:2160].reshape(10, 216)
    return images, torch.from_numpy(labels.astype(np.int64))


def _idx(folder: Path, name: str, header: int) -> np.ndarray:
    """The values of one of MNIST's files, packed or not, in the folder or in torchvision's."""
    for path in (folder / name, folder / "MNIST" / "raw" / name):
        for file, read in ((path, open), (path.with_suffix(".gz"), gzip.open)):
            if file.exists():
                with read(file, "rb") as stream:
                    return np.frombuffer(stream.read()[header:], np.uint8)
    raise SystemExit(f"no {name} in {folder} or {folder / 'MNIST' / 'raw'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="real images, not random ones")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", metavar="NETWORK", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = batches(arguments.mnist)
    if arguments.memory:
        measure_memory(arguments.memory, images, labels)
        return
    for network in ("lenet", "lenet-5", "mlp", "logistic"):
        compare(dpdl_round(network, images, labels), arguments.repeats)
    for network in ("mlp", "logistic"):
        compare(trials(network), arguments.repeats)
    for network in ("lenet", "lenet-5"):
        report_memory(network, ["--mnist", str(arguments.mnist)] if arguments.mnist else [])


if __name__ == "__main__":
    main()
