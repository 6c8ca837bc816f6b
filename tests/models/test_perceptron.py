"""Perceptrons in closed form: what autograd gives, and for which networks they stand in."""

import pytest
import torch
from torch import nn

from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.models.perceptron import Perceptron
from dpaudit.models.stacked import Stacked, cross_entropy, cross_entropy_slopes

NETWORKS = {
    "logistic": lambda: build_network("logistic", (1, 4, 4), 3),
    "mlp": lambda: build_network("mlp", (1, 4, 4), 3),
    "three layers": lambda: nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(16, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 6), nn.ReLU())),
        nn.Linear(6, 3),
    ),
}


def case(network: str, k: int, soft: bool):
    """Models [n, k, d], inputs [n, r, 1, 4, 4] and labels of three classes, in float64."""
    g = torch.Generator().manual_seed(5)
    module = NETWORKS[network]()
    X = torch.stack([initial_parameters(module, g) for _ in range(2 * k)]).double() * 5
    inputs = torch.randn(2, 7, 1, 4, 4, generator=g, dtype=torch.float64)
    labels = torch.randint(3, (2, 7), generator=g)
    if soft:
        labels = torch.rand(2, 7, 3, generator=g, dtype=torch.float64)  # sums are not 1
    return module, X.view(2, k, -1), inputs, labels


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("network", NETWORKS)
def test_norms_sums_and_gradients_are_those_of_autograd(network, k, soft) -> None:
    module, X, inputs, labels = case(network, k, soft)
    closed = Perceptron(module).records(X, inputs, labels, create_graph=False)
    graph = Stacked(module).records(X, inputs, labels, create_graph=True)
    torch.testing.assert_close(closed.each(), graph.each())
    for norm in (1, 2):
        torch.testing.assert_close(closed.powers(norm), graph.powers(norm))
    factors = torch.rand(2, 7, k, dtype=torch.float64)
    sums = [torch.cat([*records.weighted(factors)], dim=-1) for records in (closed, graph)]
    torch.testing.assert_close(*sums)


def test_nothing_is_computed_below_the_last_asked_layer() -> None:
    module, X, inputs, labels = case("three layers", 1, soft=False)
    records, again = (Perceptron(module).records(X, inputs, labels, False) for _ in range(2))
    d, last = X.shape[-1], sum(p.numel() for p in module[-1].parameters())
    whole = torch.cat([*again.weighted(None)], dim=-1)
    assert torch.equal(records.part(None, slice(d - last, d)), whole[:, -last:])
    assert ["S" in vars(term) for term in records.terms] == [False, False, True]


@pytest.mark.parametrize("soft", [False, True])
def test_slopes_are_the_derivatives_of_the_loss(soft) -> None:
    _, _, _, labels = case("logistic", 2, soft)
    logits = (9 * torch.randn(2, 7, 2, 3, dtype=torch.float64)).requires_grad_()
    (expected,) = torch.autograd.grad(cross_entropy(logits, labels).sum(), logits)
    torch.testing.assert_close(cross_entropy_slopes(logits.detach(), labels), expected)


def test_logits_of_any_size_give_no_nan() -> None:
    labels = torch.tensor([[0, 1]])
    slopes = cross_entropy_slopes(torch.tensor([[[[1e4, -1e4]], [[-1e30, 1e30]]]]), labels)
    assert slopes.flatten().tolist() == [0.0, 0.0, 0.0, 0.0]


LINEAR = nn.Linear(16, 16)


@pytest.mark.parametrize(
    "module, stands_in",
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), True),
        (nn.Linear(16, 3), True),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)), True),
        (nn.Sequential(nn.Linear(16, 5), nn.Sequential(nn.Tanh(), nn.Linear(5, 3))), True),
        (nn.Sequential(nn.Linear(16, 3), nn.Flatten()), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False)), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU()), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.GELU(), nn.Linear(5, 3)), False),
        (nn.Sequential(LINEAR, nn.ReLU(), LINEAR), False),
        (nn.Sequential(nn.Flatten(2), nn.Linear(16, 3)), False),
        (nn.Sequential(nn.Flatten()), False),
        (nn.Sequential(), False),
    ],
)
def test_linear_layers_and_activations_are_a_perceptron(module, stands_in) -> None:
    assert Perceptron.supports(module) == stands_in


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_networks_of_linear_layers_are_in_closed_form(name) -> None:
    assert isinstance(Gradients(build_network(name, (1, 8, 8), 10))._engine, Perceptron)
    assert not isinstance(Gradients(build_network("lenet", (1, 8, 8), 10))._engine, Perceptron)
