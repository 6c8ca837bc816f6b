"""What a reconstruction can reach from what it is handed: the view's share, and no secret."""

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dpaudit.attack import (
    AttackContext,
    ObservedGradients,
    Reconstruction,
    ReconstructionAttack,
    Task,
)
from dpaudit.attack.contract import Part
from dpaudit.data.datasets import Dataset, load_dataset
from dpaudit.data.partition import Partition
from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.transcript import Transcript
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.progress import OnStep
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import train

SECRETS = (Classification, Dataset, Partition, RunDirectory, Transcript, AttackContext, Defense)
HANDED: list[tuple[Any, ...]] = []


class Nosy(ReconstructionAttack):
    """Keeps all that it is handed, and guesses grey."""

    def reconstruct(
        self, observed: ObservedGradients, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        HANDED.append((observed, task, streams, on_step))
        m = len(observed.gradients)
        images = torch.zeros(m, observed.batch_size, *task.shape)
        labels = torch.zeros(m, observed.batch_size, dtype=torch.long)
        return Reconstruction(images, labels, torch.zeros(m, 1))


def reachable(start: Any) -> Iterator[Any]:
    """Everything that attribute access, items and closures lead to; not modules and classes."""
    seen: dict[int, Any] = {}
    waiting = [start]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | str | bytes):
            continue
        seen[id(one)] = one
        yield one
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
            waiting += [one.__defaults__, one.__dict__]
        else:
            names = [n for kind in type(one).__mro__ for n in getattr(kind, "__slots__", ())]
            waiting += [getattr(one, name, None) for name in names]
            waiting.append(getattr(one, "__dict__", {}))
            waiting += [getattr(one, name, None) for name in ("func", "args", "__self__", "base")]


def context(tmp_path: Any) -> tuple[AttackContext, Dataset, Nosy]:
    dataset = load_dataset("digits")
    held = tuple(torch.arange(i * 20, (i + 1) * 20).numpy() for i in range(4))
    parts = Partition(held, dataset.y.numpy())
    problem = Classification(dataset, parts, "mlp", torch.device("cpu"))
    setting = Setting(build_graph("complete", 4), (20,) * 4, problem.gradients.d)
    defense = load_plugin("defenses", "dp-dpsgd")(
        n_rounds=2, batch_size=2, noise_multiplier=1.0
    ).calibrate(setting)
    message = next(iter(defense.observables))
    attack = Nosy(message=message, rounds=(2,), targets=2, batch_sizes=("training",))
    run = RunDirectory(tmp_path)
    for world, which in (("defense", defense), ("no-defense", defense.without_noise())):
        asked = attack.recording(defense)
        train(which, problem, setting, Streams(3), asked, run, world, lambda *_: None)
    part = Part("defense", 2)
    return (
        AttackContext(problem, setting, defense, (), Streams(9), run, part, "nosy", 0, seed=3),
        dataset,
        attack,
    )


def test_no_truth_no_data_and_no_other_message_can_be_reached(tmp_path) -> None:
    HANDED.clear()
    on, dataset, attack = context(tmp_path)
    found = attack.measure(on, ThreatModel(name="eve"), lambda done, total: None)
    assert found[0].metrics  # it was scored, by somebody who has the truth
    ((observed, *_),) = HANDED
    every = list(reachable(HANDED))
    assert not [one for one in every if isinstance(one, SECRETS)]
    images = dataset.x.flatten(1)
    numbers = [
        t for t in every if isinstance(t, Tensor) and t.is_floating_point() and not t.is_meta
    ]
    assert len(numbers) >= 2  # the gradients and the models
    for tensor in numbers:
        assert tensor.untyped_storage().data_ptr() != dataset.x.untyped_storage().data_ptr()
        if tensor.ndim and tensor.shape[-1] == images.shape[1]:
            rows = tensor.reshape(-1, images.shape[1]).to(images)
            assert not (rows[:, None] == images[None, :80]).all(-1).any()
    assert not observed.gradients.requires_grad
    assert not observed.models.requires_grad


def test_the_walk_finds_what_is_hidden_in_closures_and_slots(tmp_path) -> None:
    on, dataset, _ = context(tmp_path)

    def leaky(done: int, total: int, problem: Any = on.problem) -> None:
        print(dataset.name, problem)

    found = list(reachable((leaky,)))
    assert any(isinstance(one, Dataset) for one in found)
    assert any(isinstance(one, Classification) for one in found)
