"""What a layer tells of its input is solved as its dense matrix would be."""

import pytest
import torch
from torch import Tensor, nn

from dpaudit.attacks.gradient_inversion.recursion import Equations, LayerCall
from dpaudit.errors import NotObservable

RNG = torch.Generator().manual_seed(20240611)


def normal(*size: int) -> Tensor:
    return torch.randn(size, generator=RNG, dtype=torch.float64)


def call(layer: nn.Module, *shape: int) -> LayerCall:
    x = normal(2, *shape)
    parameters = {"weight": layer.weight.detach()}
    return LayerCall(layer, x, layer(x).detach(), parameters, {})


LAYERS = [
    (nn.Conv2d(2, 8, 3, padding=1, bias=False), (2, 7, 6)),
    (nn.Conv2d(3, 12, 5, stride=2, padding=2, bias=False), (3, 8, 8)),
    (nn.Conv2d(2, 9, (3, 2), stride=(1, 2), dilation=(2, 1), bias=False), (2, 9, 8)),
    (nn.Linear(6, 4, bias=False), (6,)),
]


def dense(layer: nn.Module, slope: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What turns an input into the output and the weights' gradient, by differentiation."""

    def told(x: Tensor) -> Tensor:
        W = layer.weight.detach().requires_grad_()
        z = torch.func.functional_call(layer, {"weight": W}, (x.view(1, *shape),))[0]
        (gradient,) = torch.autograd.grad((z * slope).sum(), W, create_graph=True)
        return torch.cat([z.flatten(), gradient.flatten()])

    n = torch.Size(shape).numel()
    return torch.autograd.functional.jacobian(told, torch.zeros(n, dtype=torch.float64))


@pytest.mark.parametrize("layer, shape", LAYERS)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_least_squares_are_those_of_the_dense_matrix(
    layer: nn.Module, shape: tuple[int, ...], noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Equations, "_by_qr")
    here = call(layer.double(), *shape)
    slope, weight = normal(*here.output.shape[1:]), normal(*here.output.shape[1:]).abs()
    A, n_outputs = dense(layer, slope, shape), slope.numel()
    y = A @ here.input[0].flatten() + noise * normal(len(A))
    z, g = y[:n_outputs].view_as(slope), y[n_outputs:].view_as(layer.weight)
    equations = Equations.of(here, slope, weight)
    weights = torch.cat([weight.flatten(), torch.ones(g.numel())])[:, None]
    expected = torch.linalg.lstsq(weights * A, weights * y[:, None]).solution[:, 0]
    torch.testing.assert_close(equations.solve(z, g).flatten(), expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(equations.back(slope).flatten(), A[:n_outputs].T @ slope.flatten())


def test_equations_that_are_many_but_dependent_are_counted() -> None:
    """Outputs of no weight leave 9 equations for each channel, of rank 9: 18 of 98 values."""
    layer = nn.Conv2d(2, 8, 3, padding=1, bias=False).double()
    here = call(layer, 2, 7, 7)
    slope = normal(1, 7, 7).expand(8, 7, 7)
    equations = Equations.of(here, slope, torch.zeros(8, 7, 7, dtype=torch.float64))
    with pytest.raises(NotObservable, match="Conv2d determine at most 18 of the 98 values"):
        equations.solve(normal(8, 7, 7), normal(8, 2, 3, 3))


def test_ill_conditioned_equations_are_solved_all_the_same() -> None:
    """Half of the outputs weigh 1e-7 of the others."""
    layer = nn.Conv2d(1, 1, 1, bias=False).double()
    here = call(layer, 1, 6, 6)
    slope, weight = torch.zeros(1, 6, 6).double(), torch.ones(1, 6, 6).double()
    slope[0, 0, 0], weight[0, 3:] = 1.0, 1e-7
    truth = here.input[0]
    z = layer.weight.detach()[0, 0] * truth
    found = Equations.of(here, slope, weight).solve(z, truth[:, :1, :1].view(1, 1, 1, 1))
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-6)
