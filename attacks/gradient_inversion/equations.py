"""Linear equations of a layer's input, solved by conjugate gradients without their matrix."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from dpaudit.errors import NotObservable

from .trace import Call

_RANK = 1e-10  # of the largest pivot: equations whose pivot is smaller determine nothing
_RESIDUAL = 1e-11  # of the right side: where conjugate gradients end
_MOST_STEPS = 2000
_SURE = 1e-4  # relative error of the input that is known, up to which the other is believed

Pair = tuple[int, ...]
Geometry = tuple[Pair, Pair, Pair]  # stride, padding, dilation


class Equations(NamedTuple):
    """What a layer tells of its input x, a linear layer being a 1x1 convolution of one pixel.

        D W x = D z     its output, each value weighted by D
        B x_c = g_c     the gradient of its weights, for each channel c of x, by one matrix B

    With A all of them together, A'A x = A'y. Each channel of x is [height * width].
    """

    name: str  # of the layer
    shape: torch.Size  # of x, [C, height, width]
    W: Tensor  # [O, C, *kernel]
    D: Tensor  # [O, *output]
    B: Tensor  # [O * kernel, height * width]
    geometry: Geometry

    @classmethod
    def of(cls, call: Call, slope: Tensor, D: Tensor) -> "Equations":
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
            raise NotObservable(
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

    def _open(self, rank: int) -> NotObservable:
        return NotObservable(
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
