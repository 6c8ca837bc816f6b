"""One image from its gradient, layer by layer, by linear equations alone.

The network is run once, to see what it does to an image up to its first linear layer (`front`). The
equations of each layer's input are solved by conjugate gradients, without their matrix.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

import dpaudit.attack as da
from dpaudit.models import networks
from dpaudit.models.models import parameters_of

_ACTIVE = 1e-4  # units below this share of a ReLU's largest output count as off
_RANK = 1e-10  # equations with pivots below this share of the largest one count as dependent
_RESIDUAL = 1e-11  # relative residual at which conjugate gradients stop
_MOST_STEPS = 2000
_SURE = 1e-4  # relative error of the input that is known, up to which the other is believed

Pair = tuple[int, ...]
Geometry = tuple[Pair, Pair, Pair]  # stride, padding, dilation


class LayerCall(NamedTuple):
    """One layer at work on two images, with its parameters and their observed gradient."""

    layer: nn.Module
    input: Tensor  # [2, ...]; NaN, which equals nothing, if it takes no tensor
    output: Tensor  # [2, ...], likewise
    parameters: dict[str, Tensor]  # "weight" and "bias"; none if one is frozen, or another layer's
    gradient: dict[str, Tensor]


class LeadingLayers(NamedTuple):
    """The layers before the first linear layer, in order, and that layer."""

    before: list[LayerCall]
    linear: LayerCall
    is_first: bool  # nothing but reshaping comes before it

    @property
    def augmented(self) -> Tensor:
        """The observed gradient of the linear layer's weight with its bias beside it, [m, n + 1].

        It is the sum over records of outer products of dL/dz [m] and (x, 1) [n + 1].
        """
        g = self.linear.gradient
        return torch.cat([g["weight"], g["bias"][:, None]], dim=1)


def front(task: da.Task, gradient: Tensor, model: Tensor) -> LeadingLayers:
    """The front of the network, in float64.

    Args:
        gradient, model: [d].

    Raises:
        NotObservable: the gradient is not finite, no linear layer has a bias, or what comes before
            the first that has is no chain of layers, each fed with the output of the last.
    """
    if not gradient.isfinite().all():
        raise da.NotObservable(
            "DPA046", "an exact attack needs a finite gradient, got NaN or infinity"
        )
    images, calls = _run(task, gradient.double(), model.double())
    before: list[LayerCall] = []
    fed = images
    for one in calls:
        if not _same(fed, one.input):
            raise da.NotObservable(
                "DPA055",
                f"an exact attack needs a chain of layers up to the first linear one; what feeds "
                f"the {type(one.layer).__name__} here is not the output of the layer before it",
            )
        if isinstance(one.layer, nn.Linear) and "bias" in one.parameters and one.input.ndim == 2:
            return LeadingLayers(before, one, _same(images, one.input))
        before.append(one)
        fed = one.output
    raise da.NotObservable(
        "DPA055", "an exact attack starts at a linear layer with bias; this network has none"
    )


def _run(task: da.Task, gradient: Tensor, model: Tensor) -> tuple[Tensor, list[LayerCall]]:
    """Two random images (batch normalisation needs two), and every layer at work, in order."""
    module = task.gradients.module
    values, slopes = parameters_of(module, model), parameters_of(module, gradient)
    calls: list[LayerCall] = []
    fed: list[Tensor] = []  # inputs of layers in turn, copied before a layer overwrites them

    def note(path: str, layer: nn.Module, output: object) -> None:
        mine = (_own(layer, path, flat) for flat in (values, slopes))
        calls.append(LayerCall(layer, fed.pop(), _tensor(output), *mine))

    leaves = [(p, m) for p, m in module.named_modules() if not any(True for _ in m.children())]
    hooks = [
        hook
        for path, leaf in leaves
        for hook in (
            leaf.register_forward_pre_hook(lambda layer, x: fed.append(_tensor(*x[:1]))),
            leaf.register_forward_hook(lambda layer, x, y, path=path: note(path, layer, y)),
        )
    ]
    generator = torch.Generator(model.device).manual_seed(0)
    images = torch.rand(
        (2, *task.shape), generator=generator, device=model.device, dtype=model.dtype
    )
    try:
        with torch.no_grad():
            networks.call(module, values, images)
    finally:
        for hook in hooks:
            hook.remove()
    return images, calls


def _tensor(given: object = None) -> Tensor:
    """A copy of what a layer takes or gives; NaN if that is no tensor."""
    return given.clone() if isinstance(given, Tensor) else torch.full((1,), torch.nan)


def _own(layer: nn.Module, path: str, flat: dict[str, Tensor]) -> dict[str, Tensor]:
    """A layer's parameters in those of the network; none unless it alone has each, unfrozen."""
    names = {name: f"{path}.{name}".lstrip(".") for name, _ in layer.named_parameters()}
    whole = all(name in flat for name in names.values()) and not any(True for _ in layer.buffers())
    return {name: flat[of] for name, of in names.items()} if whole else {}


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers in the same order, whatever their shape."""
    return a.numel() == b.numel() and torch.equal(a.flatten(), b.flatten())


class Equations(NamedTuple):
    """What a layer reveals of its input x, a linear layer being a 1x1 convolution of one pixel.

        D W x = D z     its output, each value weighted by D
        B x_c = g_c     the gradient of its weights, for each channel c of x, by one matrix B

    With A all of them together, A'A x = A'y. Each channel of x is [height * width].
    """

    name: str  # name of the layer
    shape: torch.Size  # shape of x, [C, height, width]
    W: Tensor  # [O, C, *kernel]
    D: Tensor  # [O, *output]
    B: Tensor  # [O * kernel, height * width]
    geometry: Geometry

    @classmethod
    def of(cls, call: LayerCall, slope: Tensor, D: Tensor) -> "Equations":
        """For the loss's slope in the output, of its shape as D.

        Raises:
            NotObservable: the layer is no plain convolution, and not linear.
        """
        layer, W, shape = call.layer, call.parameters.get("weight"), call.input.shape[1:]
        assert W is not None
        if isinstance(layer, nn.Linear) and len(shape) == 1:
            geometry: Geometry = ((1, 1), (0, 0), (1, 1))
            W, slope, D = (t[..., None, None] for t in (W, slope, D))
            shape = torch.Size((*shape, 1, 1))
        elif isinstance(layer, nn.Conv2d) and _is_plain(layer):
            assert not isinstance(layer.padding, str)
            geometry = (layer.stride, layer.padding, layer.dilation)
        else:
            raise da.NotObservable(
                "DPA055",
                f"the recursion through layers cannot invert {type(layer).__name__}; it needs "
                "linear layers, and Conv2d of one group with zero padding in pixels",
            )
        taps = torch.eye(W[0, 0].numel()).to(W).view(1, -1, *W.shape[2:])
        size = (len(slope), taps.shape[1], *shape[1:])
        B = conv2d_input(size, taps, slope[:, None], *geometry).flatten(0, 1).flatten(1)
        return cls(type(layer).__name__, shape, W, D, B, geometry)

    def back(self, outputs: Tensor) -> Tensor:
        """W' of outputs [k, *], with as many values each as D has, [k, *shape]."""
        outputs = outputs.view(-1, *self.D.shape)
        return conv2d_input((len(outputs), *self.shape), self.W, outputs, *self.geometry)

    def solve(self, z: Tensor, g: Tensor) -> Tensor:
        """x [*shape] of least squares, from z, as many values as D has, and g [O, C, *kernel].

        Conjugate gradients, for two right sides at once: that of a random input is beside the true
        one, and comes out again only where the equations determine all of x. If it does not, a QR
        decomposition counts what they determine.

        Raises:
            NotObservable: that is not all.

        Source: Hestenes and Stiefel 1952.
        """
        n_equations, n = self.D.numel() + g.numel(), self.shape.numel()
        if n_equations < n:
            raise self._open(n_equations)
        g = g.transpose(0, 1).reshape(self.shape[0], -1)  # [C, O * kernel]
        z = z.view_as(self.D)
        right = self.back(self.D.square() * z) + (g @ self.B).view(1, *self.shape)
        rng = torch.Generator(g.device).manual_seed(0)
        known = torch.randn((1, *self.shape), generator=rng, device=g.device, dtype=g.dtype)
        found = self._conjugate_gradients(torch.cat([right, self._normal(known)]))
        if (found[1] - known[0]).norm() <= _SURE * known.norm():
            return found[0]
        return self._by_qr(z, g)

    def _forward(self, x: Tensor) -> Tensor:
        stride, padding, dilation = self.geometry
        return F.conv2d(x, self.W, None, stride, padding, dilation)

    def _normal(self, x: Tensor) -> Tensor:
        """A'A of x [k, *shape]."""
        by_gradient = (x.flatten(2) @ self.B.T) @ self.B
        return self.back(self.D.square() * self._forward(x)) + by_gradient.view_as(x)

    def _conjugate_gradients(self, right: Tensor) -> Tensor:
        """A'A x = right, [k, *shape] each, preconditioned by (d I + B'B)^-1 for each channel.

        d is the mean of the diagonal of W' D^2 W, and (d I + B'B)^-1 = (I - B' K B) / d with
        K = (d I + BB')^-1.
        """
        x, r = torch.zeros_like(right), right
        d = conv2d_input((1, *self.shape), self.W**2, self.D[None] ** 2, *self.geometry).mean()
        K = torch.linalg.inv_ex(d * torch.eye(len(self.B)).to(r) + self.B @ self.B.T).inverse
        M = K @ self.B
        p, previous = torch.zeros_like(r), torch.ones_like(_dot(r, r))
        for _ in range(_MOST_STEPS):
            if (_dot(r, r) <= _RESIDUAL**2 * _dot(right, right)).all():
                break
            s = (r - ((r.flatten(2) @ self.B.T) @ M).view_as(r)) / d
            now = _dot(r, s)
            p = s + now / previous * p
            Np = self._normal(p)
            step = now / _dot(p, Np)
            x, r, previous = x + step * p, r - step * Np, now
        return x

    def _by_qr(self, z: Tensor, g: Tensor) -> Tensor:
        n = self.shape.numel()
        basis = torch.eye(n).to(g).view(-1, *self.shape)
        forward, backward = self.D * self._forward(basis), basis.flatten(2) @ self.B.T
        A = torch.cat([forward.flatten(1), backward.flatten(1)], dim=1).T
        Q, R = torch.linalg.qr(A)
        pivots = R.diagonal().abs()
        rank = int((pivots > _RANK * pivots.max()).sum())
        if rank < n:
            raise self._open(rank)
        y = torch.cat([(self.D * z).flatten(), g.flatten()])
        x = torch.linalg.solve_triangular(R, (Q.T @ y)[:, None], upper=True)
        return x.view(self.shape)

    def _open(self, rank: int) -> da.NotObservable:
        return da.NotObservable(
            "DPA056",
            f"the equations of the {self.name} determine at most {rank} of the "
            f"{self.shape.numel()} values of its input",
        )


def _is_plain(layer: nn.Conv2d) -> bool:
    zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return layer.groups == 1 and zeros


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """[k, 1, 1, 1]."""
    return (a * b).sum((1, 2, 3), keepdim=True)


class Signal(NamedTuple):
    """What is known at one place of the network: its value, and the loss's slope in it."""

    value: Tensor
    slope: Tensor  # up to one factor for the whole network, as that of a clipped gradient
    known: Tensor  # weight of each value: 0 where it is not known, 1 where it is as the others


def input_of_linear(front: LeadingLayers) -> Signal:
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
        raise da.NotObservable(
            "DPA056", "the gradient of the first linear layer's bias is 0: no unit answered"
        )
    value = Vh[0, :-1] / Vh[0, -1]
    slope = S[0] * Vh[0, -1] * U[:, 0] @ front.linear.parameters["weight"]
    return Signal(value, slope, torch.ones_like(value))


def image_before(front: LeadingLayers, signal: Signal) -> Tensor:
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


def _before_activation(call: LayerCall, after: Signal) -> Signal:
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
            raise da.NotObservable(
                "DPA055",
                f"the recursion through layers cannot invert {type(layer).__name__}; it needs "
                "Sigmoid, Tanh, LeakyReLU or ReLU behind convolutions, without pooling",
            )
    derivative = derivative.clamp(min=0).nan_to_num(0.0)
    return Signal(z.nan_to_num(0.0, 0.0, 0.0), after.slope * derivative, after.known * derivative)


def _before_weights(call: LayerCall, after: Signal) -> Signal:
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
