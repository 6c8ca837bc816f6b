"""Whole batches from one gradient of a ReLU network n-400-400-10: how exact, and how fast?

    python benchmarks/exact_inversion.py [--mnist FOLDER] [--batches 8 12 16 20] [--repeats N]

Every repeat has other images and other weights (the default distributions). PSNR is that of the
batch's worst image, without a cap; wall time and CPU time are of the attack alone, labels included.
Images are the embedded digits of 8x8, or those of MNIST.
"""

import argparse
import gzip
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attacks.gradient_inversion.exact import ExactBatch, recover
from dpaudit.data.datasets import load_dataset
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import initial_parameters
from dpaudit.rng import Streams

WIDTH, N_CLASSES = 400, 10
STREAMS = Streams(1)


class Row(NamedTuple):
    """One batch, attacked."""

    psnr: float  # dB, of the worst image; NaN where nothing was recovered
    right: int  # labels
    wall: float  # seconds
    cpu: float  # seconds, of all threads
    refusal: str


def digits() -> tuple[Tensor, Tensor]:
    data = load_dataset("digits", seed=1)
    return data.x, data.y


def mnist(folder: Path) -> tuple[Tensor, Tensor]:
    pixels = _idx(folder, "train-images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)
    labels = _idx(folder, "train-labels-idx1-ubyte", 8)
    return torch.from_numpy(pixels / np.float32(127.5) - 1), torch.from_numpy(labels).long()


def _idx(folder: Path, name: str, header: int) -> np.ndarray:
    """The values of one of MNIST's files, packed or not, in the folder or in torchvision's."""
    for path in (folder / name, folder / "MNIST" / "raw" / name):
        for file, read in ((path, open), (path.with_suffix(".gz"), gzip.open)):
            if file.exists():
                with read(file, "rb") as stream:
                    return np.frombuffer(stream.read()[header:], np.uint8).copy()
    raise SystemExit(f"no {name} in {folder} or {folder / 'MNIST' / 'raw'}")


def network(shape: tuple[int, ...]) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Flatten(), nn.Linear(math.prod(shape), WIDTH), nn.ReLU()),
            *(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, N_CLASSES)),
        )


def attack(
    images: Tensor, labels: Tensor, dtype: torch.dtype, clip_norm: float | None, repeat: int
) -> Row:
    """One batch of these [b, ...], at weights of its own."""
    b, shape = len(images), tuple(images.shape[1:])
    task = Task(Gradients(network(shape)), shape, N_CLASSES, (-1.0, 1.0))
    model = initial_parameters(task.gradients.module, STREAMS("model", repeat)).to(dtype)[None]
    images = images.to(dtype)
    total = task.gradients.clipped_sum(model, images[None], labels[None], clip_norm)
    wall, cpu = time.perf_counter(), time.process_time()
    (found,) = recover(ObservedGradients(total / b, model, b, clip_norm), task, STREAMS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if not isinstance(found, ExactBatch):
        return Row(math.nan, 0, wall, cpu, str(found))
    squares = (images[:, None] - found.images).double().flatten(2).square().mean(2)
    nearest = squares.min(dim=1)
    right = int((found.labels[nearest.indices] == labels).sum())
    return Row(10 * math.log10(4 / max(float(nearest.values.max()), 1e-40)), right, wall, cpu, "")


def rows(options: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    images, labels = mnist(options.mnist) if options.mnist else digits()
    messages = (("float64", torch.float64, None), ("float32", torch.float32, None))
    for b in options.batches:
        for name, dtype, clip_norm in (*messages, ("float64, clipped", torch.float64, 1.0)):
            for repeat in range(options.repeats):
                chosen = STREAMS.numpy("images", b, repeat).choice(len(images), b, replace=False)
                row = attack(images[chosen], labels[chosen], dtype, clip_norm, repeat)
                yield f"{b:5}  {name:17}{repeat:7}", row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="28x28 instead of 8x8")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 12, 16, 20])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    columns = f"{'PSNR dB':>9}{'labels':>8}{'wall s':>8}{'CPU s':>8}"
    print(f"{'batch':>5}  {'message':17}{'repeat':>7}{columns}")
    for case, row in rows(options):
        figures = f"{row.psnr:9.1f}{row.right:8}{row.wall:8.2f}{row.cpu:8.2f}"
        print(f"{case}{figures}  {row.refusal}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
