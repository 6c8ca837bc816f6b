"""Every quick scale plays: a round of each kind of cell, on random images of the paper's size."""

from dataclasses import replace

import pytest
import torch

from dpaudit.data.datasets import Dataset
from dpaudit.papers.cells import Request, chosen
from dpaudit.papers.declared import DECLARED
from dpaudit.papers.experiment import CellContext
from dpaudit.papers.images import images
from dpaudit.papers.learning import ACCURACY, accuracy
from dpaudit.training.run_directory import RunDirectory

PLAYED = [name for name, one in DECLARED.items() if one.data and one.measure is not images]
N = 1200  # enough for 50 agents with batches of 16


def random_images(shape: tuple[int, int, int]) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(N + 50, *shape, generator=generator) * 2 - 1
    y = torch.arange(N + 50) % 10
    return Dataset("random", x[:N], y[:N], x[N:], y[N:], tuple("0123456789"))


SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28)}
LEAST = {"defense.n_rounds": 1, "defense.batch_size": 2, "defense.protocol.decay_at": None}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.filterwarnings("ignore")
def test_a_round_of_each_kind_of_quick_cell(name: str, tmp_path) -> None:
    experiment, seen = DECLARED[name], set()
    dataset = random_images(SHAPES[experiment.data])
    with RunDirectory(tmp_path).held() as run:
        context = CellContext(run, "cell", dataset, lambda what, done, total: None)
        for cell in chosen(experiment, Request(name, "quick")):
            settings = {k: LEAST.get(k, v) for k, v in cell.settings.items()}
            settings = {k: v for k, v in settings.items() if k not in LEAST or v is not None}
            kind = settings["defense.name"], settings["graph.name"], settings["model.name"]
            if kind in seen:
                continue
            seen.add(kind)
            run.binding = repr(kind)
            found = list(experiment.measure(settings, 0, replace(context, stage=f"{len(seen)}")))
            assert found
            if experiment.measure is accuracy:
                assert [m.quantity for m in found] == [ACCURACY]
