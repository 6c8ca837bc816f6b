"""Logistic regression in closed form: what autograd gives, and for which networks it stands in."""

import pytest
import torch
from torch import nn

from dpaudit.models.gradients import Gradients
from dpaudit.models.logistic import Logistic
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.models.stacked import Stacked, cross_entropy, cross_entropy_slopes


def case(k: int, soft: bool):
    """Models [n, k, d], inputs [n, r, 1, 4, 4] and labels of three classes, in float64."""
    g = torch.Generator().manual_seed(5)
    module = build_network("logistic", (1, 4, 4), 3)
    X = torch.stack([initial_parameters(module, g) for _ in range(2 * k)]).double() * 5
    inputs = torch.randn(2, 7, 1, 4, 4, generator=g, dtype=torch.float64)
    labels = torch.randint(3, (2, 7), generator=g)
    if soft:
        labels = torch.rand(2, 7, 3, generator=g, dtype=torch.float64)  # sums are not 1
    return module, X.view(2, k, -1), inputs, labels


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_norms_sums_and_gradients_are_those_of_autograd(k, soft) -> None:
    module, X, inputs, labels = case(k, soft)
    closed = Logistic(module).records(X, inputs, labels, create_graph=False)
    graph = Stacked(module).records(X, inputs, labels, create_graph=True)
    torch.testing.assert_close(closed.each(), graph.each())
    for norm in (1, 2):
        torch.testing.assert_close(closed.powers(norm), graph.powers(norm))
    factors = torch.rand(2, 7, k, dtype=torch.float64)
    sums = [torch.cat([*records.weighted(factors)], dim=-1) for records in (closed, graph)]
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize("soft", [False, True])
def test_slopes_are_the_derivatives_of_the_loss(soft) -> None:
    _, _, _, labels = case(2, soft)
    logits = (9 * torch.randn(2, 7, 2, 3, dtype=torch.float64)).requires_grad_()
    (expected,) = torch.autograd.grad(cross_entropy(logits, labels).sum(), logits)
    torch.testing.assert_close(cross_entropy_slopes(logits.detach(), labels), expected)


def test_logits_of_any_size_give_no_nan() -> None:
    labels = torch.tensor([[0, 1]])
    slopes = cross_entropy_slopes(torch.tensor([[[[1e4, -1e4]], [[-1e30, 1e30]]]]), labels)
    assert slopes.flatten().tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "module, stands_in",
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), True),
        (nn.Linear(16, 3), True),
        (nn.Sequential(nn.Linear(16, 3), nn.Flatten()), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False)), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU()), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Flatten(2), nn.Linear(16, 3)), False),
    ],
)
def test_only_one_linear_layer_is_logistic_regression(module, stands_in) -> None:
    assert Logistic.supports(module) == stands_in


def test_the_network_called_logistic_is_computed_in_closed_form() -> None:
    assert isinstance(Gradients(build_network("logistic", (1, 8, 8), 10))._engine, Logistic)
    assert not isinstance(Gradients(build_network("mlp", (1, 8, 8), 10))._engine, Logistic)
