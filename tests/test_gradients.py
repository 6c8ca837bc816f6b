"""Gradients of stacked models against plain autograd, one record and one model at a time."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.gradients import Gradients
from dpaudit.models import initial_parameters, unflatten
from dpaudit.rng import Streams

ROUNDING = {"rtol": 1e-9, "atol": 1e-11}  # float64


class Case:
    """m models of one network in float64, and b records of each of n holders."""

    def __init__(self, module: nn.Module, shape=(1, 8, 8), m=3, n=3, b=4, seed=0) -> None:
        streams = Streams(seed)
        rng = streams("data")
        self.module = module
        self.gradients = Gradients(module)
        self.X = torch.stack([initial_parameters(module, streams("x", i)) for i in range(m)])
        self.X = (self.X + 0.1 * torch.randn(self.X.shape, generator=streams("y"))).double()
        self.inputs = torch.rand(n, b, *shape, generator=rng, dtype=torch.float64) * 2 - 1
        self.labels = torch.randint(4, (n, b), generator=rng)

    def per_record(self, holders=None) -> Tensor:
        """[m, b, d], by one backward pass for each model and record."""
        rows = range(len(self.X)) if holders is None else holders.tolist()
        return torch.stack(
            [
                torch.stack(
                    [
                        record_gradient(self.module, x, a, y)
                        for a, y in zip(self.inputs[row], self.labels[row], strict=True)
                    ]
                )
                for x, row in zip(self.X, rows, strict=True)
            ]
        )


def record_gradient(module: nn.Module, x: Tensor, record: Tensor, label: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    logits = functional_call(module, unflatten(module, x), (record[None],))
    return torch.autograd.grad(cross_entropy(logits, label[None]), x)[0]


def clipped_sum(G: Tensor, C: float, norm: int, weights=1.0) -> Tensor:
    lengths = torch.linalg.vector_norm(G, norm, dim=-1, keepdim=True)
    return (G * weights * (C / lengths).clamp(max=1)).sum(1)


def sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).to("meta")


LAYERS = {
    "linear": lambda: sequential(nn.Flatten(), nn.Linear(64, 4)),
    "linear without bias": lambda: sequential(nn.Flatten(), nn.Linear(64, 4, bias=False)),
    "two linear": lambda: sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 4)),
    "convolution": lambda: sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 4)),
    "two convolutions": lambda: sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 5, (2, 3), padding=1),
        nn.Tanh(), nn.Flatten(), nn.Linear(60, 4),
    ),
    "strided convolutions without bias": lambda: sequential(
        nn.Conv2d(1, 3, 3, stride=2, bias=False), nn.Tanh(),
        nn.Conv2d(3, 2, 2, stride=(1, 2), padding=(0, 1), bias=False), nn.Flatten(), nn.Linear(8, 4),
    ),
    "wide convolution on few positions": lambda: sequential(
        nn.Conv2d(1, 8, 3, stride=3), nn.Tanh(), nn.Conv2d(8, 20, 2), nn.Flatten(), nn.Linear(20, 4)
    ),
    "group normalisation": lambda: sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(36, 4),
    ),
    "group normalisation first": lambda: sequential(
        nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(64, 4)
    ),
}  # fmt: skip


@pytest.fixture(params=LAYERS)
def case(request) -> Case:
    return Case(LAYERS[request.param]())


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("holders", [None, [0, 1, 0], [2, 2, 2], [1, 0, 2]])
def test_clipped_sums_are_those_of_plain_autograd(case: Case, norm: int, holders) -> None:
    holders = None if holders is None else torch.tensor(holders)
    G = case.per_record(holders)
    C = float(torch.linalg.vector_norm(G, norm, dim=-1).median())
    actual = case.gradients.clipped_sum(case.X, case.inputs, case.labels, C, norm, holders=holders)
    torch.testing.assert_close(actual, clipped_sum(G, C, norm), **ROUNDING)


def test_per_record_gradients_and_norms_are_those_of_plain_autograd(case: Case) -> None:
    holders = torch.tensor([1, 0, 1])
    G = case.per_record(holders)
    data = (case.X, case.inputs, case.labels)
    torch.testing.assert_close(case.gradients.per_record(*data, holders), G, **ROUNDING)
    for norm in (1, 2):
        lengths = torch.linalg.vector_norm(G, norm, dim=-1)
        actual = case.gradients.norms(*data, norm, holders)
        torch.testing.assert_close(actual, lengths, **ROUNDING)
