"""One image from its gradient, layer by layer, by linear equations alone."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpaudit.errors import NotObservable

from .equations import Equations
from .trace import Call, Front

_ACTIVE = 1e-4  # of the largest output of a ReLU: below, the unit counts as off


class Signal(NamedTuple):
    """What is known at one place of the network: its value, and the loss's slope in it."""

    value: Tensor
    slope: Tensor  # up to one factor for the whole network, as that of a clipped gradient
    known: Tensor  # weight of each value: 0 where it is not known, 1 where it is as the others


def input_of_linear(front: Front) -> Signal:
    """What one record fed to the first linear layer, [n], and the slope in that.

    dL/dW = d x' and dL/dc = d with d = dL/dz, so that the rows of [dL/dW, dL/dc] are all multiples
    of (x, 1): the first right singular vector is their direction, divided by its last entry. That
    is the likeliest one under noise alike in all entries, whatever the rows' lengths.

    Raises:
        NotObservable: the gradient of the layer is 0, or that of its bias is.

    Source: Phong et al. 2018, arXiv:1704.01246 (a quotient of one row); total least squares for
    all rows: Golub and Van Loan 1980.
    """
    U, S, Vh = torch.linalg.svd(front.augmented, full_matrices=False)
    if not abs(Vh[0, -1]) > torch.finfo(Vh.dtype).eps:
        raise NotObservable(
            "DPA056", "the gradient of the first linear layer's bias is 0: no unit answered"
        )
    value = Vh[0, :-1] / Vh[0, -1]
    slope = S[0] * Vh[0, -1] * U[:, 0] @ front.linear.parameters["weight"]
    return Signal(value, slope, torch.ones_like(value))


def image_before(front: Front, signal: Signal) -> Tensor:
    """The image that the layers before the linear one turned into ``signal``.

    From the last layer to the first, with z = W x + c and a = s(z):
        1.  z = s^-1(a), dL/dz = s'(z) dL/da
        2.  x from W x = z - c, weighted by s'(z), and from dL/dW = dL/dz * x, both linear in x
        3.  dL/dx = W' dL/dz
    A ReLU that is off leaves its equation of z out.

    Raises:
        NotObservable: a layer is not convolutional, linear or elementwise and invertible, or the
            equations leave directions of its input open.

    Source: Zhu and Blaschko 2021 (R-GAP), arXiv:2010.07733. Departures: the first linear layer's
    bias gives the slope, where theirs solves for the loss; ReLU is allowed, by its active units;
    equations are weighted by how well they are known.
    """
    for call in reversed(front.before):
        if call.parameters:
            signal = _before_weights(call, signal)
        else:
            signal = _before_activation(call, signal)
    return signal.value


def _before_activation(call: Call, after: Signal) -> Signal:
    layer, a = call.layer, after.value
    one, zero = torch.ones_like(a), torch.zeros_like(a)
    match layer:
        case nn.Flatten() | nn.Identity() | nn.Unflatten():
            return Signal(*(t.reshape(call.input.shape[1:]) for t in after))
        case nn.Sigmoid():
            z, derivative = a.logit(), a * (1 - a)
        case nn.Tanh():
            z, derivative = a.atanh(), 1 - a**2
        case nn.LeakyReLU() if layer.negative_slope > 0:
            derivative = torch.where(a > 0, one, layer.negative_slope * one)
            z = a / derivative
        case nn.ReLU():
            z, derivative = a, torch.where(a > _ACTIVE * a.abs().max(), one, zero)
        case _:
            raise NotObservable(
                "DPA055",
                f"the recursion through layers cannot invert {type(layer).__name__}; it needs "
                "Sigmoid, Tanh, LeakyReLU or ReLU behind convolutions, without pooling",
            )
    derivative = derivative.clamp(min=0).nan_to_num(0.0)
    return Signal(z.nan_to_num(0.0, 0.0, 0.0), after.slope * derivative, after.known * derivative)


def _before_weights(call: Call, after: Signal) -> Signal:
    """Steps 2 and 3 for a layer with weights."""
    shape, gradient = call.input.shape[1:], call.gradient["weight"]
    z, slope, known = (t.reshape(call.output.shape[1:]) for t in after)
    if "bias" in call.parameters:
        z = z - call.parameters["bias"].view(-1, *[1] * (z.ndim - 1))
    scale = _rms(gradient)
    equations = Equations.of(call, slope / scale, known / _rms(z))
    x = equations.solve(z, gradient / scale)
    return Signal(x.reshape(shape), equations.back(slope).reshape(shape), torch.ones_like(x))


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt().clamp(min=torch.finfo(x.dtype).tiny)
