"""Clipped per-record gradients beside Opacus and plain vmap, in CPU time of one thread.

    python benchmarks/clipped_gradients.py [--mnist FOLDER] [--repeats N] [--only NETWORK ...]
        [--results docs/results]

The case that counts is one round of DPDL on K5,5 with 10 agents: each agent's batch of 216 images
of 28x28 is evaluated on its own model and on its 5 neighbours' models, 60 clipped gradients in all.
"A batch each" has the same batches at their own agents' models alone.
ResNet-18 with group normalisation has 4 agents with batches of 8 images of 32x32 in colour.
All methods run in one process, one after the other in each repeat; the medians are compared. They
must agree up to float32 rounding, or the run fails. "no clipping" is PyTorch's gradient of each
batch as a whole, a loop over the models: what training without privacy costs. The share of the
machine's floating-point peak is that of the matrix products and convolutions which our method
computes, measured in the same run; where compiled code takes their place, of those that it spares.
"""

import argparse
import gzip
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from limits import Limits, measured, operations
from published import TableRow, put
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters, parameters_of

C = 2.0  # clip norm
NETWORKS = ("lenet", "lenet-5", "cnn-dpdl", "cnn-dyn-d2p", "mlp", "logistic", "resnet-18")
COLOUR = ("resnet-18", "vit", "vit-tiny")
ROUNDING = 2e-5  # of a clipped sum's largest entry, in float32
PEER_ROUNDING = 3e-2  # vmap's, of ResNet-18: its convolutions of one record round that coarsely


class Case(NamedTuple):
    """Models, and on whose batch each is evaluated."""

    title: str
    network: str
    X: Tensor  # [m, d]
    inputs: Tensor  # [n, b, *shape]
    labels: Tensor  # [n, b]
    holders: Tensor  # [m]
    n_words: int = 0  # of a vocabulary; 0: records are images

    @property
    def module(self) -> nn.Module:
        shape, n_classes = tuple(self.inputs.shape[2:]), self.n_words or 10
        return build_network(self.network, shape, n_classes, self.n_words)

    def to(self, device: torch.device) -> "Case":
        X, *data = (t.to(device) for t in self[2:6])
        return self._replace(X=X, inputs=data[0], labels=data[1], holders=data[2])

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


def own_batches(network: str, images: Tensor, labels: Tensor) -> Case:
    """One round in which each of 10 agents asks its batch at its own model alone."""
    models, title = _models(network, tuple(images.shape[2:]), 10), f"{network}, a batch each"
    return Case(title, network, models, images, labels, torch.arange(10))


def trials(network: str) -> Case:
    """64 Monte-Carlo trials of 8 agents, each with its own model and batch of 32 images of 8x8."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(512, 32, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (512, 32), generator=generator)
    title = f"{network}, 512 gradients of 32 images of 8x8"
    models = _models(network, (1, 8, 8), 512)
    return Case(title, network, models, images, labels, torch.arange(512))


def colour_round(network: str) -> Case:
    """4 agents, each with a model and a batch of 8 images of 32x32 of its own."""
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(4, 8, 3, 32, 32, generator=generator) * 2 - 1
    labels = torch.randint(10, (4, 8), generator=generator)
    models = _models(network, (3, 32, 32), 4)
    title = f"{network}, 4 gradients of 8 images of 32x32"
    return Case(title, network, models, images, labels, torch.arange(4))


def text_round(network: str, n_words: int = 600, length: int = 16) -> Case:
    """4 agents, each with a model and a batch of 32 records of its own; the next word is told."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(n_words, (4, 32, length), generator=generator)
    labels = torch.randint(n_words, (4, 32), generator=generator)
    models = _models(network, (length,), 4, n_words)
    title = f"{network}, 4 gradients of 32 records of {length} words"
    return Case(title, network, models, ids, labels, torch.arange(4), n_words)


def cases(network: str, images: Tensor, labels: Tensor) -> Iterator[Case]:
    """All that is measured of a network."""
    if network in COLOUR:
        yield colour_round(network)
        return
    yield dpdl_round(network, images, labels)
    if network in ("lenet", "lenet-5"):
        yield own_batches(network, images, labels)
    if network in ("mlp", "logistic"):
        yield trials(network)


def _models(network: str, shape: tuple[int, ...], m: int, n_words: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    module = build_network(network, shape, n_words or 10, n_words)
    return torch.stack([initial_parameters(module, generator) for _ in range(m)])


def ours(case: Case) -> Callable[[], Tensor]:
    gradients = Gradients(case.module, None, case.inputs.dtype)
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

    def sums() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # of other attention vmap makes a loop
            return torch.stack([clipped(per_record(*pair)) for pair in case.pairs()])

    return sums


def by_opacus(case: Case) -> Callable[[], Tensor]:
    """Opacus' GradSampleModule, a loop over the models; clips as its DPOptimizer does."""
    from opacus import GradSampleModule

    modules = []
    for x in case.X:
        module = case.module.to_empty(device=x.device)
        for layer in module.modules():
            if isinstance(layer, nn.ReLU):
                layer.inplace = False  # which Opacus' hooks forbid
            elif type(layer).__name__ == "BasicBlock":
                layer.forward = partial(_out_of_place, layer)  # as well
        nn.utils.vector_to_parameters(x.clone(), module.parameters())
        modules.append(GradSampleModule(module, loss_reduction="sum"))

    def clipped(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        cross_entropy(module(images), labels, reduction="sum").backward()
        samples = [p.grad_sample for p in module.parameters()]
        for p in module.parameters():
            p.grad = p.grad_sample = None
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples]).norm(dim=0)
        factors = (C / (norms + 1e-6)).clamp(max=1)
        return torch.cat([torch.einsum("i,i...", factors, g).flatten() for g in samples])

    pairs = [(module, *pair[1:]) for module, pair in zip(modules, case.pairs(), strict=True)]
    return lambda: torch.stack([clipped(*pair) for pair in pairs])


def without_clipping(case: Case) -> Callable[[], Tensor]:
    """PyTorch's gradient of each batch as a whole, a loop over the models: what no norm costs."""
    modules = []
    for x in case.X:
        module = case.module.to_empty(device=x.device)
        nn.utils.vector_to_parameters(x.clone(), module.parameters())
        modules.append(module)

    def gradient(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        loss = cross_entropy(module(images), labels, reduction="sum")
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*module.parameters()])])

    pairs = [(module, *pair[1:]) for module, pair in zip(modules, case.pairs(), strict=True)]
    return lambda: torch.stack([gradient(*pair) for pair in pairs])


def _out_of_place(block: nn.Module, x: Tensor) -> Tensor:
    """torchvision's BasicBlock."""
    y = block.bn2(block.conv2(block.relu(block.bn1(block.conv1(x)))))
    return block.relu(y + (x if block.downsample is None else block.downsample(x)))


def one_by_one(case: Case) -> Tensor:
    """The first clipped sum in float64, by one backward pass for each record."""
    x, images, labels = next(case.pairs())
    x, total = x.double().requires_grad_(), torch.zeros_like(x, dtype=torch.float64)
    images = images.double() if images.is_floating_point() else images
    for image, label in zip(images, labels, strict=True):
        logits = functional_call(case.module, parameters_of(case.module, x), (image[None],))
        (g,) = torch.autograd.grad(cross_entropy(logits, label[None]), x)
        total += g * (C / g.norm()).clamp(max=1)
    return total


def error_of(actual: Tensor, exact: Tensor) -> float:
    return float((actual - exact).abs().max() / exact.abs().max())


def cpu_seconds(methods: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, float]:
    """Median CPU time of each method, all of them once in every repeat."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.process_time()
            method()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def compare(case: Case, repeats: int, limits: Limits) -> TableRow:
    """Print what the methods take of a case; the row of published results."""
    methods = {"ours": ours(case), "vmap": by_vmap(case)}
    try:
        methods["opacus"] = by_opacus(case)
    except ImportError:
        print("opacus is not installed: pip install 'dpaudit[bench]'")
    exact = one_by_one(case)
    errors = {name: error_of(method()[0], exact) for name, method in methods.items()}
    if errors["ours"] > ROUNDING or max(errors.values()) > PEER_ROUNDING:
        raise SystemExit(f"{case.title}: the errors of the first sum are {errors}")
    methods["no clipping"] = without_clipping(case)
    seconds = cpu_seconds(methods, repeats)
    columns = [f"{name} {s:.3f} s" for name, s in seconds.items()]
    times = [f"{seconds[name] / seconds['ours']:.1f} times {name}" for name in list(seconds)[1:]]
    records = len(case.X) * case.inputs.shape[1]
    share = operations(methods["ours"]) / seconds["ours"] / limits.products
    print(f"{case.title}: {', '.join(columns + times)};", end=" ")
    print(f"errors {', '.join(f'{name} {error:.0e}' for name, error in errors.items())};", end=" ")
    a_record = f"{1e6 * seconds['ours'] / records:.3g} us"
    print(f"{a_record} a record,", end=" ")
    print(f"{share:.0%} of the floating-point peak", flush=True)
    peers = (seconds.get("opacus"), seconds["no clipping"])
    times = [None if peer is None else f"{peer / seconds['ours']:.1f}" for peer in peers]
    return case.title, a_record, *times


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
    parser.add_argument("--only", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--memory", metavar="NETWORK", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help="where training.json and .csv are")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = batches(arguments.mnist)
    if arguments.memory:
        measure_memory(arguments.memory, images, labels)
        return
    limits = measured()
    print(limits, flush=True)
    for network in arguments.only:
        for case in cases(network, images, labels):
            row = compare(case, arguments.repeats, limits)
            if arguments.results is not None:
                put(arguments.results, "Clipped per-record gradients", [row])
    for network in {"lenet", "lenet-5"} & set(arguments.only):
        report_memory(network, ["--mnist", str(arguments.mnist)] if arguments.mnist else [])


if __name__ == "__main__":
    main()
