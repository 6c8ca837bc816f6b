"""How far along a line of agents images can be read, hop by hop, by an agent at its end.

    python benchmarks/unmixing.py [--cifar10 FILE.npz] [--agents 31] [--rounds 45] [--markdown FILE]

Each agent holds one image and trains logistic regression by gossip; agent 0 reads what its one
neighbour sends, un-mixes every agent's gradient (`dpaudit.game.estimating.estimate`) and takes the
image from it
by the equations of the first layer. Beside it stands what the exact leak allows: the adversary
who knows all other gradients and the initial model sees a gradient under noise of standard
deviation 1 / mu, mu the leak of one unit of it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attacks.gradient_inversion.exact import ExactBatch, recover
from dpaudit.data.datasets import load_dataset
from dpaudit.defense import Defense, Noise, Setting, ThreatModel
from dpaudit.defense.transcript import Transcript
from dpaudit.defense.view import View
from dpaudit.game.estimating.estimate import Mixture, UnmixedGradients
from dpaudit.graphs.graph import build_graph
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.classification import Batch, BatchGradient

AT_THE_END = ThreatModel(name="the end", kind="curious", agents=(0,))
RATE = 1e-4
NOISE = (0.0, 1e-9, 1e-6, 1e-3)  # noise multipliers
CLIP = 100.0  # longer than any gradient here: what ends it is noise
STREAMS = Streams(1)


def images(cifar10: Path | None, n: int) -> tuple[Tensor, Tensor]:
    if cifar10 is None:
        data = load_dataset("digits", seed=1)
        return data.x[:n].double(), data.y[:n]
    with np.load(cifar10, allow_pickle=False) as file:
        pixels, labels = file["x_test"][:n], file["y_test"][:n]
    x = torch.from_numpy(pixels).reshape(n, *pixels.shape[1:]).double() / 127.5 - 1
    return (x.movedim(-1, 1) if x.shape[-1] == 3 else x), torch.from_numpy(labels).long()


def line(n: int, n_rounds: int, d: int, noise: float) -> tuple[Defense, Setting]:
    setting = Setting(build_graph("path", n), (1,) * n, d)
    options: dict[str, Any] = {"n_rounds": n_rounds, "batch_size": 1, "learning_rate": RATE}
    name = "d-psgd"
    if noise:
        name, options = "dp-dpsgd", options | {"noise_multiplier": noise, "clip_norm": CLIP}
    return load_plugin("defenses", name)(**options).calibrate(setting), setting


def read(
    x: Tensor, y: Tensor, n_rounds: int, noise: float, dtype: torch.dtype
) -> tuple[UnmixedGradients, Mixture, Task, Tensor]:
    """What the agent at the end knows of all gradients, how they were mixed, and the model."""
    n, shape = len(x), tuple(x.shape[1:])
    gradients = Gradients(build_network("logistic", shape, 10))
    model = initial_parameters(gradients.module, STREAMS("initialisation")).to(dtype)
    defense, setting = line(n, n_rounds, gradients.d, noise)
    oracle = BatchGradient(gradients, Batch(x[:, None].to(dtype), y[:, None]), 1)
    state: Any = defense.start(model.expand(n, -1).clone(), setting)
    captures = {}
    for k in range(1, n_rounds + 1):
        graph = setting.network.at(k)
        state, sent, *_ = defense.step(state, k, graph, oracle, Noise(STREAMS, k))
        captures[k] = {
            m: s.restricted((s.receivers == 0) | (s.senders == 0)) for m, s in sent.items()
        }
    view = View.of(AT_THE_END, Transcript(captures), set(captures))
    mixture = Mixture(defense, setting, AT_THE_END, n_rounds)
    task = Task(gradients, shape, 10, (-1.0, 1.0))
    return mixture.unmixed(view, model), mixture, task, model


def psnr(told: UnmixedGradients, task: Task, model: Tensor, x: Tensor) -> list[float]:
    """Of each agent's image, by the equations of the first layer, dB."""
    values = []
    for agent in range(len(x)):
        observed = ObservedGradients(told.gradients[[agent]], model.double()[None], 1, None)
        (found,) = recover(observed, task, STREAMS)
        image = found.images[0] if isinstance(found, ExactBatch) else torch.zeros_like(x[agent])
        error = float((image - x[agent]).square().mean())
        values.append(10 * np.log10(4 / max(error, 1e-30)))
    return values


def allowed(mixture: Mixture) -> list[float]:
    """1 / mu of a unit of each agent's gradient, all else known; 0 where there is no noise."""
    B, A = mixture.of_noise, mixture.of_gradients
    if not B.numel() or not B.any():
        return [0.0] * A.shape[1]
    solved = torch.linalg.lstsq(B, A, driver="gelsd").solution  # |B^+ a| is mu
    return [1 / max(float(torch.linalg.vector_norm(column)), 1e-300) for column in solved.mT]


def lines(x: Tensor, y: Tensor, n_rounds: int) -> Iterator[str]:
    yield (
        "| messages | noise multiplier | hops with 20 dB | hops told by half "
        "| PSNR at hop 1, 5, 10, 15, 20, 25 (dB) |"
    )
    yield "| --- | --- | --- | --- | --- |"
    limits: dict[float, list[str]] = {}
    for dtype, noise in [(torch.float32, 0.0), *((torch.float64, z) for z in NOISE)]:
        told, mixture, task, model = read(x, y, n_rounds, noise, dtype)
        found = psnr(told, task, model, x)
        size = float(told.gradients[1].square().mean().sqrt())
        near = reach([value >= 20 for value in found])
        half = reach([float(share) >= 0.5 for share in told.shares])
        some = ", ".join(f"{found[h]:.0f}" for h in (1, 5, 10, 15, 20, 25) if h < len(x))
        yield f"| {str(dtype)[6:]} | {noise:g} | {near} | {half} | {some} |"
        if noise:
            at_best = [std / size for std in allowed(mixture)]
            limits[noise] = [
                f"| {noise:g} | {h} | {at_best[h]:.2g} | {float(told.stds[h]) / size:.2g} |"
                for h in (1, 2, 3, 5, 10, 20) if h < len(x)
            ]  # fmt: skip
    yield ""
    yield "| noise multiplier | hop | noise at best, by the exact leak | noise of the estimate |"
    yield "| --- | --- | --- | --- |"
    for rows in limits.values():
        yield from rows


def reach(told: list[bool]) -> int:
    """How many hops in a row."""
    return next((h - 1 for h in range(1, len(told)) if not told[h]), len(told) - 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--agents", type=int, default=31)
    parser.add_argument("--rounds", type=int, default=45)
    given = parser.parse_args()
    x, y = images(given.cifar10, given.agents)
    print(f"a line of {given.agents} agents, {given.rounds} rounds, images {tuple(x.shape[1:])}\n")
    for text in lines(x, y, given.rounds):
        print(text, flush=True)


if __name__ == "__main__":
    main()
