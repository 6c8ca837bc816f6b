"""Weights after local steps: dpaudit, the single-gradient approximation, and breaching 0.1.2.

    python benchmarks/local_steps.py --cifar10 FILE.npz --mnist FOLDER [--results docs/results]

An agent takes L = 1, 4, 16 steps of SGD on the same four images: all at once, one after the other,
and four times over in the same order. All attacks get the same weights before and after, without
noise. breaching's attack for local updates is ``invertinggradients`` with the local learning rate,
the batches and the labels of each step given, at 1,000 of its 24,000 steps; dpaudit infers the
labels, and is given them in a row of its own. Below, what only dpaudit simulates: momentum with
weight decay, AdamW, and four passes in orders that are not known, with the order known beside it.
PSNR of images aligned to the truth, with 95% Student-t intervals over agents; seconds of CPU time
on one thread, for an image. ``--sides`` and ``--steps`` choose rows, which take the places of the
same in ``--results``. ``--first`` takes images from another one on, and ``--iterations`` and
``--signed`` set these options of dpaudit.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import torch
from inversion import Images, cifar10, mnist
from torch import Tensor, nn

from dpaudit.attack.image_metrics import interval, score
from dpaudit.attack.local_steps import DummyGradient, local_steps
from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attack.scenario import frame_of
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.plan import Plan
from dpaudit.data.vision import torchvision
from dpaudit.files.local_training import LocalTraining
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters, parameters_of
from dpaudit.reports.published import write_tables
from dpaudit.rng import Streams

STREAMS, RANGE = Streams(1), (0.0, 1.0)
RECORDS = 4  # of an agent
PUBLIC = 100  # images
SPREAD = 0.01  # of pixels at the border of a frame
STEPS = {1: (4,), 4: (1,) * 4, 16: (1,) * 16}  # records of each step, by L
RATE = 0.05
SGD = {"optimizer": "sgd", "learning_rate": RATE, "shuffled": False}
ALONE = {  # what the peer does not simulate, with L
    "SGD, momentum 0.9, weight decay 0.01": (16, SGD | {"momentum": 0.9, "weight_decay": 0.01}),
    "AdamW, rate 0.001": (16, SGD | {"optimizer": "adamw", "learning_rate": 0.001}),
    "SGD, orders unknown": (16, SGD | {"shuffled": True}),
}
COLUMNS = ("network, images", "training", "L", "attack", "PSNR, dB", "agents", "CPU s an image")
ABOUT = (
    "An agent takes L steps on the same four images; weights before and after are known, without "
    "noise. PSNR with 95% Student-t intervals from four agents on. CPU time of one thread of a "
    "busy machine."
)


class Case(NamedTuple):
    """Agents, each with a model of its own, and what they send."""

    data: str
    training: str
    task: Task
    observed: ObservedGradients
    truth: Tensor  # [m, RECORDS, channels, height, width]
    labels: Tensor  # [m, RECORDS]


class Row(NamedTuple):
    """One attack on a case."""

    psnr: list[float]  # of each agent
    seconds: float  # CPU, for an image


def case(data: str, name: str, records: Images, training: str, n_steps: int, options: dict) -> Case:
    """Agents with consecutive images; in unknown orders each pass is shuffled.

    The last images of ``records`` are public: the attack knows whether these have a frame.
    """
    public = records[0][-PUBLIC:]
    images, labels = (t[:-PUBLIC].unflatten(0, (-1, RECORDS)) for t in records)
    module = build_network(name, tuple(images.shape[2:]), 10)
    gradients = Gradients(module)
    models = torch.stack(
        [initial_parameters(module, STREAMS("model", i)) for i in range(len(images))]
    )
    sizes = STEPS[n_steps]
    passes = sum(sizes) // RECORDS
    steps = local_steps(LocalTraining.model_validate(options | {"epochs": passes}), sizes)
    order = torch.arange(RECORDS).repeat(passes)
    if options["shuffled"]:
        shuffle = STREAMS("order")
        order = torch.cat([torch.randperm(RECORDS, generator=shuffle) for _ in range(passes)])
    oracle = DummyGradient(gradients, images[:, order], labels[:, order], sizes)
    with torch.no_grad():
        sent = steps.mean_gradient(oracle, models)
    noise = torch.zeros(len(images))
    observed = ObservedGradients(sent, models, RECORDS, None, noise, local=steps)
    task = Task(gradients, tuple(images.shape[2:]), 10, RANGE, frame=frame_of(public, SPREAD))
    return Case(data, training, task, observed, images, labels)


def ours(case: Case, observed: ObservedGradients, options: dict) -> Row:
    attack = GradientInversion(message="gradient", rounds=(1,), **options)
    start = time.process_time()
    found = attack.reconstruct(observed, case.task, STREAMS, lambda done, total: None)
    return _row(case, found.images, time.process_time() - start)


def told(case: Case, options: dict) -> Row:
    """With what breaching is given too: the label of each record, and the step that took it."""

    def given(
        attack: GradientInversion, observed: object, task: Task, chosen: Plan, *rest: object
    ) -> tuple[Tensor, Plan]:
        return case.labels, chosen

    with patch.object(GradientInversion, "_guess_labels", given):
        return ours(case, case.observed, options)


def theirs(case: Case) -> Row:
    """One agent after the other."""
    torchvision()
    import breaching

    overrides = ["optim.max_iterations=1000"]
    settings = breaching.get_attack_config("invertinggradients", overrides=overrides)
    found, start = [], time.process_time()
    for i in range(len(case.truth)):
        torch.manual_seed(i)
        found.append(_breach(breaching, settings, case, i))
    return _row(case, torch.stack(found).clamp(*RANGE), time.process_time() - start)


def _breach(breaching: SimpleNamespace, settings: object, case: Case, i: int) -> Tensor:
    from omegaconf import OmegaConf

    module, observed, local = case.task.gradients.module, case.observed, case.observed.local
    module = module.to_empty(device="cpu")
    public = {"shape": list(case.task.shape), "classes": 10, "modality": "vision"}
    metadata = OmegaConf.create(public | {"task": "classification"})
    moved = -local.factor * observed.gradients[i]
    weights, sent = (
        list(parameters_of(module, vector).values()) for vector in (observed.models[i], moved)
    )
    order = torch.arange(sum(local.sizes)) % RECORDS
    batches = [case.labels[i][rows] for rows in order.split(list(local.sizes))]
    known = {"lr": RATE, "steps": len(batches), "data_per_step": local.sizes[0], "labels": batches}
    about = {"num_data_points": RECORDS, "labels": case.labels[i], "local_hyperparams": known}
    attacker = breaching.attacks.prepare_attack(module, nn.CrossEntropyLoss(), settings)
    for term in attacker.regularizers:  # its total variation is written for three channels
        term.groups = case.task.shape[0]
        term.weight = term.weight[: 2 * term.groups]
    payload = [{"parameters": weights, "buffers": None, "metadata": metadata}]
    shared = [{"gradients": sent, "buffers": None, "metadata": about}]
    result: Tensor = attacker.reconstruct(payload, shared, {})[0]["data"].detach()
    return result


def _row(case: Case, found: Tensor, seconds: float) -> Row:
    psnr = score(case.truth[: len(found)], found, RANGE).psnr
    return Row(psnr.tolist(), seconds / found.shape[:2].numel())


def rows(case: Case, sides: Sequence[str], options: dict) -> Iterator[tuple[str, Row]]:
    if "dpaudit" in sides:
        yield "dpaudit", ours(case, case.observed, options)
    if "one-gradient" in sides:
        yield "dpaudit, as one gradient", ours(case, replace(case.observed, local=None), options)
    if "told" in sides and case.training == "SGD":
        yield "dpaudit, labels of each step given", told(case, options)
    if "breaching" in sides and case.training == "SGD":
        yield "breaching invertinggradients, 1,000 steps", theirs(case)


def cases(
    data: str, network: str, records: Images, steps: Sequence[int], alone: bool
) -> Iterator[Case]:
    for n_steps in steps:
        yield case(data, network, records, "SGD", n_steps, SGD)
    for training, (n_steps, options) in ALONE.items() if alone else ():
        yield case(data, network, records, training, n_steps, options)


def _from(first: int, images: Images) -> Images:
    return images[0][first:], images[1][first:]


def _cells(case: Case, side: str, row: Row) -> list[str]:
    mean = interval(row.psnr)
    ends = "" if mean.low is None else f" ({mean.low:.1f} to {mean.high:.1f})"
    found, n = f"{mean.value:.1f}{ends}", len(case.observed.local.sizes)
    return [case.data, case.training, str(n), side, found, str(mean.n), f"{row.seconds:.2f}"]


def write(folder: Path, row: Sequence[str]) -> None:
    """Put a row into the table that is there, in the place of the same attack's."""
    path = folder / "local-steps.json"
    old = ResultTables.read(path).tables[0].rows if path.exists() else ()
    rows = {tuple(cells[:4]): tuple(cells) for cells in (*old, row)}.values()
    order = sorted(rows, key=lambda cells: (cells[0], cells[1] != "SGD", cells[1], int(cells[2])))
    table = ResultTable(title="Attacks on local steps", about=ABOUT, columns=COLUMNS, rows=order)
    command = (
        "python benchmarks/local_steps.py --cifar10 FILE.npz --mnist FOLDER --agents 4 --alone"
    )
    found = ResultTables(title="Weights after local steps", command=command, tables=(table,))
    write_tables(folder, "local-steps", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", type=Path, metavar="FILE.npz", help="with x_test and y_test")
    parser.add_argument("--mnist", type=Path, metavar="FOLDER")
    parser.add_argument("--agents", type=int, default=2, help="of four images each")
    parser.add_argument("--first", type=int, default=0, metavar="IMAGE", help="of the first agent")
    parser.add_argument("--iterations", type=int, help="of dpaudit")
    signs = argparse.BooleanOptionalAction
    parser.add_argument("--signed", action=signs, help="whether dpaudit follows signs")
    sides = ("dpaudit", "one-gradient", "told", "breaching")
    parser.add_argument("--sides", nargs="+", choices=sides, default=sides)
    parser.add_argument("--steps", type=int, nargs="+", choices=[*STEPS], default=[*STEPS])
    parser.add_argument("--alone", action="store_true", help="what breaching does not simulate too")
    parser.add_argument("--results", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = {"iterations": given.iterations, "signed": given.signed}
    n, sources = given.first + RECORDS * given.agents + PUBLIC, []
    if given.cifar10 is not None:
        images = _from(given.first, cifar10(given.cifar10, n))
        sources.append(("ConvNet, CIFAR-10", "cnn-dpdl", images))
    if given.mnist is not None:
        sources.append(("LeNet, MNIST", "lenet", _from(given.first, mnist(given.mnist, n))))
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for now in (one for source in sources for one in cases(*source, given.steps, given.alone)):
        for side, row in rows(now, given.sides, options):
            cells = _cells(now, side, row)
            print(f"| {' | '.join(cells)} |", flush=True)
            if given.results is not None:
                write(given.results, cells)


if __name__ == "__main__":
    main()
