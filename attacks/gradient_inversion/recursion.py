"""One image from its gradient, layer by layer, by linear equations alone."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpaudit.errors import NotObservable

from .trace import Call, Front

_ACTIVE = 1e-4  # of the largest output of a ReLU: below, the unit counts as off
_RANK = 1e-10  # of the largest pivot: equations whose pivot is smaller determine nothing


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
        raise NotObservable("the gradient of the first linear layer's bias is 0: no unit answered")
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
                f"the recursion through layers cannot invert {type(layer).__name__}; it needs "
                "Sigmoid, Tanh, LeakyReLU or ReLU behind convolutions, without pooling"
            )
    derivative = derivative.clamp(min=0).nan_to_num(0.0)
    return Signal(z.nan_to_num(0.0, 0.0, 0.0), after.slope * derivative, after.known * derivative)


def _before_weights(call: Call, after: Signal) -> Signal:
    """Steps 2 and 3 for a layer with weights."""
    W, gradient = call.parameters["weight"], call.gradient["weight"]
    shape = call.input.shape[1:]
    z = after.value.reshape(call.output.shape[1:])
    if "bias" in call.parameters:
        z = z - call.parameters["bias"].view(-1, *[1] * (z.ndim - 1))
    slope = after.slope.reshape(z.shape)
    forward, backward = _equations(call.layer, W, slope, shape)
    weight = after.known.flatten() / _rms(z)
    A = torch.cat([forward * weight[:, None], backward / _rms(gradient)])
    y = torch.cat([z.flatten() * weight, gradient.flatten() / _rms(gradient)])
    x = _solve(A, y, type(call.layer).__name__).reshape(shape)
    return Signal(x, (slope.flatten() @ forward).reshape(shape), torch.ones_like(x))


def _equations(
    layer: nn.Module, W: Tensor, slope: Tensor, shape: torch.Size
) -> tuple[Tensor, Tensor]:
    """Matrices that turn x [n] into W x, and into the gradient of W at this slope."""
    if isinstance(layer, nn.Linear):
        return W, torch.kron(slope[:, None], torch.eye(W.shape[1]).to(W))
    plain = isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
    if not isinstance(layer, nn.Conv2d) or not plain or isinstance(layer.padding, str):
        raise NotObservable(
            f"the recursion through layers cannot invert {type(layer).__name__}; it needs linear "
            "layers, and Conv2d of one group with zero padding in pixels"
        )
    C, H, width = shape
    basis = torch.eye(C * H * width).to(W).view(-1, C, H, width)
    forward = F.conv2d(basis, W, None, layer.stride, layer.padding, layer.dilation).flatten(1).T
    pixels = torch.eye(H * width).to(W).view(-1, 1, H, width)
    patches = F.unfold(
        pixels, W.shape[2:], layer.dilation, layer.padding, layer.stride
    )  # [h, k, p]
    one_channel = torch.einsum("op,hkp->okh", slope.flatten(1), patches)
    backward = torch.einsum("okh,cd->ockdh", one_channel, torch.eye(C).to(W))
    return forward, backward.reshape(W.numel(), -1)


def _solve(A: Tensor, y: Tensor, name: str) -> Tensor:
    """Least squares. Raises NotObservable where the columns of A are dependent."""
    n = A.shape[1]
    pivots = A.new_zeros(n)
    if len(A) >= n:
        Q, R = torch.linalg.qr(A)
        pivots = R.diagonal().abs()
    rank = int((pivots > _RANK * pivots.max()).sum()) if len(A) >= n else len(A)
    if rank < n:
        raise NotObservable(
            f"the equations of the {name} determine at most {rank} of the {n} values of its input"
        )
    return torch.linalg.solve_triangular(R, (Q.T @ y)[:, None], upper=True)[:, 0]


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt().clamp(min=torch.finfo(x.dtype).tiny)
