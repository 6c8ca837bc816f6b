"""Gradient inversion beside breaching 0.1.2: PSNR, and CPU seconds of one thread for an image.

    python benchmarks/inversion.py [--cifar10 FILE.npz] [--mnist FOLDER] [--images N] [--peer N]

Both are handed the same gradients without noise and clip, and infer the labels; ours by the options
that the attack chooses itself. Where the peer's attack is a default of 24,000 steps, it gets 1,000.
Its attack on the DLG network runs to its end, on four images at most: one takes a minute or so.
Pixels are in [0, 1]; means over images with 95% Student-t intervals; the images of a batch are
aligned to the truth before they are scored, alike on both sides, and values cut to the range.
"""

import argparse
import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit.attack.image_metrics import interval, score
from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.data.vision import torchvision
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters, parameters_of
from dpaudit.rng import Streams

STREAMS = Streams(1)
RANGE = (0.0, 1.0)
_SLOW = 4  # images for the peer's slowest attack, at most
Images = tuple[Tensor, Tensor]  # [n, channels, height, width] and labels [n]


class Case(NamedTuple):
    """Batches, each with a model of its own, and what the peer runs on them."""

    title: str
    task: Task
    observed: ObservedGradients
    truth: Tensor  # [m, batch_size, channels, height, width]
    peer: str  # breaching's attack
    overrides: tuple[str, ...]  # of its configuration


class Row(NamedTuple):
    """One side of a case."""

    psnr: list[float]  # of each batch
    seconds: float  # CPU, for an image


def dlg() -> nn.Module:
    """Zhu et al. 2019: three 5x5 convolutions of 12 channels with sigmoids, one linear layer."""
    layers = [nn.Conv2d(3, 12, 5, 2, 2), nn.Conv2d(12, 12, 5, 2, 2), nn.Conv2d(12, 12, 5, 1, 2)]
    stages = [stage for layer in layers for stage in (layer, nn.Sigmoid())]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(768, 10)).to("meta")


def case(
    title: str, module: nn.Module, data: Images, batch_size: int, peer: str, *overrides: str
) -> Case:
    """Batches of consecutive images, and their mean gradients at fresh models."""
    images, labels = (t.unflatten(0, (-1, batch_size)) for t in data)
    draw = _uniform if peer == "deepleakage" else initial_parameters
    models = torch.stack([draw(module, STREAMS("model", i)) for i in range(len(images))])
    models, gradients = models.to(images.device), Gradients(module)
    task = Task(gradients, tuple(images.shape[2:]), 10, RANGE)
    sent = gradients.mean(models, images, labels)
    observed = ObservedGradients(sent, models, batch_size, None, sent.new_zeros(len(images)))
    return Case(title, task, observed, images, peer, overrides)


def _uniform(module: nn.Module, generator: torch.Generator) -> Tensor:
    d = sum(p.numel() for p in module.parameters())
    return torch.rand(d, generator=generator) - 0.5


def ours(case: Case) -> Row:
    attack = GradientInversion(message="gradient", rounds=(1,))
    start = time.process_time()
    found = attack.reconstruct(case.observed, case.task, STREAMS, lambda done, total: None)
    seconds = time.process_time() - start
    return _row(case.truth, found.images, seconds)


def theirs(case: Case, n: int) -> Row:
    """The first n images, batch by batch."""
    torchvision()
    import breaching

    most = _SLOW if case.peer == "deepleakage" else n
    batches = max(1, min(n, most) // case.observed.batch_size)
    settings = breaching.get_attack_config(case.peer, overrides=list(case.overrides))
    found, start = [], time.process_time()
    for i in range(batches):
        torch.manual_seed(i)
        found.append(_breach(breaching, settings, case, i))
    seconds = time.process_time() - start
    return _row(case.truth[:batches], torch.stack(found).clamp(*RANGE), seconds)


def _breach(breaching: SimpleNamespace, settings: object, case: Case, i: int) -> Tensor:
    from omegaconf import OmegaConf

    observed, device = case.observed, case.observed.models.device
    module = case.task.gradients.module.to_empty(device=device)
    public = {"shape": list(case.task.shape), "classes": 10, "modality": "vision"}
    metadata = OmegaConf.create(public | {"task": "classification"})
    weights, sent = (
        list(parameters_of(module, vectors[i]).values())
        for vectors in (observed.models, observed.gradients)
    )
    about = {"num_data_points": observed.batch_size, "labels": None, "local_hyperparams": None}
    setup = {"device": device, "dtype": torch.float32}
    attacker = breaching.attacks.prepare_attack(module, nn.CrossEntropyLoss(), settings, setup)
    for term in attacker.regularizers:  # its total variation is written for three channels
        term.groups = case.task.shape[0]
        term.weight = term.weight[: 2 * term.groups]
    payload = [{"parameters": weights, "buffers": None, "metadata": metadata}]
    shared = [{"gradients": sent, "buffers": None, "metadata": about}]
    result: Tensor = attacker.reconstruct(payload, shared, {})[0]["data"].detach()
    return result


def _row(truth: Tensor, found: Tensor, seconds: float) -> Row:
    psnr = score(truth, found, RANGE).psnr
    return Row(psnr.tolist(), seconds / truth.shape[:2].numel())


def cifar10(file: Path, n: int) -> Images:
    with np.load(file) as data:
        pixels, labels = data["x_test"][:n], data["y_test"][:n]
    return _tensors(np.moveaxis(pixels, -1, 1), labels)


def mnist(folder: Path, n: int) -> Images:
    pixels, labels = (
        _idx(folder, f"t10k-{name}", header)
        for name, header in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
    )
    return _tensors(pixels[: n * 784].reshape(n, 1, 28, 28), labels[:n])


def _tensors(pixels: np.ndarray, labels: np.ndarray) -> Images:
    scaled = torch.from_numpy(pixels / np.float32(255))
    return scaled.float(), torch.from_numpy(labels.astype(np.int64))


def _idx(folder: Path, name: str, header: int) -> np.ndarray:
    """The values of one of MNIST's files, packed or not, in the folder or in torchvision's."""
    for path in (folder / name, folder / "MNIST" / "raw" / name):
        for file, read in ((path, open), (path.with_suffix(".gz"), gzip.open)):
            if file.exists():
                with read(file, "rb") as stream:
                    return np.frombuffer(stream.read()[header:], np.uint8)
    raise SystemExit(f"no {name} in {folder} or {folder / 'MNIST' / 'raw'}")


def cases(cifar: Path | None, digits: Path | None, n: int) -> Iterator[Callable[[], Case]]:
    steps = "optim.max_iterations=1000"
    if cifar is not None:
        data = cifar10(cifar, n)
        shape = tuple(data[0].shape[1:])
        convnet = build_network("cnn-dpdl", shape, 10)
        yield lambda: case("DLG network, CIFAR-10", dlg(), data, 1, "deepleakage")
        yield lambda: case("ConvNet, CIFAR-10", convnet, data, 1, "invertinggradients", steps)
    if digits is not None:
        grey = mnist(digits, n)
        lenet = build_network("lenet", tuple(grey[0].shape[1:]), 10)
        for b in (1, 8):
            title = f"LeNet, MNIST, batches of {b}"
            yield lambda b=b, t=title: case(t, lenet, grey, b, "invertinggradients", steps)


def _line(title: str, side: str, row: Row) -> str:
    mean = interval(row.psnr)
    ends = "" if mean.low is None else f" ({mean.low:.1f} to {mean.high:.1f})"
    return f"| {title} | {side} | {mean.value:.1f}{ends} | {mean.n} | {row.seconds:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", type=Path, metavar="FILE.npz", help="with x_test and y_test")
    parser.add_argument("--mnist", type=Path, metavar="FOLDER")
    parser.add_argument("--images", type=int, default=16, help="a multiple of 8")
    parser.add_argument(
        "--peer", type=int, default=16, help="images for breaching; 0: leave it out"
    )
    arguments = parser.parse_args()
    if arguments.images < 8 or arguments.images % 8:
        parser.error(f"--images: expected a multiple of 8, got {arguments.images}")
    torch.set_num_threads(1)
    print("| network, images | attack | PSNR, dB | batches | CPU seconds an image |")
    print("|---|---|---|---|---|")
    for make in cases(arguments.cifar10, arguments.mnist, arguments.images):
        now = make()
        print(_line(now.title, "dpaudit", ours(now)), flush=True)
        if arguments.peer:
            print(
                _line(now.title, f"breaching {now.peer}", theirs(now, arguments.peer)), flush=True
            )


if __name__ == "__main__":
    main()
